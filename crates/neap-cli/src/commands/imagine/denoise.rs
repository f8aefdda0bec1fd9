//! From noise to latents of a picture, step by step.

use super::network::{Network, Running, Values};
use super::report::Ran;
use super::steps::Steps;
use super::text::Texts;
use super::{Job, Size};
use crate::failure::{Outcome, bad};
use neap_diffusion::Noise;
use neaptide::DeclaredDim;

/// Latents of one picture, and the noise that goes on from them.
pub struct Latents {
    pub values: Vec<f32>,
    pub noise: Noise,
}

/// Tensors of the size of latents that a step has at once: the methods keep up to four outputs, the network's and sums of them.
const TENSORS: usize = 16;

/// What SDXL's UNet knows of a picture: height and width of the original, of its corner, and of what is wanted.
const SIZES: usize = 6;

impl Job<'_> {
    /// Prompts that a picture is made of.
    fn prompts(&self) -> usize {
        1 + usize::from(self.is_guided())
    }

    /// For so many pictures at once.
    pub fn unet(&self, pictures: usize) -> Outcome<Network> {
        let (batch, places) = (pictures * self.prompts(), self.folder.places);
        let (text_width, pooled_width) = (self.text_width()?, self.pooled_width()?);
        let [height, width] = self.latent_sides();
        let channels = self.folder.latent_channels;
        let (all, is_xl) = (usize::from(self.args.images), self.folder.is_xl);
        let scratch = 4 * self.latent_len() * (TENSORS * pictures + all);
        let shape_of = |input: &str| match input {
            "sample" => Some(vec![batch, channels, height, width]),
            "timestep" => Some(vec![1]),
            "encoder_hidden_states" => Some(vec![batch, places, text_width]),
            "text_embeds" if is_xl => Some(vec![batch, pooled_width]),
            "time_ids" if is_xl => Some(vec![batch, SIZES]),
            _ => None,
        };
        Network::new(
            "unet",
            self.folder.network("unet"),
            scratch as u64,
            shape_of,
        )
    }

    /// Numbers of a token, as far as the UNet declares them; else the text encoders' are taken when they are known.
    fn text_width(&self) -> Outcome<usize> {
        match self.declared("encoder_hidden_states")? {
            Some(width) => Ok(width),
            None => self.folder.text_width(),
        }
    }

    /// The same of a prompt as a whole.
    fn pooled_width(&self) -> Outcome<usize> {
        match self.declared("text_embeds")? {
            Some(width) => Ok(width),
            None => self.folder.pooled_width(),
        }
    }

    /// The last dimension of the UNet's input.
    fn declared(&self, input: &str) -> Outcome<Option<usize>> {
        let path = self.folder.network("unet");
        let signature =
            neaptide::signature(&path).map_err(|e| bad(format!("{}: {e}", path.display())))?;
        let found = signature.inputs.iter().find(|i| i.name == input);
        Ok(match found.and_then(|input| input.dims.as_ref()?.last()) {
            Some(DeclaredDim::Fixed(width)) => Some(*width),
            _ => None,
        })
    }

    /// What pictures begin with.
    pub fn noise(&self) -> Vec<Latents> {
        let scale = self.sampler.initial_scale() as f32;
        let all = self.seeds().map(|seed| {
            let mut noise = Noise::new(seed);
            let mut values = noise.draw(self.latent_len());
            values.iter_mut().for_each(|v| *v *= scale);
            Latents { values, noise }
        });
        all.collect()
    }

    /// Takes all steps, for as many pictures together as fit. Each step reads the weights once for them.
    pub fn denoise(
        &self,
        texts: &Texts,
        pictures: &mut [Latents],
        at_once: usize,
        quiet: bool,
    ) -> Outcome<Vec<Ran>> {
        let groups = pictures.len().div_ceil(at_once);
        let steps = self.sampler.timesteps().len();
        let mut shown = Steps::new((steps * groups) as u64, quiet);
        let mut ran = Vec::new();
        let mut open: Option<(usize, Running)> = None;
        for group in evenly(pictures, groups) {
            let unet = match open.take() {
                Some((size, unet)) if size == group.len() => unet,
                other => {
                    ran.extend(other.map(|(_, unet)| unet.close()));
                    self.engine.open(&self.unet(group.len())?)?
                }
            };
            let (size, unet) = open.insert((group.len(), unet));
            let inputs = self.inputs(texts, *size);
            self.together(unet, &inputs, group, &mut shown)?;
        }
        ran.extend(open.map(|(_, unet)| unet.close()));
        Ok(ran)
    }

    /// What the UNet sees of prompts and sizes in each step: all pictures without the prompt, then all with it.
    fn inputs(&self, texts: &Texts, pictures: usize) -> Inputs {
        let of_each = |values: &[f32]| -> Vec<f32> {
            let parts = values.chunks_exact((values.len() / self.prompts()).max(1));
            parts.flat_map(|part| part.repeat(pictures)).collect()
        };
        // Of the original, its corner, and of what is wanted: height before width.
        let Size { width, height } = self.size;
        let sizes = [height, width, 0, 0, height, width].map(|size| size as f32);
        Inputs {
            rows: of_each(&texts.rows),
            pooled: of_each(&texts.pooled),
            sizes: sizes.repeat(pictures * self.prompts()),
        }
    }

    fn together(
        &self,
        unet: &mut Running,
        inputs: &Inputs,
        pictures: &mut [Latents],
        shown: &mut Steps,
    ) -> Outcome {
        let len = self.latent_len();
        let mut samplers = vec![self.sampler.clone(); pictures.len()];
        let mut seen = vec![0.0; self.prompts() * pictures.len() * len];
        for timestep in self.sampler.timesteps() {
            // Both prompts see the same latents, in one pass over the weights.
            for half in seen.chunks_exact_mut(pictures.len() * len) {
                let states = samplers.iter().zip(pictures.iter());
                for ((sampler, latents), input) in states.zip(half.chunks_exact_mut(len)) {
                    sampler.input(&latents.values, input);
                }
            }
            unet.run(|name| match name {
                "sample" => Some(Values::Floats(&seen)),
                "timestep" => Some(Values::Number(*timestep)),
                "text_embeds" => Some(Values::Floats(&inputs.pooled)),
                "time_ids" => Some(Values::Floats(&inputs.sizes)),
                _ => Some(Values::Floats(&inputs.rows)),
            })?;
            let mut output = unet.output(&["out_sample"])?;
            if output.len() != seen.len() {
                return Err(bad(format!(
                    "{}: its output has another size than its input",
                    self.folder.network("unet").display()
                )));
            }
            if self.is_guided() {
                guide(&mut output, self.guidance);
            }
            let states = samplers.iter_mut().zip(pictures.iter_mut());
            for ((sampler, latents), output) in states.zip(output.chunks_exact(len)) {
                sampler.step(output, &mut latents.values, &mut latents.noise);
            }
            shown.step();
        }
        Ok(())
    }
}

