//! Training inside a memory budget: one step is a program like any other, planned, checked and run by the same parts.
//!
//! ```text
//!   model.onnx ──► Graph ──► neap_autodiff::training_step ──► lower_plainly ──► Program ──► Workload ──► plan ──► Session
//!                                                              states: parameters, moments, statistics
//! ```
//! Where the budget has no room for all activations, the same step is lowered with some of them computed again
//! ([`TrainStrategy`]), and the plan that is predicted to be fastest runs.
//!
//! What survives steps are *states*: buffers that the program updates where they lie. A trainer begins with the model's
//! parameters and with moments of zero; [`Trainer::read`] and [`Trainer::write`] are for checkpoints.

mod costs;
mod micro;
mod optimal;
mod options;
mod other;
mod planning;
mod start;
mod step;
mod strategy;
mod tape;
mod trainer;
mod trial;

pub use costs::StepCosts;
pub use options::{Adapters, MicroBatch, TrainCosts, TrainOptions};
pub use other::{OtherTrainStrategy, PlannedStep, StepToPlan};
pub use step::StateRole;
pub use strategy::{StepSummary, TrainStrategy};
pub use trainer::{TrainState, Trainer, dropout_seed};
