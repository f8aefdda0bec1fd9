//! Language models in GGUF files, text in and text out, within a memory budget.
//!
//! ```text
//!   Request ─► Runner::submit    tokens; what an earlier text began with is shared; blocks of the cache are set aside, or it is refused
//!              Runner::step      one pass: a row of each answer, drafts that a look into the text finds, a chunk of waiting prompts
//!                 └─► Event      text in whole characters, thoughts apart, log-probabilities, the end
//! ```
//! An answer is the same whatever runs beside it, whatever was drafted, and under every budget.
#![forbid(unsafe_code)]

mod draft;
mod error;
mod kept;
mod request;
mod runner;
mod running;
mod saved;
mod sharing;
mod thinking;

pub use error::{Error, Result};
pub use neap_llm::{CacheType, Ledger, Stats};
pub use neap_tokenizer::sample::{PenaltyOptions, Sampling};
pub use request::{Event, Id, Prompt, Reason, Refused, Request, TokenLogprobs, Usage};
pub use runner::{Figures, Options, Runner};
pub use saved::LoadError;
