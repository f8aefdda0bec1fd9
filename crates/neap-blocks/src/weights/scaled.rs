//! Blocks of 256 with scales of 16: Q6_K, Q2_K, Q3_K.

use super::{QUADS, Span, Unpacked, Weights, bytes_32};
use crate::machine::Machine;

/// `[low nibbles: 64 * 2][two high bits: 32 * 2][i8; 16 scales][scale f16]`, less 32.
///
/// Of a half, spans 0 and 1 are the low nibbles of 32 bytes each, 2 and 3 the high ones; the high bits of all four share bytes.
pub(crate) struct Q6K;

impl Weights for Q6K {
    type Form = Span<2, false, 63, 5>;

    const BLOCK_BYTES: usize = 210;
    const SPANS: usize = 8;
    const CHUNK: usize = 4;

    /// Scales; the scale of all.
    type Head<M: Machine> = ([M::V; 4], M::F);
    type Raw<M: Machine> = ([[M::V; 8]; 2], [M::V; 8]);

    #[inline(always)]
    unsafe fn head<M: Machine>(m: M, at: *const u8, stride: usize) -> Self::Head<M> {
        // SAFETY: the caller's promise. The scale is the last two bytes of the block.
        unsafe {
            let [_, _, _, last] = m.columns(at.add(194), stride);
            (m.columns(at.add(192), stride), m.half(m.shr(last, 16)))
        }
    }

    #[inline(always)]
    unsafe fn raw<M: Machine>(m: M, at: *const u8, stride: usize, half: usize) -> Self::Raw<M> {
        // SAFETY: the caller's promise.
        unsafe {
            let low = at.add(64 * half);
            (
                [bytes_32(m, low, stride), bytes_32(m, low.add(32), stride)],
                bytes_32(m, at.add(128 + 32 * half), stride),
            )
        }
    }

    #[inline(always)]
    fn span<M: Machine>(
        m: M,
        (scales, scale): &Self::Head<M>,
        (low, high): &Self::Raw<M>,
        span: usize,
    ) -> Unpacked<M> {
        let in_half = span % 4;
        let mut quads = low[in_half % 2];
        for (quad, &high) in quads.iter_mut().zip(high) {
            let low = m.and(m.shr(*quad, 4 * (in_half as u32 / 2)), m.bytes(15));
            let high = m.and(m.shr(high, 2 * in_half as u32), m.bytes(3));
            *quad = m.or(low, m.shl(high, 4));
        }
        let four = scales[span / 2];
        let signed = |group| {
            let byte = (2 * span + group) as u32 % 4;
            m.number(m.sar(m.shl(four, 24 - 8 * byte), 24))
        };
        let scales = [m.mul(*scale, signed(0)), m.mul(*scale, signed(1))];
        Unpacked {
            quads,
            scales,
            minima: scales,
        }
    }
}

/// Two bits of 32 bytes.
#[inline(always)]
fn pairs_of_bits<M: Machine>(m: M, raw: &[M::V; 8], span: usize) -> [M::V; QUADS] {
    let mut quads = *raw;
    for quad in &mut quads {
        *quad = m.and(m.shr(*quad, 2 * (span as u32 % 4)), m.bytes(3));
    }
    quads
}

/// `[nibbles of scale and minimum; 16][four pairs of bits; 32 * 2][scale f16][minimum f16]`
pub(crate) struct Q2K;

impl Weights for Q2K {
    type Form = Span<2, true, 3, 0>;

    const BLOCK_BYTES: usize = 84;
    const SPANS: usize = 8;
    const CHUNK: usize = 4;

    /// Scales and minima; the scale and the minimum of all, the latter below zero.
    type Head<M: Machine> = ([M::V; 4], [M::F; 2]);
    type Raw<M: Machine> = [M::V; 8];

    #[inline(always)]
    unsafe fn head<M: Machine>(m: M, at: *const u8, stride: usize) -> Self::Head<M> {
        // SAFETY: the caller's promise. Scale and minimum are the last four bytes.
        let (scales, last) = unsafe {
            let [_, _, _, last] = m.columns(at.add(68), stride);
            (m.columns(at, stride), last)
        };
        let minimum = m.mul(m.half(m.shr(last, 16)), m.splat_float(-1.0));
        (scales, [m.half(last), minimum])
    }

