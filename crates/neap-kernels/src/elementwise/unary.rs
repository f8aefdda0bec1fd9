//! Functions of one element.

use super::TASK_ELEMENTS;
use crate::epilogue::Activation;
use crate::error::KernelError;
use crate::parallel::Parallel;
use crate::share::{Chunks, Dst, Src};
use crate::simd::{Isa, LANES, Simd, math, simd_kernel};

/// A function of one element; parameters are part of the variant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unary {
    /// `x`: a copy.
    Identity,
    Relu,
    /// `x` where positive, `alpha * x` elsewhere.
    LeakyRelu {
        alpha: f32,
    },
    /// `x` where positive, `alpha * (e^x - 1)` elsewhere.
    Elu {
        alpha: f32,
    },
    /// `gamma * x` where positive, `gamma * alpha * (e^x - 1)` elsewhere.
    Selu {
        alpha: f32,
        gamma: f32,
    },
    /// `max(0, x) + min(0, alpha * (e^(x/alpha) - 1))`
    Celu {
        alpha: f32,
    },
    /// `x` where above `alpha`, 0 elsewhere: NaN is not above it.
    ThresholdedRelu {
        alpha: f32,
    },
    /// `x + bias` below `-lambda`, `x - bias` above `lambda`, 0 between.
    Shrink {
        bias: f32,
        lambda: f32,
    },
    /// `min(max(x, low), high)`
    Clip {
        low: f32,
        high: f32,
    },
    Sigmoid,
    /// `x * sigmoid(x)`
    Silu,
    Tanh,
    /// `x/2 * (1 + erf(x/sqrt(2)))`
    Gelu,
    /// The tanh approximation of gelu.
    GeluTanh,
    /// `clip(alpha*x + beta, 0, 1)`
    HardSigmoid {
        alpha: f32,
        beta: f32,
    },
    /// `x * clip(x/6 + 1/2, 0, 1)`
    HardSwish,
    /// `(clip(round(x / scale) + zero, low, high) - zero) * scale`; NaN becomes the step `nan`.
    Requantize {
        scale: f32,
        zero: f32,
        low: f32,
        high: f32,
        nan: f32,
    },
    /// `x * tanh(softplus(x))`
    Mish,
    /// `ln(1 + e^x)`
    Softplus,
    /// `x / (1 + |x|)`
    Softsign,
    Exp,
    Log,
    Sqrt,
    /// `1 / sqrt(x)`
    Rsqrt,
    Abs,
    Neg,
    Floor,
    Ceil,
    /// To the nearest integer, ties to even.
    Round,
    /// `1 / x`
    Reciprocal,
    /// -1, 0 or 1.
    Sign,
    Erf,
    /// `x * x`
    Square,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Asinh,
    Acosh,
    Atanh,
}

impl From<Activation> for Unary {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::None => Unary::Identity,
            Activation::Relu => Unary::Relu,
            Activation::Clip { low, high } => Unary::Clip { low, high },
            Activation::LeakyRelu { alpha } => Unary::LeakyRelu { alpha },
            Activation::Sigmoid => Unary::Sigmoid,
            Activation::Silu => Unary::Silu,
            Activation::Tanh => Unary::Tanh,
            Activation::Gelu => Unary::Gelu,
            Activation::GeluTanh => Unary::GeluTanh,
            Activation::HardSigmoid { alpha, beta } => Unary::HardSigmoid { alpha, beta },
            Activation::HardSwish => Unary::HardSwish,
            Activation::Requantize {
                scale,
                zero,
                low,
                high,
                nan,
            } => Unary::Requantize {
                scale,
                zero,
                low,
                high,
                nan,
            },
        }
    }
}

/// `dst[i] = op(src[i])`. Refuses slices of different lengths.
///
/// # Errors
/// Slices of different lengths.
pub fn unary(
    isa: Isa,
    par: &dyn Parallel,
    op: Unary,
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    if src.len() != dst.len() {
        return Err(KernelError::Invalid(
            "unary source and destination differ in length",
        ));
    }
    let len = dst.len();
    pieces(isa, par, op, Src::new(src), Dst::new(dst), len);
    Ok(())
}

/// `data[i] = op(data[i])`
pub fn unary_in_place(isa: Isa, par: &dyn Parallel, op: Unary, data: &mut [f32]) {
    let len = data.len();
    let dst = Dst::new(data);
    if op != Unary::Identity {
        pieces(isa, par, op, dst.as_src(), dst, len);
    }
}

fn pieces(isa: Isa, par: &dyn Parallel, op: Unary, src: Src, dst: Dst, len: usize) {
    if len == 0 {
        return;
    }
    let chunks = Chunks::new(len.div_ceil(LANES), TASK_ELEMENTS / LANES);
    par.run(chunks.count(), &|piece, _| {
        let range = chunks.range(piece);
        let (start, end) = (range.start * LANES, (range.end * LANES).min(len));
        // SAFETY: the piece lies inside both buffers and belongs to this task alone.
        unsafe { unary_run(isa, op, src.at(start), dst.at(start), end - start) };
    });
}

