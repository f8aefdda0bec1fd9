//! Cost profiles and the discrete-event simulation of a plan.
//!
//! `simulate` plays a plan on its lanes with the executor's rules and returns when everything would
//! happen; planners rank candidates by it, and people see its [`Timeline`](neap_plan::Timeline) drawn.
#![forbid(unsafe_code)]

mod cost;
mod lanes;
mod simulate;

pub use cost::CostProfile;
pub use lanes::simulate_lanes;
pub use simulate::{LoadCost, Prediction, STEADY_RUNS, Simulator, Work, predict, simulate};
