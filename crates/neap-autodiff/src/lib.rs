//! From a forward graph to a graph that trains: derivatives, losses and updates as typed operators.
//!
//! Nothing is computed here. A rule says for each operator which operators give the derivatives of its operands
//! (reverse-mode differentiation: Griewank & Walther, *Evaluating Derivatives*, chapter 3), in terms of
//! forward operators where that is exact and cheap, else of [`neap_ir::Gradient`].
//!
//! ```text
//! Graph from the reader
//!   | differentiate   the loss's backward pass is appended
//!   v
//! Graph: forward, backward
//! ```

#![forbid(unsafe_code)]

mod backward;
mod emit;
mod error;
mod rules;
mod step;

pub use backward::differentiate;
pub use error::AutodiffError;
