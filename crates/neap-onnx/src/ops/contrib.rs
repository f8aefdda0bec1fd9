//! A few fused operators of onnxruntime that exporters write.

use super::quantize::Quantized;
use super::{
    blocks, contrib_attention, distances, fused, gated, late, qoperator, quantize, recurrent,
};
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::op::{Activation, Binary, Reduce, Unary};
use neap_ir::{DType, Literal, Op, ValueId};

/// Of onnxruntime's own operators.
pub(super) const DOMAIN: &str = "com.microsoft";

/// Operators that onnxruntime had in a domain of its own before the standard took them, and an opset in which they read so.
const BEFORE_THE_STANDARD: [(&str, i64); 5] = [
    ("GatherND", 11),
    ("GridSample", 16),
    ("Pad", 13),
    ("Range", 11),
    ("Trilu", 14),
];

/// The opset of the standard in which it reads as in [`DOMAIN`]; `None` where it is no operator of both.
pub(super) fn version_in_the_standard(c: &mut Ctx, op: &str) -> Result<Option<i64>, OnnxError> {
    let mut pairs = BEFORE_THE_STANDARD.iter();
    let found = pairs.find_map(|&(name, version)| (name == op).then_some(version));
    if found.is_some() && op == "Range" {
        // Its step may be missing, and all three may be lists of one.
        let dtype = c.dtype(c.input(0)?);
        if c.optional(2).is_none() {
            let one = c.scalar(dtype, 1.0)?;
            c.inputs.resize(2, None);
            c.inputs.push(Some(one));
        }
        for at in 0..3 {
            let value = c.input(at)?;
            if !c.builder.is_late(value) {
                c.inputs[at] = Some(c.reshape(value, &[])?);
            }
        }
    }
    Ok(found)
}

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "FastGelu" => one(biased(c, Activation::GeluTanh)),
        "BiasGelu" => one(biased(c, Activation::Gelu)),
        "QuickGelu" => one(quick_gelu(c)),
        "SkipLayerNormalization" => skip_norm(c, true),
        "SkipSimplifiedLayerNormalization" => skip_norm(c, false),
        "EmbedLayerNormalization" => embed_layer_norm(c),
        "QEmbedLayerNormalization" => quantized_embed_layer_norm(c),
        // Of com.microsoft; in the default domain these are handled before.
        "Gelu" => one(c
            .input(0)
            .and_then(|x| c.unary(Unary::Activation(Activation::Gelu), x))),
        // Written in onnxruntime's domain for models of before the operators' opsets.
        "QuantizeLinear" | "DequantizeLinear" => return quantize::lower(c, op),
        "Unique" => late::unique_in_order(c),
        "Inverse" => one(c.input(0).and_then(|x| c.emit(Op::Inverse, &[x]))),
        "MatMulInteger16" => one(matmul_integer16(c)),
        "MatMulNBits" => one(blocks::matmul(c)),
        "GatherBlockQuantized" => one(blocks::gather(c)),
        "DynamicQuantizeLSTM" => recurrent::dynamic_quantize_lstm(c),
        "QLinearConv" => return qoperator::lower(c, op),
        _ => {
            let families = [
                fused::lower,
                contrib_attention::lower,
                qoperator::contrib,
                gated::lower,
                distances::lower,
            ];
            return families.into_iter().find_map(|family| family(c, op));
        }
    })
}

fn biased(c: &mut Ctx, activation: Activation) -> Result<ValueId, OnnxError> {
    let mut x = c.input(0)?;
    if let Some(bias) = c.optional(1) {
        x = c.binary(Binary::Add, x, bias)?;
    }
    c.unary(Unary::Activation(activation), x)
}

fn matmul_integer16(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (a, b) = (c.input(0)?, c.input(1)?);
    let wide = [c.cast(a, DType::I32)?, c.cast(b, DType::I32)?];
    c.emit(Op::MatMul, &wide)
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

/// What [`embed_layer_norm`] is of.
struct Embedding {
    words: ValueId,
    places: ValueId,
    segments: Option<ValueId>,
    gamma: ValueId,
    beta: ValueId,
    /// Where it is not as far as a row is from the first one.
    positions: Option<ValueId>,
}

fn embed_layer_norm(c: &mut Ctx) -> Outputs {
    let of = Embedding {
        words: c.input(2)?,
        places: c.input(3)?,
        segments: c.optional(4),
        gamma: c.input(5)?,
        beta: c.input(6)?,
        positions: c.optional(8),
    };
    embedded(c, of)
}

/// The same with tables, scale and shift in 8 bits.
fn quantized_embed_layer_norm(c: &mut Ctx) -> Outputs {
    let widened = |c: &mut Ctx, x: usize, scale: usize, zero: usize| {
        let steps = Quantized {
            x: c.input(x)?,
            scale: c.input(scale)?,
            zero: c.optional(zero),
            axis: 0,
        };
        steps.value(c)
    };
    let segments = match c.optional(4) {
        Some(_) => Some(widened(c, 4, 10, 15)?),
        None => None,
    };
    let of = Embedding {
        words: widened(c, 2, 8, 13)?,
        places: widened(c, 3, 9, 14)?,
        segments,
        gamma: widened(c, 5, 11, 16)?,
        beta: widened(c, 6, 12, 17)?,
        positions: None,
    };
    embedded(c, of)
}

/// `LayerNorm(word + position + segment)` of tokens; output 1 counts the tokens of the mask, output 2 is the sum.
fn embedded(c: &mut Ctx, of: Embedding) -> Outputs {
    let ids = c.input(0)?;
    let shape = c.shape(ids);
    let &[batch, rows] = &shape[..] else {
        return Err(c.bad(format!("tokens of shape {shape:?} are no sequences")));
    };
    let row_of = |c: &mut Ctx, table: ValueId, indices: ValueId| {
        c.emit(Op::Gather { axis: 0 }, &[table, indices])
    };
    let mut sum = row_of(c, of.words, ids)?;
    let positions = match of.positions {
        Some(positions) => positions,
        None => {
            let all: Vec<i64> = (0..rows as i64).collect();
            c.constant(Literal::from_i64(&[1, rows], &all))
        }
    };
    let position = row_of(c, of.places, positions)?;
    sum = c.binary(Binary::Add, sum, position)?;
    if let (Some(segments), Some(table)) = (c.optional(1), of.segments) {
        let segment = row_of(c, table, segments)?;
        sum = c.binary(Binary::Add, sum, segment)?;
    }
    let op = Op::LayerNorm {
        axis: 2,
        epsilon: c.float("epsilon", 1e-12)?,
    };
    let y = c.emit(op, &[sum, of.gamma, of.beta])?;
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
