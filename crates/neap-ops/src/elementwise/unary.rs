//! Unary operators and Clip.

use super::math::{erf, sigmoid, softplus};
use crate::args::Args;
use crate::copy::copy_bytes;
use crate::error::Named;
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Bool, Float, Int, Num, Scalar, with_float, with_int, with_numeric};
use crate::{Context, OpError};
use neap_ir::DType;
use neap_ir::op::{Activation, Unary};
use neap_kernels::elementwise as kernels;

pub(crate) fn unary(unary: Unary, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    if x.dtype() == DType::F32
        && let Some(kernel) = kernel(unary)
    {
        return vectorised(kernel, args, ctx);
    }
    match unary {
        Unary::Identity | Unary::Activation(Activation::None) => {
            // SAFETY: both hold the same number of bytes (checked before running).
            unsafe { copy_bytes(ctx.par, x.as_ptr(), y.as_ptr(), y.len_bytes()) };
            return Ok(());
        }
        Unary::Activation(activation) => return self::activation(activation, args, ctx),
        _ => {}
    }
    let map = Map {
        x: x.as_ptr(),
        y: y.as_ptr(),
        // Padding lanes of blocked tensors are computed along: they hold finite values.
        count: y.len_bytes() / y.dtype().size_bytes(),
        ctx,
    };
    match unary {
        Unary::Not => map.run(|v: Bool| Bool(v.0 ^ 1)),
        Unary::BitwiseNot => with_int!(args.op, x.dtype(), T => map.run(|v: T| Int::not(v))),
        Unary::Abs => with_numeric!(args.op, x.dtype(), T => map.run(|v: T| Num::abs(v))),
        Unary::Neg => with_numeric!(args.op, x.dtype(), T => map.run(|v: T| Num::neg(v))),
        Unary::Sign => with_numeric!(args.op, x.dtype(), T => map.run(sign::<T>)),
        Unary::IsNan => {
            with_float!(args.op, x.dtype(), T => map.run(|v: T| Bool::of(Num::is_nan(v))))
        }
        Unary::IsInf { positive, negative } => {
            with_float!(args.op, x.dtype(), T => map.run(move |v: T| {
                let v = v.to_f64();
                Bool::of((positive && v == f64::INFINITY) || (negative && v == f64::NEG_INFINITY))
            }))
        }
        _ => with_float!(args.op, x.dtype(), T => float::<T>(unary, &map)),
    }
}

/// The f32 kernel for a function, where there is one.
fn kernel(unary: Unary) -> Option<kernels::Unary> {
    use kernels::Unary as Kernel;
    Some(match unary {
        Unary::Abs => Kernel::Abs,
        Unary::Neg => Kernel::Neg,
        Unary::Floor => Kernel::Floor,
        Unary::Ceil => Kernel::Ceil,
        Unary::Round => Kernel::Round,
        Unary::Sqrt => Kernel::Sqrt,
        Unary::Reciprocal => Kernel::Reciprocal,
        Unary::Exp => Kernel::Exp,
        Unary::Log => Kernel::Log,
        Unary::Sin => Kernel::Sin,
        Unary::Cos => Kernel::Cos,
        Unary::Tan => Kernel::Tan,
        Unary::Asin => Kernel::Asin,
        Unary::Acos => Kernel::Acos,
        Unary::Atan => Kernel::Atan,
        Unary::Sinh => Kernel::Sinh,
        Unary::Cosh => Kernel::Cosh,
        Unary::Asinh => Kernel::Asinh,
        Unary::Acosh => Kernel::Acosh,
        Unary::Atanh => Kernel::Atanh,
        Unary::Erf => Kernel::Erf,
        Unary::Tanh => Kernel::Tanh,
        Unary::Softplus => Kernel::Softplus,
        Unary::Softsign => Kernel::Softsign,
        Unary::Mish => Kernel::Mish,
        Unary::Elu { alpha } => Kernel::Elu { alpha },
        Unary::Selu { alpha, gamma } => Kernel::Selu { alpha, gamma },
        Unary::Celu { alpha } => Kernel::Celu { alpha },
        Unary::ThresholdedRelu { alpha } => Kernel::ThresholdedRelu { alpha },
        Unary::Shrink { lambda, bias } => Kernel::Shrink { bias, lambda },
        Unary::Activation(Activation::None) | Unary::Identity => return None,
        Unary::Activation(activation) => crate::layer::activation(activation).into(),
        Unary::Sign | Unary::Not | Unary::BitwiseNot => return None,
        Unary::IsNan | Unary::IsInf { .. } => return None,
    })
}

