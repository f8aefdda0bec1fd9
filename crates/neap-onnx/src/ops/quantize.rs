//! Quantised operators, spelled out in arithmetic on wider types.

use super::cast;
use crate::error::OnnxError;
use crate::narrow::Narrow;
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
    (low, high): (f64, f64),
) -> Result<ValueId, OnnxError> {
    let scaled = c.binary(Binary::Div, x, scale)?;
    let mut result = c.unary(Unary::Round, scaled)?;
    if let Some(zero_point) = zero_point {
        let zero_point = c.cast(zero_point, DType::F32)?;
        result = c.binary(Binary::Add, result, zero_point)?;
    }
    let op = Op::Clip {
        low: Some(low),
        high: Some(high),
    };
    let result = c.emit(op, &[result])?;
    // What is no number becomes the lowest step.
    let is_number = c.binary(Binary::Equal, result, result)?;
    let lowest = c.scalar(DType::F32, low)?;
    let result = c.emit(Op::Where, &[is_number, result, lowest])?;
    c.cast(result, dtype)
}

/// An axis, and scale and zero point along it.
type AlongAxis = (usize, Vec<Option<ValueId>>);

/// Scale and zero point as the typed operators take them: one element, or one for each place along the axis;
/// `None` for blocks.
fn along_axis(
    c: &mut Ctx,
    x: ValueId,
    parameters: [Option<ValueId>; 2],
) -> Result<Option<AlongAxis>, OnnxError> {
    if c.size("block_size", 0)? > 0 {
        return Ok(None);
    }
    let rank = c.rank(x);
    let own_axis = c.int("axis", 1)?;
    let mut axis = 0;
    let mut flat = Vec::new();
    for parameter in parameters {
        let Some(parameter) = parameter else {
            continue;
        };
        let own = c.shape(parameter);
        if c.ty(parameter).elements() == 1 && own.len() <= 1 {
            flat.push(Some(c.reshape(parameter, &[])?));
            continue;
        }
        axis = c.axis(own_axis, rank)?;
        if own != [c.shape(x)[axis]] {
            let shape = c.shape(x);
            return Err(c.bad(format!(
                "a scale or zero point of shape {own:?} does not fit axis {axis} of {shape:?}"
            )));
        }
        flat.push(Some(parameter));
    }
    Ok(Some((axis, flat)))
}

fn quantize(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, scale) = (c.input(0)?, c.input(1)?);
    let zero_point = c.optional(2);
    let number = c.int("output_dtype", 0)?;
    let narrow = match zero_point {
        Some(zero_point) => c.builder.narrow(zero_point),
        None => Narrow::of(number),
    };
    if let Some(narrow) = narrow {
        return quantize_narrowly(c, x, scale, zero_point, narrow);
    }
    let dtype = match (zero_point, number) {
        (Some(zero_point), _) => c.dtype(zero_point),
        (None, 0) => DType::U8,
        (None, number) => c.element_type(number)?,
    };
    let limits = limits(c, dtype)?;
    if let Some((axis, parameters)) = along_axis(c, x, [Some(scale), zero_point])? {
        return quantize_along(c, x, axis, &parameters, dtype);
    }
    let scale = per_axis(c, scale, x)?;
    let zero_point = match zero_point {
        Some(zero_point) => Some(per_axis(c, zero_point, x)?),
        None => None,
    };
    let x = c.cast(x, DType::F32)?;
    let scale = c.cast(scale, DType::F32)?;
    to_quantized(c, x, scale, zero_point, dtype, limits)
}

/// QuantizeLinear to types of fewer bits than the typed operator makes.
fn quantize_narrowly(
    c: &mut Ctx,
    x: ValueId,
    scale: ValueId,
    zero_point: Option<ValueId>,
    to: Narrow,
) -> Result<ValueId, OnnxError> {
    let scale = per_axis(c, scale, x)?;
    let zero_point = match zero_point {
        Some(zero_point) => Some(per_axis(c, zero_point, x)?),
        None => None,
    };
    let x = c.cast(x, DType::F32)?;
    let scale = c.cast(scale, DType::F32)?;
    let y = match to {
        Narrow::Float4 | Narrow::Float8(_) => {
            let mut scaled = c.binary(Binary::Div, x, scale)?;
            if let Some(zero_point) = zero_point {
                scaled = c.binary(Binary::Add, scaled, zero_point)?;
            }
            match to {
                Narrow::Float8(kind) => cast::round_to_float8(c, scaled, kind)?,
                _ => cast::round_to_float4(c, scaled)?,
            }
        }
        Narrow::Power => return Err(c.unsupported("quantising to powers of two")),
        Narrow::Integer { bits, signed } => {
            let limits = cast::limits(bits, signed);
            to_quantized(c, x, scale, zero_point, to.carrier(), limits)?
        }
    };
    c.builder.set_narrow(y, to);
    Ok(y)
}

