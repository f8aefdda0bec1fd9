//! The networks of Stable Diffusion 1 (Rombach et al. 2022, *High-Resolution Image Synthesis with Latent Diffusion Models*) and SDXL
//! (Podell et al. 2023, *SDXL: Improving Latent Diffusion Models for High-Resolution Image Synthesis*): the kinds of nodes and the names
//! of inputs and outputs as `optimum` exports them. Beside them a transformer for the same latents.

mod attention;
mod blocks;
mod family;
mod pixart;
mod text;
mod unet;
mod vae;

pub(crate) use family::{
    Activation, Family, Level, Model, PIXART, PIXART_TINY, PixArt, SD_15, SD_TINY, SDXL, SDXL_TINY,
    Text, Unet, Vae,
};
pub(crate) use pixart::pixart;
pub(crate) use text::text_encoder;
pub(crate) use unet::unet;
pub(crate) use vae::{vae_decoder, vae_encoder};

/// Tokens of a prompt.
pub(crate) const PLACES: usize = 77;
pub(crate) const LATENT_CHANNELS: usize = 4;

/// GroupNorm's, in all of the VAE and in front of layers that look at the text.
const SMALL_EPSILON: f32 = 1e-6;
/// The same in other parts of the UNet.
const EPSILON: f32 = 1e-5;
