//! Convolution of a plain image of steps with few channels: the first layer of most networks.
//!
//! ```text
//! input [C][H][W]  ->  image in scratch [rows, padded][columns, padded][C]  ->  blocked output
//! ```
//! There one kernel row is one run of `kw * C` steps, and padding holds zero points. So tiles need neither channel blocks nor bounds.

use super::dot::QUAD;
use super::drive::{Call, Inputs, MAX_TAPS, Place, scratch_bytes};
use super::tile::{MAX_ROWS, Reduction, Tap};
use super::{Finish, MOST_K, Results, Steps};
use crate::conv::{ConvForm, ConvShape, band_rows, band_width, interleave, supports};
use crate::error::{KernelError, check_len, checked_product};
use crate::panel::{Format, Panels};
use crate::parallel::Parallel;
use crate::share::Dst;
use crate::simd::{Isa, LANES};
use std::ops::Range;

/// Steps that one task copies, about.
const TASK_STEPS: usize = 16 * 1024;

/// Where the columns of a kernel row are neighbours, a row is one tap.
fn has_dense_rows(shape: &ConvShape) -> bool {
    shape.window.dilations[1] == 1
}

fn reduction(shape: &ConvShape) -> Reduction {
    let [height, width] = shape.window.kernel;
    let (taps, len) = match has_dense_rows(shape) {
        true => (height, width * shape.c_in),
        false => (height * width, shape.c_in),
    };
    Reduction {
        taps,
        blocks: 1,
        block_len: len,
        last_len: len,
        block_step: 0,
        overreads: true,
    }
}

/// Whether [`integer_first_layer`] takes a shape.
#[must_use]
pub fn takes_first_layer(shape: &ConvShape) -> bool {
    supports(ConvForm::FirstLayer, shape)
        && reduction(shape).taps <= MAX_TAPS
        && shape.k() <= MOST_K
}

fn positions(shape: &ConvShape) -> Option<usize> {
    checked_product(&shape.window.output)
}

/// Steps of the padded image.
fn image_bytes(shape: &ConvShape) -> Option<usize> {
    shape.check().ok()?;
    let rows = band_rows(shape, shape.window.output[0]);
    let bytes = checked_product(&[rows, band_width(shape), shape.c_in])?;
    // The last run is read to the end of four.
    bytes.checked_add(QUAD)?.checked_next_multiple_of(64)
}

/// Bytes of scratch of [`integer_first_layer`], aligned to 64.
#[must_use]
pub fn first_layer_scratch_bytes(shape: &ConvShape, workers: usize) -> usize {
    let tiles = positions(shape).map(|rows| scratch_bytes(&reduction(shape), rows, workers));
    (image_bytes(shape).zip(tiles))
        .and_then(|(a, b)| a.checked_add(b))
        .unwrap_or(usize::MAX)
}

/// As [`crate::conv::conv_first_layer`], of steps. What lies outside the input is zero.
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers, other formats, and what [`takes_first_layer`] refuses.
pub fn integer_first_layer(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &ConvShape,
    panels: Range<usize>,
    weights: Panels<'_>,
    input: &[u8],
    steps: Steps,
    mut results: Results<'_>,
    finish: Finish<'_>,
    scratch: &mut [u8],
) -> Result<(), KernelError> {
    if !takes_first_layer(shape) || weights.format() != Format::I8 {
        return Err(KernelError::Unsupported("integers of this format or size"));
    }
    if panels.start > panels.end || panels.end > shape.panels() {
        return Err(KernelError::Invalid("panel range outside the layer"));
    }
    weights.check(Some(shape.k()), panels.len())?;
    let image = checked_product(&[shape.c_in, shape.window.input[0], shape.window.input[1]]);
    let needed = image.and_then(|image| image.checked_mul(shape.batch));
    check_len("input", input.len(), needed)?;
    let out_plane = positions(shape).and_then(|positions| positions.checked_mul(LANES));
    let out_plane = out_plane.unwrap_or(usize::MAX);
    let elements = checked_product(&[shape.batch, shape.panels(), out_plane]);
    let target = results.target(&finish, elements, LANES, out_plane)?;
    let needed = first_layer_scratch_bytes(shape, parallel.workers());
    check_len("scratch", scratch.len(), Some(needed))?;
    let (Some(image), Some(padded)) = (image, image_bytes(shape)) else {
        return Err(KernelError::Invalid("a size overflows"));
    };
    if shape.batch == 0 || out_plane == 0 || panels.is_empty() {
        return Ok(());
    }
    let (band, scratch) = scratch.split_at_mut(padded);
    for index in 0..shape.batch {
        let pixels = &input[index * image..][..image];
        fill(parallel, shape, pixels, steps.zero, band);
        let inputs = Image {
            shape: *shape,
            steps: band.as_ptr(),
            out_begins: index * shape.panels() * out_plane,
        };
        let call = Call {
            rows: out_plane / LANES,
            reduction: reduction(shape),
            steps,
            weights,
            panels: panels.clone(),
            group_panels: shape.panels(),
            last_lanes: LANES,
            layer_panels: shape.panels(),
            prefers_rows: true,
            target,
            inputs: &inputs,
        };
        // SAFETY: lengths were checked against the shape; every run of a tap lies in the padded image.
        unsafe { call.run(isa, parallel, scratch)? };
    }
    Ok(())
}