/// QuantizeLinear with scale and zero point as [`along_axis`] gives them.
fn quantize_along(
    c: &mut Ctx,
    x: ValueId,
    axis: usize,
    parameters: &[Option<ValueId>],
    to: DType,
) -> Result<ValueId, OnnxError> {
    let mut inputs = vec![Some(c.cast(x, DType::F32)?)];
    inputs.extend_from_slice(parameters);
    if let Some(scale) = parameters[0] {
        inputs[1] = Some(c.cast(scale, DType::F32)?);
    }
    c.emit_optional(Op::Quantize { axis, to }, &inputs)
}

/// Whether the typed operator takes integers of that type.
fn is_step(dtype: DType) -> bool {
    matches!(
        dtype,
        DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32
    )
}

fn dequantize(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, scale) = (c.input(0)?, c.input(1)?);
    let dtype = c.dtype(scale);
    let zero_point = c.optional(2);
    let typed = is_step(c.dtype(x)) && zero_point.is_none_or(|z| c.dtype(z) == c.dtype(x));
    if typed && let Some((axis, parameters)) = along_axis(c, x, [Some(scale), zero_point])? {
        let value = dequantize_along(c, x, axis, &parameters)?;
        return c.cast(value, dtype);
    }
    let block = c.size("block_size", 0)?;
    if typed && block > 0 && c.rank(x) == c.rank(scale) {
        let axis = c.axis(c.int("axis", 1)?, c.rank(x))?;
        let value = dequantize_blocks(c, axis, block, false, [Some(x), Some(scale), zero_point])?;
        return c.cast(value, dtype);
    }
    let scale = per_axis(c, scale, x)?;
    let scale = c.cast(scale, DType::F32)?;
    let zero_point = match zero_point {
        Some(zero_point) => Some(per_axis(c, zero_point, x)?),
        None => None,
    };
    // 8-bit floats are carried by f32.
    let value = match (c.dtype(x).is_float(), zero_point) {
        (true, Some(zero_point)) => c.binary(Binary::Sub, x, zero_point)?,
        (true, None) => x,
        (false, _) => centred(c, x, zero_point, DType::F32)?,
    };
    let result = c.binary(Binary::Mul, value, scale)?;
    c.cast(result, dtype)
}

/// A tensor, its scales and its zero points, in blocks along `axis`, as `f32`.
pub(super) fn dequantize_blocks(
    c: &mut Ctx,
    axis: usize,
    block: usize,
    rounds_other: bool,
    [x, scale, zero]: [Option<ValueId>; 3],
) -> Result<ValueId, OnnxError> {
    let scale = match scale {
        Some(scale) => Some(c.cast(scale, DType::F32)?),
        None => None,
    };
    let inputs: &[Option<ValueId>] = &[x, scale, zero];
    let given = 2 + usize::from(zero.is_some());
    let op = Op::DequantizeBlocks {
        axis,
        block,
        rounds_other,
    };
    c.emit_optional(op, &inputs[..given])
}

/// DequantizeLinear with scale and zero point as [`along_axis`] gives them.
fn dequantize_along(
    c: &mut Ctx,
    x: ValueId,
    axis: usize,
    parameters: &[Option<ValueId>],
) -> Result<ValueId, OnnxError> {
    let mut inputs = vec![Some(x)];
    inputs.extend_from_slice(parameters);
    if let Some(scale) = parameters[0] {
        inputs[1] = Some(c.cast(scale, DType::F32)?);
    }
    c.emit_optional(Op::Dequantize { axis }, &inputs)
}

/// A tensor and its steps, each one number or one for each place along `axis`.
#[derive(Clone, Copy)]
pub(super) struct Quantized {
    pub x: ValueId,
    pub scale: ValueId,
    pub zero: Option<ValueId>,
    pub axis: usize,
}

impl Quantized {
    /// The tensor as `f32`.
    pub(super) fn value(self, c: &mut Ctx) -> Result<ValueId, OnnxError> {
        let (axis, parameters) = self.parameters(c, self.x)?;
        dequantize_along(c, self.x, axis, &parameters)
    }

    /// `y` in these steps; `x` is not looked at.
    pub(super) fn steps_of(self, c: &mut Ctx, y: ValueId) -> Result<ValueId, OnnxError> {
        let to = self.zero.map_or(DType::U8, |zero| c.dtype(zero));
        limits(c, to)?;
        let (axis, parameters) = self.parameters(c, y)?;
        quantize_along(c, y, axis, &parameters, to)
    }

