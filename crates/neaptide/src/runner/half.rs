//! Half floats of callers, which the engine takes and gives as f32.

use super::declared::Tensor;
use crate::error::{Error, Result};
use half::{bf16, f16};
use neap_ir::{DType, TensorType};

/// Writes them as the f32 that they are.
///
/// # Errors
/// [`Error::Defect`] for any other types.
pub(super) fn widen(tensor: &Tensor, engine: DType, out: &mut Vec<u8>) -> Result<()> {
    let value: fn([u8; 2]) -> f32 = match (tensor.dtype, engine) {
        (DType::F16, DType::F32) => |b| f16::from_le_bytes(b).to_f32(),
        (DType::BF16, DType::F32) => |b| bf16::from_le_bytes(b).to_f32(),
        (given, _) => return Err(no_conversion(given, engine)),
    };
    out.clear();
    let halves = tensor.bytes.as_chunks::<2>().0;
    out.extend(halves.iter().flat_map(|&b| value(b).to_le_bytes()));
    Ok(())
}

/// Rounds to the nearest half floats, ties to even.
///
/// # Errors
/// [`Error::BadInput`] for a place of another size; [`Error::Defect`] for any other types.
pub(super) fn narrow(wide: &[u8], engine: DType, ty: &TensorType, place: &mut [u8]) -> Result<()> {
    let half: fn(f32) -> [u8; 2] = match (ty.dtype, engine) {
        (DType::F16, DType::F32) => |x| f16::from_f32(x).to_le_bytes(),
        (DType::BF16, DType::F32) => |x| bf16::from_f32(x).to_le_bytes(),
        (wanted, _) => return Err(no_conversion(engine, wanted)),
    };
    if place.len() != ty.len_bytes() {
        let (has, given) = (ty.len_bytes(), place.len());
        let what = format!("an output has {has} bytes, its place has {given}");
        return Err(Error::BadInput(what));
    }
    let (values, places) = (wide.as_chunks::<4>().0, place.as_chunks_mut::<2>().0);
    for (place, &value) in places.iter_mut().zip(values) {
        *place = half(f32::from_le_bytes(value));
    }
    Ok(())
}

fn no_conversion(from: DType, to: DType) -> Error {
    Error::Defect(format!("no conversion from {from} to {to}"))
}
