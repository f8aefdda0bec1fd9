//! What happens to a result while it is still in registers: residual added, activation applied.

use crate::simd::{LANES, Simd, math, simd_kernel};

/// What a product kernel does with a finished sum: `activation(sum + residual)`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Epilogue<'a> {
    pub activation: Activation,
    pub residual: Residual<'a>,
}

/// A tensor of the output's shape and layout that is added before the activation.
///
/// It is added to the bias, before the products, so that partial sums can rest in the output.
#[derive(Debug, Clone, Copy, Default)]
pub enum Residual<'a> {
    #[default]
    None,
    Separate(&'a [f32]),
    /// The output already holds it.
    InPlace,
}

/// Element-wise function applied last. `f(x)`; parameters are part of the variant.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Activation {
    #[default]
    None,
    Relu,
    /// `min(max(x, low), high)`; relu6 is `Clip(0, 6)`.
    Clip {
        low: f32,
        high: f32,
    },
    LeakyRelu {
        alpha: f32,
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
    /// `x * hard_sigmoid(x)` with alpha 1/6 and beta 1/2
    HardSwish,
    /// `(clip(round(x / scale) + zero, low, high) - zero) * scale`; NaN becomes the step `nan`.
    Requantize {
        scale: f32,
        zero: f32,
        low: f32,
        high: f32,
        nan: f32,
    },
}

impl Activation {
    /// True where the micro-kernels apply it themselves; the others are a pass over the stored tile.
    #[inline(always)]
    pub(crate) fn is_light(self) -> bool {
        matches!(
            self,
            Activation::None
                | Activation::Relu
                | Activation::Clip { .. }
                | Activation::LeakyRelu { .. }
        )
    }

    /// Applies the function to a vector, only where it [`Activation::is_light`].
    #[inline(always)]
    pub(crate) fn apply_light<S: Simd>(self, s: S, x: S::V) -> S::V {
        match self {
            Activation::Relu => s.max(s.zero(), x),
            Activation::Clip { low, high } => s.clamp(x, s.splat(low), s.splat(high)),
            Activation::LeakyRelu { alpha } => {
                s.select(s.lt(x, s.zero()), s.mul(x, s.splat(alpha)), x)
            }
            _ => x,
        }
    }

    /// Applies the function to a vector.
    #[inline(always)]
    pub fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        match self {
            Activation::Sigmoid => math::sigmoid(s, x),
            Activation::Silu => math::silu(s, x),
            Activation::Tanh => math::tanh(s, x),
            Activation::Gelu => math::gelu(s, x),
            Activation::GeluTanh => math::gelu_tanh(s, x),
            Activation::HardSigmoid { alpha, beta } => hard_sigmoid(s, x, alpha, beta),
            Activation::HardSwish => s.mul(x, hard_sigmoid(s, x, 1.0 / 6.0, 0.5)),
            Activation::Requantize {
                scale,
                zero,
                low,
                high,
                nan,
            } => {
                let (scale, zero) = (s.splat(scale), s.splat(zero));
                let step = s.add(s.round(s.div(x, scale)), zero);
                let step = s.min(s.max(step, s.splat(low)), s.splat(high));
                let step = s.select(s.eq(x, x), step, s.splat(nan));
                s.mul(s.sub(step, zero), scale)
            }
            light => light.apply_light(s, x),
        }
    }
}

#[inline(always)]
fn hard_sigmoid<S: Simd>(s: S, x: S::V, alpha: f32, beta: f32) -> S::V {
    let y = s.fma(x, s.splat(alpha), s.splat(beta));
    s.clamp(y, s.zero(), s.splat(1.0))
}

/// Applies `f` in place to `rows` runs of `len` floats, `stride` floats apart.
///
/// # Safety
/// Every run is inside memory that the caller may write.
#[inline(always)]
unsafe fn activate_generic<S: Simd>(
    s: S,
    f: Activation,
    data: *mut f32,
    rows: usize,
    stride: usize,
    len: usize,
) {
    macro_rules! every_vector {
        ($f:expr) => {
            for row in 0..rows {
                let mut i = 0;
                while i < len {
                    // SAFETY: `i < len`, so `len - i` floats at `i` belong to the run.
                    unsafe {
                        let p = data.add(row * stride + i);
                        let n = len - i;
                        if n >= LANES {
                            s.store(p, $f.apply(s, s.load(p)));
                        } else {
                            s.store_partial(p, n, $f.apply(s, s.load_partial(p, n)));
                        }
                    }
                    i += LANES;
                }
            }
        };
    }
    // One loop for each, so that the function's constants stay in registers.
    match f {
        Activation::None => {}
        Activation::Sigmoid => every_vector!(Activation::Sigmoid),
        Activation::Silu => every_vector!(Activation::Silu),
        Activation::Tanh => every_vector!(Activation::Tanh),
        Activation::Gelu => every_vector!(Activation::Gelu),
        Activation::GeluTanh => every_vector!(Activation::GeluTanh),
        f => every_vector!(f),
    }
}
simd_kernel! {
    /// Applies `f` in place to `rows` runs of `len` floats, `stride` floats apart.
    ///
    /// # Safety
    /// Every run is inside memory that the caller may write.
    pub(crate) unsafe fn activate(f: Activation, data: *mut f32, rows: usize, stride: usize, len: usize) = activate_generic;
}
