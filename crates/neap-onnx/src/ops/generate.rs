//! Operators whose results are known once shapes are: Constant, Shape, Range, windows, ...

use crate::error::OnnxError;
use crate::late::Axis;
use crate::node::{Ctx, Outputs, one, scalar, to_f64_vec};
use crate::proto::AttributeValue;
use crate::tensor;
use neap_ir::late::LateOp;
use neap_ir::op::{Binary, Unary};
use neap_ir::{Const, DType, Literal, Op, ValueId};

/// Elements that are generated when a model is opened; more than any index table needs.
const MAX_GENERATED: usize = 1 << 20;

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "Constant" => one(constant(c)),
        "ConstantOfShape" => one(constant_of_shape(c)),
        "Shape" => one(shape(c)),
        "Size" => one(size(c)),
        "Range" => one(range(c)),
        "EyeLike" => one(eye_like(c)),
        "NonZero" => one(non_zero(c)),
        "HannWindow" => one(window(c, [0.5, 0.5, 0.0])),
        "HammingWindow" => one(window(c, [25.0 / 46.0, 21.0 / 46.0, 0.0])),
        "BlackmanWindow" => one(window(c, [0.42, 0.5, 0.08])),
        _ => return None,
    })
}

fn constant(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let mut attributes = c.node.attributes.iter();
    let [Some(attribute), None] = [attributes.next(), attributes.next()] else {
        return Err(c.bad("it must have exactly one attribute"));
    };
    let literal = match &attribute.value {
        AttributeValue::Tensor(t) => {
            return c.builder.tensor(c.name, t);
        }
        AttributeValue::SparseTensor(t) => {
            let widen = c.builder.widen;
            let (ty, data) = tensor::load_sparse(&mut c.builder.files, t, widen)?;
            return Ok(c.builder.constant(ty, data));
        }
        AttributeValue::Float(v) => Literal::from_f32(&[], &[*v]),
        AttributeValue::Floats(v) => Literal::from_f32(&[v.len()], v),
        AttributeValue::Int(v) => Literal::from_i64(&[], &[*v]),
        AttributeValue::Ints(v) => Literal::from_i64(&[v.len()], v),
        // An empty list leaves nothing in the file but its attribute's name.
        AttributeValue::None if attribute.name == "value_ints" => Literal::from_i64(&[0], &[]),
        AttributeValue::None if attribute.name == "value_floats" => Literal::from_f32(&[0], &[]),
        AttributeValue::String(_) | AttributeValue::Strings(_) => {
            return Err(c.unsupported("a string"));
        }
        _ => {
            return Err(c.bad(format!(
                "its attribute '{}' holds no tensor",
                attribute.name
            )));
        }
    };
    Ok(c.constant(literal))
}

fn constant_of_shape(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let target = c.input(0)?;
    let target = c.known_i64(target, "its shape")?;
    let shape = tensor::shape(&target).map_err(|e| c.bad(e))?;
    let value = fill_value(c)?;
    c.filled(value, &shape)
}

/// What `ConstantOfShape` fills with.
pub(in crate::ops) fn fill_value(c: &mut Ctx) -> Result<Literal, OnnxError> {
    let Some(t) = c.tensor("value")? else {
        return Ok(scalar(DType::F32, 0.0));
    };
    let widen = c.builder.widen;
    match tensor::load(&mut c.builder.files, t, widen)? {
        (ty, Const::Inline(literal)) if ty.elements() == 1 => Ok(literal),
        _ => Err(c.bad("attribute 'value' must have one element")),
    }
}

fn shape(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let sizes: Vec<i64> = c.ty(x).shape.iter().map(|&d| d as i64).collect();
    let rank = sizes.len() as i64;
    let clamp = |p: i64| {
        let p = if p < 0 { p.saturating_add(rank) } else { p };
        p.clamp(0, rank) as usize
    };
    let start = clamp(c.int("start", 0)?);
    let end = clamp(c.int("end", rank)?);
    let part = sizes.get(start..end).unwrap_or_default();
    Ok(c.constant(Literal::from_i64(&[part.len()], part)))
}

fn size(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let elements = c.ty(x).elements() as i64;
    Ok(c.constant(Literal::from_i64(&[], &[elements])))
}

/// Literal of a type from the f64 or i64 that each element is computed as.
pub(super) fn literal_of(
    dtype: DType,
    shape: &[usize],
    values: impl Iterator<Item = f64>,
) -> Literal {
    let mut literal = Literal::zeros(dtype, shape);
    let size = dtype.size_bytes();
    let slots = literal.bytes_mut().chunks_exact_mut(size);
    for (slot, value) in slots.zip(values) {
        slot.copy_from_slice(scalar(dtype, value).bytes());
    }
    literal
}

