//! A few fused operators of onnxruntime that exporters write.

use super::{blocks, contrib_attention, conv, qoperator, quantize, recurrent};
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::op::{Activation, Binary, Reduce, Unary};
use neap_ir::{DType, Literal, Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "FastGelu" => one(biased(c, Activation::GeluTanh)),
        "BiasGelu" => one(biased(c, Activation::Gelu)),
        "FusedMatMul" => one(fused_matmul(c)),
        "FusedConv" => one(fused_conv(c)),
        "QuickGelu" => one(quick_gelu(c)),
        "SkipLayerNormalization" => skip_norm(c, true),
        "SkipSimplifiedLayerNormalization" => skip_norm(c, false),
        "EmbedLayerNormalization" => embed_layer_norm(c),
        "Attention" | "MultiHeadAttention" | "GroupQueryAttention" | "RotaryEmbedding" => {
            return contrib_attention::lower(c, op);
        }
        // Of com.microsoft; in the default domain these are handled before.
        "Gelu" => one(c
            .input(0)
            .and_then(|x| c.unary(Unary::Activation(Activation::Gelu), x))),
        // Written in onnxruntime's domain for models of before the operators' opsets.
        "QuantizeLinear" | "DequantizeLinear" => return quantize::lower(c, op),
        "MatMulNBits" => one(blocks::matmul(c)),
        "GatherBlockQuantized" => one(blocks::gather(c)),
        "DynamicQuantizeLSTM" => recurrent::dynamic_quantize_lstm(c),
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

/// `act(Conv(x, w) + bias + z)`.
fn fused_conv(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let inputs = (0..3).map(|at| c.optional(at)).collect();
    let mut y = qoperator::as_operator(c, inputs, 11, |c| conv::lower(c, "Conv"))?;
    if let Some(z) = c.optional(3) {
        y = c.binary(Binary::Add, y, z)?;
    }
    let parameters = c.floats("activation_params")?.unwrap_or_default();
    let parameter = |at: usize, otherwise: f32| parameters.get(at).copied().unwrap_or(otherwise);
    let activation = match c.string("activation", "")? {
        "" => return Ok(y),
        "Relu" => Activation::Relu,
        "Tanh" => Activation::Tanh,
        "Sigmoid" => Activation::Sigmoid,
        "LeakyRelu" => Activation::LeakyRelu {
            alpha: parameter(0, 0.01),
        },
        "Clip" => Activation::Clip {
            low: parameter(0, f32::MIN),
            high: parameter(1, f32::MAX),
        },
        "HardSigmoid" => Activation::HardSigmoid {
            alpha: parameter(0, 0.2),
            beta: parameter(1, 0.5),
        },
        _ => return Err(c.unsupported("its activation")),
    };
    c.unary(Unary::Activation(activation), y)
}

/// `x * sigmoid(alpha * x)`
fn quick_gelu(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let alpha = c.scalar(c.dtype(x), c.float("alpha", 1.702)?.into())?;
    let scaled = c.binary(Binary::Mul, x, alpha)?;
    let gate = c.unary(Unary::Activation(Activation::Sigmoid), scaled)?;
    c.binary(Binary::Mul, x, gate)
}

/// `Norm(x + skip + bias)`; the sum is output 3. A layer's norm has a shift before the bias.
fn skip_norm(c: &mut Ctx, has_shift: bool) -> Outputs {
    let (x, skip, scale) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let axis = c.shape_of_rank(x, 1)?.len() - 1;
    if c.wants(1) || c.wants(2) {
        return Err(c.unsupported("output of mean or deviation"));
    }
    let mut sum = c.binary(Binary::Add, x, skip)?;
    if let Some(bias) = c.optional(3 + usize::from(has_shift)) {
        sum = c.binary(Binary::Add, sum, bias)?;
    }
    let epsilon = c.float("epsilon", 1e-12)?;
    let mut inputs = vec![Some(sum), Some(scale)];
    let op = if has_shift {
        inputs.extend(c.optional(3).map(Some));
        Op::LayerNorm { axis, epsilon }
    } else {
        Op::RmsNorm { axis, epsilon }
    };
    let y = c.emit_optional(op, &inputs)?;
    Ok(vec![Some(y), None, None, Some(sum)])
}

/// `LayerNorm(word + position + segment)` of tokens; output 1 counts the tokens of the mask, output 2 is the sum.
fn embed_layer_norm(c: &mut Ctx) -> Outputs {
    let (ids, words, places) = (c.input(0)?, c.input(2)?, c.input(3)?);
    let shape = c.shape(ids);
    let &[batch, rows] = &shape[..] else {
        return Err(c.bad(format!("tokens of shape {shape:?} are no sequences")));
    };
    let row_of = |c: &mut Ctx, table: ValueId, indices: ValueId| {
        c.emit(Op::Gather { axis: 0 }, &[table, indices])
    };
    let mut sum = row_of(c, words, ids)?;
    let positions = match c.optional(8) {
        Some(positions) => positions,
        None => {
            let all: Vec<i64> = (0..rows as i64).collect();
            c.constant(Literal::from_i64(&[1, rows], &all))
        }
    };
    let position = row_of(c, places, positions)?;
    sum = c.binary(Binary::Add, sum, position)?;
    if let (Some(segments), Some(table)) = (c.optional(1), c.optional(4)) {
        let segment = row_of(c, table, segments)?;
        sum = c.binary(Binary::Add, sum, segment)?;
    }
    let op = Op::LayerNorm {
        axis: 2,
        epsilon: c.float("epsilon", 1e-12)?,
    };
    let (gamma, beta) = (c.input(5)?, c.input(6)?);
    let y = c.emit(op, &[sum, gamma, beta])?;
    let counts = match c.optional(7) {
        Some(mask) if c.wants(1) => {
            let one = c.scalar(c.dtype(mask), 1.0)?;
            let is_token = c.binary(Binary::Equal, mask, one)?;
            let tokens = c.cast(is_token, DType::I32)?;
            let op = Op::Reduce {
                kind: Reduce::Sum,
                axes: vec![1],
                keep_dims: false,
            };
            c.emit(op, &[tokens])?
        }
        _ => c.filled(crate::node::scalar(DType::I32, 0.0), &[batch])?,
    };
    Ok(vec![Some(y), Some(counts), Some(sum)])
}
