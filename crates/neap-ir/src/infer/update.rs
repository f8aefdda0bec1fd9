//! Types of updates and of dropout.

use super::{Inferred, Operands};
use crate::update::Update;
use crate::{DType, TensorType};

/// The parameter and its moments, as they come in.
pub(super) fn update(update: Update, o: &Operands) -> Inferred<Vec<TensorType>> {
    let w = o.get(0)?;
    o.require_like(1, &w.shape)?;
    moved(update, o)
}

/// The whole parameter, and the moments of the part.
pub(super) fn update_part(update: Update, start: usize, o: &Operands) -> Inferred<Vec<TensorType>> {
    let (w, g) = (o.get(0)?, o.get(1)?);
    let end = start.checked_add(g.elements());
    let fits = end.is_some_and(|end| end <= w.elements());
    o.require(fits, "takes a gradient of a part of its parameter")?;
    moved(update, o)
}

/// Parameter, gradient, rate, step, and moments like the gradient.
fn moved(update: Update, o: &Operands) -> Inferred<Vec<TensorType>> {
    let (w, g) = (o.get(0)?, o.get(1)?);
    o.require_float(w)?;
    o.same_dtype(w, g)?;
    let (rate, step) = (o.get(2)?, o.get(3)?);
    o.same_dtype(w, rate)?;
    o.require(rate.elements() == 1, "takes one learning rate")?;
    scalar_i64(o, step)?;
    let mut types = vec![w.clone()];
    for i in 0..update.moments() {
        o.same_dtype(w, o.get(4 + i)?)?;
        o.require_like(4 + i, &g.shape)?;
        types.push(g.clone());
    }
    o.require(
        o.inputs.len() == 4 + update.moments(),
        "takes no further inputs",
    )?;
    Ok(types)
}

/// x, seed → y, and where asked for what was kept.
pub(super) fn dropout(ratio: f32, o: &Operands) -> Inferred<Vec<TensorType>> {
    let x = o.get(0)?;
    o.require_float(x)?;
    scalar_i64(o, o.get(1)?)?;
    o.require(
        (0.0..1.0).contains(&ratio),
        "takes a ratio from 0 to below 1",
    )?;
    let types = [x.clone(), TensorType::new(DType::Bool, &x.shape)];
    Ok(types[..o.outputs.min(2)].to_vec())
}

fn scalar_i64(o: &Operands, ty: &TensorType) -> Inferred<()> {
    let fits = ty.dtype == DType::I64 && ty.elements() == 1;
    o.require(fits, "takes one int64 as step or seed")
}
