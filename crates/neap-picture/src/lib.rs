//! Pictures as inputs of models, prepared the same way wherever a model meets them: while it is trained, when it runs,
//! and when it is served.
//!
//! ```text
//! file ─ head: size, what decoding takes ─ decode, within a limit ─ resample: a Recipe's size ─ fill: a Recipe's numbers
//! ```
//! A [`Recipe`] says how; a model carries it in its metadata ([`Recipe::KEY`]), beside the names of its classes.

#![forbid(unsafe_code)]

mod classes;
mod decode;
mod fit;
mod head;
mod orientation;
mod recipe;
mod resample;
mod target;

pub use classes::{CLASSES_KEY, KEYS_OF_CLASSES, classes_text, names_of_classes};
pub use decode::{Refusal, decode};
pub use head::{ENDINGS, Format, Head, is_picture};
pub use recipe::{ChannelOrder, Filter, Layout, OF_BYTES, Recipe, Resize};
pub use resample::Pixels;
pub use target::Target;

use std::fs::File;

/// What is taken without a budget: small files can claim to hold very large pictures.
pub const MOST_BYTES: u64 = 1 << 30;

/// Reads the picture in `file`, in the size that `target` wants; [`Recipe::floats`] and [`Recipe::bytes`] make numbers of it.
///
/// # Errors
/// It cannot be decoded within `limit_bytes`, or the recipe does not fit.
pub fn prepare(
    file: &File,
    target: &Target,
    recipe: &Recipe,
    limit_bytes: u64,
) -> Result<Pixels, Refusal> {
    let pixels = decode(file, target, limit_bytes)?;
    recipe.fit(&pixels, target).map_err(Refusal::Bad)
}
