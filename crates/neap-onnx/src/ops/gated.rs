//! Small functions of onnxruntime's own: biases, gates and norms that exporters of newer networks write.

use super::channels_last::{channels_first, channels_last};
use super::slicing::part;
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::op::{Activation, Binary, Softmax, Unary};
use neap_ir::{DType, Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "BiasAdd" => one(bias_add(c)),
        "BiasSoftmax" => one(bias_softmax(c)),
        "BiasSplitGelu" => one(bias_split_gelu(c)),
        "ScaledSiLU" => one(scaled_silu(c)),
        "GatedAdd" => one(gated_add(c)),
        "GatedRMSNorm" => one(gated_rms_norm(c)),
        "BranchwiseRMSNorm" => one(branchwise_rms_norm(c)),
        "GroupNorm" => one(c.input(0).and_then(|x| group_norm(c, x))),
        "SkipGroupNorm" => skip_group_norm(c),
        _ => return None,
    })
}

/// `x + bias + skip`.
fn bias_add(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, bias, skip) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let sum = c.binary(Binary::Add, x, bias)?;
    c.binary(Binary::Add, sum, skip)
}

/// Softmax over the axes from `axis` on of `data + bias`.
fn bias_softmax(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, bias) = (c.input(0)?, c.input(1)?);
    let axis = c.axis(c.int("axis", 1)?, c.rank(x))?;
    if axis + 1 != c.rank(x) || !c.flag("is_inner_broadcast", true)? {
        return Err(c.unsupported("more than the last axis, or an outer broadcast,"));
    }
    let sum = c.binary(Binary::Add, x, bias)?;
    let kind = Softmax::Softmax;
    c.emit(Op::Softmax { axis, kind }, &[sum])
}

/// The left half of `x + bias`, by the Gelu of its right half.
fn bias_split_gelu(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, bias) = (c.input(0)?, c.input(1)?);
    let sum = c.binary(Binary::Add, x, bias)?;
    let axis = c.shape_of_rank(sum, 1)?.len() - 1;
    let half = c.shape(sum)[axis] / 2;
    let left = part(c, sum, axis, 0, half)?;
    let right = part(c, sum, axis, half, half)?;
    let gate = c.unary(Unary::Activation(Activation::Gelu), right)?;
    c.binary(Binary::Mul, left, gate)
}

/// `silu(scale * x)`.
fn scaled_silu(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let scale = match c.optional(1) {
        Some(scale) => {
            let scale = c.cast(scale, c.dtype(x))?;
            c.reshape(scale, &[])?
        }
        None => c.scalar(c.dtype(x), c.float("alpha", 1.0)?.into())?,
    };
    let scaled = c.binary(Binary::Mul, x, scale)?;
    c.unary(Unary::Activation(Activation::Silu), scaled)
}

/// `x + y * gate`.
fn gated_add(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, y, gate) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let gated = c.binary(Binary::Mul, y, gate)?;
    c.binary(Binary::Add, x, gated)
}

/// Rows are divided into groups as long as `width`; each has a norm of its own.
fn in_groups(c: &mut Ctx, x: ValueId, width: usize) -> Result<ValueId, OnnxError> {
    let mut shape = c.shape_of_rank(x, 1)?;
    let last = shape.len() - 1;
    if shape[last] == width {
        return Ok(x);
    }
    if width == 0 || !shape[last].is_multiple_of(width) {
        return Err(c.bad(format!("rows of {} are no groups of {width}", shape[last])));
    }
    shape[last] /= width;
    shape.push(width);
    c.reshape(x, &shape)
}

/// `RmsNorm(x) * scale * activation(gate)`, over groups as long as the scale.
fn gated_rms_norm(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, scale, gate) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let activation = match c.string("activation", "silu")? {
        "silu" | "swish" => Activation::Silu,
        "sigmoid" => Activation::Sigmoid,
        _ => return Err(c.bad("attribute 'activation' is unknown")),
    };
    let (given, width) = (c.shape(x), c.ty(scale).elements());
    let groups = in_groups(c, x, width)?;
    let epsilon = c.float("epsilon", 1e-6)?;
    let axis = c.rank(groups) - 1;
    let mut y = c.emit(Op::RmsNorm { axis, epsilon }, &[groups, scale])?;
    if groups != x {
        y = c.reshape(y, &given)?;
    }
    let gate = c.unary(Unary::Activation(activation), gate)?;
    c.binary(Binary::Mul, y, gate)
}

/// An RmsNorm of each branch `H` of `[.., C, H]` or `[.., C * H]`, with a scale for all, for each, or none.
fn branchwise_rms_norm(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let given = c.shape_of_rank(x, 1)?;
    let last = given[given.len() - 1];
    let width = match c.size("num_branches", 0)? {
        0 => last,
        branches if last.is_multiple_of(branches) => last / branches,
        branches => return Err(c.bad(format!("rows of {last} are no {branches} branches"))),
    };
    let groups = in_groups(c, x, width)?;
    let epsilon = c.float("epsilon", 1e-5)?;
    let (axis, dtype) = (c.rank(groups) - 1, c.dtype(x));
    let ones = c.filled(crate::node::scalar(dtype, 1.0), &[width])?;
    let mut y = c.emit(Op::RmsNorm { axis, epsilon }, &[groups, ones])?;
    if let Some(scale) = c.optional(1) {
        let scale = c.cast(scale, dtype)?;
        let branches = c.ty(scale).elements() / width.max(1);
        let scale = c.reshape(scale, &[branches, width])?;
        y = c.binary(Binary::Mul, y, scale)?;
    }
    if groups != x {
        y = c.reshape(y, &given)?;
    }
    Ok(y)
}

/// Over groups of channels, with a Silu where it is asked for; channels come last unless the node says so.
fn group_norm(c: &mut Ctx, x: ValueId) -> Result<ValueId, OnnxError> {
    let (gamma, beta) = (c.input(1)?, c.input(2)?);
    let is_last = c.flag("channels_last", true)?;
    let x = if is_last { channels_first(c, x)? } else { x };
    let op = Op::GroupNorm {
        groups: c.size("groups", 0)?,
        epsilon: c.float("epsilon", 1e-5)?,
        per_group: false,
    };
    let (gamma, beta) = (c.cast(gamma, DType::F32)?, c.cast(beta, DType::F32)?);
    let mut y = c.emit(op, &[x, gamma, beta])?;
    if c.flag("activation", false)? {
        y = c.unary(Unary::Activation(Activation::Silu), y)?;
    }
    if is_last { channels_last(c, y) } else { Ok(y) }
}

/// The norm of `x + skip + bias`; the sum is output 1.
fn skip_group_norm(c: &mut Ctx) -> Outputs {
    let (x, mut skip) = (c.input(0)?, c.input(3)?);
    let shape = c.shape_of_rank(x, 3)?;
    if c.rank(skip) == 2 {
        let at_last = c.flag("channels_last", true)?;
        let channels = c.shape(skip)[1];
        let mut wide = vec![1; shape.len()];
        wide[0] = c.shape(skip)[0];
        wide[if at_last { shape.len() - 1 } else { 1 }] = channels;
        skip = c.reshape(skip, &wide)?;
    }
    let mut sum = c.binary(Binary::Add, x, skip)?;
    if let Some(bias) = c.optional(4) {
        sum = c.binary(Binary::Add, sum, bias)?;
    }
    let y = group_norm(c, sum)?;
    Ok(vec![Some(y), Some(sum)])
}