simd_kernel! {
    /// One piece, on the calling thread.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for `len` floats; they are equal or do not overlap.
    pub(crate) unsafe fn unary_run(op: Unary, src: *const f32, dst: *mut f32, len: usize) = unary_generic;
}

/// Applies a vector expression to every element; the last vector may be partial.
macro_rules! each {
    ($s:ident, $src:ident, $dst:ident, $len:ident, |$x:ident| $result:expr) => {{
        let mut i = 0;
        while i < $len {
            // SAFETY: full vectors lie below `len`, the partial one ends at it.
            unsafe {
                if $len - i >= LANES {
                    let $x = $s.load($src.add(i));
                    $s.store($dst.add(i), $result);
                } else {
                    let $x = $s.load_partial($src.add(i), $len - i);
                    $s.store_partial($dst.add(i), $len - i, $result);
                }
            }
            i += LANES;
        }
    }};
}

#[inline(always)]
unsafe fn unary_generic<S: Simd>(s: S, op: Unary, src: *const f32, dst: *mut f32, len: usize) {
    let (zero, one) = (s.zero(), s.splat(1.0));
    match op {
        Unary::Identity => {
            if src != dst.cast_const() {
                // SAFETY: the caller says they do not overlap when they differ.
                unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
            }
        }
        Unary::Relu => each!(s, src, dst, len, |x| s.max(zero, x)),
        Unary::LeakyRelu { alpha } => {
            let alpha = s.splat(alpha);
            each!(s, src, dst, len, |x| s.select(
                s.lt(x, zero),
                s.mul(alpha, x),
                x
            ));
        }
        Unary::Elu { alpha } => {
            let alpha = s.splat(alpha);
            each!(s, src, dst, len, |x| s.select(
                s.lt(x, zero),
                s.mul(alpha, exp_minus_one(s, x)),
                x
            ));
        }
        Unary::Selu { alpha, gamma } => {
            let (below, gamma) = (s.splat(alpha * gamma), s.splat(gamma));
            each!(s, src, dst, len, |x| s.select(
                s.lt(x, zero),
                s.mul(below, exp_minus_one(s, x)),
                s.mul(gamma, x)
            ));
        }
        Unary::Celu { alpha } => {
            let alpha = s.splat(alpha);
            each!(s, src, dst, len, |x| {
                let below = s.mul(alpha, exp_minus_one(s, s.div(x, alpha)));
                s.add(s.max(zero, x), s.min(zero, below))
            });
        }
        Unary::ThresholdedRelu { alpha } => {
            let alpha = s.splat(alpha);
            each!(s, src, dst, len, |x| s.select(s.gt(x, alpha), x, zero));
        }
        Unary::Shrink { bias, lambda } => {
            let (bias, above, below) = (s.splat(bias), s.splat(lambda), s.splat(-lambda));
            each!(s, src, dst, len, |x| s.select(
                s.lt(x, below),
                s.add(x, bias),
                s.select(s.gt(x, above), s.sub(x, bias), zero)
            ));
        }
        Unary::Clip { low, high } => {
            let (low, high) = (s.splat(low), s.splat(high));
            each!(s, src, dst, len, |x| s.clamp(x, low, high));
        }
        Unary::Sigmoid => each!(s, src, dst, len, |x| math::sigmoid(s, x)),
        Unary::Silu => each!(s, src, dst, len, |x| math::silu(s, x)),
        Unary::Tanh => each!(s, src, dst, len, |x| math::tanh(s, x)),
        Unary::Gelu => each!(s, src, dst, len, |x| math::gelu(s, x)),
        Unary::GeluTanh => each!(s, src, dst, len, |x| math::gelu_tanh(s, x)),
        Unary::HardSigmoid { alpha, beta } => {
            let (alpha, beta) = (s.splat(alpha), s.splat(beta));
            each!(s, src, dst, len, |x| s.clamp(
                s.fma(alpha, x, beta),
                zero,
                one
            ));
        }
        Unary::HardSwish => {
            let (sixth, half) = (s.splat(1.0 / 6.0), s.splat(0.5));
            each!(s, src, dst, len, |x| s
                .mul(x, s.clamp(s.fma(sixth, x, half), zero, one)));
        }
        Unary::Requantize {
            scale,
            zero,
            low,
            high,
            nan,
        } => {
            let (scale, zero) = (s.splat(scale), s.splat(zero));
            let (low, high, nan) = (s.splat(low), s.splat(high), s.splat(nan));
            each!(s, src, dst, len, |x| {
                let step = s.add(s.round(s.div(x, scale)), zero);
                let step = s.min(s.max(step, low), high);
                let step = s.select(s.eq(x, x), step, nan);
                s.mul(s.sub(step, zero), scale)
            });
        }
        Unary::Mish => each!(s, src, dst, len, |x| mish(s, x)),
        Unary::Softplus => each!(s, src, dst, len, |x| softplus(s, x)),
        Unary::Softsign => each!(s, src, dst, len, |x| s.div(x, s.add(one, s.abs(x)))),
        Unary::Exp => each!(s, src, dst, len, |x| math::exp(s, x)),
        Unary::Log => each!(s, src, dst, len, |x| math::log(s, x)),
        Unary::Sqrt => each!(s, src, dst, len, |x| s.sqrt(x)),
        Unary::Rsqrt => each!(s, src, dst, len, |x| s.div(one, s.sqrt(x))),
        Unary::Abs => each!(s, src, dst, len, |x| s.abs(x)),
        Unary::Neg => each!(s, src, dst, len, |x| s.neg(x)),
        Unary::Floor => each!(s, src, dst, len, |x| s.floor(x)),
        Unary::Ceil => each!(s, src, dst, len, |x| s.ceil(x)),
        Unary::Round => each!(s, src, dst, len, |x| s.round(x)),
        Unary::Reciprocal => each!(s, src, dst, len, |x| s.div(one, x)),
        Unary::Sign => {
            let minus = s.splat(-1.0);
            each!(s, src, dst, len, |x| s.select(
                s.gt(x, zero),
                one,
                s.select(s.lt(x, zero), minus, x)
            ));
        }
        Unary::Erf => each!(s, src, dst, len, |x| math::erf(s, x)),
        Unary::Square => each!(s, src, dst, len, |x| s.mul(x, x)),
        Unary::Sin => lanes(src, dst, len, f32::sin),
        Unary::Cos => lanes(src, dst, len, f32::cos),
        Unary::Tan => lanes(src, dst, len, f32::tan),
        Unary::Asin => lanes(src, dst, len, f32::asin),
        Unary::Acos => lanes(src, dst, len, f32::acos),
        Unary::Atan => lanes(src, dst, len, f32::atan),
        Unary::Sinh => lanes(src, dst, len, f32::sinh),
        Unary::Cosh => lanes(src, dst, len, f32::cosh),
        Unary::Asinh => lanes(src, dst, len, |x| f64::from(x).asinh() as f32),
        Unary::Acosh => lanes(src, dst, len, |x| f64::from(x).acosh() as f32),
        Unary::Atanh => lanes(src, dst, len, |x| f64::from(x).atanh() as f32),
    }
}

