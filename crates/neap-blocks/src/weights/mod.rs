//! What the blocks of a type are, in vectors: a lane for each output row, four k in the bytes of a lane.

mod four_bits;
mod scaled;
mod small;
mod super_blocks;

pub(crate) use four_bits::{Iq4Nl, Iq4Xs, Mxfp4};
pub(crate) use scaled::{Q2K, Q3K, Q6K};
pub(crate) use small::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(crate) use super_blocks::{Q4K, Q5K};

use crate::SPAN;
use crate::machine::Machine;

/// Vectors of four k in a span.
pub(crate) const QUADS: usize = SPAN / 4;

/// A span of each lane's output row.
#[derive(Clone, Copy)]
pub(crate) struct Unpacked<M: Machine> {
    /// `quads[i]` has k = 4 i to 4 i + 3 as bytes: unsigned and at most [`Form::MOST`], or as [`Machine::signed`] made them.
    pub(crate) quads: [M::V; QUADS],
    /// Of each group; the second one is not used where there is one.
    pub(crate) scales: [M::F; 2],
    /// Of each group; not used where there are none.
    pub(crate) minima: [M::F; 2],
}

/// What products need to know of a span: several types have the same form.
///
/// A weight is scale · (byte - 2^[`Form::ZERO_BITS`]) + minimum.
pub(crate) trait Form {
    /// Groups of a span: each with a scale.
    const GROUPS: usize;
    const HAS_MINIMA: bool;
    /// The largest byte; the largest magnitude where bytes are signed.
    const MOST: i32;
    /// No zero point where this is 0.
    const ZERO_BITS: u32;
    /// Bytes are signed.
    const SIGNED: bool = Self::MOST == 128;
    /// Floats of a span.
    const FLOATS: usize = Self::GROUPS * (1 + Self::HAS_MINIMA as usize);
}

/// A [`Form`] by its constants.
pub(crate) struct Span<
    const GROUPS: usize,
    const HAS_MINIMA: bool,
    const MOST: i32,
    const ZERO_BITS: u32,
>;

impl<const GROUPS: usize, const HAS_MINIMA: bool, const MOST: i32, const ZERO_BITS: u32> Form
    for Span<GROUPS, HAS_MINIMA, MOST, ZERO_BITS>
{
    const GROUPS: usize = GROUPS;
    const HAS_MINIMA: bool = HAS_MINIMA;
    const MOST: i32 = MOST;
    const ZERO_BITS: u32 = ZERO_BITS;
}

/// A type of blocks.
///
/// All functions are about the blocks of [`Machine::LANES`] rows: one at `at`, each next one `stride` bytes further.
pub(crate) trait Weights {
    type Form: Form;

    const BLOCK_BYTES: usize;
    /// Spans of a block.
    const SPANS: usize;
    /// Spans that share what [`Weights::raw`] loads.
    const CHUNK: usize = 1;

    /// What all spans of a block need.
    type Head<M: Machine>: Copy;
    /// Packed bytes of a chunk.
    type Raw<M: Machine>: Copy;

    /// # Safety
    /// The blocks may be read.
    unsafe fn head<M: Machine>(m: M, at: *const u8, stride: usize) -> Self::Head<M>;
    /// # Safety
    /// The blocks may be read.
    unsafe fn raw<M: Machine>(m: M, at: *const u8, stride: usize, chunk: usize) -> Self::Raw<M>;
    /// Span `span` of the block, in the chunk of `raw`.
    fn span<M: Machine>(m: M, head: &Self::Head<M>, raw: &Self::Raw<M>, span: usize)
    -> Unpacked<M>;
}

/// 32 bytes of each row.
///
/// # Safety
/// They may be read.
#[inline(always)]
unsafe fn bytes_32<M: Machine>(m: M, at: *const u8, stride: usize) -> [M::V; 8] {
    // SAFETY: the caller's promise.
    let [[a, b, c, d], [e, f, g, h]] =
        unsafe { [m.columns(at, stride), m.columns(at.add(16), stride)] };
    [a, b, c, d, e, f, g, h]
}

/// Low nibbles of 16 bytes, then their high ones.
#[inline(always)]
fn nibbles<M: Machine>(m: M, bytes: [M::V; 4]) -> [M::V; QUADS] {
    let mut quads = [m.splat(0); QUADS];
    for i in 0..4 {
        quads[i] = m.and(bytes[i], m.bytes(15));
        quads[i + 4] = m.and(m.shr(bytes[i], 4), m.bytes(15));
    }
    quads
}

/// With scales and, perhaps, minima of the whole span.
#[inline(always)]
fn of_one_group<M: Machine>(quads: [M::V; QUADS], scale: M::F, minimum: M::F) -> Unpacked<M> {
    Unpacked {
        quads,
        scales: [scale; 2],
        minima: [minimum; 2],
    }
}
