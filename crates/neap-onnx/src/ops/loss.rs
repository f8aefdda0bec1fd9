//! Losses, spelled out in gathers and reductions.

use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::op::{Binary, Reduce, Softmax, Unary};
use neap_ir::{DType, Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "NegativeLogLikelihoodLoss" => one(negative_log_likelihood(c)),
        "SoftmaxCrossEntropyLoss" => softmax_cross_entropy(c),
        _ => return None,
    })
}

fn negative_log_likelihood(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, target) = (c.input(0)?, c.input(1)?);
    loss(c, x, target, c.optional(2))
}

fn softmax_cross_entropy(c: &mut Ctx) -> Outputs {
    let (scores, labels) = (c.input(0)?, c.input(1)?);
    c.shape_of_rank(scores, 2)?;
    let op = Op::Softmax {
        axis: 1,
        kind: Softmax::LogSoftmax,
    };
    let log_probabilities = c.emit(op, &[scores])?;
    let loss = loss(c, log_probabilities, labels, c.optional(2))?;
    Ok(vec![Some(loss), Some(log_probabilities)])
}

/// `-x[n, target[n, ..], ..] * weight[target]`, zero where ignored, then reduced.
fn loss(
    c: &mut Ctx,
    x: ValueId,
    target: ValueId,
    weight: Option<ValueId>,
) -> Result<ValueId, OnnxError> {
    let shape = c.shape_of_rank(x, 2)?;
    let target_shape = c.shape(target);
    let expected = [&shape[..1], &shape[2..]].concat();
    if target_shape != expected {
        return Err(c.bad(format!(
            "targets of shape {target_shape:?} do not fit scores of shape {shape:?}"
        )));
    }
    let dtype = c.dtype(x);
    let target = c.cast(target, DType::I64)?;
    let ignored = match c.optional_int("ignore_index")? {
        Some(index) => {
            let index = c.scalar(DType::I64, index as f64)?;
            Some(c.binary(Binary::Equal, target, index)?)
        }
        None => None,
    };
    let zero = c.scalar(dtype, 0.0)?;
    // Ignored targets may be out of range; look anywhere instead.
    let target = match ignored {
        Some(ignored) => {
            let anywhere = c.scalar(DType::I64, 0.0)?;
            c.emit(Op::Where, &[ignored, anywhere, target])?
        }
        None => target,
    };
    let mut column = target_shape.clone();
    column.insert(1, 1);
    let indices = c.reshape(target, &column)?;
    let picked = c.emit(Op::GatherElements { axis: 1 }, &[x, indices])?;
    let picked = c.reshape(picked, &target_shape)?;
    let mut losses = c.unary(Unary::Neg, picked)?;
    let mut weights = None;
    if let Some(weight) = weight {
        let weight = c.emit(Op::Gather { axis: 0 }, &[weight, target])?;
        losses = c.binary(Binary::Mul, losses, weight)?;
        weights = Some(weight);
    } else if ignored.is_some() {
        let one = c.scalar(dtype, 1.0)?;
        weights = Some(c.expand(one, &target_shape)?);
    }
    if let Some(ignored) = ignored {
        losses = c.emit(Op::Where, &[ignored, zero, losses])?;
        if let Some(weight) = weights {
            weights = Some(c.emit(Op::Where, &[ignored, zero, weight])?);
        }
    }
    let total = |c: &mut Ctx, kind: Reduce, v: ValueId| {
        let op = Op::Reduce {
            kind,
            axes: (0..target_shape.len()).collect(),
            keep_dims: false,
        };
        c.emit(op, &[v])
    };
    match c.string("reduction", "mean")? {
        "none" => Ok(losses),
        "sum" => total(c, Reduce::Sum, losses),
        "mean" => match weights {
            None => total(c, Reduce::Mean, losses),
            Some(weights) => {
                let sum = total(c, Reduce::Sum, losses)?;
                let weight = total(c, Reduce::Sum, weights)?;
                c.binary(Binary::Div, sum, weight)
            }
        },
        _ => Err(c.bad("attribute 'reduction' is unknown")),
    }
}
