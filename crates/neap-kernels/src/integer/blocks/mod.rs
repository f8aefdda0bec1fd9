//! Rows of floats times panels in blocks, each product of a block summed in integers.
//!
//! ```text
//!   scale of x = largest |x| of the row's block / 127         steps of x = x / scale of x, to the nearest, -127 to 127
//!   out        = bias + residual + for each block: (scale of w * scale of x) * sum over k of (step of w - zero) * step of x
//! ```
//! Rows become steps first, in scratch. Sums of a block are exact, below 2^24, and each becomes a float without rounding;
//! blocks are added up in their order by a multiplication and an addition. So all instruction sets give the same bits.

mod dot;
mod drive;
mod rows;
mod tile;

use super::drive::Kernel;
use crate::epilogue::{Epilogue, Residual};
use crate::error::{KernelError, check_len};
use crate::linear::{LinearShape, matrix_elements};
use crate::panel::{BlockFormat, Format, Panels};
use crate::parallel::Parallel;
use crate::simd::{Isa, LANES};
use drive::{Call, Space};
use std::ops::Range;

/// Steps of a block that sum up exactly.
const MOST_LEN: usize = 256;

/// Whether [`rounded_linear`] takes weights in blocks of this length.
#[must_use]
pub fn takes_blocks(len: usize) -> bool {
    len > 0 && len <= MOST_LEN && len.is_multiple_of(LANES)
}

/// Bytes of scratch of [`rounded_linear`] with blocks of `len`, aligned to 64.
#[must_use]
pub fn rounded_scratch_bytes(shape: &LinearShape, len: usize, workers: usize) -> usize {
    Space::of(shape, len, workers).map_or(usize::MAX, |space| space.bytes)
}

/// As [`crate::linear::linear`], of rows that are rounded to steps of 8 bits in the blocks of the weights, which are
/// [`Format::Blocks`]. A block of a row with an infinity or what is no number makes the row's results NaN.
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers, other formats, and blocks that [`takes_blocks`] refuses.
pub fn rounded_linear(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &LinearShape,
    panels: Range<usize>,
    weights: Panels<'_>,
    a: &[f32],
    out: &mut [f32],
    epilogue: Epilogue<'_>,
    scratch: &mut [u8],
) -> Result<(), KernelError> {
    shape.check()?;
    if panels.start > panels.end || panels.end > shape.panels() {
        return Err(KernelError::Invalid("panel range outside the layer"));
    }
    let format = match weights.format() {
        Format::Blocks(format) if takes_blocks(format.len) => format,
        _ => return Err(KernelError::Unsupported("rounded rows times this format")),
    };
    weights.check_any(Some(shape.k), panels.len())?;
    let a_elements = matrix_elements(shape.m, shape.k, shape.a_stride);
    check_len("a", a.len(), a_elements)?;
    let out_elements = matrix_elements(shape.m, shape.n, shape.out_stride);
    check_len("out", out.len(), out_elements)?;
    let first = out.as_mut_ptr().wrapping_add(panels.start * LANES);
    let residual = match epilogue.residual {
        Residual::None => std::ptr::null(),
        Residual::Separate(r) => {
            check_len("residual", r.len(), out_elements)?;
            r.as_ptr().wrapping_add(panels.start * LANES)
        }
        Residual::InPlace => first.cast_const(),
    };
    let space = Space::of(shape, format.len, parallel.workers());
    check_len("scratch", scratch.len(), space.as_ref().map(|s| s.bytes))?;
    let Some(space) = space else { return Ok(()) };
    if !scratch.as_ptr().addr().is_multiple_of(64) {
        return Err(KernelError::Invalid("scratch is not aligned"));
    }
    if shape.m == 0 || panels.is_empty() {
        return Ok(());
    }
    let begin = scratch.as_mut_ptr();
    rows::round(isa, parallel, shape, format.len, a, &space, begin);
    let call = Call {
        shape: *shape,
        panels: panels.len(),
        last_lanes: match panels.end == shape.panels() {
            true => shape.n - (shape.panels() - 1) * LANES,
            false => LANES,
        },
        weights: weights.as_ptr(),
        panel_bytes: Format::Blocks(format).panel_bytes(shape.k).unwrap_or(0),
        format,
        space,
        scratch: begin,
        out: first,
        residual,
        activation: epilogue.activation,
    };
    // SAFETY: lengths were checked; `out` and scratch are borrowed exclusively.
    unsafe { call.run(isa, parallel) };
    Ok(())
}

/// Bytes of four k of a panel.
fn quad_bytes(format: BlockFormat) -> usize {
    super::dot::QUAD * format.step_bytes()
}
