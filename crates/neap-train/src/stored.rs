//! Weights in the type in which a model stores them, and as float32.

use half::{bf16, f16};
use neap_ir::DType;

/// float32 in the type in which the model stores it.
pub(crate) fn narrowed(bytes: Vec<u8>, stored: DType) -> Vec<u8> {
    let floats = || bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b));
    match stored {
        DType::F16 => floats()
            .flat_map(|v| f16::from_f32(v).to_le_bytes())
            .collect(),
        DType::BF16 => floats()
            .flat_map(|v| bf16::from_f32(v).to_le_bytes())
            .collect(),
        _ => bytes,
    }
}

/// Numbers of the type in which the model stores them as float32.
pub(crate) fn widened(bytes: &[u8], stored: DType) -> Vec<f32> {
    match stored {
        DType::F16 | DType::BF16 => {
            let words = bytes.as_chunks().0.iter().map(|&b| u16::from_le_bytes(b));
            let is_bf16 = stored == DType::BF16;
            let widen = |bits| match is_bf16 {
                true => bf16::from_bits(bits).to_f32(),
                false => f16::from_bits(bits).to_f32(),
            };
            words.map(widen).collect()
        }
        _ => {
            let words = bytes.as_chunks().0.iter();
            words.map(|&b| f32::from_le_bytes(b)).collect()
        }
    }
}
