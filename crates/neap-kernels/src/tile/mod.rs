//! The one micro-kernel family: a tile of positions times panels, and how a layer is cut into tiles.
//!
//! ```text
//!                 panel 0   panel 1   panel 2   panel 3
//!   position 0   [ 16 acc ][ 16 acc ][ 16 acc ][ 16 acc ]   a tile lives in registers;
//!   position 1   [        ][        ][        ][        ]   every k adds
//!   ...                                                     x[position][k] * w[panel][k][16]
//! ```
//! A *position* is an output pixel of a convolution or a row of a matrix. Its inputs are reached
//! through *taps*: a tap is one pointer per position to a run of inputs with consecutive k, and
//! to the run of the next channel block a fixed step further on. A run outside the image is a
//! pointer to zeros that does not move.
//!
//! Order of a sum, whatever the tile, chunk or thread: `bias + residual`, then one fused
//! multiply-add for each k in panel order, then `+ 0.0` (so that a skipped tap of zeros cannot
//! show in the sign of a zero), then the activation. Between chunks of k partial sums rest in
//! the output, which loses nothing.

mod cut;
mod drive;
mod grouped;
mod micro;
mod pairs;
mod select;
mod taps;
mod widen;

pub(crate) use cut::Split;
pub(crate) use drive::{Destination, Form, Inputs, Product, Reduction, run};
pub(crate) use micro::MAX_ROWS;
pub(crate) use pairs::round_pairs;
pub(crate) use taps::TapWriter;

/// Panels of the widest dense tile.
pub(crate) fn max_panels(isa: crate::simd::Isa) -> usize {
    select::Shapes::Dense(isa).max_panels()
}
