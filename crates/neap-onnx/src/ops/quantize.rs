//! Quantised operators, spelled out in arithmetic on wider types.

use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::op::{Binary, Reduce, SliceRange, Unary};
use neap_ir::{DType, Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "QuantizeLinear" => one(quantize(c)),
        "DequantizeLinear" => one(dequantize(c)),
        "DynamicQuantizeLinear" => dynamic_quantize(c),
        "MatMulInteger" => one(matmul_integer(c)),
        "QLinearMatMul" => one(qlinear_matmul(c)),
        _ => return None,
    })
}

/// Scale or zero point brought to the shape that broadcasts against x.
fn per_axis(c: &mut Ctx, parameter: ValueId, x: ValueId) -> Result<ValueId, OnnxError> {
    let shape = c.shape(x);
    let own = c.shape(parameter);
    if c.ty(parameter).elements() == 1 && own.len() <= 1 {
        return c.reshape(parameter, &[]);
    }
    let axis = c.int("axis", 1)?;
    let block = c.size("block_size", 0)?;
    if block > 0 {
        let axis = c.axis(axis, shape.len())?;
        return blocked(c, parameter, &shape, axis, block);
    }
    let axis = c.axis(axis, shape.len())?;
    if own != [shape[axis]] {
        return Err(c.bad(format!(
            "a scale or zero point of shape {own:?} does not fit axis {axis} of {shape:?}"
        )));
    }
    let mut aligned = vec![1; shape.len()];
    aligned[axis] = shape[axis];
    c.reshape(parameter, &aligned)
}

/// Each entry along the axis repeated for the elements of its block.
fn blocked(
    c: &mut Ctx,
    parameter: ValueId,
    shape: &[usize],
    axis: usize,
    block: usize,
) -> Result<ValueId, OnnxError> {
    let own = c.shape(parameter);
    let fits = own.len() == shape.len()
        && (0..shape.len()).all(|i| i == axis || own[i] == shape[i])
        && own[axis] == shape[axis].div_ceil(block);
    if !fits {
        return Err(c.bad(format!(
            "blocks of {block} of {shape:?} do not fit a scale or zero point of shape {own:?}"
        )));
    }
    let mut split = own.clone();
    split.insert(axis + 1, 1);
    let apart = c.reshape(parameter, &split)?;
    split[axis + 1] = block.min(shape[axis].max(1));
    let repeated = c.expand(apart, &split)?;
    let mut joined = own;
    joined[axis] *= split[axis + 1];
    let joined_value = c.reshape(repeated, &joined)?;
    let ranges = shape
        .iter()
        .map(|&len| SliceRange {
            start: 0,
            step: 1,
            len,
        })
        .collect();
    c.emit(Op::Slice { ranges }, &[joined_value])
}

fn limits(c: &Ctx, dtype: DType) -> Result<(f64, f64), OnnxError> {
    Ok(match dtype {
        DType::U8 => (0.0, 255.0),
        DType::I8 => (-128.0, 127.0),
        DType::U16 => (0.0, 65535.0),
        DType::I16 => (-32768.0, 32767.0),
        _ => return Err(c.unsupported(format!("quantising to {dtype}"))),
    })
}

/// `saturate(round(x / scale) + zero_point)`, x already f32.
fn to_quantized(
    c: &mut Ctx,
    x: ValueId,
    scale: ValueId,
    zero_point: Option<ValueId>,
    dtype: DType,
) -> Result<ValueId, OnnxError> {
    let scaled = c.binary(Binary::Div, x, scale)?;
    let mut result = c.unary(Unary::Round, scaled)?;
    if let Some(zero_point) = zero_point {
        let zero_point = c.cast(zero_point, DType::F32)?;
        result = c.binary(Binary::Add, result, zero_point)?;
    }
    let (low, high) = limits(c, dtype)?;
    let op = Op::Clip {
        low: Some(low),
        high: Some(high),
    };
    let result = c.emit(op, &[result])?;
    c.cast(result, dtype)
}

fn quantize(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, scale) = (c.input(0)?, c.input(1)?);
    let scale = per_axis(c, scale, x)?;
    let zero_point = match c.optional(2) {
        Some(zero_point) => Some(per_axis(c, zero_point, x)?),
        None => None,
    };
    let dtype = match (zero_point, c.int("output_dtype", 0)?) {
        (Some(zero_point), _) => c.dtype(zero_point),
        (None, 0) => DType::U8,
        (None, number) => c.element_type(number)?,
    };
    let x = c.cast(x, DType::F32)?;
    let scale = c.cast(scale, DType::F32)?;
    to_quantized(c, x, scale, zero_point, dtype)
}

fn dequantize(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, scale) = (c.input(0)?, c.input(1)?);
    let dtype = c.dtype(scale);
    let scale = per_axis(c, scale, x)?;
    let scale = c.cast(scale, DType::F32)?;
    let zero_point = match c.optional(2) {
        Some(zero_point) => Some(per_axis(c, zero_point, x)?),
        None => None,
    };
    let value = centred(c, x, zero_point, DType::F32)?;
    let result = c.binary(Binary::Mul, value, scale)?;
    c.cast(result, dtype)
}

