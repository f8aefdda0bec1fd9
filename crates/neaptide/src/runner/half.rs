//! Half floats of callers, which the engine takes and gives as f32.

use super::declared::Tensor;
use crate::error::{Error, Result};
use crate::halves::{is_half, round_to_halves, widen_halves};
use neap_ir::{DType, TensorType};

/// Writes them as the f32 that they are.
///
/// # Errors
/// [`Error::Defect`] for any other types.
pub(super) fn widen(tensor: &Tensor, engine: DType, out: &mut Vec<u8>) -> Result<()> {
    if !is_half(tensor.dtype) || engine != DType::F32 {
        return Err(no_conversion(tensor.dtype, engine));
    }
    out.clear();
    out.resize(2 * tensor.bytes.len(), 0);
    widen_halves(tensor.dtype, tensor.bytes, out);
    Ok(())
}

/// Rounds to the nearest half floats, ties to even.
///
/// # Errors
/// [`Error::BadInput`] for a place of another size; [`Error::Defect`] for any other types.
pub(super) fn narrow(wide: &[u8], engine: DType, ty: &TensorType, place: &mut [u8]) -> Result<()> {
    if !is_half(ty.dtype) || engine != DType::F32 {
        return Err(no_conversion(engine, ty.dtype));
    }
    if place.len() != ty.len_bytes() {
        let (has, given) = (ty.len_bytes(), place.len());
        let what = format!("an output has {has} bytes, its place has {given}");
        return Err(Error::BadInput(what));
    }
    round_to_halves(ty.dtype, wide, place);
    Ok(())
}

fn no_conversion(from: DType, to: DType) -> Error {
    Error::Defect(format!("no conversion from {from} to {to}"))
}