/// The rare functions go element by element (the inverse hyperbolic ones in f64: in f32 the
/// library's lose digits). Private to `unary_generic`, whose contract it shares.
fn lanes(src: *const f32, dst: *mut f32, len: usize, f: fn(f32) -> f32) {
    for i in 0..len {
        // SAFETY: `i` is below `len`, for which the caller of `unary_generic` vouches.
        unsafe { *dst.add(i) = f(*src.add(i)) };
    }
}

/// `e^x - 1`, accurate to about 1e-7 in absolute terms for negative `x`.
#[inline(always)]
fn exp_minus_one<S: Simd>(s: S, x: S::V) -> S::V {
    // Near zero the difference would lose digits that a short series has.
    let series = math::polynomial(s, x, [0.0, 1.0, 0.5, 1.0 / 6.0, 1.0 / 24.0]);
    let difference = s.sub(math::exp(s, x), s.splat(1.0));
    s.select(s.lt(s.abs(x), s.splat(0.03)), series, difference)
}

/// `ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|)`
#[inline(always)]
fn softplus<S: Simd>(s: S, x: S::V) -> S::V {
    let small = math::exp(s, s.neg(s.abs(x)));
    // ln(1 + small), with the digits that the addition of 1 dropped put back.
    let sum = s.add(s.splat(1.0), small);
    let lost = s.div(s.sub(small, s.sub(sum, s.splat(1.0))), sum);
    s.add(s.max(s.zero(), x), s.add(math::log(s, sum), lost))
}

/// `x * tanh(ln(1 + e^x))`, which is `x * n / (n + 2)` with `n = e^x * (e^x + 2)`.
#[inline(always)]
fn mish<S: Simd>(s: S, x: S::V) -> S::V {
    // From 20 on the factor is 1, and n would overflow soon.
    let high = s.splat(20.0);
    let e = math::exp(s, s.min(high, x));
    let n = s.mul(e, s.add(e, s.splat(2.0)));
    s.select(s.gt(x, high), x, s.mul(x, s.div(n, s.add(n, s.splat(2.0)))))
}