/// What does not change from step to step.
struct Inputs {
    rows: Vec<f32>,
    pooled: Vec<f32>,
    sizes: Vec<f32>,
}

/// Groups whose sizes differ by one at most, the larger ones first.
fn evenly<T>(mut all: &mut [T], groups: usize) -> impl Iterator<Item = &mut [T]> {
    (0..groups).rev().map(move |left| {
        let size = all.len().div_ceil(left + 1);
        let (group, rest) = std::mem::take(&mut all).split_at_mut(size);
        all = rest;
        group
    })
}

/// Ho and Salimans 2022, *Classifier-Free Diffusion Guidance*, equation 6: away from what was found for the first prompt. Leaves the sum.
fn guide(output: &mut Vec<f32>, guidance: f64) {
    let half = output.len() / 2;
    let (without, with) = output.split_at_mut(half);
    for (without, with) in without.iter_mut().zip(with) {
        let apart = f64::from(*with) - f64::from(*without);
        *without = (f64::from(*without) + guidance * apart) as f32;
    }
    output.truncate(half);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_even() {
        let sizes = |all: usize, groups| -> Vec<usize> {
            let mut all = vec![(); all];
            evenly(&mut all, groups).map(|group| group.len()).collect()
        };
        assert_eq!(sizes(5, 2), [3, 2]);
        assert_eq!(sizes(6, 2), [3, 3]);
        assert_eq!(sizes(7, 3), [3, 2, 2]);
        assert_eq!(sizes(1, 1), [1]);
    }
}