fn range(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let mut bounds = [0.0; 3];
    let mut exact = [0i64; 3];
    let mut dtype = DType::F32;
    for (i, what) in ["its start", "its limit", "its delta"]
        .into_iter()
        .enumerate()
    {
        let input = c.input(i)?;
        let literal = c.known(input, what)?;
        if i > 0 && literal.dtype() != dtype {
            return Err(c.bad("its start, limit and delta have different types"));
        }
        dtype = literal.dtype();
        match to_f64_vec(&literal).as_deref() {
            Some(&[value]) => bounds[i] = value,
            _ => return Err(c.bad(format!("{what} must have one element"))),
        }
        exact[i] = literal.to_i64_vec().map_or(0, |v| v[0]);
    }
    if c.int("stash_type", 1)? != 1 {
        return Err(c.unsupported("steps in another type than float32"));
    }
    let [start, limit, delta] = bounds;
    if delta == 0.0 || !(start.is_finite() && limit.is_finite() && delta.is_finite()) {
        return Err(c.bad("its delta is zero or a bound is not finite"));
    }
    let count = ((limit - start) / delta).ceil().max(0.0);
    let count = c.checked_size("its length", count as i64)?;
    if count > MAX_GENERATED {
        let inputs = [c.input(0)?, c.input(1)?, c.input(2)?].map(Some);
        return c.emit_late(LateOp::Range, &inputs, dtype, vec![Axis::known(count)]);
    }
    let literal = if dtype == DType::I64 {
        let values: Vec<i64> = (0..count as i64)
            .map(|i| exact[0].wrapping_add(i.wrapping_mul(exact[2])))
            .collect();
        Literal::from_i64(&[count], &values)
    } else {
        literal_of(
            dtype,
            &[count],
            (0..count).map(|i| start + i as f64 * delta),
        )
    };
    Ok(c.constant(literal))
}

fn eye_like(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let &[rows, columns] = &c.shape(x)[..] else {
        return Err(c.bad("its input is not a matrix"));
    };
    let dtype = match c.optional_int("dtype")? {
        Some(number) => c.element_type(number)?,
        None => c.dtype(x),
    };
    let diagonal = c.int("k", 0)?;
    if rows.saturating_mul(columns) > MAX_GENERATED {
        return c.emit(Op::EyeLike { dtype, diagonal }, &[x]);
    }
    let cells = (0..rows).flat_map(|r| (0..columns).map(move |col| (r, col)));
    let ones = cells.map(|(r, col)| f64::from(col as i64 - r as i64 == diagonal));
    let literal = literal_of(dtype, &[rows, columns], ones);
    Ok(c.constant(literal))
}

/// Of a known tensor only: the result's shape depends on the values.
fn non_zero(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let literal = c.known(x, "its input")?;
    let shape = literal.shape().to_vec();
    let values = to_f64_vec(&literal).ok_or_else(|| c.unsupported("this element type"))?;
    let hits: Vec<usize> = (0..values.len()).filter(|&i| values[i] != 0.0).collect();
    let rank = shape.len().max(1);
    let mut rows = vec![0i64; rank * hits.len()];
    for (column, &flat) in hits.iter().enumerate() {
        let mut rest = flat;
        for axis in (0..shape.len()).rev() {
            rows[axis * hits.len() + column] = (rest % shape[axis]) as i64;
            rest /= shape[axis];
        }
    }
    Ok(c.constant(Literal::from_i64(&[rank, hits.len()], &rows)))
}

/// `a0 - a1 cos(2πi/n) + a2 cos(4πi/n)`.
fn window(c: &mut Ctx, [a0, a1, a2]: [f64; 3]) -> Result<ValueId, OnnxError> {
    let size = c
        .known_scalar(0, "its size")?
        .ok_or_else(|| c.bad("its size is missing"))?;
    let size = c.checked_size("size", size)?;
    let dtype = c.element_type(c.int("output_datatype", 1)?)?;
    let period = if c.flag("periodic", true)? {
        size as f64
    } else {
        size as f64 - 1.0
    };
    let turn = std::f64::consts::TAU / period;
    if size > MAX_GENERATED {
        return long_window(c, size, turn, [a0, a1, a2], dtype);
    }
    let values = (0..size).map(|i| {
        let angle = turn * i as f64;
        a0 - a1 * angle.cos() + a2 * (2.0 * angle).cos()
    });
    let literal = literal_of(dtype, &[size], values);
    Ok(c.constant(literal))
}

/// The same, computed when the model runs.
fn long_window(
    c: &mut Ctx,
    size: usize,
    turn: f64,
    [a0, a1, a2]: [f64; 3],
    dtype: DType,
) -> Result<ValueId, OnnxError> {
    let number = |c: &mut Ctx, x: f64| c.scalar(DType::F64, x);
    let ends = [number(c, 0.0)?, number(c, size as f64)?, number(c, 1.0)?].map(Some);
    let places = c.emit_late(LateOp::Range, &ends, DType::F64, vec![Axis::known(size)])?;
    let mut sum = number(c, a0)?;
    for (times, factor) in [(1.0, -a1), (2.0, a2)] {
        if factor == 0.0 {
            continue;
        }
        let (turn, factor) = (number(c, times * turn)?, number(c, factor)?);
        let angle = c.binary(Binary::Mul, places, turn)?;
        let wave = c.unary(Unary::Cos, angle)?;
        let wave = c.binary(Binary::Mul, wave, factor)?;
        sum = c.binary(Binary::Add, wave, sum)?;
    }
    c.cast(sum, dtype)
}
