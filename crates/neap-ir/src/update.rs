//! Operators that move a parameter against its gradient.
//!
//! Written `w` is the parameter, `g` its gradient, `r` the learning rate (a scalar of the same type) and `t` the
//! number of this update, counted from 1 (an int64 scalar). Results may take the place of what they replace, so an
//! update can run over a parameter and its moments where they lie.

use serde::{Deserialize, Serialize};

/// An optimiser's step for one parameter. Inputs and outputs are listed in order.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Update {
    /// w, g, r, t (, m where there is momentum) → w (, m). With `g += decay w` and `m = momentum m + g`:
    /// `w -= r m`, or `w -= r (g + momentum m)` (Sutskever et al. 2013, as PyTorch writes it). Zeros to start with.
    Sgd {
        momentum: f64,
        nesterov: bool,
        decay: f64,
    },
    /// w, g, r, t, m, v → w, m, v. Loshchilov & Hutter, *Decoupled weight decay regularization*, algorithm 2; with
    /// the decay times the rate. Zeros to start with.
    AdamW {
        beta1: f64,
        beta2: f64,
        epsilon: f64,
        decay: f64,
    },
    /// w, g, r, t, s → w, s. With `g += decay w` and `s += g²`: `w -= r / (1 + (t - 1) rate_decay) g / (sqrt(s) +
    /// epsilon)` (Duchi et al. 2011). Zeros to start with.
    Adagrad {
        epsilon: f64,
        rate_decay: f64,
        decay: f64,
    },
}

impl Update {
    pub fn name(&self) -> &'static str {
        match self {
            Update::Sgd { .. } => "SgdUpdate",
            Update::AdamW { .. } => "AdamWUpdate",
            Update::Adagrad { .. } => "AdagradUpdate",
        }
    }

    /// Tensors of the parameter's type that are kept from step to step.
    pub fn moments(&self) -> usize {
        match self {
            Update::Sgd { momentum, .. } => usize::from(*momentum != 0.0),
            Update::AdamW { .. } => 2,
            Update::Adagrad { .. } => 1,
        }
    }
}
