//! From a forward graph to a graph that trains: derivatives, losses and updates as typed operators.
//!
//! Nothing is computed here. A rule says for each operator which operators give the derivatives of its operands
//! (reverse-mode differentiation: Griewank & Walther, *Evaluating Derivatives*, chapter 3), in terms of
//! forward operators where that is exact and cheap, else of [`neap_ir::Gradient`].
//!
//! ```text
//! Graph from the reader
//!   | add_loss        compared with a target
//!   | differentiate   the loss's backward pass is appended
//!   v
//! Graph: forward, loss, backward
//!
//! add_adapters: weights stay, and a product of two small matrices beside each is trained
//! recompute: activations are computed again in the backward pass instead of being kept; cheap_values names those that cost little
//! cut_updates: large parameters are updated a range of rows after the other
//! training_step_in_parts: the batch is seen in parts, whose gradients are summed
//! training_step does both and adds an update for each parameter: a graph whose inputs and outputs are the parameters
//! ```

#![forbid(unsafe_code)]

mod adapters;
mod backward;
mod cut;
mod emit;
mod error;
mod loss;
mod parameters;
mod parts;
mod recompute;
mod rules;
mod schedule;
mod statistics;
mod step;
mod training;

pub use adapters::{Adapter, WeightForm, adaptable, add_adapters};
pub use backward::differentiate;
pub use cut::{Cut, cut_updates};
pub use error::AutodiffError;
pub use loss::{Loss, add_loss};
pub use parameters::parameters;
pub use parts::training_step_in_parts;
pub use recompute::{cheap_values, recompute, recompute_cheap};
pub use schedule::{Decay, Schedule};
pub use training::{
    BatchNorm, Clip, Pass, Role, Start, State, Training, TrainingSpec, drop_unused, training_step,
};
