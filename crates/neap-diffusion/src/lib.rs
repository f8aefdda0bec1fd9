//! What diffusion models need around their networks: tokens of a prompt, noise, and the steps from noise to a latent picture.
//!
//! ```text
//!   text ─► ids (Clip) ─► [text encoder]
//!   seed ─► noise (Noise) ─► step: Sampler::input ─► [UNet] ─► Sampler::step ─► … ─► latents ─► [VAE decoder]
//! ```
//! The networks are somebody else's. Names and defaults of settings are those of `diffusers`, whose files are read; the formulae
//! are the papers', named where they are used.
#![forbid(unsafe_code)]

mod clip;
mod noise;
mod sampler;
mod settings;
mod spacing;
mod twister;

pub use clip::{Clip, Encoded};
pub use noise::Noise;
pub use sampler::Sampler;
pub use settings::{Kind, Settings};

/// Why something that was given cannot be used; one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl Error {
    fn new(text: impl Into<String>) -> Error {
        Error(text.into())
    }
}

/// What reading settings and vocabularies gives.
pub type Result<T> = std::result::Result<T, Error>;
