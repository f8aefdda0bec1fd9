//! Products of activations with matrices in GGUF's own blocks, as they lie in the file.
//!
//! ```text
//!   weights   [output row][k / elements of a block][bytes of a block]     rows contiguous, never repacked
//!   x         [row][k] f32  ──►  Activations: [row][k / 32] spans of 15-bit fixed point
//!   y         y[row * ld + output row] = sum over k of x * w
//! ```
//!
//! # Definition
//!
//! Every kernel gives these bits, whatever the instruction set, the number of rows, and how output rows are cut among threads.
//!
//! *Activations.* A span is 32 elements of a row. With m the largest magnitude in it, its unit is u = m / 16256 and an element is
//! q = x * (16256 / m), rounded to the nearest integer, ties to even. So |q| ≤ 16256. It is held as two planes of signed bytes,
//! q = 128 hi + lo with lo in -64..=63 and hi in -127..=127. A span with m < 2^-100 counts as zeros. A span with an element that is no
//! finite number has a unit that is no number, and so has each result of its row.
//!
//! *Weights of few bits.* A weight is a · w + b with an integer w of at most 8 bits. `a`, and `b` where the type has minima, belong to a
//! group of 32 elements (16 in Q2_K, Q3_K, Q6_K) and are exact in `f32`. For a group, s = sum of q · w and t = sum of q are exact
//! integers of 32 bits (|s| ≤ 2^26), each rounded once to `f32`. A span adds to a result's sum, from k = 0 on:
//!
//! ```text
//!   v = s0 * a0                                     rounded once
//!   v = fma(s1, a1, v)                              where a span has two groups
//!   v = fma(t0, b0, v);  v = fma(t1, b1, v)         where there are minima, for each group
//!   sum = fma(v, u, sum)
//! ```
//!
//! *F32, F16, BF16.* 16 sums, of k mod 16, by fma from k = 0 on, in `f32`. Then sum i takes i + 8 in, then i + 4, i + 2, i + 1.
//!
//! Where s · a exceeds `f32`'s range a result is infinite or no number, though the exact one might have been finite: with MXFP4's scales
//! from 2^100 on.
//!
//! # How it is computed
//!
//! As many output rows as a vector has lanes are computed side by side, a lane each. Bytes of their blocks are transposed while they
//! are packed, then unpacked to four k a lane, which is what byte products take ([`machine`]). A type is one small
//! implementation over vectors ([`weights`]). With few rows of activations, blocks are unpacked in registers for all of them; with many, once
//! into scratch.

mod activations;
mod block;
mod floats;
mod isa;
mod machine; // vectors of an instruction set
mod output;
mod product;
mod tile; // sums of a few rows of activations with lanes of output rows
mod weights; // what the blocks of a type are, in vectors

pub use activations::Activations;
pub use block::BlockType;
pub use isa::Isa;
pub use output::Output;
pub use product::{product, scratch_bytes};

/// Elements that share a unit.
pub(crate) const SPAN: usize = 32;

/// What a row of a matrix stands for, with the bits of [`neap_gguf::dequantize`]: embeddings.
///
/// # Panics
/// `bytes` are not the blocks of `out.len()` elements.
pub fn widen_row(ty: BlockType, bytes: &[u8], out: &mut [f32]) {
    neap_gguf::dequantize(ty.kind(), bytes, out).expect("every type of blocks is known there");
}
