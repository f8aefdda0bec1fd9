//! What was learned as files: the model itself with other initializers, and its weights as safetensors.

use crate::error::{Result, TrainError, unwritable};
use crate::recipe::Recipe;
use crate::tensors::{self, Tensors};
use crate::whole;
use half::{bf16, f16};
use neap_ir::{DType, TensorType};
use neap_onnx::{Initializer, ReplaceError, Replaceable};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Refuses before the training what could not be written after it.
///
/// # Errors
/// The model with its weights is too large for one file.
pub fn check(recipe: &Recipe) -> Result<()> {
    let file = Replaceable::open(&recipe.model)?;
    file.len_bytes(&|name| recipe.is_learned(name))?;
    Ok(())
}

/// Writes the model with what `weights` hold; everything else in it stays as it is.
///
/// # Errors
/// A file cannot be read or written.
pub fn write_onnx(recipe: &Recipe, weights: &Tensors, path: &Path) -> Result<()> {
    let mut source = Replaceable::open(&recipe.model)?;
    whole::write(path, |partial| {
        let file = File::create(partial).map_err(|e| unwritable(path, &e))?;
        let mut out = BufWriter::new(file);
        let mut failed = None;
        let mut value = |wanted: &Initializer| {
            let ty = computed(&wanted.ty);
            let bytes = weights.bytes(&wanted.name, &ty);
            bytes.map(|b| narrowed(b, wanted.ty.dtype)).map_err(|e| {
                failed = Some(e);
                io::Error::other("a weight cannot be read")
            })
        };
        let written = source
            .write(&|name| recipe.is_learned(name), &mut value, &mut out)
            .and_then(|()| Ok(out.flush()?));
        match (written, failed) {
            (_, Some(error)) => Err(error),
            (Err(ReplaceError::Io(error)), _) => Err(unwritable(path, &error)),
            (written, _) => Ok(written?),
        }
    })
}

/// Half floats are trained as float32.
fn computed(stored: &TensorType) -> TensorType {
    match stored.dtype {
        DType::F16 | DType::BF16 => TensorType::new(DType::F32, &stored.shape),
        _ => stored.clone(),
    }
}

/// float32 in the type in which the model stores it.
fn narrowed(bytes: Vec<u8>, stored: DType) -> Vec<u8> {
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

/// Writes what was learned as safetensors, by the initializers' names.
///
/// # Errors
/// A file cannot be read or written.
pub fn write_safetensors(recipe: &Recipe, weights: &Tensors, path: &Path) -> Result<()> {
    let source = Replaceable::open(&recipe.model)?;
    let learned = source.initializers().filter(|i| recipe.is_learned(&i.name));
    let learned: Vec<(String, TensorType)> =
        learned.map(|i| (i.name.clone(), computed(&i.ty))).collect();
    if learned.is_empty() {
        return Err(TrainError::Defect("nothing was learned".into()));
    }
    let mut fetch = |index: usize| {
        let (name, ty) = &learned[index];
        weights.bytes(name, ty)
    };
    // Readers of PyTorch's ask for this entry.
    tensors::write(path, &learned, &mut fetch, ("format", "pt".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_floats_are_rounded_to_nearest() {
        let bytes: Vec<u8> = [1.0f32, 1.0 + 1.0 / 4096.0, -3.5]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        let of = |values: [f16; 3]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let one = f16::from_f32(1.0);
        let expected: Vec<u8> = of([one, one, f16::from_f32(-3.5)]);
        assert_eq!(narrowed(bytes.clone(), DType::F16), expected);
        assert_eq!(narrowed(bytes.clone(), DType::BF16).len(), 6);
        assert_eq!(narrowed(bytes.clone(), DType::F32), bytes);
    }
}
