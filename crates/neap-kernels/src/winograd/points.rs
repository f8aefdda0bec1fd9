//! The three tile sizes as one-dimensional transforms; a two-dimensional one applies them twice.
//!
//! A tile gives `M` outputs of a 3-tap filter from `A = M + 2` inputs. Inputs, seen as the
//! coefficients of a polynomial, and the filter are evaluated at `A - 1` points and at infinity,
//! multiplied there, and the outputs are interpolated (Toom and Cook, transposed as Winograd has
//! it). With the points in pairs `±p`, even and odd parts are computed once for both.
//!
//! | tile | points | products per output, of 9 |
//! |---|---|---|
//! | [`F2`] | 0, ±1, ∞ | 4 |
//! | [`F4`] | 0, ±1/√2, ±√2, ∞ | 2.25 |
//! | [`F6`] | 0, ±1/2, ±1, ±2, ∞ | 1.78 |
//!
//! The points decide how much rounding is amplified. Those of F4 lose a third of what the usual
//! 0, ±1, ±2 do, because no power of a point is far from 1; the tests bound the errors.

use crate::simd::Simd;

/// A tile size: `M` outputs from `A` inputs along an axis.
pub(super) trait Points<const A: usize, const M: usize> {
    /// `A` inputs at the points.
    fn input<S: Simd>(s: S, d: [S::V; A]) -> [S::V; A];
    /// A filter of 3 taps at the points.
    fn weight<S: Simd>(s: S, g: [S::V; 3]) -> [S::V; A];
    /// `M` outputs from the products at the points.
    fn output<S: Simd>(s: S, m: [S::V; A]) -> [S::V; M];
}

pub(super) struct F2;
pub(super) struct F4;
pub(super) struct F6;

impl Points<4, 2> for F2 {
    #[inline(always)]
    fn input<S: Simd>(s: S, d: [S::V; 4]) -> [S::V; 4] {
        [
            s.sub(d[0], d[2]),
            s.add(d[2], d[1]),
            s.sub(d[2], d[1]),
            s.sub(d[3], d[1]),
        ]
    }

    #[inline(always)]
    fn weight<S: Simd>(s: S, g: [S::V; 3]) -> [S::V; 4] {
        let half = s.splat(0.5);
        let even = s.mul(half, s.add(g[0], g[2]));
        let odd = s.mul(half, g[1]);
        [g[0], s.add(even, odd), s.sub(even, odd), g[2]]
    }

    #[inline(always)]
    fn output<S: Simd>(s: S, m: [S::V; 4]) -> [S::V; 2] {
        let even = s.add(m[1], m[2]);
        let odd = s.sub(m[1], m[2]);
        [s.add(m[0], even), s.add(odd, m[3])]
    }
}

/// The points of F4, the small pair and the large one.
const SMALL: f32 = std::f32::consts::FRAC_1_SQRT_2;
const LARGE: f32 = std::f32::consts::SQRT_2;

impl Points<6, 4> for F4 {
    #[inline(always)]
    fn input<S: Simd>(s: S, d: [S::V; 6]) -> [S::V; 6] {
        let (small, large) = (s.splat(SMALL), s.splat(LARGE));
        let (half, two, sum) = (s.splat(0.5), s.splat(2.0), s.splat(2.5));
        let small_even = s.fnma(two, d[2], d[4]);
        let small_odd = s.fnma(two, d[1], d[3]);
        let large_even = s.fnma(half, d[2], d[4]);
        let large_odd = s.fnma(half, d[1], d[3]);
        [
            s.fnma(sum, d[2], s.add(d[0], d[4])),
            s.fma(small, small_odd, small_even),
            s.fnma(small, small_odd, small_even),
            s.fma(large, large_odd, large_even),
            s.fnma(large, large_odd, large_even),
            s.fnma(sum, d[3], s.add(d[1], d[5])),
        ]
    }

    #[inline(always)]
    fn weight<S: Simd>(s: S, g: [S::V; 3]) -> [S::V; 6] {
        // Divisors: the product of a point's distances from the others, -3/2 and 6.
        let small_even = s.mul(s.splat(-2.0 / 3.0), s.fma(s.splat(0.5), g[2], g[0]));
        let small_odd = s.mul(s.splat(-2.0 / 3.0 * SMALL), g[1]);
        let large_even = s.mul(s.splat(1.0 / 6.0), s.fma(s.splat(2.0), g[2], g[0]));
        let large_odd = s.mul(s.splat(LARGE / 6.0), g[1]);
        [
            g[0],
            s.add(small_even, small_odd),
            s.sub(small_even, small_odd),
            s.add(large_even, large_odd),
            s.sub(large_even, large_odd),
            g[2],
        ]
    }

