//! Why a graph cannot be differentiated.

use neap_ir::GraphError;
use neap_ir::infer::InferError;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum AutodiffError {
    /// The node lies between the loss and what it is differentiated by.
    #[error("node '{node}' ({op}): {reason}")]
    NoDerivative {
        node: String,
        op: &'static str,
        reason: String,
    },
    /// A rule made an operator that does not fit its operands.
    #[error(transparent)]
    Infer(#[from] InferError),
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// What the caller asked for contradicts the graph.
    #[error("{0}")]
    Request(String),
}
