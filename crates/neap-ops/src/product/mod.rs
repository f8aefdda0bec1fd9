//! Sums of products: matrix multiplication and Einsum.

pub(crate) mod contraction;
pub(crate) mod det;
pub(crate) mod einsum;
pub(crate) mod inverse;
pub(crate) mod matmul;
pub(crate) mod packed;
