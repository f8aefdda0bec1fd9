//! Rows of steps times panels.

use super::drive::{Call, Inputs, Place, scratch_bytes};
use super::tile::{MAX_ROWS, Reduction, Tap};
use super::{Finish, MOST_K, Results, Steps};
use crate::error::{KernelError, check_len};
use crate::linear::{LinearShape, matrix_elements};
use crate::panel::{Format, Panels};
use crate::parallel::Parallel;
use crate::simd::{Isa, LANES};
use std::ops::Range;

fn reduction(shape: &LinearShape) -> Reduction {
    Reduction {
        taps: 1,
        blocks: 1,
        block_len: shape.k,
        last_len: shape.k,
        block_step: 0,
        overreads: false,
    }
}

/// Bytes of scratch of [`integer_linear`], aligned to 64.
#[must_use]
pub fn linear_scratch_bytes(shape: &LinearShape, workers: usize) -> usize {
    scratch_bytes(&reduction(shape), shape.m, workers)
}

/// As [`crate::linear::linear`], of steps: `a` is `[m][k]`.
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers, other formats, and more than [`MOST_K`].
pub fn integer_linear(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &LinearShape,
    panels: Range<usize>,
    weights: Panels<'_>,
    a: &[u8],
    steps: Steps,
    mut results: Results<'_>,
    finish: Finish<'_>,
    scratch: &mut [u8],
) -> Result<(), KernelError> {
    shape.check()?;
    if panels.start > panels.end || panels.end > shape.panels() {
        return Err(KernelError::Invalid("panel range outside the layer"));
    }
    if weights.format() != Format::I8 || shape.k > MOST_K {
        return Err(KernelError::Unsupported("integers of this format or size"));
    }
    weights.check(Some(shape.k), panels.len())?;
    check_len(
        "a",
        a.len(),
        matrix_elements(shape.m, shape.k, shape.a_stride),
    )?;
    let elements = matrix_elements(shape.m, shape.n, shape.out_stride);
    let target = results.target(&finish, elements, shape.out_stride, LANES)?;
    if shape.m == 0 || panels.is_empty() {
        return Ok(());
    }
    let inputs = Rows {
        a: a.as_ptr(),
        shape: *shape,
    };
    let call = Call {
        rows: shape.m,
        reduction: reduction(shape),
        steps,
        weights,
        panels,
        group_panels: shape.panels(),
        last_lanes: shape.n - (shape.panels() - 1) * LANES,
        layer_panels: shape.panels(),
        prefers_rows: false,
        target,
        inputs: &inputs,
    };
    // SAFETY: lengths were checked; the output is borrowed exclusively.
    unsafe { call.run(isa, parallel, scratch) }
}

struct Rows {
    a: *const u8,
    shape: LinearShape,
}

// SAFETY: only addresses are computed here.
unsafe impl Sync for Rows {}

impl Inputs for Rows {
    fn place(&self, row: usize) -> Place {
        Place {
            y: row,
            ..Place::default()
        }
    }

    fn fill(
        &self,
        _group: usize,
        place: &mut Place,
        rows: usize,
        corners: &mut [*const u8; MAX_ROWS],
        taps: &mut [Tap],
    ) -> usize {
        let begins = place.y * self.shape.out_stride;
        for (i, corner) in corners[..rows].iter_mut().enumerate() {
            *corner = self.a.wrapping_add((place.y + i) * self.shape.a_stride);
        }
        taps[0] = Tap {
            offset: 0,
            inside: u32::MAX,
        };
        place.y += rows;
        begins
    }

    fn together(&self, from: Place) -> usize {
        self.shape.m - from.y
    }
}
