//! Elementary functions over the 16-lane vector: exp, log, tanh, erf, sigmoid and what is made of them.
//!
//! Relative error at most a few units in 1e-7 over the finite range; results below the smallest
//! normal number become zero. NaN in, NaN out. The polynomials are Chebyshev fits on the
//! stated intervals.

use super::Simd;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 split so that `n * LN2_HIGH` is exact for every exponent `n`.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// `(e^r - 1 - r) / r^2` for `|r| <= ln(2)/2`
const EXP: [f32; 5] = [
    0.5,
    0.166_665_73,
    0.041_666_457,
    0.008_363_777,
    0.001_393_454_5,
];

/// `c[0] + c[1]*x + …` by Horner's rule.
#[inline(always)]
pub fn polynomial<S: Simd, const N: usize>(s: S, x: S::V, c: [f32; N]) -> S::V {
    let mut sum = s.splat(c[N - 1]);
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = s.fma(sum, x, s.splat(c[i]));
    }
    sum
}

/// e to the power `x`; infinite above 88.72, zero below -86.6.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    const LOW: f32 = -86.6;
    const HIGH: f32 = 88.722_83;
    let c = s.clamp(x, s.splat(LOW), s.splat(HIGH));
    let n = s.round(s.mul(c, s.splat(LOG2_E)));
    let r = s.fnma(n, s.splat(LN2_HIGH), c);
    let r = s.fnma(n, s.splat(LN2_LOW), r);
    let p = polynomial(s, r, EXP);
    let e = s.add(s.fma(s.mul(r, r), p, r), s.splat(1.0));
    // Two steps, because 2^128 alone would overflow.
    let e = s.mul(s.add(e, e), s.pow2(s.sub(n, s.splat(1.0))));
    let e = s.select(s.lt(x, s.splat(LOW)), s.zero(), e);
    s.select(s.gt(x, s.splat(HIGH)), s.splat(f32::INFINITY), e)
}

/// e to the power `x` for `x` up to about 1, where softmax needs it: cheaper than [`exp`], with the
/// same precision; zero below -86.6.
#[inline(always)]
pub fn exp_small<S: Simd>(s: S, x: S::V) -> S::V {
    const LOW: f32 = -86.6;
    let c = s.max(s.splat(LOW), x);
    let n = s.round(s.mul(c, s.splat(LOG2_E)));
    let r = s.fnma(n, s.splat(LN2_HIGH), c);
    let r = s.fnma(n, s.splat(LN2_LOW), r);
    let p = polynomial(s, r, EXP);
    let e = s.add(s.fma(s.mul(r, r), p, r), s.splat(1.0));
    s.select(s.lt(x, s.splat(LOW)), s.zero(), s.mul(e, s.pow2(n)))
}

/// Natural logarithm; -inf at zero, NaN below.
#[inline(always)]
pub fn log<S: Simd>(s: S, x: S::V) -> S::V {
    // Subnormal numbers are scaled into the normal range first.
    let tiny = s.lt(x, s.splat(f32::MIN_POSITIVE));
    let scaled = s.select(tiny, s.mul(x, s.splat(8_388_608.0)), x);
    let (m, e) = s.split_exponent(scaled);
    let e = s.select(tiny, s.sub(e, s.splat(23.0)), e);
    // Mantissa into [sqrt(1/2), sqrt(2)).
    let large = s.ge(m, s.splat(std::f32::consts::SQRT_2));
    let m = s.select(large, s.mul(m, s.splat(0.5)), m);
    let e = s.select(large, s.add(e, s.splat(1.0)), e);
    // log(m) = 2 atanh(t), t = (m-1)/(m+1), |t| < 0.172
    let f = s.sub(m, s.splat(1.0));
    let t = s.div(f, s.add(m, s.splat(1.0)));
    let z = s.mul(t, t);
    let p = polynomial(s, z, [2.0 / 3.0, 2.0 / 5.0, 2.0 / 7.0, 2.0 / 9.0]);
    // 2t = f - f*t, which loses less than doubling the quotient.
    let series = s.fma(
        s.mul(z, t),
        p,
        s.fma(e, s.splat(LN2_LOW), s.neg(s.mul(f, t))),
    );
    let y = s.fma(e, s.splat(LN2_HIGH), s.add(series, f));
    let y = s.select(s.lt(x, s.splat(f32::INFINITY)), y, x); // inf and NaN stay
    let y = s.select(s.eq(x, s.zero()), s.splat(f32::NEG_INFINITY), y);
    s.select(s.lt(x, s.zero()), s.splat(f32::NAN), y)
}

/// `1 / (1 + e^-x)`
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.neg(x))))
}

/// Hyperbolic tangent.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let a = s.abs(x);
    let z = s.mul(x, x);
    // (tanh(x) - x) / x^3 for |x| <= 0.63
    let p = polynomial(
        s,
        z,
        [
            -0.333_333_3,
            0.133_327_33,
            -0.053_844_99,
            0.020_968_188,
            -0.006_053_698,
        ],
    );
    let small = s.fma(s.mul(z, x), p, x);
    // 1 - 2 / (e^2x + 1)
    let one = s.splat(1.0);
    let e = exp(s, s.add(a, a));
    let large = s.sub(one, s.div(s.splat(2.0), s.add(e, one)));
    s.select(s.lt(a, s.splat(0.625)), small, s.copysign(large, x))
}

/// The error function.
#[inline(always)]
pub fn erf<S: Simd>(s: S, x: S::V) -> S::V {
    let a = s.abs(x);
    let z = s.mul(x, x);
    // erf(x) / x for |x| <= 1
    let p = polynomial(
        s,
        z,
        [
            std::f32::consts::FRAC_2_SQRT_PI,
            -0.376_126_27,
            0.112_835_97,
            -0.026_854_329,
            0.005_189_312,
            -0.000_801_885_5,
            0.000_078_824_97,
        ],
    );
    let small = s.mul(x, p);
    // ln(erfc(x)) for 0.95 <= x <= 4; beyond 4 erf is 1 to within half a unit in the last place.
    let c = s.min(s.splat(4.0), a);
    let q = polynomial(
        s,
        c,
        [
            0.000_304_176_76,
            -1.130_170_3,
            -0.631_931_34,
            -0.109_983_3,
            0.026_367_415,
            -0.004_741_118,
            0.000_592_950_53,
            -4.561_102e-5,
            1.615_045e-6,
        ],
    );
    let large = s.sub(s.splat(1.0), exp(s, q));
    s.select(s.le(a, s.splat(1.0)), small, s.copysign(large, x))
}

/// `x/2 * (1 + erf(x / sqrt(2)))`
#[inline(always)]
pub fn gelu<S: Simd>(s: S, x: S::V) -> S::V {
    let half = s.mul(x, s.splat(0.5));
    let e = erf(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2)));
    s.fma(half, e, half)
}

/// The tanh approximation of gelu: `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`.
#[inline(always)]
pub fn gelu_tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let half = s.mul(x, s.splat(0.5));
    let cube = s.mul(s.mul(x, x), x);
    let inner = s.mul(s.splat(0.797_884_6), s.fma(cube, s.splat(0.044_715), x));
    s.fma(half, tanh(s, inner), half)
}

/// `x * sigmoid(x)`
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    s.div(x, s.add(s.splat(1.0), exp(s, s.neg(x))))
}
