//! From latents to a PNG, and from a photo to latents.

use super::denoise::Latents;
use super::network::{Network, Values};
use super::report::Ran;
use super::{Job, Size};
use crate::atomic;
use crate::failure::{Failure, Outcome, bad};
use neap_diffusion::Noise;
use neap_picture::{Filter, Recipe, Refusal, Resize, Target};
use neaptide::{Budget, Bytes, memory};
use std::fs::File;
use std::io;
use std::path::Path;

impl Job<'_> {
    pub fn vae_decoder(&self) -> Outcome<Network> {
        let [height, width] = self.latent_sides();
        let shape = vec![1, self.folder.latent_channels, height, width];
        // The picture as floats, and all as bytes.
        let pixels = 3 * self.size.width * self.size.height;
        let scratch = pixels * (4 + usize::from(self.args.images));
        Network::new(
            "vae_decoder",
            self.folder.network("vae_decoder"),
            scratch as u64,
            |input| (input == "latent_sample").then(|| shape.clone()),
        )
    }

    pub fn vae_encoder(&self) -> Outcome<Network> {
        let shape = vec![1, 3, self.size.height, self.size.width];
        Network::new(
            "vae_encoder",
            self.folder.network("vae_encoder"),
            (shape.iter().product::<usize>() * 4) as u64,
            |input| (input == "sample").then(|| shape.clone()),
        )
    }

    /// Pixels of each picture, 3 bytes each.
    pub fn pictures(&self, all: &[Latents]) -> Outcome<(Vec<Vec<u8>>, Ran)> {
        let mut decoder = self.engine.open(&self.vae_decoder()?)?;
        let mut pictures = Vec::new();
        for latents in all {
            let scaled: Vec<f32> = (latents.values.iter())
                .map(|v| (f64::from(*v) / self.folder.scaling) as f32)
                .collect();
            decoder.run(|_| Some(Values::Floats(&scaled)))?;
            let found = decoder.output(&["sample"])?;
            let pixels = self.size.width * self.size.height;
            if found.len() != 3 * pixels {
                return Err(bad(format!(
                    "{}: its output is no picture of {}x{}",
                    self.folder.network("vae_decoder").display(),
                    self.size.width,
                    self.size.height
                )));
            }
            let byte = |v: f32| ((v / 2.0 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8;
            let of = |at: usize| byte(found[at % 3 * pixels + at / 3]);
            pictures.push((0..3 * pixels).map(of).collect());
        }
        Ok((pictures, decoder.close()))
    }

    /// A photo's latents with noise on them, once for each picture.
    pub fn of_photo(&self, path: &Path) -> Outcome<(Vec<Latents>, Ran)> {
        let photo = self.photo(path)?;
        let mut encoder = self.engine.open(&self.vae_encoder()?)?;
        encoder.run(|_| Some(Values::Floats(&photo)))?;
        let found = encoder.output(&["latent_parameters", "latent_sample"])?;
        let len = self.latent_len();
        let (means, logs) = match found.len() {
            all if all == len => (&found[..], None),
            all if all == 2 * len => (&found[..len], Some(&found[len..])),
            _ => {
                return Err(bad(format!(
                    "{}: its output is no latents for this size",
                    self.folder.network("vae_encoder").display()
                )));
            }
        };
        let all = self.seeds().map(|seed| {
            let mut noise = Noise::new(seed);
            let mut values = means.to_vec();
            // Kingma and Welling 2014, *Auto-Encoding Variational Bayes*, section 2.4: one of the latents that the photo may have.
            if let Some(logs) = logs {
                for ((v, log), n) in values.iter_mut().zip(logs).zip(noise.draw(len)) {
                    let deviation = (0.5 * log.clamp(-30.0, 20.0)).exp();
                    *v += deviation * n;
                }
            }
            for v in &mut values {
                *v = (f64::from(*v) * self.folder.scaling) as f32;
            }
            self.sampler.add_noise(&mut values, &noise.draw(len));
            Latents { values, noise }
        });
        let all = all.collect();
        Ok((all, encoder.close()))
    }

    /// Its numbers from -1 to 1, in the picture's size.
    fn photo(&self, path: &Path) -> Outcome<Vec<f32>> {
        let of = |e: String| bad(format!("--image {}: {e}", path.display()));
        let Size { width, height } = self.size;
        let target = Target::of(&[3, height, width], None).map_err(of)?;
        let recipe = Recipe {
            resize: Resize::Fill,
            filter: Filter::Bicubic,
            mean: vec![0.5],
            std: vec![0.5],
            ..Recipe::default()
        };
        let limit = match self.engine.run.budget {
            Budget::Bytes(bytes) => {
                bytes.saturating_sub(memory::current_bytes(self.engine.own_cgroup))
            }
            _ => neap_picture::MOST_BYTES,
        };
        let found = std::fs::metadata(path).map_err(|e| of(e.to_string()))?;
        if !found.is_file() {
            return Err(of("is not a regular file".into()));
        }
        let file = File::open(path).map_err(|e| of(e.to_string()))?;
        let pixels = neap_picture::prepare(&file, &target, &recipe, limit);
        let pixels = pixels.map_err(|refusal| match refusal {
            Refusal::Bad(why) => of(why),
            Refusal::TooLarge {
                width,
                height,
                bytes,
            } => Failure::Infeasible(format!(
                "--image {}: {width}x{height} pixels take {} to decode, and the budget leaves {}: scale the photo down first",
                path.display(),
                Bytes(bytes),
                Bytes(limit)
            )),
        })?;
        recipe.floats(&pixels, &target).map_err(of)
    }
}

/// As a PNG.
pub fn write(path: &Path, size: Size, pixels: &[u8]) -> Outcome {
    atomic::write(path, |file| {
        let mut encoder = png::Encoder::new(file, size.width as u32, size.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header().map_err(io::Error::other)?;
        writer.write_image_data(pixels).map_err(io::Error::other)?;
        writer.finish().map_err(io::Error::other)
    })
}