/// `x - zero_point` in a wider type. The difference of int32 values is taken before rounding to f32.
fn centred(
    c: &mut Ctx,
    x: ValueId,
    zero_point: Option<ValueId>,
    to: DType,
) -> Result<ValueId, OnnxError> {
    let Some(zero_point) = zero_point else {
        return c.cast(x, to);
    };
    let x = c.cast(x, DType::I32)?;
    let zero_point = c.cast(zero_point, DType::I32)?;
    let difference = c.binary(Binary::Sub, x, zero_point)?;
    c.cast(difference, to)
}

/// Scale and zero point from the tensor's own range, as the operator's definition spells it out.
fn dynamic_quantize(c: &mut Ctx) -> Outputs {
    let x = c.input(0)?;
    let zero = c.scalar(DType::F32, 0.0)?;
    let steps = c.scalar(DType::F32, 255.0)?;
    let axes: Vec<usize> = (0..c.rank(x)).collect();
    let mut bounds = [zero; 2];
    for (bound, (kind, pick)) in bounds
        .iter_mut()
        .zip([(Reduce::Min, Binary::Min), (Reduce::Max, Binary::Max)])
    {
        let op = Op::Reduce {
            kind,
            axes: axes.clone(),
            keep_dims: false,
        };
        let extreme = c.emit(op, &[x])?;
        *bound = c.binary(pick, extreme, zero)?;
    }
    let [low, high] = bounds;
    let width = c.binary(Binary::Sub, high, low)?;
    let scale = c.binary(Binary::Div, width, steps)?;
    let offset = c.binary(Binary::Div, low, scale)?;
    let offset = c.binary(Binary::Sub, zero, offset)?;
    let clip = Op::Clip {
        low: Some(0.0),
        high: Some(255.0),
    };
    let offset = c.emit(clip, &[offset])?;
    let offset = c.unary(Unary::Round, offset)?;
    let zero_point = c.cast(offset, DType::U8)?;
    let y = to_quantized(c, x, scale, Some(zero_point), DType::U8)?;
    Ok(vec![Some(y), Some(scale), Some(zero_point)])
}

/// A zero point of a matrix: one number, or one per row (`a`) or column (`b`).
fn matrix_zero_point(
    c: &mut Ctx,
    zero_point: Option<ValueId>,
    matrix: ValueId,
    per_row: bool,
) -> Result<Option<ValueId>, OnnxError> {
    let Some(zero_point) = zero_point else {
        return Ok(None);
    };
    let shape = c.shape(zero_point);
    if c.ty(zero_point).elements() == 1 {
        return c.reshape(zero_point, &[]).map(Some);
    }
    if shape.len() == 1 && per_row && c.rank(matrix) >= 2 {
        return c.reshape(zero_point, &[shape[0], 1]).map(Some);
    }
    Ok(Some(zero_point))
}

fn integer_product(
    c: &mut Ctx,
    a: (ValueId, Option<ValueId>),
    b: (ValueId, Option<ValueId>),
) -> Result<ValueId, OnnxError> {
    let a_zero = matrix_zero_point(c, a.1, a.0, true)?;
    let b_zero = matrix_zero_point(c, b.1, b.0, false)?;
    let a = centred(c, a.0, a_zero, DType::I32)?;
    let b = centred(c, b.0, b_zero, DType::I32)?;
    c.emit(Op::MatMul, &[a, b])
}

fn matmul_integer(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (a, b) = (c.input(0)?, c.input(1)?);
    integer_product(c, (a, c.optional(2)), (b, c.optional(3)))
}

fn qlinear_matmul(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (a, a_scale, a_zero) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let (b, b_scale, b_zero) = (c.input(3)?, c.input(4)?, c.input(5)?);
    let (y_scale, y_zero) = (c.input(6)?, c.input(7)?);
    for scale in [a_scale, b_scale, y_scale, y_zero] {
        if c.ty(scale).elements() != 1 {
            return Err(c.unsupported("a scale per row or column"));
        }
    }
    let product = integer_product(c, (a, Some(a_zero)), (b, Some(b_zero)))?;
    let product = c.cast(product, DType::F32)?;
    let mut scales = [a_scale, b_scale, y_scale, y_zero];
    for scale in &mut scales {
        *scale = c.reshape(*scale, &[])?;
    }
    let [a_scale, b_scale, y_scale, y_zero] = scales;
    let (a_scale, b_scale) = (c.cast(a_scale, DType::F32)?, c.cast(b_scale, DType::F32)?);
    let y_scale = c.cast(y_scale, DType::F32)?;
    let scale = c.binary(Binary::Mul, a_scale, b_scale)?;
    let value = c.binary(Binary::Mul, product, scale)?;
    let dtype = c.dtype(y_zero);
    to_quantized(c, value, y_scale, Some(y_zero), dtype)
}
