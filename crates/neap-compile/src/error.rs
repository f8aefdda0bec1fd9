//! What can go wrong when programs are read or plans are sought.

use neap_ir::GraphError;
use neap_rewrite::RewriteError;
use thiserror::Error;

/// A program that is unreadable, does not hold together, or has an unsupported operator.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ProgramError(pub String);

/// Why a graph did not become a program.
#[derive(Debug, Error)]
pub enum LowerError {
    #[error(transparent)]
    Rewrite(#[from] RewriteError),
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("the model cannot be planned: {0}")]
    Unplannable(String),
    /// More than any plan is made for.
    #[error("a value of the model takes {bytes} bytes")]
    TooLarge { bytes: u64 },
}

/// Why a search found no plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SearchError {
    #[error("the arena and its page tables need at least {smallest_bytes} bytes")]
    Infeasible { smallest_bytes: u64 },
    /// Something here does not work as it should.
    #[error("{0}")]
    Defect(String),
}