/// Copies an image with its padding, channels side by side.
fn fill(parallel: &dyn Parallel, shape: &ConvShape, pixels: &[u8], outside: u8, band: &mut [u8]) {
    let rows = band_rows(shape, shape.window.output[0]);
    let row_bytes = band_width(shape) * shape.c_in;
    let stride = shape.window.strides[0];
    // Whole steps of the kernel, so that each task begins at the first row of an output row.
    let task_rows = (TASK_STEPS / row_bytes / stride).max(1) * stride;
    let plane = shape.window.input[0] * shape.window.input[1];
    let to = Dst::new(band);
    parallel.run(rows.div_ceil(task_rows), &|task, _| {
        let first = task * task_rows;
        let count = task_rows.min(rows - first);
        // SAFETY: the rows lie in the image; tasks differ in rows.
        let own =
            unsafe { std::slice::from_raw_parts_mut(to.at(first * row_bytes), count * row_bytes) };
        interleave(shape, pixels, plane, first / stride, outside, own);
    });
}

/// The padded image.
struct Image {
    shape: ConvShape,
    steps: *const u8,
    /// Where its results begin, in elements of the output.
    out_begins: usize,
}

// SAFETY: only addresses are computed here.
unsafe impl Sync for Image {}

impl Image {
    fn position(&self, at: Place) -> usize {
        at.y * self.shape.window.output[1] + at.x
    }
}

impl Inputs for Image {
    fn place(&self, row: usize) -> Place {
        let width = self.shape.window.output[1];
        Place {
            y: row / width,
            x: row % width,
            ..Place::default()
        }
    }

    fn fill(
        &self,
        _group: usize,
        at: &mut Place,
        rows: usize,
        corners: &mut [*const u8; MAX_ROWS],
        taps: &mut [Tap],
    ) -> usize {
        let begins = self.out_begins + self.position(*at) * LANES;
        let s = &self.shape;
        let w = &s.window;
        let row_bytes = band_width(s) * s.c_in;
        for corner in corners.iter_mut().take(rows) {
            let first = at.y * w.strides[0] * row_bytes + at.x * w.strides[1] * s.c_in;
            *corner = self.steps.wrapping_add(first);
            at.x += 1;
            if at.x == w.output[1] {
                (at.x, at.y) = (0, at.y + 1);
            }
        }
        let dense = has_dense_rows(s);
        for (i, tap) in taps.iter_mut().enumerate() {
            let offset = if dense {
                i * w.dilations[0] * row_bytes
            } else {
                let (y, x) = (i / w.kernel[1], i % w.kernel[1]);
                y * w.dilations[0] * row_bytes + x * w.dilations[1] * s.c_in
            };
            *tap = Tap {
                offset,
                inside: u32::MAX,
            };
        }
        begins
    }

    fn together(&self, from: Place) -> usize {
        self.shape.window.output[0] * self.shape.window.output[1] - self.position(from)
    }
}
