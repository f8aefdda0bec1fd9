//! Layers with what follows them, as onnxruntime's optimiser saves them: a product or convolution, a sum, an activation.

use super::channels_last::{channels_first, channels_last};
use super::{conv, qoperator};
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::op::{Activation, Binary, Unary};
use neap_ir::{Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "FusedGemm" => one(fused_gemm(c)),
        "FusedMatMul" | "TransposeMatMul" => one(fused_matmul(c)),
        "GemmFastGelu" => one(gemm_fast_gelu(c)),
        "FusedConv" => one(fused_conv(c)),
        "NhwcConv" | "NhwcFusedConv" => one(nhwc_conv(c)),
        _ => return None,
    })
}

/// An activation by its name in the standard; `None` for no name. Parameters that are not given have the standard's values.
fn activation(c: &Ctx, parameter: impl Fn(usize, f32) -> f32) -> Result<Option<Unary>, OnnxError> {
    let fusable = Unary::Activation;
    let alpha = |otherwise| parameter(0, otherwise);
    Ok(Some(match c.string("activation", "")? {
        "" => return Ok(None),
        "Relu" => fusable(Activation::Relu),
        "Tanh" => fusable(Activation::Tanh),
        "Sigmoid" => fusable(Activation::Sigmoid),
        "HardSwish" => fusable(Activation::HardSwish),
        "Gelu" => fusable(Activation::Gelu),
        "LeakyRelu" => fusable(Activation::LeakyRelu { alpha: alpha(0.01) }),
        "Clip" => fusable(Activation::Clip {
            low: alpha(f32::MIN),
            high: parameter(1, f32::MAX),
        }),
        "HardSigmoid" => fusable(Activation::HardSigmoid {
            alpha: alpha(0.2),
            beta: parameter(1, 0.5),
        }),
        "Softplus" => Unary::Softplus,
        "Softsign" => Unary::Softsign,
        "Elu" => Unary::Elu { alpha: alpha(1.0) },
        "Celu" => Unary::Celu { alpha: alpha(1.0) },
        "ThresholdedRelu" => Unary::ThresholdedRelu { alpha: alpha(1.0) },
        "Selu" => Unary::Selu {
            alpha: alpha(1.673_263_2),
            gamma: parameter(2, 1.050_701),
        },
        other => {
            let other = crate::error::shown(other);
            return Err(c.unsupported(format!("the activation '{other}'")));
        }
    }))
}

fn activated(
    c: &mut Ctx,
    y: ValueId,
    parameter: impl Fn(usize, f32) -> f32,
) -> Result<ValueId, OnnxError> {
    match activation(c, parameter)? {
        Some(activation) => c.unary(activation, y),
        None => Ok(y),
    }
}

/// `act(Gemm(a, b, c))`.
fn fused_gemm(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let inputs = (0..3).map(|at| c.optional(at)).collect();
    let y = qoperator::as_operator(c, inputs, 13, |c| conv::lower(c, "Gemm"))?;
    let names = ["activation_alpha", "activation_beta", "activation_gamma"];
    let given = names.map(|name| c.attribute(name).is_some().then(|| c.float(name, 0.0)));
    let mut parameters = [None; 3];
    for (parameter, given) in parameters.iter_mut().zip(given) {
        *parameter = given.transpose()?;
    }
    activated(c, y, |at, otherwise| parameters[at].unwrap_or(otherwise))
}

fn fused_matmul(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let mut inputs = [c.input(0)?, c.input(1)?];
    let names = [("transA", "transBatchA"), ("transB", "transBatchB")];
    for (input, (name, batch_name)) in inputs.iter_mut().zip(names) {
        let (turns, turns_batch) = (c.flag(name, false)?, c.flag(batch_name, false)?);
        let rank = c.rank(*input);
        // A vector has nothing to turn.
        if rank < 2 || !(turns || turns_batch) {
            continue;
        }
        let mut perm: Vec<usize> = (0..rank).collect();
        if turns_batch {
            // Rows come first, then what is a batch.
            perm[..rank - 1].rotate_left(1);
        }
        if turns {
            perm.swap(rank - 2, rank - 1);
        }
        *input = c.emit(Op::Transpose { perm }, &[*input])?;
    }
    let product = c.emit(Op::MatMul, &inputs)?;
    match c.float("alpha", 1.0)? {
        1.0 => Ok(product),
        alpha => {
            let alpha = c.scalar(c.dtype(product), alpha.into())?;
            c.binary(Binary::Mul, product, alpha)
        }
    }
}

fn gemm_fast_gelu(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let inputs = [c.input(0)?, c.input(1)?];
    let mut y = c.emit(Op::MatMul, &inputs)?;
    if let Some(bias) = c.optional(2) {
        y = c.binary(Binary::Add, y, bias)?;
    }
    c.unary(Unary::Activation(Activation::GeluTanh), y)
}

/// `act(Conv(x, w) + bias + z)`.
fn fused_conv(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let inputs = (0..3).map(|at| c.optional(at)).collect();
    let y = qoperator::as_operator(c, inputs, 11, |c| conv::lower(c, "Conv"))?;
    added_and_activated(c, y, c.optional(3))
}

fn added_and_activated(
    c: &mut Ctx,
    mut y: ValueId,
    z: Option<ValueId>,
) -> Result<ValueId, OnnxError> {
    if let Some(z) = z {
        y = c.binary(Binary::Add, y, z)?;
    }
    let parameters = c.floats("activation_params")?.unwrap_or_default();
    activated(c, y, |at, otherwise| {
        parameters.get(at).copied().unwrap_or(otherwise)
    })
}

/// The same over tensors whose channels come last; weights are as ever.
fn nhwc_conv(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let x = channels_first(c, x)?;
    let inputs = vec![Some(x), c.optional(1), c.optional(2)];
    let y = qoperator::as_operator(c, inputs, 11, |c| conv::lower(c, "Conv"))?;
    let z = match c.optional(3) {
        Some(z) => Some(channels_first(c, z)?),
        None => None,
    };
    let y = added_and_activated(c, y, z)?;
    channels_last(c, y)
}
