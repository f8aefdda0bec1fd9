//! Why a training cannot begin or go on, as one line for the user.

use neap_autodiff::AutodiffError;
use neap_onnx::{Need, OnnxError, ReplaceError};
use std::fmt::Display;
use std::io;
use std::path::Path;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum TrainError {
    /// Something that was given is wrong, or a file cannot be read or written.
    #[error("{0}")]
    BadInput(String),
    /// The model leaves something open. A host can say how to give it, beside the text.
    #[error("{text}")]
    Unbound { text: String, need: Need },
    /// The memory budget cannot be met.
    #[error("{0}")]
    Infeasible(String),
    /// The loss or a parameter is no number any more.
    #[error("{0}")]
    Diverged(String),
    /// The caller asked for the end; what was learned is in the checkpoint.
    #[error("interrupted")]
    Interrupted,
    #[error("{0}")]
    Defect(String),
}

pub type Result<T> = std::result::Result<T, TrainError>;

pub(crate) fn bad(message: impl Display) -> TrainError {
    TrainError::BadInput(message.to_string())
}

/// A file that cannot be read.
pub(crate) fn unreadable(path: &Path, error: impl Display) -> TrainError {
    bad(format!("cannot read {}: {error}", path.display()))
}

/// A file that cannot be written.
pub(crate) fn unwritable(path: &Path, error: &io::Error) -> TrainError {
    bad(format!("cannot write {}: {error}", path.display()))
}

impl From<AutodiffError> for TrainError {
    fn from(error: AutodiffError) -> TrainError {
        bad(error)
    }
}

impl From<OnnxError> for TrainError {
    fn from(error: OnnxError) -> TrainError {
        match error.need() {
            Some(need) => TrainError::Unbound {
                text: error.to_string(),
                need,
            },
            None => bad(error),
        }
    }
}

impl From<ReplaceError> for TrainError {
    fn from(error: ReplaceError) -> TrainError {
        bad(error)
    }
}
