//! Types of updates and of dropout.

use super::{Inferred, Operands};
use crate::update::Update;
use crate::{DType, TensorType};

/// The parameter and its moments, as they come in.
pub(super) fn update(update: Update, o: &Operands) -> Inferred<Vec<TensorType>> {
    let w = o.get(0)?;
    o.require_float(w)?;
    o.get(1)?;
    o.require_like(1, &w.shape)?;
    let (rate, step) = (o.get(2)?, o.get(3)?);
    o.same_dtype(w, rate)?;
    o.require(rate.elements() == 1, "takes one learning rate")?;
    scalar_i64(o, step)?;
    for i in 0..update.moments() {
        o.get(4 + i)?;
        o.require_like(4 + i, &w.shape)?;
    }
    o.require(
        o.inputs.len() == 4 + update.moments(),
        "takes no further inputs",
    )?;
    Ok(vec![w.clone(); 1 + update.moments()])
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