    #[inline(always)]
    fn output<S: Simd>(s: S, m: [S::V; 6]) -> [S::V; 4] {
        let (small, large) = (s.splat(SMALL), s.splat(LARGE));
        let small_even = s.add(m[1], m[2]);
        let small_odd = s.mul(small, s.sub(m[1], m[2]));
        let large_even = s.add(m[3], m[4]);
        let large_odd = s.mul(large, s.sub(m[3], m[4]));
        let (half, two) = (s.splat(0.5), s.splat(2.0));
        [
            s.add(m[0], s.add(small_even, large_even)),
            s.add(small_odd, large_odd),
            s.fma(half, small_even, s.mul(two, large_even)),
            s.fma(half, small_odd, s.fma(two, large_odd, m[5])),
        ]
    }
}

impl Points<8, 6> for F6 {
    #[inline(always)]
    fn input<S: Simd>(s: S, d: [S::V; 8]) -> [S::V; 8] {
        let sum = s.splat(5.25);
        let half_even = pair(s, d[6], d[4], d[2], 5.0, 4.0);
        let half_odd = pair(s, d[5], d[3], d[1], 5.0, 4.0);
        let one_even = pair(s, d[6], d[4], d[2], 4.25, 1.0);
        let one_odd = pair(s, d[5], d[3], d[1], 4.25, 1.0);
        let two_even = pair(s, d[6], d[4], d[2], 1.25, 0.25);
        let two_odd = pair(s, d[5], d[3], d[1], 1.25, 0.25);
        let (half, two) = (s.splat(0.5), s.splat(2.0));
        [
            s.fma(sum, s.sub(d[2], d[4]), s.sub(d[6], d[0])),
            s.fma(half, half_odd, half_even),
            s.fnma(half, half_odd, half_even),
            s.add(one_even, one_odd),
            s.sub(one_even, one_odd),
            s.fma(two, two_odd, two_even),
            s.fnma(two, two_odd, two_even),
            s.fma(sum, s.sub(d[3], d[5]), s.sub(d[7], d[1])),
        ]
    }

    #[inline(always)]
    fn weight<S: Simd>(s: S, g: [S::V; 3]) -> [S::V; 8] {
        // Divisors: 45/32, -9/2 and 90.
        let half_even = s.mul(s.splat(32.0 / 45.0), s.fma(s.splat(0.25), g[2], g[0]));
        let half_odd = s.mul(s.splat(16.0 / 45.0), g[1]);
        let one_even = s.mul(s.splat(-2.0 / 9.0), s.add(g[0], g[2]));
        let one_odd = s.mul(s.splat(-2.0 / 9.0), g[1]);
        let two_even = s.mul(s.splat(1.0 / 90.0), s.fma(s.splat(4.0), g[2], g[0]));
        let two_odd = s.mul(s.splat(1.0 / 45.0), g[1]);
        [
            s.neg(g[0]),
            s.add(half_even, half_odd),
            s.sub(half_even, half_odd),
            s.add(one_even, one_odd),
            s.sub(one_even, one_odd),
            s.add(two_even, two_odd),
            s.sub(two_even, two_odd),
            g[2],
        ]
    }

    #[inline(always)]
    fn output<S: Simd>(s: S, m: [S::V; 8]) -> [S::V; 6] {
        let half_even = s.add(m[1], m[2]);
        let half_odd = s.sub(m[1], m[2]);
        let one_even = s.add(m[3], m[4]);
        let one_odd = s.sub(m[3], m[4]);
        let two_even = s.add(m[5], m[6]);
        let two_odd = s.sub(m[5], m[6]);
        [
            s.add(m[0], s.add(half_even, s.add(one_even, two_even))),
            powers(s, half_odd, one_odd, two_odd, 2.0),
            powers(s, half_even, one_even, two_even, 4.0),
            powers(s, half_odd, one_odd, two_odd, 8.0),
            powers(s, half_even, one_even, two_even, 16.0),
            s.add(m[7], powers(s, half_odd, one_odd, two_odd, 32.0)),
        ]
    }
}

/// `x^4 - (q² + r²) x² + q² r²` applied to coefficients two apart: what a pair of points shares,
/// where ±q and ±r are the other pairs.
#[inline(always)]
fn pair<S: Simd>(s: S, x4: S::V, x2: S::V, x0: S::V, sum: f32, product: f32) -> S::V {
    s.fnma(s.splat(sum), x2, s.fma(s.splat(product), x0, x4))
}

/// The sum at the points 1/2, 1 and 2, of which `scale` is the wanted power of 2.
#[inline(always)]
fn powers<S: Simd>(s: S, half: S::V, one: S::V, two: S::V, scale: f32) -> S::V {
    s.fma(s.splat(1.0 / scale), half, s.fma(s.splat(scale), two, one))
}
