//! What is asked for, and what comes back.

use crate::{Error, Sampling};
use serde_json::Value;
use thiserror::Error;

/// What an answer goes on from.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// As it is; names of control tokens in it are those tokens.
    Text(String),
    /// Written out by the model's own template.
    Chat {
        /// Objects with `role` and `content`, as OpenAI's API has them.
        messages: Vec<Value>,
        /// Functions that the model may call, as OpenAI's API has them.
        tools: Vec<Value>,
        /// Whether the model thinks first, where its template lets one choose.
        thinking: Option<bool>,
    },
    Tokens(Vec<u32>),
}

/// One answer that is wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub prompt: Prompt,
    /// Log-probabilities are asked for here, too.
    pub sampling: Sampling,
    /// At least 1. `None`: as many as the context has room for now.
    pub max_tokens: Option<usize>,
    /// The answer ends before any of these.
    pub stop: Vec<String>,
    /// Goes on after tokens that end a text, up to `max_tokens`.
    pub ignore_end: bool,
}

impl Request {
    /// The most likely answer to a prompt.
    #[must_use]
    pub fn new(prompt: Prompt) -> Request {
        Request {
            prompt,
            sampling: Sampling::default(),
            max_tokens: None,
            stop: Vec::new(),
            ignore_end: false,
        }
    }
}

/// Names a request to its runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub(crate) u64);

/// What happens to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Whole characters of the answer.
    Text(String),
    /// Whole characters of what the model thinks before.
    Reasoning(String),
    /// Of each token, before its text, if asked for.
    Logprobs(TokenLogprobs),
    /// The last event.
    Finished { reason: Reason, usage: Usage },
}

/// Natural logarithms of probabilities, before penalties and temperature. Bytes of a token need not be whole characters.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    pub bytes: Vec<u8>,
    pub logprob: f64,
    /// The most likely tokens, the best first.
    pub likely: Vec<(Vec<u8>, f64)>,
}

/// Why an answer is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The model ended it, or a stop string did.
    Stop,
    /// `max_tokens` are reached.
    Length,
    Cancelled,
    Error(String),
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// Of those: computed for an earlier request.
    pub cached_tokens: usize,
    pub completion_tokens: usize,
}

/// Why a request does not begin.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Refused {
    /// Others have the memory now.
    #[error("{needed_positions} positions are needed, and {free_positions} are free now")]
    Full {
        needed_positions: usize,
        free_positions: usize,
    },
    /// More requests run than the runner takes.
    #[error("{0} requests run already")]
    Busy(usize),
    #[error("prompt and answer need {needed_positions} positions, and the context has {context}")]
    TooLong {
        needed_positions: usize,
        context: usize,
    },
    /// The request is wrong.
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Failed(#[from] Error),
}

impl Refused {
    /// Whether the same request may be taken later.
    #[must_use]
    pub fn is_for_now(&self) -> bool {
        matches!(self, Refused::Full { .. } | Refused::Busy(_))
    }
}
