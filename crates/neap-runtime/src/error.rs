//! Everything that can go wrong in a session, told in one line each.

use neap_ir::{GraphError, TensorType};
use neap_ops::OpError;
use neap_plan::Violation;
use neap_store::StoreError;
use std::io;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum RuntimeError {
    /// The program contradicts itself.
    #[error(transparent)]
    Program(#[from] GraphError),
    /// The plan does not prove to be safe.
    #[error("invalid plan: {0}")]
    Plan(#[from] Violation),
    /// Plan, workload and program are not about the same model.
    #[error("the {what} does not fit the program: {reason}")]
    Mismatch { what: &'static str, reason: String },
    /// The operator cannot be computed for these types, ranks or layouts.
    #[error("node '{node}': {source}")]
    Unsupported { node: String, source: OpError },
    /// The arena could not be had from the kernel.
    #[error("cannot map an arena of {bytes} bytes: {source}")]
    Arena { bytes: u64, source: io::Error },
    #[error("cannot start {threads} threads: {source}")]
    Threads { threads: usize, source: io::Error },
    /// Weights could not be read, or are not what was packed.
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the model has {expected} {what}, {found} are given")]
    Count {
        what: &'static str,
        expected: usize,
        found: usize,
    },
    #[error("the model has no input '{name}'; it has {known}")]
    NoSuchInput { name: String, known: String },
    #[error("input '{name}' is given twice")]
    DuplicateInput { name: String },
    #[error("input '{name}' is missing")]
    MissingInput { name: String },
    /// A caller's tensor has the wrong element type or shape.
    #[error(
        "{what} '{name}' is {}, {} is given",
        describe(expected),
        describe(found)
    )]
    TensorType {
        what: &'static str,
        name: String,
        expected: TensorType,
        found: TensorType,
    },
    /// A caller's tensor has memory that does not fit its type.
    #[error("{what} '{name}': {reason}")]
    TensorMemory {
        what: &'static str,
        name: String,
        reason: String,
    },
    /// Found while computing: an index out of range, an integer division by zero.
    #[error("node '{node}': {source}")]
    Op { node: String, source: OpError },
    #[error("node '{node}': index {index} is outside of a table of {rows} rows")]
    RowIndex {
        node: String,
        index: i64,
        rows: usize,
    },
    /// A defect in an operator; the session stays usable.
    #[error("node '{node}' ({op}) panicked: {message}")]
    Panicked {
        node: String,
        op: &'static str,
        message: String,
    },
    /// A device did not do what it was asked to.
    #[error("device '{device}': {reason}")]
    Device {
        device: &'static str,
        reason: String,
    },
    /// The caller asked it to end ([`CancelToken`](crate::CancelToken)); the session stays usable.
    #[error("the run was cancelled")]
    Cancelled,
    /// An earlier error left loads that could not be drained.
    #[error("the session is unusable since its storage failed")]
    Unusable,
}

/// `float32[1, 3, 224, 224]`
fn describe(ty: &TensorType) -> String {
    format!("{}{:?}", ty.dtype, ty.shape)
}
