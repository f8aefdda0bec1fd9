//! The two tile sizes as one-dimensional transforms; a two-dimensional one applies them twice.
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
    /// The filter back from its values at the points; the outer taps exactly.
    fn taps<S: Simd>(s: S, w: [S::V; A]) -> [S::V; 3];
    /// Whether inputs at this point of both axes are looked at for numbers that would spread. Between them, these points see
    /// each input, and no pixels that are as large as each other cancel at all of them.
    fn tells(i: usize, j: usize) -> bool;
}

pub(super) struct F2;
pub(super) struct F4;

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

    #[inline(always)]
    fn taps<S: Simd>(s: S, w: [S::V; 4]) -> [S::V; 3] {
        [w[0], s.sub(w[1], w[2]), w[3]]
    }

    #[inline(always)]
    fn tells(_: usize, _: usize) -> bool {
        true
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

    #[inline(always)]
    fn taps<S: Simd>(s: S, w: [S::V; 6]) -> [S::V; 3] {
        let twice = s.sub(w[1], w[2]);
        [w[0], s.mul(s.splat(-0.75 / SMALL), twice), w[5]]
    }

    /// Each axis has `1, -2.5, 1` of every other input there.
    #[inline(always)]
    fn tells(i: usize, j: usize) -> bool {
        (i == 0 || i == 5) && (j == 0 || j == 5)
    }
}
