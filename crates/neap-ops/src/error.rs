//! What can go wrong in an operator.

use neap_ir::infer::InferError;
use neap_kernels::error::KernelError;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum OpError {
    /// The operator is valid, but not implemented for these types, ranks or layouts.
    #[error("{op} is not supported {what}")]
    Unsupported { op: &'static str, what: String },
    /// Operands contradict the operator (a malformed program).
    #[error("{op}: {what}")]
    BadOperand { op: &'static str, what: String },
    /// Found in the data while running: an index out of range, an integer division by zero.
    #[error("{op}: {what}")]
    BadData { op: &'static str, what: String },
    /// Nobody wants the results any more.
    #[error("{op}: the run is to end")]
    Unwanted { op: &'static str },
    #[error(transparent)]
    Infer(#[from] InferError),
}

impl OpError {
    pub(crate) fn unsupported(op: &'static str, what: impl Into<String>) -> OpError {
        OpError::Unsupported {
            op,
            what: what.into(),
        }
    }

    pub(crate) fn operand(op: &'static str, what: impl Into<String>) -> OpError {
        OpError::BadOperand {
            op,
            what: what.into(),
        }
    }

    /// Found in the data of an operator that takes indices.
    pub fn index_out_of_range(op: &'static str) -> OpError {
        OpError::data(op, "an index is out of range")
    }

    pub(crate) fn data(op: &'static str, what: impl Into<String>) -> OpError {
        OpError::BadData {
            op,
            what: what.into(),
        }
    }
}

/// A kernel's refusal, in the name of the operator.
pub(crate) trait Named<T> {
    fn named(self, op: &'static str) -> Result<T, OpError>;
}

impl<T> Named<T> for Result<T, KernelError> {
    fn named(self, op: &'static str) -> Result<T, OpError> {
        self.map_err(|e| OpError::operand(op, e.to_string()))
    }
}
