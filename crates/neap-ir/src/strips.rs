//! Operators on strips: ranges of rows of images that are never whole in memory.

use crate::attributes::{AttentionAttrs, ResizeAttrs};
use serde::{Deserialize, Serialize};

/// Of strips that follow one another along `axis`: `len` rows, from row `start` of the first strip on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    pub axis: usize,
    pub start: usize,
    pub len: usize,
}

/// A normalisation over space: of `groups` groups of channels, each over its channels and `positions` places.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SpaceNorm {
    pub groups: usize,
    pub positions: usize,
    pub epsilon: f32,
}

/// A pooling of all places of each channel, whose images come in strips.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacePool {
    pub fold: PlaceFold,
    /// Of the whole image.
    pub positions: usize,
    /// Of the result: images, channels, and a 1 for each axis of space.
    pub shape: Vec<usize>,
}

/// What is kept of the places of a channel so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlaceFold {
    Sum,
    Largest,
}

/// An attention over a strip of its keys and values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeyStrip {
    pub attrs: AttentionAttrs,
    /// Keys of the whole, and how many lie before those of the strip.
    pub total: usize,
    pub start: usize,
}

/// Rows of the result of a resize, from the rows of its input that they are made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResizeStrip {
    /// Of the whole.
    pub attrs: ResizeAttrs,
    pub axis: usize,
    /// Rows of the whole input, and the one that the strip's input begins with.
    pub input_rows: usize,
    pub input_start: usize,
    /// First row that is made, and how many are.
    pub start: usize,
    pub len: usize,
}
