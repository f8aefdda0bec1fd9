//! Tensors that a model declares as half floats: the engine takes and gives them as `f32`, and callers have them as declared.

use crate::model::{Model, TensorInfo, is_packed};
use crate::runner::signature_of;
use half::{bf16, f16};
use neap_ir::DType;
use std::path::Path;

/// Inputs and outputs of a model that was opened from `path`, in the types that its source declares. A packed file alone
/// knows that of inputs only.
pub fn declared_tensors(path: &Path, model: &Model) -> (Vec<TensorInfo>, Vec<TensorInfo>) {
    let source = match is_packed(path) {
        Ok(false) => neap_onnx::signature(path).ok(),
        _ => None,
    };
    let signature = source.unwrap_or_else(|| signature_of(model));
    let declared = |mut all: Vec<TensorInfo>, source: &[neap_onnx::Declared]| {
        for info in all.iter_mut().filter(|info| info.ty.dtype == DType::F32) {
            let found = source.iter().find(|declared| declared.name == info.name);
            let dtype = found.and_then(|declared| declared.dtype);
            info.ty.dtype = dtype.filter(|&t| is_half(t)).unwrap_or(DType::F32);
        }
        all
    };
    (
        declared(model.inputs(), &signature.inputs),
        declared(model.outputs(), &signature.outputs),
    )
}

pub fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Writes half floats as the `f32` that they are, as many as there is room for.
pub fn widen_halves(dtype: DType, halves: &[u8], wide: &mut [u8]) {
    let value: fn([u8; 2]) -> f32 = match dtype {
        DType::BF16 => |b| bf16::from_le_bytes(b).to_f32(),
        _ => |b| f16::from_le_bytes(b).to_f32(),
    };
    let places = wide.as_chunks_mut::<4>().0.iter_mut();
    for (place, &half) in places.zip(halves.as_chunks::<2>().0) {
        *place = value(half).to_le_bytes();
    }
}

/// Rounds `f32` to the nearest half floats, ties to even; what is too large becomes infinity.
pub fn round_to_halves(dtype: DType, wide: &[u8], halves: &mut [u8]) {
    let half: fn(f32) -> [u8; 2] = match dtype {
        DType::BF16 => |x| bf16::from_f32(x).to_le_bytes(),
        _ => |x| f16::from_f32(x).to_le_bytes(),
    };
    let places = halves.as_chunks_mut::<2>().0.iter_mut();
    for (place, &value) in places.zip(wide.as_chunks::<4>().0) {
        *place = half(f32::from_le_bytes(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_go_there_and_back_and_large_ones_are_infinite() {
        for (dtype, values) in [
            (DType::F16, [1.5f32, -0.25, 65504.0, f32::INFINITY]),
            (DType::BF16, [1.5, -0.25, 3e38f32, f32::NEG_INFINITY]),
        ] {
            let wide: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let mut halves = [0; 8];
            round_to_halves(dtype, &wide, &mut halves);
            let mut again = [0; 16];
            widen_halves(dtype, &halves, &mut again);
            let mut twice = [0; 8];
            round_to_halves(dtype, &again, &mut twice);
            assert_eq!(halves, twice);
            assert_eq!(again[..8], wide[..8]);
            assert_eq!(again[12..], wide[12..]);
        }
        let mut half = [0; 2];
        round_to_halves(DType::F16, &90000f32.to_le_bytes(), &mut half);
        assert_eq!(f16::from_le_bytes(half), f16::INFINITY);
        round_to_halves(DType::F16, &0.01f32.to_le_bytes(), &mut half);
        assert_eq!(f16::from_le_bytes(half), f16::from_f32(0.01));
    }
}
