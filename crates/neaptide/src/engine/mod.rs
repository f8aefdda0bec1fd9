//! Several models in one process, within one budget.
//!
//! ```text
//!   budget  = base                        + work memory        + Σ resident weights
//!             program, threads, heaps       of the largest       divided by predicted gain
//! ```
//! What a run overwrites (activations, workspaces, weights in flight) is dead between runs. Models take turns, so they share it,
//! and memory is the sum of resident weights and the largest work memory, not the sum of both.
//!
//! ```text
//!   run      turns ─► the model whose turn it is, in the shared work memory
//!   shapes   a run in other shapes: programs, a plan within the model's share ─► turns ─► the model goes over, and runs
//!   load     open, candidates ─► division ─► plans ─► a turn: those that give memory up, those that get some
//! ```

mod bindings;
mod candidates;
mod change;
mod core;
mod division;
mod member;
mod options;
mod report;
mod turns;

pub use core::Engine;
pub use member::LoadedModel;
pub use options::{EngineOptions, LoadOptions, RunRequest};
pub use report::{EngineLedger, ModelStatus, RunReport};
