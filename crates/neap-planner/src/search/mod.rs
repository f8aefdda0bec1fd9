//! SwapAdvisor's search (Huang et al., ASPLOS 2020), and beyond: schedules, memory and swaps together.
//!
//! ```text
//!   Dataflow ──► evolve ──► genome: schedule, size classes, objects
//!                  ▲           │
//!                  │        SwapPlanner ──► SwapPlan ──► lanes::play ──► time
//!                  └────────────────────────────────────────────────────┘
//! ```
//!
//! Nothing here reads a clock or starts a thread: who calls [`search`] gives a [`Parallel`] to work with,
//! and is asked after each generation whether to go on. For a seed and a number of generations the outcome
//! is the same, however many threads there are.

mod allocation;
mod baselines;
mod dataflow;
mod device;
mod evolve;
mod lanes;
mod order;
mod placed;
mod random;
mod serving;
mod swap;
#[cfg(test)]
mod testing;

pub use allocation::{Allocation, Classes, Pools};
pub use baselines::odswap;
pub use dataflow::{
    Dataflow, DataflowError, DataflowSpec, OpId, Operator, Tensor, TensorId, TensorKind, Touch,
};
pub use device::Device;
pub(crate) use evolve::batch;
pub use evolve::{Found, Generation, Infeasible, Parallel, Scope, SearchOptions, Serial, search};
pub use lanes::{Outcome, play};
pub use order::random as random_order;
pub use placed::{Placed, PlacedOptions, improve};
pub use random::Random;
pub use serving::{Arrivals, Request, Service, latencies_ns, queue_ns};
pub use swap::{
    Addresses, After, Eviction, Kept, Memory, Needs, PlaceRules, Rules, Side, Stay, SwapIn,
    SwapOut, SwapPlan, SwapPlanner, SwapTask,
};
