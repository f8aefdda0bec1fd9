//! Blocks whose nibbles are codes of other integers: IQ4_NL, IQ4_XS, MXFP4.

use super::{QUADS, Span, Unpacked, Weights, nibbles, of_one_group};
use crate::machine::Machine;

/// What the codes of IQ4 stand for.
const IQ4: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Twice what the codes of a float of 4 bits stand for, and 16 more, so that they are unsigned.
const FP4: [i8; 16] = [16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4];

#[inline(always)]
fn iq4<M: Machine>(m: M, bytes: [M::V; 4]) -> [M::V; QUADS] {
    let mut quads = nibbles(m, bytes);
    for quad in &mut quads {
        *quad = m.signed(m.look_up(*quad, &IQ4));
    }
    quads
}

/// `[scale f16][two codes; 16]`
pub(crate) struct Iq4Nl;

impl Weights for Iq4Nl {
    type Form = Span<1, false, 128, 0>;

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
        of_one_group(iq4(m, *raw), *scale, *scale)
    }
}

/// `[scale f16][two high bits of 8 scales][low nibbles of 8 scales][two codes; 128]`
pub(crate) struct Iq4Xs;

/// Scale; high bits; low bits.
type Scales<M> = (<M as Machine>::F, <M as Machine>::V, <M as Machine>::V);

impl Weights for Iq4Xs {
    type Form = Span<1, false, 128, 0>;

    const BLOCK_BYTES: usize = 136;
    const SPANS: usize = 8;

    type Head<M: Machine> = Scales<M>;
    type Raw<M: Machine> = [M::V; 4];

    #[inline(always)]
    unsafe fn head<M: Machine>(m: M, at: *const u8, stride: usize) -> Scales<M> {
        // SAFETY: the caller's promise.
        let [first, low, ..] = unsafe { m.columns(at, stride) };
        (m.half(first), m.shr(first, 16), low)
    }

    #[inline(always)]
    unsafe fn raw<M: Machine>(m: M, at: *const u8, stride: usize, chunk: usize) -> [M::V; 4] {
        // SAFETY: the caller's promise.
        unsafe { m.columns(at.add(8 + 16 * chunk), stride) }
    }

    #[inline(always)]
    fn span<M: Machine>(
        m: M,
        (scale, high, low): &Scales<M>,
        raw: &[M::V; 4],
        span: usize,
    ) -> Unpacked<M> {
        let low = m.and(m.shr(*low, 4 * span as u32), m.splat(15));
        let high = m.and(m.shr(*high, 2 * span as u32), m.splat(3));
        let factor = m.sub(m.or(low, m.shl(high, 4)), m.splat(32));
        let scale = m.mul(*scale, m.number(factor));
        of_one_group(iq4(m, *raw), scale, scale)
    }
}

/// `[exponent u8][two floats of 4 bits; 16]`
pub(crate) struct Mxfp4;

impl Weights for Mxfp4 {
    type Form = Span<1, false, 31, 4>;

    const BLOCK_BYTES: usize = 17;
    const SPANS: usize = 1;

    type Head<M: Machine> = M::F;
    type Raw<M: Machine> = [M::V; 4];

    /// Half of the scale, 2^(exponent - 128), as a product of two powers that have no subnormal exponents.
    #[inline(always)]
    unsafe fn head<M: Machine>(m: M, at: *const u8, stride: usize) -> M::F {
        // SAFETY: the caller's promise.
        let exponent = m.byte(unsafe { m.column(at, stride) }, 0);
        let half = m.shr(exponent, 1);
        let power = |e| m.float(m.shl(m.add(e, m.splat(127 - 64)), 23));
        m.mul(power(half), power(m.sub(exponent, half)))
    }

    #[inline(always)]
    unsafe fn raw<M: Machine>(m: M, at: *const u8, stride: usize, _: usize) -> [M::V; 4] {
        // SAFETY: the caller's promise.
        unsafe { m.columns(at.add(1), stride) }
    }

    #[inline(always)]
    fn span<M: Machine>(m: M, scale: &M::F, raw: &[M::V; 4], _: usize) -> Unpacked<M> {
        let mut quads = nibbles(m, *raw);
        for quad in &mut quads {
            *quad = m.look_up(*quad, &FP4);
        }
        of_one_group(quads, *scale, *scale)
    }
}
