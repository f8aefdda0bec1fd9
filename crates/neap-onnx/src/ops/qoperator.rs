//! Operators on quantised tensors: dequantise, compute, quantise again.
//!
//! What lies between two of them is rounded to steps and is otherwise `f32` (see the rewriter), so that kernels and
//! layouts are those of the model before it was quantised.

use super::channels_last::{channels_first, channels_last};
use super::quantize::{Quantized, dynamic_steps, in_floats};
use super::{conv, movement, norm, pool, reduce};
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::op::{Activation, Binary, Pool, Unary};
use neap_ir::{DType, Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "QLinearConv" => one(qlinear_conv(c)),
        "ConvInteger" => one(conv_integer(c)),
        _ => return None,
    })
}

/// Those of onnxruntime.
pub(super) fn contrib(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "QLinearAdd" => one(qlinear_binary(c, Binary::Add)),
        "QLinearMul" => one(qlinear_binary(c, Binary::Mul)),
        "QLinearSigmoid" => one(qlinear_unary(c, Unary::Activation(Activation::Sigmoid))),
        "QLinearLeakyRelu" => one(leaky_relu(c)),
        "QLinearGlobalAveragePool" => one(global_average_pool(c)),
        "QLinearAveragePool" => one(through(c, 7, |c| pool::lower(c, "AveragePool"))),
        "QLinearReduceMean" => one(through(c, 7, |c| reduce::lower(c, "ReduceMean"))),
        "QLinearSoftmax" => one(softmax(c)),
        "QLinearConcat" => one(concat(c)),
        "QLinearWhere" => one(where_(c)),
        "NhwcMaxPool" => one(nhwc_max_pool(c)),
        "QGemm" => one(qgemm(c)),
        "MatMulIntegerToFloat" => one(matmul_integer_to_float(c)),
        "DynamicQuantizeMatMul" => one(dynamic_quantize_matmul(c)),
        _ => return None,
    })
}

/// A tensor and its steps from inputs `at`, `at + 1` and `at + 2`.
fn quantized(c: &Ctx, at: usize, axis: usize) -> Result<Quantized, OnnxError> {
    Ok(Quantized {
        x: c.input(at)?,
        scale: c.input(at + 1)?,
        zero: c.optional(at + 2),
        axis,
    })
}

/// The steps of a result from inputs `at` and `at + 1`.
fn result(c: &Ctx, at: usize) -> Result<Quantized, OnnxError> {
    Ok(Quantized {
        x: c.input(0)?,
        scale: c.input(at)?,
        zero: c.optional(at + 1),
        axis: 0,
    })
}

/// Lowers the node as another operator with other inputs, in the form of an opset.
pub(super) fn as_operator(
    c: &mut Ctx,
    inputs: Vec<Option<ValueId>>,
    version: i64,
    lower: impl FnOnce(&mut Ctx) -> Option<Outputs>,
) -> Result<ValueId, OnnxError> {
    let mut inner = Ctx {
        builder: &mut *c.builder,
        node: c.node,
        name: c.name,
        version,
        inputs,
    };
    let outputs = lower(&mut inner).unwrap_or_else(|| Err(inner.unsupported("this form")))?;
    match outputs.first() {
        Some(&Some(output)) => Ok(output),
        _ => Err(c.bad("it has no output")),
    }
}

/// One quantised operand, one quantised result.
fn through(
    c: &mut Ctx,
    version: i64,
    lower: impl FnOnce(&mut Ctx) -> Option<Outputs>,
) -> Result<ValueId, OnnxError> {
    let x = image(c)?.value(c)?;
    let y = result(c, 3)?;
    let value = as_operator(c, vec![Some(x)], version, lower)?;
    image_result(c, y, value)
}

/// The first operand; channels become its second axis where the node has them last.
fn image(c: &mut Ctx) -> Result<Quantized, OnnxError> {
    let mut x = quantized(c, 0, 0)?;
    if c.flag("channels_last", false)? {
        x.x = channels_first(c, x.x)?;
    }
    Ok(x)
}

/// `value` in the steps of `y`, its channels where the node has them.
fn image_result(c: &mut Ctx, y: Quantized, value: ValueId) -> Result<ValueId, OnnxError> {
    let y = y.steps_of(c, value)?;
    match c.flag("channels_last", false)? {
        true => channels_last(c, y),
        false => Ok(y),
    }
}

fn qlinear_conv(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, w) = (image(c)?, quantized(c, 3, 0)?);
    let y = result(c, 6)?;
    let bias = match c.optional(8) {
        None => None,
        Some(bias) => {
            // In steps of the products.
            let scale = c.binary(Binary::Mul, x.scale, w.scale)?;
            let bias = Quantized {
                x: bias,
                scale,
                zero: None,
                axis: 0,
            };
            Some(bias.value(c)?)
        }
    };
    let inputs = vec![Some(x.value(c)?), Some(w.value(c)?), bias];
    let value = as_operator(c, inputs, 11, |c| conv::lower(c, "Conv"))?;
    image_result(c, y, value)
}

