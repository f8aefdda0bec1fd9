//! Discrete Fourier transforms. Complex numbers are the last axis: two elements, or one for real numbers.

use serde::{Deserialize, Serialize};

/// x → its transform along `axis`, which is cut or continued with zeros to `length` first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dft {
    pub axis: usize,
    pub length: usize,
    pub inverse: bool,
    /// The first half of the result only, of real numbers.
    pub onesided: bool,
}

/// x `[N,length,1 or 2]`, optional window `[frame]` → `[N,frames,frequencies,2]`: the transform of each frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stft {
    pub frame: usize,
    pub step: usize,
    pub onesided: bool,
}

/// Frequencies of real numbers that are not the conjugates of others.
pub fn onesided_length(length: usize) -> usize {
    length / 2 + 1
}
