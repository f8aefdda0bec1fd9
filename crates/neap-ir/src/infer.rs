//! Output types of every operator.

use crate::{Op, TensorType};
use thiserror::Error;

/// Why an operator's outputs have no type.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{op}: {reason}")]
pub struct InferError {
    pub op: &'static str,
    pub reason: String,
}

/// Types of `outputs` results of `op`.
pub fn output_types(
    op: &Op,
    inputs: &[Option<TensorType>],
    outputs: usize,
) -> Result<Vec<TensorType>, InferError> {
    let _ = (inputs, outputs);
    Err(InferError {
        op: op.name(),
        reason: "not inferred yet".into(),
    })
}
