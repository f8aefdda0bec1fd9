//! Training inside a memory budget: one step is a program like any other, planned, checked and run by the same parts.
//!
//! ```text
//!   model.onnx ──► Graph ──► neap_autodiff::training_step ──► lower_plainly ──► Program ──► Workload ──► plan ──► Session
//!                                                              states: parameters, moments, statistics
//! ```
//! What survives steps are *states*: buffers that the program updates where they lie. A trainer begins with the model's
//! parameters and with moments of zero; [`Trainer::read`] and [`Trainer::write`] are for checkpoints.

mod micro;
mod options;
mod planning;
mod start;
mod step;
mod trainer;

pub use options::{MicroBatch, TrainOptions};
pub use step::StateRole;
pub use trainer::{TrainState, Trainer, dropout_seed};