fn vectorised(kernel: kernels::Unary, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    // SAFETY: the output overlaps the input only when it takes its place, and then is read itself.
    let out = unsafe { y.f32s_mut() };
    if y.is_at(&x) {
        kernels::unary_in_place(ctx.isa, ctx.par, kernel, out);
        return Ok(());
    }
    kernels::unary(ctx.isa, ctx.par, kernel, x.f32s(), out).named(args.op)
}

/// `min(max(x, low), high)`; NaN stays NaN.
pub(crate) fn clip(
    low: Option<f64>,
    high: Option<f64>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    if x.dtype() == DType::F32 {
        let kernel = kernels::Unary::Clip {
            low: low.map_or(f32::NEG_INFINITY, |v| v as f32),
            high: high.map_or(f32::INFINITY, |v| v as f32),
        };
        return vectorised(kernel, args, ctx);
    }
    let map = Map {
        x: x.as_ptr(),
        y: y.as_ptr(),
        count: y.len_bytes() / y.dtype().size_bytes(),
        ctx,
    };
    with_numeric!(args.op, x.dtype(), T => {
        let low = low.map_or(T::lowest(), T::from_f64);
        let high = high.map_or(T::highest(), T::from_f64);
        map.run(move |v: T| clamp(v, low, high))
    })
}

fn activation(activation: Activation, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let map = Map {
        x: x.as_ptr(),
        y: y.as_ptr(),
        count: y.len_bytes() / y.dtype().size_bytes(),
        ctx,
    };
    match activation {
        Activation::Relu => with_numeric!(args.op, x.dtype(), T => {
            map.run(|v: T| if v > T::ZERO || Num::is_nan(v) { v } else { T::ZERO })
        }),
        Activation::Clip { low, high } => with_numeric!(args.op, x.dtype(), T => {
            let (low, high) = (T::from_f64(low.into()), T::from_f64(high.into()));
            map.run(move |v: T| clamp(v, low, high))
        }),
        _ => with_float!(args.op, x.dtype(), T => {
            map.run(move |v: T| T::from_f64(activate(activation, v.to_f64())))
        }),
    }
}

/// An activation on one number.
pub(crate) fn activate(activation: Activation, x: f64) -> f64 {
    let relu_like = |x: f64, alpha: f32, beta: f32| {
        let y = f64::from(alpha) * x + f64::from(beta);
        clamp(y, 0.0, 1.0)
    };
    match activation {
        Activation::None => x,
        Activation::Relu => clamp(x, 0.0, f64::INFINITY),
        Activation::Clip { low, high } => clamp(x, low.into(), high.into()),
        Activation::LeakyRelu { alpha } if x < 0.0 => f64::from(alpha) * x,
        Activation::LeakyRelu { .. } => x,
        Activation::Sigmoid => sigmoid(x),
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::HardSigmoid { alpha, beta } => relu_like(x, alpha, beta),
        Activation::HardSwish => x * clamp(x / 6.0 + 0.5, 0.0, 1.0),
        Activation::Requantize {
            scale,
            zero,
            low,
            high,
            nan,
        } => {
            let (scale, zero) = (f64::from(scale), f64::from(zero));
            let step = (x / scale).round_ties_even() + zero;
            let step = match x.is_nan() {
                true => nan.into(),
                false => step.max(low.into()).min(high.into()),
            };
            (step - zero) * scale
        }
        Activation::Tanh => x.tanh(),
    }
}

/// NaN stays NaN.
#[inline(always)]
pub(crate) fn clamp<T: Num>(v: T, low: T, high: T) -> T {
    let v = if v < low { low } else { v };
    if v > high { high } else { v }
}

fn sign<T: Num>(v: T) -> T {
    if v > T::ZERO {
        T::ONE
    } else if v < T::ZERO {
        T::ZERO.sub(T::ONE)
    } else {
        // 0, or NaN.
        v
    }
}

