//! Why text cannot be turned into tokens, or a prompt not be made.

/// Why a file's tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("the file has no tokenizer: '{0}' is missing")]
    Missing(&'static str),
    #[error("tokenizer '{0}' is not supported")]
    UnknownModel(String),
    #[error("pre-tokenizer '{0}' is not supported")]
    UnknownPreTokenizer(String),
    /// The file contradicts itself.
    #[error("damaged tokenizer: {0}")]
    Damaged(String),
    #[error(transparent)]
    Gguf(#[from] neap_gguf::Error),
}

impl Error {
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Error::Damaged(what.into())
    }
}
