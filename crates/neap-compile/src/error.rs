//! What can go wrong when programs are read or plans are sought.

use thiserror::Error;

/// A program that is unreadable, does not hold together, or has an unsupported operator.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ProgramError(pub String);

/// Why a search found no plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SearchError {
    #[error("the arena and its page tables need at least {smallest_bytes} bytes")]
    Infeasible { smallest_bytes: u64 },
    /// Something here does not work as it should.
    #[error("{0}")]
    Defect(String),
}
