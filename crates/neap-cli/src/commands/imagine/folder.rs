//! What is in the folder beside the networks.

use super::Size;
use crate::failure::{Outcome, bad};
use neap_diffusion::{Clip, Settings};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// What a picture's latents are multiplied by, where nothing says it: Stable Diffusion 1.
const USUAL_SCALING: f64 = 0.18215;
/// Longest file that is read whole; vocabularies have about a megabyte.
const MOST_BYTES: u64 = 32 << 20;
const PLACES: usize = 77;
const USUAL_WIDTH: usize = 768;

/// A folder with all that is needed.
pub struct Folder {
    path: PathBuf,
    pub scaling: f64,
    /// Pixels along a side of one latent.
    pub scale: usize,
    pub latent_channels: usize,
    /// Sides of pictures that are multiples of it are halved evenly by all networks.
    pub even: usize,
    sample_size: usize,
    /// Tokens of a prompt.
    pub places: usize,
    pad: Option<String>,
}

#[derive(Deserialize, Default)]
struct Vae {
    scaling_factor: Option<f64>,
    shift_factor: Option<f64>,
    block_out_channels: Option<Vec<usize>>,
    latent_channels: Option<usize>,
}

#[derive(Deserialize, Default)]
struct Unet {
    in_channels: Option<usize>,
    block_out_channels: Option<Vec<usize>>,
    sample_size: Option<usize>,
}

#[derive(Deserialize, Default)]
struct TextEncoder {
    hidden_size: Option<usize>,
}

#[derive(Deserialize, Default)]
struct Tokenizer {
    model_max_length: Option<f64>,
    pad_token: Option<Value>,
}

impl Folder {
    pub fn open(path: &Path, needs_encoder: bool) -> Outcome<Folder> {
        if !path.is_dir() {
            return Err(bad(format!("{} is no folder", path.display())));
        }
        let mut folder = Folder {
            path: path.into(),
            scaling: USUAL_SCALING,
            scale: 8,
            latent_channels: 4,
            even: 64,
            sample_size: 64,
            places: PLACES,
            pad: None,
        };
        let encoder = needs_encoder.then_some("vae_encoder");
        for name in ["text_encoder", "unet", "vae_decoder"]
            .into_iter()
            .chain(encoder)
        {
            let network = folder.network(name);
            if !network.is_file() {
                return Err(bad(format!(
                    "{} is missing: the folder is not what optimum exports",
                    network.display()
                )));
            }
        }
        let vae: Vae = folder.json("vae_decoder/config.json")?.unwrap_or_default();
        let unet: Unet = folder.json("unet/config.json")?.unwrap_or_default();
        let tokenizer: Tokenizer = folder
            .json("tokenizer/tokenizer_config.json")?
            .unwrap_or_default();
        folder.scaling = vae.scaling_factor.unwrap_or(USUAL_SCALING);
        folder.scale = halved(vae.block_out_channels);
        folder.even = folder.scale * halved(unet.block_out_channels);
        folder.latent_channels = vae.latent_channels.unwrap_or(folder.latent_channels);
        folder.sample_size = unet.sample_size.unwrap_or(folder.sample_size);
        let channels = unet.in_channels.unwrap_or(folder.latent_channels);
        let is_usual = channels == folder.latent_channels
            && vae.shift_factor.unwrap_or(0.0) == 0.0
            && (1..=64).contains(&channels)
            && folder.scaling.is_normal();
        if !is_usual {
            return Err(bad(format!(
                "{}: its settings are not those of Stable Diffusion 1",
                path.display()
            )));
        }
        let places = tokenizer.model_max_length.unwrap_or(PLACES as f64);
        // Tokenizers without a limit say so by a very large number.
        if (2.0..=1024.0).contains(&places) {
            folder.places = places as usize;
        }
        // A text, or an object with it.
        folder.pad = tokenizer.pad_token.and_then(|pad| {
            let text = pad.get("content").unwrap_or(&pad).as_str();
            text.map(str::to_string)
        });
        Ok(folder)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn network(&self, name: &str) -> PathBuf {
        self.path.join(name).join("model.onnx")
    }

    pub fn scheduler_path(&self) -> PathBuf {
        self.path.join("scheduler/scheduler_config.json")
    }

    pub fn scheduler(&self) -> Outcome<Settings> {
        let path = self.scheduler_path();
        let read = Settings::read(&text(&path)?);
        read.map_err(|e| bad(format!("{}: {e}", path.display())))
    }

    pub fn tokenizer(&self) -> Outcome<Clip> {
        let folder = self.path.join("tokenizer");
        let vocabulary = text(&folder.join("vocab.json"))?;
        let merges = text(&folder.join("merges.txt"))?;
        let read = Clip::new(&vocabulary, &merges, self.pad.as_deref());
        read.map_err(|e| bad(format!("{}: {e}", folder.display())))
    }

    /// Numbers that the text encoder gives for a token, by its settings.
    pub fn text_width(&self) -> Outcome<usize> {
        let encoder: TextEncoder = self.json("text_encoder/config.json")?.unwrap_or_default();
        Ok(encoder.hidden_size.unwrap_or(USUAL_WIDTH))
    }

    /// What the model was trained with.
    pub fn usual_size(&self) -> Outcome<Size> {
        let side = self.sample_size.saturating_mul(self.scale);
        let size: Result<Size, String> = format!("{side}x{side}").parse();
        size.map_err(|e| bad(format!("{}: sample_size: {e}", self.path.display())))
    }

    /// A file that may be missing.
    fn json<T: DeserializeOwned>(&self, name: &str) -> Outcome<Option<T>> {
        let path = self.path.join(name);
        if matches!(std::fs::metadata(&path), Err(e) if e.kind() == ErrorKind::NotFound) {
            return Ok(None);
        }
        let read = serde_json::from_str(&text(&path)?);
        read.map(Some)
            .map_err(|e| bad(format!("{}: {e}", path.display())))
    }
}

/// By how much a network with these levels makes a side shorter.
fn halved(levels: Option<Vec<usize>>) -> usize {
    let halvings = levels.map_or(3, |levels| levels.len().saturating_sub(1));
    1 << halvings.min(8)
}

fn text(path: &Path) -> Outcome<String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(text),
        Err(e) => Err(bad(format!("cannot read {}: {e}", path.display()))),
    }
}
