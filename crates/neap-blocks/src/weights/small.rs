//! Blocks of 32: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1.

use super::{QUADS, Span, Unpacked, Weights, bytes_32, nibbles, of_one_group};
use crate::machine::Machine;

/// `[scale f16][i8; 32]`
pub(crate) struct Q8_0;

impl Weights for Q8_0 {
    type Form = Span<1, false, 128, 0>;

    const BLOCK_BYTES: usize = 34;
    const SPANS: usize = 1;

    type Head<M: Machine> = M::F;
    type Raw<M: Machine> = [M::V; 8];

    #[inline(always)]
    unsafe fn head<M: Machine>(m: M, at: *const u8, stride: usize) -> M::F {
        // SAFETY: the caller's promise.
        m.half(unsafe { m.column(at, stride) })
    }

    #[inline(always)]
    unsafe fn raw<M: Machine>(m: M, at: *const u8, stride: usize, _: usize) -> [M::V; 8] {
        // SAFETY: the caller's promise.
        unsafe { bytes_32(m, at.add(2), stride) }
    }

    #[inline(always)]
    fn span<M: Machine>(m: M, scale: &M::F, raw: &[M::V; 8], _: usize) -> Unpacked<M> {
        let mut quads = *raw;
        for quad in &mut quads {
            *quad = m.signed(*quad);
        }
        of_one_group(quads, *scale, *scale)
    }
}

/// `[scale f16][two nibbles; 16]`, less 8.
pub(crate) struct Q4_0;

impl Weights for Q4_0 {
    type Form = Span<1, false, 15, 3>;

    const BLOCK_BYTES: usize = 18;
    const SPANS: usize = 1;

    type Head<M: Machine> = M::F;
    type Raw<M: Machine> = [M::V; 4];

    #[inline(always)]
    unsafe fn head<M: Machine>(m: M, at: *const u8, stride: usize) -> M::F {
        // SAFETY: the caller's promise.
        m.half(unsafe { m.column(at, stride) })
    }

    #[inline(always)]
    unsafe fn raw<M: Machine>(m: M, at: *const u8, stride: usize, _: usize) -> [M::V; 4] {
        // SAFETY: the caller's promise.
        unsafe { m.columns(at.add(2), stride) }
    }

    #[inline(always)]
    fn span<M: Machine>(m: M, scale: &M::F, raw: &[M::V; 4], _: usize) -> Unpacked<M> {
        of_one_group(nibbles(m, *raw), *scale, *scale)
    }
}

/// Scale and minimum of two neighbouring half-precision floats.
#[inline(always)]
fn scale_and_minimum<M: Machine>(m: M, both: M::V) -> [M::F; 2] {
    [m.half(both), m.half(m.shr(both, 16))]
}

/// `[scale f16][minimum f16][two nibbles; 16]`
pub(crate) struct Q4_1;

impl Weights for Q4_1 {
    type Form = Span<1, true, 15, 0>;

    const BLOCK_BYTES: usize = 20;
    const SPANS: usize = 1;

    type Head<M: Machine> = [M::F; 2];
    type Raw<M: Machine> = [M::V; 4];

    #[inline(always)]
    unsafe fn head<M: Machine>(m: M, at: *const u8, stride: usize) -> [M::F; 2] {
        // SAFETY: the caller's promise.
        scale_and_minimum(m, unsafe { m.column(at, stride) })
    }

    #[inline(always)]
    unsafe fn raw<M: Machine>(m: M, at: *const u8, stride: usize, _: usize) -> [M::V; 4] {
        // SAFETY: the caller's promise.
        unsafe { m.columns(at.add(4), stride) }
    }

    #[inline(always)]
    fn span<M: Machine>(m: M, head: &[M::F; 2], raw: &[M::V; 4], _: usize) -> Unpacked<M> {
        of_one_group(nibbles(m, *raw), head[0], head[1])
    }
}

/// Nibbles with a fifth bit each, from 32 bits of each lane.
#[inline(always)]
fn five_bits<M: Machine>(m: M, fifth: M::V, bytes: [M::V; 4]) -> [M::V; QUADS] {
    let mut quads = nibbles(m, bytes);
    for (i, quad) in quads.iter_mut().enumerate() {
        *quad = m.or(*quad, m.bits_as_16(fifth, i));
    }
    quads
}

/// `[scale f16][fifth bits u32][two nibbles; 16]`, less 16.
pub(crate) struct Q5_0;

impl Weights for Q5_0 {
    type Form = Span<1, false, 31, 4>;

    const BLOCK_BYTES: usize = 22;
    const SPANS: usize = 1;

    type Head<M: Machine> = (M::F, M::V);
    type Raw<M: Machine> = [M::V; 4];

    #[inline(always)]
    unsafe fn head<M: Machine>(m: M, at: *const u8, stride: usize) -> (M::F, M::V) {
        // SAFETY: the caller's promise.
        let [first, second, ..] = unsafe { m.columns(at, stride) };
        let fifth = m.or(m.shr(first, 16), m.shl(second, 16));
        (m.half(first), fifth)
    }

    #[inline(always)]
    unsafe fn raw<M: Machine>(m: M, at: *const u8, stride: usize, _: usize) -> [M::V; 4] {
        // SAFETY: the caller's promise.
        unsafe { m.columns(at.add(6), stride) }
    }

    #[inline(always)]
    fn span<M: Machine>(m: M, head: &(M::F, M::V), raw: &[M::V; 4], _: usize) -> Unpacked<M> {
        of_one_group(five_bits(m, head.1, *raw), head.0, head.0)
    }
}

/// `[scale f16][minimum f16][fifth bits u32][two nibbles; 16]`
pub(crate) struct Q5_1;

impl Weights for Q5_1 {
    type Form = Span<1, true, 31, 0>;

    const BLOCK_BYTES: usize = 24;
    const SPANS: usize = 1;

    type Head<M: Machine> = ([M::F; 2], M::V);
    type Raw<M: Machine> = [M::V; 4];

    #[inline(always)]
    unsafe fn head<M: Machine>(m: M, at: *const u8, stride: usize) -> ([M::F; 2], M::V) {
        // SAFETY: the caller's promise.
        let [both, fifth, ..] = unsafe { m.columns(at, stride) };
        (scale_and_minimum(m, both), fifth)
    }

    #[inline(always)]
    unsafe fn raw<M: Machine>(m: M, at: *const u8, stride: usize, _: usize) -> [M::V; 4] {
        // SAFETY: the caller's promise.
        unsafe { m.columns(at.add(8), stride) }
    }

    #[inline(always)]
    fn span<M: Machine>(
        m: M,
        (floats, fifth): &([M::F; 2], M::V),
        raw: &[M::V; 4],
        _: usize,
    ) -> Unpacked<M> {
        of_one_group(five_bits(m, *fifth, *raw), floats[0], floats[1])
    }
}
