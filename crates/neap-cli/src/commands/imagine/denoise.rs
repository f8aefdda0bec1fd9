//! From noise to latents of a picture, step by step.

use super::Job;
use super::network::{Network, Values};
use super::report::Ran;
use super::steps::Steps;
use super::text::Texts;
use crate::failure::{Outcome, bad};
use neap_diffusion::Noise;

/// Latents of one picture, and the noise that goes on from them.
pub struct Latents {
    pub values: Vec<f32>,
    pub noise: Noise,
}

/// Tensors of the size of latents that a step has at once: the methods keep up to four outputs, the network's and sums of them.
const TENSORS: usize = 16;

impl Job<'_> {
    /// How many latents the network sees at once.
    fn batch(&self) -> usize {
        1 + usize::from(self.is_guided())
    }

    pub fn unet(&self, text_width: usize) -> Outcome<Network> {
        let (batch, places) = (self.batch(), self.folder.places);
        let [height, width] = self.latent_sides();
        let channels = self.folder.latent_channels;
        let scratch = TENSORS * 4 * self.latent_len();
        Network::new(
            "unet",
            self.folder.network("unet"),
            scratch as u64,
            |input| match input {
                "sample" => Some(vec![batch, channels, height, width]),
                "timestep" => Some(vec![1]),
                "encoder_hidden_states" => Some(vec![batch, places, text_width]),
                _ => None,
            },
        )
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

    /// Takes all steps, for one picture after the other.
    pub fn denoise(
        &mut self,
        texts: &Texts,
        pictures: &mut [Latents],
        quiet: bool,
    ) -> Outcome<Ran> {
        let mut unet = self.engine.open(&self.unet(texts.width)?)?;
        let (batch, guidance) = (self.batch(), self.args.guidance);
        let timesteps = self.sampler.timesteps().to_vec();
        let mut shown = Steps::new((timesteps.len() * pictures.len()) as u64, quiet);
        let mut input = vec![0.0; batch * self.latent_len()];
        for latents in pictures {
            self.sampler.begin();
            for timestep in &timesteps {
                // Both prompts see the same latents, in one pass over the weights.
                for half in input.chunks_exact_mut(latents.values.len()) {
                    self.sampler.input(&latents.values, half);
                }
                let mut output = unet.run(
                    |name| match name {
                        "sample" => Some(Values::Floats(&input)),
                        "timestep" => Some(Values::Number(*timestep)),
                        _ => Some(Values::Floats(&texts.values)),
                    },
                    &["out_sample"],
                )?;
                if output.len() != input.len() {
                    return Err(bad(format!(
                        "{}: its output has another size than its input",
                        self.folder.network("unet").display()
                    )));
                }
                if batch == 2 {
                    guide(&mut output, guidance);
                }
                let Latents { values, noise } = latents;
                self.sampler.step(&output, values, noise);
                shown.step();
            }
        }
        Ok(unet.close())
    }
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
