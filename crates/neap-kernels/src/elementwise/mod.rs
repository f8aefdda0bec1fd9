//! Element-wise functions of one and two tensors.
//!
//! Elements are computed one by one from elements at the same place (or broadcast along rows), so
//! results depend on nothing else, and a destination may take the place of a source. Work is cut
//! into pieces of about 64 KB; small tensors are one piece.

mod binary;
mod gate;
pub mod quantize; // to steps of a scale and back
mod unary;

pub use binary::{Binary, Operand, affine, binary};
pub use gate::{Gate, gate};
pub(crate) use unary::unary_run;
pub use unary::{Unary, unary, unary_in_place};

/// Elements that one task computes, about.
const TASK_ELEMENTS: usize = 16 * 1024;