fn float<T: Float>(unary: Unary, map: &Map) -> Result<(), OpError> {
    macro_rules! through_f64 {
        (|$v:ident| $f:expr) => {
            map.run(move |v: T| {
                let $v = v.to_f64();
                T::from_f64($f)
            })
        };
    }
    match unary {
        Unary::Floor => through_f64!(|v| v.floor()),
        Unary::Ceil => through_f64!(|v| v.ceil()),
        Unary::Round => through_f64!(|v| v.round_ties_even()),
        Unary::Sqrt => through_f64!(|v| v.sqrt()),
        Unary::Reciprocal => through_f64!(|v| 1.0 / v),
        Unary::Exp => through_f64!(|v| v.exp()),
        Unary::Log => through_f64!(|v| v.ln()),
        Unary::Sin => through_f64!(|v| v.sin()),
        Unary::Cos => through_f64!(|v| v.cos()),
        Unary::Tan => through_f64!(|v| v.tan()),
        Unary::Asin => through_f64!(|v| v.asin()),
        Unary::Acos => through_f64!(|v| v.acos()),
        Unary::Atan => through_f64!(|v| v.atan()),
        Unary::Sinh => through_f64!(|v| v.sinh()),
        Unary::Cosh => through_f64!(|v| v.cosh()),
        Unary::Asinh => through_f64!(|v| v.asinh()),
        Unary::Acosh => through_f64!(|v| v.acosh()),
        Unary::Atanh => through_f64!(|v| v.atanh()),
        Unary::Erf => through_f64!(|v| erf(v)),
        Unary::Tanh => through_f64!(|v| v.tanh()),
        Unary::Softplus => through_f64!(|v| softplus(v)),
        Unary::Softsign => through_f64!(|v| v / (1.0 + v.abs())),
        Unary::Mish => through_f64!(|v| v * softplus(v).tanh()),
        Unary::Elu { alpha } => {
            through_f64!(|v| if v < 0.0 {
                f64::from(alpha) * v.exp_m1()
            } else {
                v
            })
        }
        Unary::Selu { alpha, gamma } => through_f64!(|v| {
            let (alpha, gamma) = (f64::from(alpha), f64::from(gamma));
            if v <= 0.0 {
                gamma * alpha * v.exp_m1()
            } else {
                gamma * v
            }
        }),
        Unary::Celu { alpha } => through_f64!(|v| {
            let alpha = f64::from(alpha);
            if v < 0.0 {
                alpha * (v / alpha).exp_m1()
            } else {
                v
            }
        }),
        Unary::ThresholdedRelu { alpha } => {
            through_f64!(|v| if v > f64::from(alpha) { v } else { 0.0 })
        }
        Unary::Shrink { lambda, bias } => through_f64!(|v| {
            let (lambda, bias) = (f64::from(lambda), f64::from(bias));
            if v < -lambda {
                v + bias
            } else if v > lambda {
                v - bias
            } else {
                0.0
            }
        }),
        other => Err(OpError::unsupported(other.name(), "here")),
    }
}

/// Same-shape source and destination, which may be the same memory.
struct Map<'m, 'c> {
    x: *const u8,
    y: *mut u8,
    count: usize,
    ctx: &'m Context<'c>,
}

impl Map<'_, '_> {
    fn run<A: Copy, B: Copy>(&self, f: impl Fn(A) -> B + Sync) -> Result<(), OpError> {
        let (x, y) = (Ptr::<A>::of(self.x), Ptr::<B>(self.y.cast()));
        split(self.ctx.par, self.count, GRAIN, &|range, _| {
            // SAFETY: both tensors hold `count` elements; each element is read before the one at
            // the same place is written, so they may be the same memory.
            unsafe {
                let (from, to) = (x.get().add(range.start), y.get().add(range.start));
                for i in 0..range.len() {
                    *to.add(i) = f(*from.add(i));
                }
            }
        });
        Ok(())
    }
}

/// Whether there is an implementation.
pub(crate) fn supports(unary: Unary, dtype: DType) -> bool {
    match unary {
        Unary::Identity | Unary::Activation(Activation::None) => true,
        Unary::Not => dtype == DType::Bool,
        Unary::BitwiseNot => !dtype.is_float() && dtype != DType::Bool,
        Unary::Abs | Unary::Neg | Unary::Sign => dtype != DType::Bool,
        Unary::Activation(Activation::Relu | Activation::Clip { .. }) => dtype != DType::Bool,
        _ => dtype.is_float(),
    }
}