    #[inline(always)]
    unsafe fn raw<M: Machine>(m: M, at: *const u8, stride: usize, half: usize) -> [M::V; 8] {
        // SAFETY: the caller's promise.
        unsafe { bytes_32(m, at.add(16 + 32 * half), stride) }
    }

    #[inline(always)]
    fn span<M: Machine>(
        m: M,
        (scales, floats): &Self::Head<M>,
        raw: &[M::V; 8],
        span: usize,
    ) -> Unpacked<M> {
        let four = scales[span / 2];
        // The scale's nibble is the low one, the minimum's the high one.
        let nibble = |group, high: usize| {
            let bits = 8 * ((2 * span + group) % 4) + 4 * high;
            let four_bits = m.and(m.shr(four, bits as u32), m.splat(15));
            m.mul(floats[high], m.number(four_bits))
        };
        Unpacked {
            quads: pairs_of_bits(m, raw, span),
            scales: [nibble(0, 0), nibble(1, 0)],
            minima: [nibble(0, 1), nibble(1, 1)],
        }
    }
}

/// `[third bits, a bit for each span; 32][four pairs of bits; 32 * 2][12 bytes of scales][scale f16]`, less 4.
pub(crate) struct Q3K;

impl Weights for Q3K {
    type Form = Span<2, false, 7, 2>;

    const BLOCK_BYTES: usize = 110;
    const SPANS: usize = 8;
    const CHUNK: usize = 4;

    /// Scales of 6 bits; the scale of all; third bits.
    type Head<M: Machine> = ([M::V; 4], M::F, [M::V; 8]);
    type Raw<M: Machine> = [M::V; 8];

    /// Of scales, eight bytes have the nibbles of eight and of eight more, four bytes two high bits of each.
    #[inline(always)]
    unsafe fn head<M: Machine>(m: M, at: *const u8, stride: usize) -> Self::Head<M> {
        // SAFETY: the caller's promise. The last 16 bytes begin with two that belong to others.
        let ([a, b, c, d], third) =
            unsafe { (m.columns(at.add(94), stride), bytes_32(m, at, stride)) };
        let between = |first, second| m.or(m.shr(first, 16), m.shl(second, 16));
        let (low, more, high) = (between(a, b), between(b, c), between(c, d));
        let nibble = |v, bits| m.and(m.shr(v, bits), m.bytes(15));
        let top = |v| m.and(v, m.bytes(48));
        let scales = [
            m.or(nibble(low, 0), top(m.shl(high, 4))),
            m.or(nibble(more, 0), top(m.shl(high, 2))),
            m.or(nibble(low, 4), top(high)),
            m.or(nibble(more, 4), top(m.shr(high, 2))),
        ];
        (scales, m.half(m.shr(d, 16)), third)
    }

    #[inline(always)]
    unsafe fn raw<M: Machine>(m: M, at: *const u8, stride: usize, half: usize) -> [M::V; 8] {
        // SAFETY: the caller's promise.
        unsafe { bytes_32(m, at.add(32 + 32 * half), stride) }
    }

    #[inline(always)]
    fn span<M: Machine>(
        m: M,
        (scales, scale, third): &Self::Head<M>,
        raw: &[M::V; 8],
        span: usize,
    ) -> Unpacked<M> {
        let mut quads = pairs_of_bits(m, raw, span);
        for (quad, &third) in quads.iter_mut().zip(third) {
            let bit = m.and(m.shr(third, span as u32), m.bytes(1));
            *quad = m.or(*quad, m.shl(bit, 2));
        }
        let four = scales[span / 2];
        let of = |group| {
            let six_bits = m.byte(four, (2 * span + group) as u32 % 4);
            m.mul(*scale, m.number(m.sub(six_bits, m.splat(32))))
        };
        let scales = [of(0), of(1)];
        Unpacked {
            quads,
            scales,
            minima: scales,
        }
    }
}
