//! Softmax and the normalisations.

use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::op::{Binary, Reduce, Softmax, Unary};
use neap_ir::{Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "Softmax" => one(softmax(c, Softmax::Softmax)),
        "LogSoftmax" => one(softmax(c, Softmax::LogSoftmax)),
        "Hardmax" => one(softmax(c, Softmax::Hardmax)),
        "BatchNormalization" => batch_norm(c),
        "LayerNormalization" => layer_norm(c),
        "RMSNormalization" | "SimplifiedLayerNormalization" => one(rms_norm(c)),
        "InstanceNormalization" => one(instance_norm(c)),
        "GroupNormalization" => one(group_norm(c)),
        "LpNormalization" => one(lp_norm(c)),
        "LRN" => one(lrn(c)),
        "MeanVarianceNormalization" => one(mean_variance(c)),
        _ => return None,
    })
}

/// Before opset 13 the axes from `axis` on were taken together.
fn softmax(c: &mut Ctx, kind: Softmax) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let shape = c.shape_of_rank(x, 1)?;
    let rank = shape.len();
    if c.version >= 13 {
        let axis = c.axis(c.int("axis", -1)?, rank)?;
        return c.emit(Op::Softmax { axis, kind }, &[x]);
    }
    let axis = c.int("axis", 1)?;
    let axis = if axis == rank as i64 {
        rank
    } else {
        c.axis(axis, rank)?
    };
    if axis + 1 == rank {
        return c.emit(Op::Softmax { axis, kind }, &[x]);
    }
    let rows = shape[..axis].iter().product();
    let columns = shape[axis..].iter().product();
    let flat = c.reshape(x, &[rows, columns])?;
    let result = c.emit(Op::Softmax { axis: 1, kind }, &[flat])?;
    c.reshape(result, &shape)
}

fn batch_norm(c: &mut Ctx) -> Outputs {
    let x = c.input(0)?;
    let epsilon = c.float("epsilon", 1e-5)?;
    if c.version < 9 && !c.flag("spatial", true)? {
        return Err(c.unsupported("spatial = 0"));
    }
    let (scale, bias) = (c.input(1)?, c.input(2)?);
    let (mean, variance) = (c.input(3)?, c.input(4)?);
    if c.version >= 14 && c.flag("training_mode", false)? {
        return batch_norm_training(c, epsilon, [x, scale, bias, mean, variance]);
    }
    if c.node.outputs.len() > 1 && (1..c.node.outputs.len()).any(|i| c.wants(i)) {
        return Err(c.unsupported("an output besides the first"));
    }
    one(c.emit(Op::BatchNorm { epsilon }, &[x, scale, bias, mean, variance]))
}

/// Statistics of the batch, and running statistics moved towards them.
fn batch_norm_training(c: &mut Ctx, epsilon: f32, inputs: [ValueId; 5]) -> Outputs {
    let [x, scale, bias, mean, variance] = inputs;
    let shape = c.shape_of_rank(x, 2)?;
    let momentum = c.float("momentum", 0.9)?;
    let axes: Vec<usize> = (0..shape.len()).filter(|&a| a != 1).collect();
    let reduce = |c: &mut Ctx, x: ValueId| {
        let op = Op::Reduce {
            kind: Reduce::Mean,
            axes: axes.clone(),
            keep_dims: true,
        };
        c.emit(op, &[x])
    };
    let batch_mean = reduce(c, x)?;
    let centred = c.binary(Binary::Sub, x, batch_mean)?;
    let squared = c.binary(Binary::Mul, centred, centred)?;
    let batch_variance = reduce(c, squared)?;
    let batch_mean = c.reshape(batch_mean, &[shape[1]])?;
    let batch_variance = c.reshape(batch_variance, &[shape[1]])?;
    let operands = [x, scale, bias, batch_mean, batch_variance];
    let y = c.emit(Op::BatchNorm { epsilon }, &operands)?;
    let mut moved = |running: ValueId, batch: ValueId| {
        let keep = c.scalar(c.dtype(running), momentum.into())?;
        let take = c.scalar(c.dtype(batch), 1.0 - f64::from(momentum))?;
        let running = c.binary(Binary::Mul, running, keep)?;
        let batch = c.binary(Binary::Mul, batch, take)?;
        c.binary(Binary::Add, running, batch)
    };
    let mean = moved(mean, batch_mean)?;
    let variance = moved(variance, batch_variance)?;
    Ok(vec![Some(y), Some(mean), Some(variance)])
}

