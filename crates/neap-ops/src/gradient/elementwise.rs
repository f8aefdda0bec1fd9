//! Derivatives of functions of one element.

use crate::args::Args;
use crate::elementwise::math::{erf, sigmoid, softplus};
use crate::error::Named;
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Scalar, with_float};
use crate::{Context, OpError, TensorRef};
use neap_ir::DType;
use neap_ir::gradient::Saved;
use neap_ir::op::{Activation, Unary};
use neap_kernels::elementwise::{Gate, gate};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI, FRAC_2_SQRT_PI, TAU};

pub(super) fn unary(
    unary: Unary,
    saved: Saved,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    // What most networks are made of needs no look at every other function.
    match (unary, saved) {
        (Unary::Activation(Activation::Relu), Saved::Result) => {
            if args.output(0)?.dtype() == DType::F32 {
                return through(Gate::Relu, args, ctx);
            }
            return each(args, ctx, |y, dy| if y > 0.0 { dy } else { 0.0 * y });
        }
        (Unary::Activation(Activation::GeluTanh), Saved::Operand) => {
            return each(args, ctx, |x, dy| dy * gelu_tanh(x));
        }
        _ => {}
    }
    match saved {
        Saved::Operand => {
            if from_operand(unary, 0.5).is_none() {
                return args.fail("is not computed from its operand");
            }
            each(args, ctx, |x, dy| {
                dy * from_operand(unary, x).unwrap_or(0.0)
            })
        }
        Saved::Result => {
            if from_result(unary, 0.5).is_none() {
                return args.fail("is not computed from its result");
            }
            each(args, ctx, |y, dy| dy * from_result(unary, y).unwrap_or(0.0))
        }
    }
}

pub(super) fn clip(
    low: Option<f64>,
    high: Option<f64>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (low, high) = (
        low.unwrap_or(f64::NEG_INFINITY),
        high.unwrap_or(f64::INFINITY),
    );
    // Limits as the forward pass rounded them.
    let rounded =
        |v: f64| with_float!(args.op, args.input(0)?.dtype(), T => Ok(T::from_f64(v).to_f64()));
    let (low, high) = (rounded(low)?, rounded(high)?);
    if args.output(0)?.dtype() == DType::F32 {
        let (low, high) = (low as f32, high as f32);
        return through(Gate::Clip { low, high }, args, ctx);
    }
    // Without branches, which nobody can predict here.
    each(args, ctx, |y, dy| {
        let inside = if (low < y) & (y < high) { dy } else { 0.0 };
        if y.is_nan() { y } else { inside }
    })
}

/// f32 has a kernel of its own. The output may take either input's place.
fn through(of: Gate, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (y, dy, dx) = (args.input(0)?, args.input(1)?, args.output(0)?);
    let apart = |operand: TensorRef<'_>| !dx.is_at(&operand);
    let operands = [apart(y).then(|| y.f32s()), apart(dy).then(|| dy.f32s())];
    // SAFETY: the output overlaps only inputs whose place it takes, which are not read otherwise.
    let dx = unsafe { dx.f32s_mut() };
    gate(ctx.isa, ctx.par, of, operands, dx).named(args.op)
}

/// `dx[i] = f(saved[i], dy[i])`. The output may take either input's place.
fn each(args: &Args, ctx: &mut Context, f: impl Fn(f64, f64) -> f64 + Sync) -> Result<(), OpError> {
    let (saved, dy, dx) = (args.input(0)?, args.input(1)?, args.output(0)?);
    with_float!(args.op, dx.dtype(), T => {
        let (saved, dy) = (Ptr::<T>::of(saved.as_ptr()), Ptr::<T>::of(dy.as_ptr()));
        let out = Ptr::<T>(dx.as_ptr().cast());
        split(ctx.par, dx.elements(), GRAIN, &|range, _| {
            for i in range {
                // SAFETY: all three have as many elements; each is written by one task, after it was read.
                unsafe {
                    let v = f(saved.read(i).to_f64(), dy.read(i).to_f64());
                    out.write(i, T::from_f64(v));
                }
            }
        });
        Ok(())
    })
}

/// Derivatives that a function's result determines.
fn from_result(unary: Unary, y: f64) -> Option<f64> {
    let inside = |inside: bool, slope: f64| if inside { slope } else { 0.0 * y };
    Some(match unary {
        Unary::Neg => -1.0,
        Unary::Identity => 1.0,
        Unary::Sqrt => 0.5 / y,
        Unary::Reciprocal => -y * y,
        Unary::Exp => y,
        Unary::Tan => 1.0 + y * y,
        Unary::Tanh | Unary::Activation(Activation::Tanh) => 1.0 - y * y,
        Unary::Activation(Activation::None) => 1.0,
        Unary::Activation(Activation::Relu) => inside(y > 0.0, 1.0),
        Unary::Activation(Activation::Clip { low, high }) => {
            inside(f64::from(low) < y && y < f64::from(high), 1.0)
        }
        Unary::Activation(Activation::Sigmoid) => y * (1.0 - y),
        Unary::Activation(Activation::HardSigmoid { alpha, .. }) => {
            inside(0.0 < y && y < 1.0, f64::from(alpha))
        }
        _ => return None,
    })
}

