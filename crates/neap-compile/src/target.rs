//! The machine that a model is compiled for.

use neap_kernels::simd::Isa;

/// The machine that computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    pub threads: usize,
    pub isa: Isa,
}
