//! Studies of papers by simulation, of which `cargo study` makes pages; training can take the plans that one of them finds.
//!
//! SwapAdvisor (Huang et al., ASPLOS 2020) searches over schedules, memory pools and swaps together:
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

#![forbid(unsafe_code)]

mod allocation;
mod baselines;
mod dataflow;
mod device;
mod evolve;
mod execution;
mod graph;
mod lanes;
mod order;
mod placed;
mod serving;
mod steps;
mod swap;
#[cfg(test)]
mod testing;
mod training;
mod workload;

pub use allocation::{Allocation, Classes, Pools};
pub use baselines::{odswap, resident_parameters};
pub use dataflow::{
    Dataflow, DataflowError, DataflowSpec, OpId, Operator, Tensor, TensorId, TensorKind, Touch,
};
pub use device::Device;
pub use evolve::{Found, Infeasible, Scope, SearchOptions, search};
pub use execution::execution;
pub use graph::of_graph;

pub use lanes::{Outcome, play};
pub use neap_planner::{Generation, Parallel, Random, Serial};
pub use order::random as random_order;
pub use placed::{Placed, PlacedOptions, improve};
pub use serving::{Arrivals, Request, Service, latencies_ns, queue_ns};
pub use steps::SWAP_ADVISOR;
pub use swap::{
    Addresses, After, Eviction, Memory, Needs, PlaceRules, Rules, Side, Stay, SwapIn, SwapOut,
    SwapPlan, SwapPlanner, SwapTask,
};
pub use training::{TrainingError, TrainingFlow, of_training};
pub use workload::{StepFlow, of_workload};
