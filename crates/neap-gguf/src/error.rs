//! Why a file cannot be used.

use crate::Kind;
use std::io;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("not a GGUF file")]
    NotGguf,
    /// Versions 1 and 2 are not written any more; big-endian files have their version's bytes reversed.
    #[error("GGUF version {0} is not supported: only version 3, little-endian")]
    Version(u32),
    /// The file contradicts itself or ends early.
    #[error("damaged GGUF file: {0}")]
    Damaged(String),
    #[error("tensor '{name}' has type {number}, which is not known")]
    UnknownKind { name: String, number: u32 },
    #[error("weights of type {0} are not supported")]
    NotComputed(Kind),
    #[error("cannot read: {0}")]
    Io(#[from] io::Error),
}

impl Error {
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Error::Damaged(what.into())
    }
}
