//! Language models in GGUF files within a memory budget.
//!
//! ```text
//!   GGUF file ──► Model ──► Workload ──► plan (ring and residents) ──► WeightStream
//!                   │                                                      │ weights, part by part
//!   tokens ──► Engine::forward ──► embedding ──► Pass: products, attention over the cache ──► logits, slice by slice
//! ```
//! The file stays as it is: rows of blocks are read in place, with direct I/O, in an order that is known. Every budget, chunk of a prompt,
//! batch and number of threads gives the same bits.

mod attention;
mod cache;
mod config;
mod convolution;
mod disjoint;
mod engine;
mod error;
mod experts;
mod gated;
mod memory;
mod mixture;
mod model;
mod parts;
mod pass;
mod plan;
mod rates;
mod rotary;
mod scratch;
mod sequence;
mod since;

pub use cache::{BLOCK_POSITIONS, CacheType};
pub use config::{
    ARCHITECTURES, Activation, Config, Convolution, Experts, Pairs, Ramp, Rotary, Scaling,
};
pub use engine::{Engine, Logits, Options, Stats, Tokens};
pub use error::{Error, Result};
pub use memory::Ledger;
pub use model::{Expert, Matrix, Model, Role, Vectors};
pub use plan::Rates;
pub use sequence::{Sequence, TAKE_BACK};
pub use since::Since;