fn conv_integer(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, w) = (c.input(0)?, c.input(1)?);
    let terms: usize = c.shape(w).iter().skip(1).product();
    let is_constant = c.builder.graph.constant(w).is_some();
    // Sums that f32 does not hold.
    let is_wide = !is_constant && !in_floats(c, terms, w);
    let scale = c.scalar(DType::F32, 1.0)?;
    let mut inputs = Vec::new();
    for (at, x) in [x, w].into_iter().enumerate() {
        let zero = c.optional(2 + at);
        let whole = Quantized {
            x,
            scale,
            zero,
            axis: 0,
        };
        let value = whole.value(c)?;
        inputs.push(Some(match is_wide {
            true => c.cast(value, DType::F64)?,
            false => value,
        }));
    }
    let value = as_operator(c, inputs, 11, |c| conv::lower(c, "Conv"))?;
    c.cast(value, DType::I32)
}

fn qlinear_binary(c: &mut Ctx, kind: Binary) -> Result<ValueId, OnnxError> {
    let (a, b) = (quantized(c, 0, 0)?.value(c)?, quantized(c, 3, 0)?.value(c)?);
    let value = c.binary(kind, a, b)?;
    result(c, 6)?.steps_of(c, value)
}

fn qlinear_unary(c: &mut Ctx, kind: Unary) -> Result<ValueId, OnnxError> {
    let x = quantized(c, 0, 0)?.value(c)?;
    let value = c.unary(kind, x)?;
    result(c, 3)?.steps_of(c, value)
}

fn leaky_relu(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let alpha = c.float("alpha", 0.01)?;
    qlinear_unary(c, Unary::Activation(Activation::LeakyRelu { alpha }))
}

fn global_average_pool(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = image(c)?.value(c)?;
    let kind = Pool::Average {
        count_include_pad: false,
    };
    let value = c.emit(Op::GlobalPool(kind), &[x])?;
    let y = result(c, 3)?;
    image_result(c, y, value)
}

/// Of 8-bit integers as they stand.
fn nhwc_max_pool(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let x = channels_first(c, x)?;
    let y = as_operator(c, vec![Some(x)], 12, |c| pool::lower(c, "MaxPool"))?;
    channels_last(c, y)
}

fn where_(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let condition = c.input(0)?;
    let (x, y) = (quantized(c, 1, 0)?.value(c)?, quantized(c, 4, 0)?.value(c)?);
    let value = c.emit(Op::Where, &[condition, x, y])?;
    result(c, 7)?.steps_of(c, value)
}

fn softmax(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let opset = c.int("opset", 13)?;
    through(c, opset, |c| norm::lower(c, "Softmax"))
}

fn concat(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let count = c.inputs.len().saturating_sub(2);
    if count == 0 || !count.is_multiple_of(3) {
        return Err(c.bad("it needs a scale and a zero point for each operand"));
    }
    let mut parts = Vec::new();
    for at in (2..c.inputs.len()).step_by(3) {
        parts.push(Some(quantized(c, at, 0)?.value(c)?));
    }
    let value = as_operator(c, parts, 13, |c| movement::lower(c, "Concat"))?;
    result(c, 0).and_then(|y| y.steps_of(c, value))
}

fn qgemm(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (alpha, trans_a, trans_b) = (
        c.float("alpha", 1.0)?,
        c.flag("transA", false)?,
        c.flag("transB", false)?,
    );
    let (a, b) = (quantized(c, 0, 0)?, quantized(c, 3, usize::from(!trans_b))?);
    let mut inputs = vec![Some(a.value(c)?), Some(b.value(c)?)];
    if let Some(x) = c.optional(6) {
        // It is added to the sum of products, in whose steps it is.
        let scale = c.binary(Binary::Mul, a.scale, b.scale)?;
        let alpha = c.scalar(DType::F32, alpha.into())?;
        let scale = c.binary(Binary::Mul, scale, alpha)?;
        let axis = c.rank(x).saturating_sub(1);
        let bias = Quantized {
            x,
            scale,
            zero: None,
            axis,
        };
        inputs.push(Some(bias.value(c)?));
    }
    let op = Op::Gemm {
        alpha,
        beta: 1.0,
        trans_a,
        trans_b,
    };
    let value = c.emit_optional(op, &inputs)?;
    match c.optional(7) {
        Some(_) => result(c, 7)?.steps_of(c, value),
        None => Ok(value),
    }
}

/// `x` times the matrix at input `b`, whose scale and zero point are inputs too, plus an optional bias.
fn product(
    c: &mut Ctx,
    x: ValueId,
    [b, scale, zero, bias]: [usize; 4],
) -> Result<ValueId, OnnxError> {
    let x_of_b = c.input(b)?;
    let axis = c.rank(x_of_b).saturating_sub(1);
    let b = Quantized {
        x: x_of_b,
        scale: c.input(scale)?,
        zero: c.optional(zero),
        axis,
    };
    let b = b.value(c)?;
    let mut value = c.emit(Op::MatMul, &[x, b])?;
    if let Some(bias) = c.optional(bias) {
        value = c.binary(Binary::Add, value, bias)?;
    }
    Ok(value)
}

fn matmul_integer_to_float(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let a = Quantized {
        x,
        scale: c.input(2)?,
        zero: c.optional(4),
        axis: c.rank(x).saturating_sub(2),
    };
    let a = a.value(c)?;
    product(c, a, [1, 3, 5, 6])
}

fn dynamic_quantize_matmul(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let a = dynamic_steps(c, x)?.value(c)?;
    product(c, a, [1, 2, 3, 4])
}
