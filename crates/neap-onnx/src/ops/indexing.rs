//! Gathers, scatters and other operators that take indices.

use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one, to_f64_vec};
use neap_ir::op::ScatterReduction;
use neap_ir::{DType, Literal, Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "Gather" => one(gather(c)),
        "GatherElements" => one(gather_elements(c)),
        "GatherND" => one(gather_nd(c)),
        "Scatter" | "ScatterElements" => one(scatter_elements(c)),
        "ScatterND" => one(scatter_nd(c)),
        "OneHot" => one(one_hot(c)),
        "Compress" => one(compress(c)),
        _ => return None,
    })
}

fn gather(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, indices) = (c.input(0)?, c.input(1)?);
    let axis = c.axis(c.int("axis", 0)?, c.rank(x))?;
    c.emit(Op::Gather { axis }, &[x, indices])
}

fn gather_elements(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, indices) = (c.input(0)?, c.input(1)?);
    let axis = c.axis(c.int("axis", 0)?, c.rank(x))?;
    c.emit(Op::GatherElements { axis }, &[x, indices])
}

fn gather_nd(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, indices) = (c.input(0)?, c.input(1)?);
    let batch_dims = c.size("batch_dims", 0)?;
    c.emit(Op::GatherNd { batch_dims }, &[x, indices])
}

fn reduction(c: &Ctx) -> Result<ScatterReduction, OnnxError> {
    Ok(match c.string("reduction", "none")? {
        "none" => ScatterReduction::None,
        "add" => ScatterReduction::Add,
        "mul" => ScatterReduction::Mul,
        "max" => ScatterReduction::Max,
        "min" => ScatterReduction::Min,
        _ => return Err(c.bad("attribute 'reduction' is unknown")),
    })
}

fn scatter_elements(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let inputs = [c.input(0)?, c.input(1)?, c.input(2)?];
    let op = Op::ScatterElements {
        axis: c.axis(c.int("axis", 0)?, c.rank(inputs[0]))?,
        reduction: reduction(c)?,
    };
    c.emit(op, &inputs)
}

fn scatter_nd(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let inputs = [c.input(0)?, c.input(1)?, c.input(2)?];
    let reduction = reduction(c)?;
    c.emit(Op::ScatterNd { reduction }, &inputs)
}

fn one_hot(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (indices, depth, values) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let depth = c.known(depth, "its depth")?;
    let depth = match to_f64_vec(&depth).as_deref() {
        Some(&[depth]) => c.checked_size("depth", depth as i64)?,
        _ => return Err(c.bad("its depth must have one element")),
    };
    let axis = c.axis(c.int("axis", -1)?, c.rank(indices) + 1)?;
    let indices = if c.dtype(indices).is_float() {
        c.cast(indices, DType::I64)?
    } else {
        indices
    };
    c.emit(Op::OneHot { axis, depth }, &[indices, values])
}

/// With a known condition this is a gather.
fn compress(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, condition) = (c.input(0)?, c.input(1)?);
    let keep = c.known_i64(condition, "its condition")?;
    let (x, axis) = match c.optional_int("axis")? {
        Some(axis) => (x, c.axis(axis, c.rank(x))?),
        None => {
            let elements = c.ty(x).elements();
            (c.reshape(x, &[elements])?, 0)
        }
    };
    if keep.len() > c.ty(x).shape[axis] {
        return Err(c.bad("its condition is longer than its input"));
    }
    let kept: Vec<i64> = (0..keep.len() as i64)
        .filter(|&i| keep[i as usize] != 0)
        .collect();
    let indices = c.constant(Literal::from_i64(&[kept.len()], &kept));
    c.emit(Op::Gather { axis }, &[x, indices])
}
