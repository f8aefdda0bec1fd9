//! What can go wrong with a language model, in one line each.

use neap_runtime::RuntimeError;
use neap_store::StoreError;
use std::path::PathBuf;
use thiserror::Error;

/// What loading or running a language model gives.
pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    #[error("cannot open {}: {source}", path.display())]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{}: {source}", path.display())]
    Gguf {
        path: PathBuf,
        source: neap_gguf::Error,
    },
    /// The file is right, and nothing here runs it.
    #[error("this build does not run it: {0}")]
    Unsupported(String),
    /// The file contradicts itself.
    #[error("the model is damaged: {0}")]
    Model(String),
    /// The budget does not hold the model at this context.
    #[error(
        "{} of memory are too little: a context of {context} positions needs {}",
        mib(*budget_bytes),
        mib(*smallest_bytes)
    )]
    Budget {
        budget_bytes: u64,
        smallest_bytes: u64,
        context: usize,
    },
    /// More positions than the session has.
    #[error("the text has {positions} positions, and the context is {context}")]
    Context { positions: usize, context: usize },
    /// All blocks of the cache are in use by other sequences.
    #[error("the cache is full: {blocks} blocks are in use")]
    CacheFull { blocks: usize },
    #[error("token {token} is outside of the vocabulary of {vocabulary}")]
    Token { token: u32, vocabulary: usize },
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Error {
    /// Whether it is because the caller asked for the end.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Runtime(RuntimeError::Cancelled))
    }
}

/// Rounded up, so that a budget of what is named is enough.
fn mib(bytes: u64) -> String {
    let tenths = (bytes * 10).div_ceil(1 << 20);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}
