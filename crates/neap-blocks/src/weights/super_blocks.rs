//! Blocks of 256 with scales and minima of 32: Q4_K, Q5_K.

use super::{QUADS, Span, Unpacked, Weights, bytes_32, of_one_group};
use crate::machine::Machine;

/// Scales and minima of the spans of a block, of 6 bits, four bytes a lane.
#[derive(Clone, Copy)]
pub(crate) struct Scales<M: Machine> {
    scale: M::F,
    /// Below zero.
    minimum: M::F,
    scales: [M::V; 2],
    minima: [M::V; 2],
}

impl<M: Machine> Scales<M> {
    /// Of `[scale f16][minimum f16][12 bytes]`: six bits of four scales, of four minima; then nibbles of four scales and minima, whose high
    /// bits are those of the first eight bytes.
    ///
    /// # Safety
    /// The blocks may be read.
    #[inline(always)]
    unsafe fn load(m: M, at: *const u8, stride: usize) -> Self {
        // SAFETY: the caller's promise.
        let [floats, a, b, c] = unsafe { m.columns(at, stride) };
        let six = |v| m.and(v, m.bytes(63));
        let high = |v| m.and(m.shr(v, 2), m.bytes(48));
        let low = |v| m.and(v, m.bytes(15));
        let minimum = m.half(m.shr(floats, 16));
        Scales {
            scale: m.half(floats),
            minimum: m.mul(minimum, m.splat_float(-1.0)),
            scales: [six(a), m.or(low(c), high(a))],
            minima: [six(b), m.or(low(m.shr(c, 4)), high(b))],
        }
    }

    /// Scale and minimum of a span.
    #[inline(always)]
    fn of(&self, m: M, span: usize) -> [M::F; 2] {
        let byte = |four: &[M::V; 2]| m.number(m.byte(four[span / 4], span as u32 % 4));
        [
            m.mul(self.scale, byte(&self.scales)),
            m.mul(self.minimum, byte(&self.minima)),
        ]
    }
}

/// The low nibbles of 32 bytes for an even span, the high ones for an odd one.
#[inline(always)]
fn nibbles_of<M: Machine>(m: M, raw: &[M::V; 8], span: usize) -> [M::V; QUADS] {
    let mut quads = *raw;
    for quad in &mut quads {
        *quad = m.and(m.shr(*quad, 4 * (span as u32 % 2)), m.bytes(15));
    }
    quads
}

/// `[scales: 16][two nibbles; 32] * 4`, for two spans each
pub(crate) struct Q4K;

impl Weights for Q4K {
    type Form = Span<1, true, 15, 0>;

    const BLOCK_BYTES: usize = 144;
    const SPANS: usize = 8;
    const CHUNK: usize = 2;

    type Head<M: Machine> = Scales<M>;
    type Raw<M: Machine> = [M::V; 8];

    #[inline(always)]
    unsafe fn head<M: Machine>(m: M, at: *const u8, stride: usize) -> Scales<M> {
        // SAFETY: the caller's promise.
        unsafe { Scales::load(m, at, stride) }
    }

    #[inline(always)]
    unsafe fn raw<M: Machine>(m: M, at: *const u8, stride: usize, chunk: usize) -> [M::V; 8] {
        // SAFETY: the caller's promise.
        unsafe { bytes_32(m, at.add(16 + 32 * chunk), stride) }
    }

    #[inline(always)]
    fn span<M: Machine>(m: M, head: &Scales<M>, raw: &[M::V; 8], span: usize) -> Unpacked<M> {
        let [scale, minimum] = head.of(m, span);
        of_one_group(nibbles_of(m, raw, span), scale, minimum)
    }
}

/// `[scales: 16][fifth bits, a bit for each span; 32][two nibbles; 32] * 4`
pub(crate) struct Q5K;

impl Weights for Q5K {
    type Form = Span<1, true, 31, 0>;

    const BLOCK_BYTES: usize = 176;
    const SPANS: usize = 8;
    const CHUNK: usize = 2;

    type Head<M: Machine> = (Scales<M>, [M::V; 8]);
    type Raw<M: Machine> = [M::V; 8];

    #[inline(always)]
    unsafe fn head<M: Machine>(m: M, at: *const u8, stride: usize) -> Self::Head<M> {
        // SAFETY: the caller's promise.
        unsafe { (Scales::load(m, at, stride), bytes_32(m, at.add(16), stride)) }
    }

    #[inline(always)]
    unsafe fn raw<M: Machine>(m: M, at: *const u8, stride: usize, chunk: usize) -> [M::V; 8] {
        // SAFETY: the caller's promise.
        unsafe { bytes_32(m, at.add(48 + 32 * chunk), stride) }
    }

    #[inline(always)]
    fn span<M: Machine>(
        m: M,
        (scales, high): &Self::Head<M>,
        raw: &[M::V; 8],
        span: usize,
    ) -> Unpacked<M> {
        let mut quads = nibbles_of(m, raw, span);
        for (quad, &high) in quads.iter_mut().zip(high) {
            let bit = m.and(m.shr(high, span as u32), m.bytes(1));
            *quad = m.or(*quad, m.shl(bit, 4));
        }
        let [scale, minimum] = scales.of(m, span);
        of_one_group(quads, scale, minimum)
    }
}
