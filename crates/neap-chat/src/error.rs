//! What can go wrong with a model or a pass, in one line each.

use std::path::PathBuf;
use thiserror::Error;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Model(#[from] neap_llm::Error),
    #[error("{}: {source}", path.display())]
    Tokenizer {
        path: PathBuf,
        source: neap_tokenizer::Error,
    },
}

impl Error {
    /// Whether it is because the caller asked for the end.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Model(error) if error.is_cancelled())
    }

    /// The smallest budget, where the given one is too small.
    #[must_use]
    pub fn smallest_budget_bytes(&self) -> Option<u64> {
        match self {
            Error::Model(neap_llm::Error::Budget { smallest_bytes, .. }) => Some(*smallest_bytes),
            _ => None,
        }
    }
}
