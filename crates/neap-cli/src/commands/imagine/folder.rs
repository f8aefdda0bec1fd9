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

/// What a picture's latents are multiplied by, where nothing says it.
const USUAL_SCALING: f64 = 0.18215;
const USUAL_XL_SCALING: f64 = 0.13025;
/// Longest file that is read whole; vocabularies have about a megabyte.
const MOST_BYTES: u64 = 32 << 20;
const PLACES: usize = 77;

/// A text encoder, and what is usual where nothing says it.
pub struct Encoder {
    pub network: &'static str,
    tokenizer: &'static str,
    usual_width: usize,
    usual_pad: Option<&'static str>,
}

const ENCODERS: [Encoder; 2] = [
    Encoder {
        network: "text_encoder",
        tokenizer: "tokenizer",
        usual_width: 768,
        usual_pad: None,
    },
    Encoder {
        network: "text_encoder_2",
        tokenizer: "tokenizer_2",
        usual_width: 1280,
        usual_pad: Some("!"),
    },
];

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
    /// It is of SDXL's kind: with a second text encoder, and a UNet that knows the picture's size.
    pub is_xl: bool,
    /// An empty prompt is zeros instead of what the text encoders make of it.
    pub zeros_if_empty: bool,
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
    addition_embed_type: Option<String>,
}

#[derive(Deserialize, Default)]
struct TextEncoder {
    hidden_size: Option<usize>,
    projection_dim: Option<usize>,
}

/// `model_index.json`.
#[derive(Deserialize, Default)]
struct Index {
    #[serde(rename = "_class_name")]
    class: Option<String>,
    force_zeros_for_empty_prompt: Option<bool>,
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
            is_xl: false,
            zeros_if_empty: false,
        };
        let vae: Vae = folder.json("vae_decoder/config.json")?.unwrap_or_default();
        let unet: Unet = folder.json("unet/config.json")?.unwrap_or_default();
        let index: Index = folder.json("model_index.json")?.unwrap_or_default();
        folder.is_xl = folder.network("text_encoder_2").is_file()
            || unet.addition_embed_type.as_deref() == Some("text_time")
            || index
                .class
                .is_some_and(|class| class.contains("DiffusionXL"));
        let zeros = index.force_zeros_for_empty_prompt.unwrap_or(true);
        folder.zeros_if_empty = folder.is_xl && zeros;
        folder.find_networks(needs_encoder)?;
        let usual_scaling = match folder.is_xl {
            true => USUAL_XL_SCALING,
            false => USUAL_SCALING,
        };
        folder.scaling = vae.scaling_factor.unwrap_or(usual_scaling);
        folder.scale = halved(vae.block_out_channels);
        folder.even = folder.scale * halved(unet.block_out_channels);
        folder.latent_channels = vae.latent_channels.unwrap_or(folder.latent_channels);
        let usual_sample_size = if folder.is_xl { 128 } else { 64 };
        folder.sample_size = unet.sample_size.unwrap_or(usual_sample_size);
        let channels = unet.in_channels.unwrap_or(folder.latent_channels);
        let is_usual = channels == folder.latent_channels
            && vae.shift_factor.unwrap_or(0.0) == 0.0
            && (1..=64).contains(&channels)
            && folder.scaling.is_normal();
        if !is_usual {
            return Err(bad(format!(
                "{}: its settings are not those of Stable Diffusion 1 or SDXL",
                path.display()
            )));
        }
        let tokenizer = folder.tokenizer_settings(&ENCODERS[0])?;
        let places = tokenizer.model_max_length.unwrap_or(PLACES as f64);
        // Tokenizers without a limit say so by a very large number.
        if (2.0..=1024.0).contains(&places) {
            folder.places = places as usize;
        }
        Ok(folder)
    }

    /// Whether all that a picture needs is there.
    fn find_networks(&self, needs_encoder: bool) -> Outcome {
        let encoder = needs_encoder.then_some("vae_encoder");
        let texts = self.encoders().iter().map(|encoder| encoder.network);
        for name in texts.chain(["unet", "vae_decoder"]).chain(encoder) {
            let network = self.network(name);
            if !network.is_file() {
                let kind = if self.is_xl { " for SDXL" } else { "" };
                return Err(bad(format!(
                    "{} is missing: the folder is not what optimum exports{kind}",
                    network.display()
                )));
            }
        }
        Ok(())
    }

    /// In the order in which what they give for a token lies side by side.
    pub fn encoders(&self) -> &'static [Encoder] {
        match self.is_xl {
            true => &ENCODERS,
            false => &ENCODERS[..1],
        }
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

    pub fn tokenizer(&self, encoder: &Encoder) -> Outcome<Clip> {
        let folder = self.path.join(encoder.tokenizer);
        let vocabulary = text(&folder.join("vocab.json"))?;
        let merges = text(&folder.join("merges.txt"))?;
        // A text, or an object with it.
        let pad = self.tokenizer_settings(encoder)?.pad_token;
        let pad = pad.as_ref().map(|pad| pad.get("content").unwrap_or(pad));
        let pad = pad.and_then(Value::as_str).or(encoder.usual_pad);
        let read = Clip::new(&vocabulary, &merges, pad);
        read.map_err(|e| bad(format!("{}: {e}", folder.display())))
    }

    fn tokenizer_settings(&self, encoder: &Encoder) -> Outcome<Tokenizer> {
        let name = format!("{}/tokenizer_config.json", encoder.tokenizer);
        Ok(self.json(&name)?.unwrap_or_default())
    }

    /// Numbers that the text encoders give for a token, by their settings.
    pub fn text_width(&self) -> Outcome<usize> {
        let widths = self.encoders().iter().map(|encoder| {
            let settings = self.encoder_settings(encoder)?;
            Ok(settings.hidden_size.unwrap_or(encoder.usual_width))
        });
        widths.sum()
    }

    /// Numbers that the last text encoder gives for a whole prompt, by its settings.
    pub fn pooled_width(&self) -> Outcome<usize> {
        let encoder = &self.encoders()[self.encoders().len() - 1];
        let settings = self.encoder_settings(encoder)?;
        Ok(settings.projection_dim.unwrap_or(encoder.usual_width))
    }

    fn encoder_settings(&self, encoder: &Encoder) -> Outcome<TextEncoder> {
        let name = format!("{}/config.json", encoder.network);
        Ok(self.json(&name)?.unwrap_or_default())
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
