//! What was learned as files: the model itself with other initializers, and its weights as safetensors.

use crate::drive::DriveWriter;
use crate::error::{Result, TrainError, unwritable};
use crate::recipe::Recipe;
use crate::stored::narrowed;
use crate::tensors::{self, Tensors};
use crate::whole;
use neap_ir::{DType, TensorType};
use neap_onnx::{Initializer, ReplaceError, Replaceable};
use std::io;
use std::path::Path;

/// Refuses before the training what could not be written after it.
///
/// # Errors
/// The model with its weights is too large for one file.
pub fn check(recipe: &Recipe) -> Result<()> {
    let file = opened(recipe)?;
    file.len_bytes(&|name| recipe.is_learned(name))?;
    Ok(())
}

/// The model as it is written: in inference mode, and with what it says of itself.
fn opened(recipe: &Recipe) -> Result<Replaceable> {
    let mut file = Replaceable::open(recipe.model())?;
    if recipe.start.has_dropouts {
        file.set_dropouts_to_inference()?;
    }
    file.set_metadata(&recipe.metadata);
    Ok(file)
}

/// Writes the model with what `weights` hold; everything else in it stays as it is.
///
/// # Errors
/// A file cannot be read or written.
pub fn write_onnx(recipe: &Recipe, weights: &Tensors, path: &Path) -> Result<()> {
    let mut source = opened(recipe)?;
    // What adapters are added to.
    let mut before = Replaceable::open(recipe.model())?;
    whole::write(path, |partial| {
        let mut out = DriveWriter::create(partial).map_err(|e| unwritable(path, &e))?;
        let mut failed = None;
        let mut value = |wanted: &Initializer| {
            let bytes = learned_bytes(recipe, &mut before, weights, wanted);
            bytes.map_err(|e| {
                failed = Some(e);
                io::Error::other("a weight cannot be read")
            })
        };
        let written = source
            .write(&|name| recipe.is_learned(name), &mut value, &mut out)
            .and_then(|()| Ok(out.finish()?));
        match (written, failed) {
            (_, Some(error)) => Err(error),
            (Err(ReplaceError::Io(error)), _) => Err(unwritable(path, &error)),
            (written, _) => Ok(written?),
        }
    })
}

/// An initializer's new bytes, in its stored type.
fn learned_bytes(
    recipe: &Recipe,
    before: &mut Replaceable,
    weights: &Tensors,
    wanted: &Initializer,
) -> Result<Vec<u8>> {
    let stored = wanted.ty.dtype;
    match &recipe.lora {
        Some(lora) if recipe.is_adapted(&wanted.name) => {
            let own = before.data(&wanted.name)?;
            let own = own.ok_or_else(|| TrainError::Defect("a weight is missing".into()))?;
            lora.merged(&wanted.name, own, stored, weights)
        }
        _ => {
            let bytes = weights.bytes(&wanted.name, &computed(&wanted.ty))?;
            Ok(narrowed(bytes, stored))
        }
    }
}

/// Half floats are trained as float32.
fn computed(stored: &TensorType) -> TensorType {
    match stored.dtype {
        DType::F16 | DType::BF16 => TensorType::new(DType::F32, &stored.shape),
        _ => stored.clone(),
    }
}

/// What tensors are called in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// As in a checkpoint.
    Own,
    /// As other programs call them.
    Usual,
}

/// Writes what was learned as safetensors: initializers by their names, or adapters, and statistics.
///
/// # Errors
/// A file cannot be read or written.
pub fn write_safetensors(
    recipe: &Recipe,
    weights: &Tensors,
    path: &Path,
    names: Names,
) -> Result<()> {
    let source = Replaceable::open(recipe.model())?;
    let is_whole = |name: &str| recipe.is_learned(name) && !recipe.is_adapted(name);
    let learned = source.initializers().filter(|i| is_whole(&i.name));
    let mut learned: Vec<(String, TensorType)> =
        learned.map(|i| (i.name.clone(), computed(&i.ty))).collect();
    let mut written = learned.clone();
    if let Some(lora) = &recipe.lora {
        learned.extend(lora.tensors().cloned());
        written.extend(lora.tensors().cloned());
        if names == Names::Usual {
            let first = written.len() - lora.parts.len() * 2;
            for ((name, _), usual) in written[first..].iter_mut().zip(lora.usual_names()) {
                *name = usual;
            }
        }
    }
    if learned.is_empty() {
        return Err(TrainError::Defect("nothing was learned".into()));
    }
    let mut fetch = |index: usize, visit: &mut dyn FnMut(&[u8])| {
        let (name, ty) = &learned[index];
        weights.read(name, ty, &mut |_, piece| {
            visit(piece);
            Ok(())
        })
    };
    // Readers of PyTorch's ask for this entry.
    tensors::write(path, &written, &mut fetch, ("format", "pt".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

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
