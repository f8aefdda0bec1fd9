//! Tensors as a caller gives them, beside those that the model declares.

use crate::error::{Error, Result};
use crate::model::{Model, OpenOptions, TensorInfo, is_packed, open_packed};
use crate::session::Session;
use crate::shapes::{Shapes, shape_text};
use neap_ir::{DType, TensorType};
use neap_onnx::{About, Declared, DeclaredDim, Signature};
use std::path::Path;

/// A caller's tensor: row-major little-endian bytes.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    pub dtype: DType,
    pub shape: &'a [usize],
    pub bytes: &'a [u8],
}

/// Whether the model itself says the whole shape.
pub(super) fn is_fixed(input: &Declared) -> bool {
    let is_fixed = |dim: &DeclaredDim| matches!(dim, DeclaredDim::Fixed(_));
    let dims = input.dims.as_ref();
    dims.is_some_and(|dims| dims.iter().all(is_fixed))
}

pub(super) fn shapes_of(signature: &Signature, inputs: &[Tensor]) -> Shapes {
    let given = signature.inputs.iter().zip(inputs);
    given
        .map(|(input, tensor)| (input.name.clone(), tensor.shape.to_vec()))
        .collect()
}

/// What a model declares of its inputs, with the dimensions that it leaves open: of an `.onnx` or a `.neap`.
///
/// # Errors
/// [`Error::BadInput`] for a file that is no model.
pub fn declared_inputs(path: &Path) -> Result<Vec<Declared>> {
    if !is_packed(path)? {
        return Ok(neap_onnx::signature(path)?.inputs);
    }
    let model = open_packed(path, false, &OpenOptions::default())?;
    Ok(signature_of(&model).inputs)
}

/// Of a packed model: inputs as its source declared them, outputs as it is bound.
pub(crate) fn signature_of(model: &Model) -> Signature {
    let skeleton = model.package.as_ref().and_then(|p| p.skeleton.as_ref());
    let known = skeleton.map(|skeleton| neap_onnx::declared_inputs(&skeleton.inputs));
    let source = |name: &str| known.iter().flatten().find(|input| input.name == name);
    let inputs = model.inputs().into_iter();
    let inputs: Vec<Declared> = inputs
        .map(|info| {
            source(&info.name)
                .cloned()
                .unwrap_or_else(|| bound(info, true))
        })
        .collect();
    let is_fixed = inputs.iter().all(is_fixed);
    let outputs = model.outputs().into_iter();
    Signature {
        outputs: outputs.map(|info| bound(info, is_fixed)).collect(),
        inputs,
        about: About {
            graph_name: model.name().to_string(),
            metadata: model.metadata().to_vec(),
            ..About::default()
        },
    }
}

/// A tensor of a program; its dimensions are open where the program is one of several.
fn bound(info: TensorInfo, is_fixed: bool) -> Declared {
    let dim = |size| match is_fixed {
        true => DeclaredDim::Fixed(size),
        false => DeclaredDim::Open,
    };
    Declared {
        name: info.name,
        dtype: Some(info.ty.dtype),
        type_text: neap_onnx::type_text(info.ty.dtype),
        dims: Some(info.ty.shape.into_iter().map(dim).collect()),
    }
}

/// In the element types that the model declares.
pub(super) fn outputs_of(signature: &Signature, session: &Session) -> Vec<TensorInfo> {
    let outputs = session.outputs().iter().map(|info| {
        let declared = signature.outputs.iter().find(|d| d.name == info.name);
        let is_half = |dtype: &DType| matches!(dtype, DType::F16 | DType::BF16);
        let half = declared.and_then(|d| d.dtype).filter(is_half);
        let half = half.filter(|_| info.ty.dtype == DType::F32);
        TensorInfo {
            name: info.name.clone(),
            ty: TensorType {
                dtype: half.unwrap_or(info.ty.dtype),
                shape: info.ty.shape.clone(),
            },
        }
    });
    outputs.collect()
}

/// The number of inputs and their element types.
///
/// # Errors
/// [`Error::BadInput`] names what does not fit.
pub(super) fn check_types(signature: &Signature, inputs: &[Tensor]) -> Result<()> {
    let declared = &signature.inputs;
    if inputs.len() != declared.len() {
        return Err(Error::BadInput(format!(
            "the model has {} inputs, {} were given",
            declared.len(),
            inputs.len()
        )));
    }
    for (input, tensor) in declared.iter().zip(inputs) {
        if input.dtype != Some(tensor.dtype) {
            return Err(Error::BadInput(format!(
                "input '{}' is {}, {} was given",
                input.name,
                input.type_text,
                neap_onnx::type_text(tensor.dtype)
            )));
        }
    }
    Ok(())
}

/// Ranks and fixed dimensions.
///
/// # Errors
/// [`Error::BadInput`] names what does not fit.
pub(super) fn check_shapes(signature: &Signature, inputs: &[Tensor]) -> Result<()> {
    for (input, tensor) in signature.inputs.iter().zip(inputs) {
        if let Some(dims) = &input.dims
            && !input.takes(tensor.shape)
        {
            return Err(Error::BadInput(format!(
                "input '{}' has the shape {}, {} was given",
                input.name,
                dims_text(dims),
                shape_text(tensor.shape)
            )));
        }
    }
    Ok(())
}

fn dims_text(dims: &[DeclaredDim]) -> String {
    if dims.is_empty() {
        return "scalar".into();
    }
    let dims = dims.iter().map(|dim| match dim {
        DeclaredDim::Fixed(size) => size.to_string(),
        DeclaredDim::Named(name) => name.clone(),
        DeclaredDim::Open => "?".into(),
    });
    dims.collect::<Vec<_>>().join("x")
}
