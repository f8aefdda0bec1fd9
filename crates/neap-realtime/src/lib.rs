//! Deadlines kept beyond memory.
//!
//! Tasks release jobs again and again; a job must be done before its deadline. Their models need more memory than there
//! is, so parts of them are moved out of memory and back. This crate says whether all deadlines hold, whatever
//! happens within stated bounds. It only computes: no files, clocks or threads, and randomness only from a seed.
//!
//! ```text
//!   task, volumes       the paper's model, and how much of each task is swapped     (RT-Swap, RTSS 2024, Section V)
//!   theorem             the paper's test
//!   budgets             ours: budgets of tasks that stream, chosen together with admission
//!   demand, response    ours: processor demand with holds; bounds of responses
//!   simulate, hunt      the policy itself, and an adversary who looks for a miss
//!   sets                random systems at the edge of what a test admits
//! ```
//! Times are whole nanoseconds, memory is bytes or chunks.

#![forbid(unsafe_code)]

pub mod budgets;
pub mod demand;
mod effort;
pub mod hunt;
mod random;
mod ratio;
pub mod response;
pub mod sets;
pub mod simulate;
mod task;
pub mod theorem;
pub mod volumes;

pub use effort::Effort;
pub use random::Random;
pub use ratio::Share;
pub use task::{LONGEST_NS, SwapCost, System, Task, TaskError};
