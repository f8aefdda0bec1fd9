//! What a model declares, as Python sees it.

use crate::failure::of_onnx;
use neaptide::{About, Declared, DeclaredDim, Signature};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::path::PathBuf;

/// Inputs, outputs and metadata of an `.onnx`: `(name, type, shape or None)` of each value, and a dict.
#[pyfunction]
pub fn signature(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyTuple>> {
    let found = py.detach(|| neaptide::signature(&path));
    in_python(py, &found.map_err(|e| of_onnx(py, e))?)
}

pub fn in_python<'py>(py: Python<'py>, signature: &Signature) -> PyResult<Bound<'py, PyTuple>> {
    let values = |values: &[Declared]| -> PyResult<Bound<'py, PyList>> {
        let values: PyResult<Vec<_>> = values.iter().map(|value| declared(py, value)).collect();
        PyList::new(py, values?)
    };
    let parts = (
        values(&signature.inputs)?,
        values(&signature.outputs)?,
        about(py, &signature.about)?,
    );
    parts.into_pyobject(py)
}

fn declared<'py>(py: Python<'py>, value: &Declared) -> PyResult<Bound<'py, PyTuple>> {
    let shape = value.dims.as_ref().map(|dims| {
        let dim = |dim: &DeclaredDim| match dim {
            DeclaredDim::Fixed(size) => Ok(size.into_pyobject(py)?.into_any()),
            DeclaredDim::Named(name) => Ok(name.into_pyobject(py)?.into_any()),
            DeclaredDim::Open => Ok(py.None().into_bound(py)),
        };
        let dims: PyResult<Vec<Bound<'py, PyAny>>> = dims.iter().map(dim).collect();
        PyList::new(py, dims?)
    });
    (&value.name, &value.type_text, shape.transpose()?).into_pyobject(py)
}

fn about<'py>(py: Python<'py>, about: &About) -> PyResult<Bound<'py, PyDict>> {
    let metadata = PyDict::new(py);
    for (key, value) in &about.metadata {
        metadata.set_item(key, value)?;
    }
    let all = PyDict::new(py);
    all.set_item("producer_name", &about.producer_name)?;
    all.set_item("domain", &about.domain)?;
    all.set_item("description", &about.description)?;
    all.set_item("version", about.version)?;
    all.set_item("graph_name", &about.graph_name)?;
    all.set_item("graph_description", &about.graph_description)?;
    all.set_item("custom_metadata_map", metadata)?;
    Ok(all)
}