/// The operand as the normalised axes' own shape, which it may broadcast to.
fn normalised_operand(
    c: &mut Ctx,
    operand: ValueId,
    shape: &[usize],
) -> Result<ValueId, OnnxError> {
    let elements: usize = shape.iter().product();
    if c.ty(operand).elements() == elements {
        return c.reshape(operand, shape);
    }
    c.expand(operand, shape)
}

fn layer_norm(c: &mut Ctx) -> Outputs {
    let (x, scale) = (c.input(0)?, c.input(1)?);
    let shape = c.shape_of_rank(x, 1)?;
    let axis = c.axis(c.int("axis", -1)?, shape.len())?;
    if c.builder.axes(x)[axis..].iter().any(|a| a.symbol.is_some()) {
        return Err(c.unsupported("a norm over a size that is known only when running"));
    }
    let epsilon = c.float("epsilon", 1e-5)?;
    let scale = normalised_operand(c, scale, &shape[axis..])?;
    let mut inputs = vec![Some(x), Some(scale)];
    if let Some(bias) = c.optional(2) {
        inputs.push(Some(normalised_operand(c, bias, &shape[axis..])?));
    }
    c.emit_outputs(Op::LayerNorm { axis, epsilon }, &inputs)
}

fn rms_norm(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, scale) = (c.input(0)?, c.input(1)?);
    let shape = c.shape_of_rank(x, 1)?;
    let axis = c.axis(c.int("axis", -1)?, shape.len())?;
    let epsilon = c.float("epsilon", 1e-5)?;
    let scale = normalised_operand(c, scale, &shape[axis..])?;
    c.emit(Op::RmsNorm { axis, epsilon }, &[x, scale])
}

fn instance_norm(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let inputs = [c.input(0)?, c.input(1)?, c.input(2)?];
    let epsilon = c.float("epsilon", 1e-5)?;
    c.emit(Op::InstanceNorm { epsilon }, &inputs)
}

fn group_norm(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let inputs = [c.input(0)?, c.input(1)?, c.input(2)?];
    let op = Op::GroupNorm {
        groups: c.size("num_groups", 0)?,
        epsilon: c.float("epsilon", 1e-5)?,
        per_group: c.version < 21,
    };
    c.emit(op, &inputs)
}

fn lp_norm(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let axis = c.axis(c.int("axis", -1)?, c.rank(x))?;
    let p = match c.int("p", 2)? {
        p @ (1 | 2) => p as u32,
        _ => return Err(c.bad("attribute 'p' is neither 1 nor 2")),
    };
    c.emit(Op::LpNorm { axis, p }, &[x])
}

fn lrn(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let op = Op::Lrn {
        alpha: c.float("alpha", 1e-4)?,
        beta: c.float("beta", 0.75)?,
        bias: c.float("bias", 1.0)?,
        size: c.size("size", 0)?,
    };
    c.emit(op, &[x])
}

/// `(x - mean) / (deviation + 1e-9)`, as the operator's definition spells it out.
fn mean_variance(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let axes = c.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let axes = c.axes(&axes, c.rank(x))?;
    let mean = |c: &mut Ctx, x: ValueId| {
        let op = Op::Reduce {
            kind: Reduce::Mean,
            axes: axes.clone(),
            keep_dims: true,
        };
        c.emit(op, &[x])
    };
    let average = mean(c, x)?;
    let centred = c.binary(Binary::Sub, x, average)?;
    let squared = c.binary(Binary::Mul, centred, centred)?;
    let variance = mean(c, squared)?;
    let deviation = c.unary(Unary::Sqrt, variance)?;
    let tiny = c.scalar(c.dtype(x), 1e-9)?;
    let deviation = c.binary(Binary::Add, deviation, tiny)?;
    c.binary(Binary::Div, centred, deviation)
}
