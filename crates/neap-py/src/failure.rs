//! The engine's errors as Python's exceptions: those of onnxruntime, by name.

use neaptide::{Error, Need, OnnxError};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Where the exceptions are, as in onnxruntime.
const MODULE: &str = "neaptide.capi.onnxruntime_pybind11_state";

/// What was tried when an error came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Opening,
    Running,
}

/// An exception of that class.
pub fn raise(py: Python<'_>, class: &str, text: String) -> PyErr {
    let made = py
        .import(MODULE)
        .and_then(|module| module.getattr(class)?.call1((text,)));
    made.map_or_else(|e| e, PyErr::from_value)
}

/// An argument that does not fit.
pub fn invalid(py: Python<'_>, text: String) -> PyErr {
    raise(py, "InvalidArgument", text)
}

pub fn of_engine(py: Python<'_>, error: Error, stage: Stage) -> PyErr {
    let mut text = error.to_string();
    if let Error::Unbound {
        need: Need::Bound { name },
        ..
    } = &error
    {
        let option = format!("SessionOptions(bounds={{'{name}': N}})");
        text.push_str(&format!(" ({option}, or NEAPTIDE_BOUNDS={name}=N)"));
    }
    match error {
        Error::BadInput(_)
        | Error::Unbound {
            need: Need::Shape { .. },
            ..
        } if stage == Stage::Opening => raise(py, "Fail", text),
        Error::BadInput(_) | Error::Unbound { .. } => raise(py, "InvalidArgument", text),
        Error::Unsupported(_) => raise(py, "NotImplemented", text),
        Error::Infeasible {
            budget_bytes,
            smallest_bytes,
            ..
        } => too_little(py, text, budget_bytes, smallest_bytes),
        Error::Run(_) | Error::Machine(_) | Error::Cancelled | Error::DamagedCache(_) => {
            raise(py, "RuntimeException", text)
        }
        Error::Defect(_) => PyRuntimeError::new_err(format!("internal error: {text}")),
    }
}

/// A budget that does not hold a model, with one that does.
pub fn too_little(py: Python<'_>, text: String, budget_bytes: u64, smallest_bytes: u64) -> PyErr {
    let error = raise(py, "BudgetError", text);
    let value = error.value(py);
    let set = value
        .setattr("budget_bytes", budget_bytes)
        .and_then(|()| value.setattr("smallest_bytes", smallest_bytes));
    set.map_or_else(|e| e, |()| error)
}

pub fn of_onnx(py: Python<'_>, error: OnnxError) -> PyErr {
    let class = match &error {
        OnnxError::Open { .. } => "NoSuchFile",
        OnnxError::Malformed { .. } => "InvalidProtobuf",
        OnnxError::Model { .. } => "InvalidGraph",
        _ => "Fail",
    };
    raise(py, class, error.to_string())
}
