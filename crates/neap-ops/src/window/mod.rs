//! Sliding windows: pooling and convolution with weights that are not packed.

pub(crate) mod conv;
pub(crate) mod pool;
mod taps;
mod unfold;
