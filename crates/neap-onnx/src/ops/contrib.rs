//! A few fused operators of onnxruntime that exporters write.

use super::{qoperator, quantize};
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::op::{Activation, Binary, Unary};
use neap_ir::{Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "FastGelu" => one(biased(c, Activation::GeluTanh)),
        "BiasGelu" => one(biased(c, Activation::Gelu)),
        "FusedMatMul" => one(fused_matmul(c)),
        "SkipLayerNormalization" => skip_layer_norm(c),
        // Of com.microsoft; in the default domain these are handled before.
        "Gelu" => one(c
            .input(0)
            .and_then(|x| c.unary(Unary::Activation(Activation::Gelu), x))),
        // Written in onnxruntime's domain for models of before the operators' opsets.
        "QuantizeLinear" | "DequantizeLinear" => return quantize::lower(c, op),
        "QLinearConv" => return qoperator::lower(c, op),
        _ => return qoperator::contrib(c, op),
    })
}

fn biased(c: &mut Ctx, activation: Activation) -> Result<ValueId, OnnxError> {
    let mut x = c.input(0)?;
    if let Some(bias) = c.optional(1) {
        x = c.binary(Binary::Add, x, bias)?;
    }
    c.unary(Unary::Activation(activation), x)
}

fn fused_matmul(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    if c.flag("transBatchA", false)? || c.flag("transBatchB", false)? {
        return Err(c.unsupported("transposing batches"));
    }
    let mut inputs = [c.input(0)?, c.input(1)?];
    for (input, name) in inputs.iter_mut().zip(["transA", "transB"]) {
        if c.flag(name, false)? {
            let rank = c.shape_of_rank(*input, 2)?.len();
            let mut perm: Vec<usize> = (0..rank).collect();
            perm.swap(rank - 2, rank - 1);
            *input = c.emit(Op::Transpose { perm }, &[*input])?;
        }
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

/// `LayerNorm(x + skip + bias)`; the sum is output 3.
fn skip_layer_norm(c: &mut Ctx) -> Outputs {
    let (x, skip, scale) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let rank = c.shape_of_rank(x, 1)?.len();
    let mut sum = c.binary(Binary::Add, x, skip)?;
    if let Some(bias) = c.optional(4) {
        sum = c.binary(Binary::Add, sum, bias)?;
    }
    let op = Op::LayerNorm {
        axis: rank - 1,
        epsilon: c.float("epsilon", 1e-12)?,
    };
    let mut inputs = vec![Some(sum), Some(scale)];
    inputs.extend(c.optional(3).map(Some));
    let y = c.emit_optional(op, &inputs)?;
    Ok(vec![Some(y), None, None, Some(sum)])
}
