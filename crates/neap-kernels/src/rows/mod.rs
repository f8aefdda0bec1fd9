//! Softmax and normalisations: operations that look at a whole row of elements at once.
//!
//! Rows are contiguous (`[rows][cols]`), or run along the middle axis of `[outer][axis][inner]`.
//! Sums add in an order that depends on the row's length only, so results do not depend on the
//! number of workers. A destination may take the place of its source: see [`Input`]. Slices
//! that are too short are refused.

mod fold;
mod lrn;
mod moments;
mod norm;
mod softmax;

pub use fold::extremes;
pub(crate) use fold::max as row_max;
pub use lrn::{Lrn, lrn_blocked, lrn_plain};
pub use moments::{FACTORS, MOMENTS, add_moments, add_sums, normalise, take_largest};
pub use norm::{Norm, group_norm, layer_norm, lp_norm, rms_norm};
pub(crate) use softmax::exp_row;
pub use softmax::{Softmax, softmax, softmax_axis};

use crate::error::{KernelError, check_len};
use crate::share::{Dst, Src};

/// Elements that one task computes, about.
const TASK_ELEMENTS: usize = 8 * 1024;

/// Where the elements come from.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// The destination holds them already.
    InPlace,
    From(&'a [f32]),
}

impl Input<'_> {
    fn view(self, needed: Option<usize>, dst: Dst) -> Result<Src, KernelError> {
        match self {
            Input::InPlace => Ok(dst.as_src()),
            Input::From(src) => {
                check_len("source", src.len(), needed)?;
                Ok(Src::new(src))
            }
        }
    }
}