    fn parameters(self, c: &mut Ctx, of: ValueId) -> Result<AlongAxis, OnnxError> {
        let shape = c.shape(of);
        let count = shape.get(self.axis).copied().unwrap_or(1);
        let mut parameters = Vec::new();
        let given = [Some(self.scale), self.zero];
        let longest = given.iter().flatten().map(|&v| c.ty(v).elements()).max();
        for value in given.into_iter().flatten() {
            let elements = c.ty(value).elements();
            if elements != 1 && elements != count {
                return Err(c.bad(format!(
                    "{elements} scales or zero points do not fit axis {} of {shape:?}",
                    self.axis
                )));
            }
            // A zero point may serve all scales.
            let wanted = if longest == Some(1) {
                vec![]
            } else {
                vec![count]
            };
            let flat = if elements == 1 {
                vec![]
            } else {
                vec![elements]
            };
            let value = c.reshape(value, &flat)?;
            parameters.push(Some(c.expand(value, &wanted)?));
        }
        Ok((self.axis, parameters))
    }
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

fn dynamic_quantize(c: &mut Ctx) -> Outputs {
    let x = c.input(0)?;
    let y = dynamic_steps(c, x)?;
    Ok(vec![Some(y.x), Some(y.scale), y.zero])
}

/// Scale and zero point from the tensor's own range.
pub(super) fn dynamic_steps(c: &mut Ctx, x: ValueId) -> Result<Quantized, OnnxError> {
    let (scale, zero) = match c.builder.is_late(x) {
        true => spelled_out(c, x)?,
        false => match c.emit_wanted(Op::CoveringSteps, &[Some(x)], &[true; 2])?[..] {
            [Some(scale), Some(zero)] => (scale, zero),
            _ => return Err(c.bad("it has no scale")),
        },
    };
    let y = quantize_along(c, x, 0, &[Some(scale), Some(zero)], DType::U8)?;
    Ok(Quantized {
        x: y,
        scale,
        zero: Some(zero),
        axis: 0,
    })
}

/// The same of a tensor whose size the data decide, as the operator's definition spells it out.
fn spelled_out(c: &mut Ctx, x: ValueId) -> Result<(ValueId, ValueId), OnnxError> {
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
    // Of zeros alone the scale is 1, so that nothing divides by 0.
    let is_zero = c.binary(Binary::Equal, scale, zero)?;
    let one = c.scalar(DType::F32, 1.0)?;
    let scale = c.emit(Op::Where, &[is_zero, one, scale])?;
    let offset = c.binary(Binary::Div, low, scale)?;
    let offset = c.binary(Binary::Sub, zero, offset)?;
    let clip = Op::Clip {
        low: Some(0.0),
        high: Some(255.0),
    };
    let offset = c.emit(clip, &[offset])?;
    let offset = c.unary(Unary::Round, offset)?;
    Ok((scale, c.cast(offset, DType::U8)?))
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

/// Products of 8-bit integers whose sums an `f32` holds exactly, whatever the integers.
const EXACT_PRODUCTS: usize = (1 << 24) / (255 * 255);

/// Whether a product of integers may be computed in `f32`: its sums are exact there, or it is one of a large matrix in the
/// model's file, which is to stay as it is stored. Sums beyond 2^24 are then rounded as their cast to `f32` would round
/// them, or a few times so.
pub(super) fn in_floats(c: &Ctx, terms: usize, weights: ValueId) -> bool {
    terms <= EXACT_PRODUCTS || c.is_stored(weights)
}

fn matmul_integer(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (a, b) = (c.input(0)?, c.input(1)?);
    let (a_zero, b_zero) = (c.optional(2), c.optional(3));
    let terms = c.shape(a).last().copied().unwrap_or(1);
    let single = |c: &Ctx, v: Option<ValueId>| v.is_none_or(|v| c.ty(v).elements() == 1);
    let b_rank = c.rank(b);
    let columns = b_zero.is_none_or(|v| c.ty(v).elements() == 1 || c.rank(v) == 1);
    if single(c, a_zero) && columns && b_rank >= 2 && in_floats(c, terms, b) {
        let scale = c.scalar(DType::F32, 1.0)?;
        let whole = |x, zero, axis| Quantized {
            x,
            scale,
            zero,
            axis,
        };
        let a = whole(a, a_zero, 0).value(c)?;
        let b = whole(b, b_zero, b_rank - 1).value(c)?;
        let product = c.emit(Op::MatMul, &[a, b])?;
        return c.cast(product, DType::I32);
    }
    integer_product(c, (a, c.optional(2)), (b, c.optional(3)))
}

fn qlinear_matmul(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let quantized = |c: &Ctx, at: usize, axis: usize| -> Result<Quantized, OnnxError> {
        Ok(Quantized {
            x: c.input(at)?,
            scale: c.input(at + 1)?,
            zero: Some(c.input(at + 2)?),
            axis,
        })
    };
    let (a, b) = (c.input(0)?, c.input(3)?);
    let (a_rank, b_rank) = (c.rank(a), c.rank(b));
    let a = quantized(c, 0, a_rank.saturating_sub(2))?;
    let b = quantized(c, 3, b_rank.saturating_sub(1))?;
    for scale in [a.scale, b.scale] {
        if c.rank(scale) > 1 {
            return Err(c.unsupported("scales of more than one dimension"));
        }
    }
    let y = Quantized {
        x: a.x,
        scale: c.input(6)?,
        zero: Some(c.input(7)?),
        axis: 0,
    };
    if c.ty(y.scale).elements() != 1 {
        return Err(c.unsupported("a scale per row or column"));
    }
    let (a, b) = (a.value(c)?, b.value(c)?);
    let product = c.emit(Op::MatMul, &[a, b])?;
    y.steps_of(c, product)
}