/// Derivatives that need a function's operand.
fn from_operand(unary: Unary, x: f64) -> Option<f64> {
    let if_positive = |otherwise: f64| if x > 0.0 { 1.0 } else { otherwise };
    Some(match unary {
        Unary::Abs => {
            if x == 0.0 {
                0.0
            } else {
                x.signum()
            }
        }
        Unary::Log => 1.0 / x,
        Unary::Sin => x.cos(),
        Unary::Cos => -x.sin(),
        Unary::Asin => 1.0 / (1.0 - x * x).sqrt(),
        Unary::Acos => -1.0 / (1.0 - x * x).sqrt(),
        Unary::Atan => 1.0 / (1.0 + x * x),
        Unary::Sinh => x.cosh(),
        Unary::Cosh => x.sinh(),
        Unary::Asinh => 1.0 / (x * x + 1.0).sqrt(),
        Unary::Acosh => 1.0 / ((x - 1.0) * (x + 1.0)).sqrt(),
        Unary::Atanh => 1.0 / (1.0 - x * x),
        Unary::Erf => FRAC_2_SQRT_PI * (-x * x).exp(),
        Unary::Softplus => sigmoid(x),
        Unary::Softsign => (1.0 + x.abs()).powi(-2),
        Unary::Mish => {
            let t = softplus(x).tanh();
            t + x * (1.0 - t * t) * sigmoid(x)
        }
        Unary::Elu { alpha } => if_positive(f64::from(alpha) * x.exp()),
        Unary::Selu { alpha, gamma } => f64::from(gamma) * if_positive(f64::from(alpha) * x.exp()),
        Unary::Celu { alpha } => if_positive((x / f64::from(alpha)).exp()),
        Unary::ThresholdedRelu { alpha } => f64::from(u8::from(x > f64::from(alpha))),
        Unary::Shrink { lambda, .. } => f64::from(u8::from(x.abs() > f64::from(lambda))),
        Unary::Activation(Activation::LeakyRelu { alpha }) => if_positive(f64::from(alpha)),
        Unary::Activation(Activation::Silu) => {
            let s = sigmoid(x);
            s + x * s * (1.0 - s)
        }
        Unary::Activation(Activation::Gelu) => {
            let density = (-x * x / 2.0).exp() / TAU.sqrt();
            0.5 * (1.0 + erf(x * FRAC_1_SQRT_2)) + x * density
        }
        Unary::Activation(Activation::GeluTanh) => gelu_tanh(x),
        Unary::Activation(Activation::HardSwish) => {
            if x <= -3.0 {
                0.0
            } else if x >= 3.0 {
                1.0
            } else {
                (2.0 * x + 3.0) / 6.0
            }
        }
        _ => return None,
    })
}

fn gelu_tanh(x: f64) -> f64 {
    let slope = FRAC_2_PI.sqrt();
    let cubic = 0.044715 * x * x;
    let t = (slope * x * (1.0 + cubic)).tanh();
    0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope * (1.0 + 3.0 * cubic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_differentiated_from_what_it_asks_for() {
        let functions = [
            Unary::Abs,
            Unary::Neg,
            Unary::Sqrt,
            Unary::Reciprocal,
            Unary::Exp,
            Unary::Log,
            Unary::Sin,
            Unary::Cos,
            Unary::Tan,
            Unary::Asin,
            Unary::Acos,
            Unary::Atan,
            Unary::Sinh,
            Unary::Cosh,
            Unary::Asinh,
            Unary::Acosh,
            Unary::Atanh,
            Unary::Erf,
            Unary::Tanh,
            Unary::Softplus,
            Unary::Softsign,
            Unary::Mish,
            Unary::Elu { alpha: 1.0 },
            Unary::Identity,
            Unary::Activation(Activation::None),
            Unary::Activation(Activation::Relu),
            Unary::Activation(Activation::Sigmoid),
            Unary::Activation(Activation::Silu),
            Unary::Activation(Activation::Gelu),
            Unary::Activation(Activation::GeluTanh),
            Unary::Activation(Activation::HardSwish),
            Unary::Activation(Activation::Tanh),
        ];
        for unary in functions {
            let derivative = match Saved::of(unary).expect("it has a derivative") {
                Saved::Operand => from_operand(unary, 0.5),
                Saved::Result => from_result(unary, 0.5),
            };
            assert!(derivative.is_some(), "{}", unary.name());
        }
    }
}
