//! Compiles a model's programs for one machine and one amount of memory.
//!
//! ```text
//!   Programs ──► Workload per choice of kernels ──► plan per strategy ──► the one predicted fastest
//!   programs     kernels, chains, workload          attempt, variants     planning, preparing: panels in memory left over
//! ```
//! Everything here only computes. The caller measures the machine ([`StepTimes`], cost profiles) and its own
//! memory, and says how much room is left for the arena and its page tables.
#![forbid(unsafe_code)]

mod attempt;
mod chains;
mod costs;
mod counts;
mod error;
mod kernels;
mod lowering;
mod operands;
mod options;
mod page_tables;
mod planning;
mod preparing;
mod programs;
mod request;
mod split;
mod strips;
mod target;
mod times;
mod variants;
mod workload;

pub use counts::kernel_counts;
pub use error::{LowerError, ProgramError, SearchError};
pub use kernels::Kernels;
pub use lowering::{finished, lower, lower_plainly};
pub use operands::operands;
pub use options::{Options, StrategyChoice, WithScratch};
pub use page_tables::tables_of;
pub use planning::{Compiled, Draft, Search, smallest_bytes};
pub use programs::{BandCount, BandMode, Programs, StepOrder, count_bands};
pub use request::{Refine, Request};
pub use split::{Divide, Divided, StepCost, on_device};
pub use target::Target;
pub use times::{StepTimes, step_key};
pub use workload::{keep_activations, workload};
