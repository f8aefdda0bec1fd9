//! Convolution of a plain image with few channels: the first layer of most networks.
//!
//! ```text
//! input [C][H][W]  ->  band in scratch [rows][width, padded][C]  ->  blocked output
//! ```
//! In the band one kernel row is one run of `kw * C` inputs, padding included, so the
//! micro-kernel needs no channel blocks and no bounds.

use super::{ConvForm, ConvShape, plane_floats};
use crate::epilogue::{Epilogue, Residual};
use crate::error::{KernelError, check_len, checked_product};
use crate::panel::{Format, Panels};
use crate::parallel::{Parallel, Serial};
use crate::planes::{Planes, check_planes};
use crate::simd::{Isa, LANES};
use crate::tile::{Destination, Form, Inputs, Product, Reduction, TapWriter, run};
use std::ops::Range;

/// Bytes that a band may take, unless a single output row needs more.
const BAND_BYTES: usize = 64 * 1024;

/// Bytes of scratch that [`conv_first_layer`] needs: a band for each worker.
#[must_use]
pub fn conv_first_layer_scratch_bytes(shape: &ConvShape, workers: usize) -> usize {
    checked_product(&[band_floats(shape), workers, size_of::<f32>()]).unwrap_or(usize::MAX)
}

/// `output[panels] = activation(conv(input, weights) + bias + residual)` for a plain input.
///
/// * `weights`: the panels of the range, contiguous, k order `[kh][kw][c]`
///   (see [`crate::panel::pack_conv`])
/// * `input`: plain `[batch][c_in][height][width]`, `c_in <= 16`
/// * `output`, residual: blocked, the whole layer's; only the range's channels are touched
/// * `scratch`: [`conv_first_layer_scratch_bytes`] bytes, as floats
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers; groups; more than 16 channels.
pub fn conv_first_layer<'a>(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &ConvShape,
    panels: Range<usize>,
    weights: impl Into<Panels<'a>>,
    input: &[f32],
    output: &mut [f32],
    epilogue: Epilogue<'_>,
    scratch: &mut [f32],
) -> Result<(), KernelError> {
    let planes = Planes {
        input: plane_floats(shape.window.input, 1).unwrap_or(usize::MAX),
        ..shape.whole_planes()
    };
    conv_first_layer_band(
        isa, parallel, shape, planes, panels, weights, input, output, epilogue, scratch,
    )
}

/// [`conv_first_layer`] of a band of rows: input, output and residual have planes as far apart as
/// `planes` says, and begin at the band's first row.
///
/// # Errors
/// As [`conv_first_layer`], and planes that overlap.
pub fn conv_first_layer_band<'a>(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &ConvShape,
    planes: Planes,
    panels: Range<usize>,
    weights: impl Into<Panels<'a>>,
    input: &[f32],
    output: &mut [f32],
    epilogue: Epilogue<'_>,
    scratch: &mut [f32],
) -> Result<(), KernelError> {
    let weights: Panels = weights.into();
    shape.check_call(
        ConvForm::FirstLayer,
        &planes,
        &panels,
        &weights,
        output,
        &epilogue,
    )?;
    let in_count = shape.batch.checked_mul(shape.c_in);
    let in_plane = plane_floats(shape.window.input, 1);
    check_planes("input", input.len(), in_count, planes.input, in_plane)?;
    let floats = band_floats(shape);
    let needed = checked_product(&[floats, parallel.workers()]);
    check_len("scratch", scratch.len(), needed)?;
    if shape.window.output.contains(&0) || panels.is_empty() {
        return Ok(());
    }

    let out_plane = planes.output;
    let column = panels.start * out_plane;
    let out = output.as_mut_ptr().wrapping_add(column);
    let call = Call {
        shape: *shape,
        panels: panels.len(),
        weights: weights.as_ptr(),
        format: weights.format(),
        input: input.as_ptr(),
        in_plane: planes.input,
        destination: Destination {
            output: out,
            residual: match epilogue.residual {
                Residual::None => std::ptr::null(),
                Residual::Separate(r) => r.as_ptr().wrapping_add(column),
                Residual::InPlace => out.cast_const(),
            },
            image_floats: shape.panels() * out_plane,
            row_floats: LANES,
            column_floats: out_plane,
            last_lanes: LANES,
        },
        epilogue,
        scratch: scratch.as_mut_ptr(),
        band_floats: floats,
    };
    let rows = task_rows(shape, parallel.workers());
    let bands = shape.window.output[0].div_ceil(rows);
    parallel.run(shape.batch * bands, &|task, worker| {
        let from = task % bands * rows;
        let to = shape.window.output[0].min(from + rows);
        // SAFETY: tasks differ in image or output rows; a worker's band is its own; lengths
        // were checked against the shape.
        unsafe { call.band(isa, task / bands, from..to, worker) };
    });
    Ok(())
}

/// What the tasks share.
struct Call<'a> {
    shape: ConvShape,
    panels: usize,
    weights: *const u8,
    format: Format,
    input: *const f32,
    /// From channel to channel of the input.
    in_plane: usize,
    destination: Destination,
    epilogue: Epilogue<'a>,
    scratch: *mut f32,
    band_floats: usize,
}

// SAFETY: tasks read shared memory and write disjoint output rows and their worker's own band.
unsafe impl Sync for Call<'_> {}

impl Call<'_> {
    /// Fills a band and computes its output rows.
    ///
    /// # Safety
    /// No other task has these rows of this image, or this worker, at the same time.
    unsafe fn band(&self, isa: Isa, image: usize, rows: Range<usize>, worker: usize) {
        let s = &self.shape;
        let band = self.scratch.wrapping_add(worker * self.band_floats);
        let len = band_rows(s, rows.len()) * band_width(s) * s.c_in;
        // SAFETY: the band of this worker is `band_floats` long and used by no one else.
        let band = unsafe { std::slice::from_raw_parts_mut(band, len) };
        let plane = self.in_plane;
        let image_floats = (s.c_in - 1) * plane + s.window.input[0] * s.window.input[1];
        // SAFETY: the input was checked to hold all images, of at least one channel.
        let pixels = unsafe {
            std::slice::from_raw_parts(self.input.add(image * s.c_in * plane), image_floats)
        };
        interleave(s, pixels, plane, rows.start, 0.0, band);

        let dense_rows = s.window.dilations[1] == 1;
        let run_len = if dense_rows {
            s.window.kernel[1] * s.c_in
        } else {
            s.c_in
        };
        let offset =
            image * self.destination.image_floats + rows.start * s.window.output[1] * LANES;
        let residual = self.destination.residual;
        let product = Product {
            form: Form::Dense,
            weights: self.weights,
            format: self.format,
            panels: self.panels,
            ends_layer: false,
            images: 1,
            positions: rows.len() * s.window.output[1],
            reduction: Reduction {
                taps: if dense_rows {
                    s.window.kernel[0]
                } else {
                    s.window.kernel[0] * s.window.kernel[1]
                },
                channels: run_len,
                block_len: run_len,
                block_step_bytes: 0,
            },
            destination: Destination {
                output: self.destination.output.wrapping_add(offset),
                residual: if residual.is_null() {
                    residual
                } else {
                    residual.wrapping_add(offset)
                },
                ..self.destination
            },
            activation: self.epilogue.activation,
            pairs_of: None,
        };
        let inputs = Band {
            shape: *s,
            pixels: band.as_ptr(),
            dense_rows,
        };
        // SAFETY: every run of a tap lies in the band; the outputs are this task's own.
        unsafe { run(isa, &Serial, &product, &inputs) };
    }
}

/// Copies the input rows that output rows from `first_row` on need, `outside` where there is no image. Channels
/// lie `plane` elements apart.
pub(crate) fn interleave<T: Copy>(
    s: &ConvShape,
    pixels: &[T],
    plane: usize,
    first_row: usize,
    outside: T,
    band: &mut [T],
) {
    let [height, width] = s.window.input;
    let (columns, c_in) = (band_width(s), s.c_in);
    // Columns of the band that lie inside the image.
    let from = s.window.pads_begin[1].min(columns);
    let to = columns.min(s.window.pads_begin[1] + width);
    for (i, row) in band.chunks_exact_mut(columns * c_in).enumerate() {
        let y = (first_row * s.window.strides[0] + i).wrapping_sub(s.window.pads_begin[0]);
        if y >= height || to <= from {
            row.fill(outside);
            continue;
        }
        row[..from * c_in].fill(outside);
        row[to * c_in..].fill(outside);
        let inside = &mut row[from * c_in..to * c_in];
        let source = |c: usize| &pixels[c * plane + y * width..][..to - from];
        match c_in {
            1 => inside.copy_from_slice(source(0)),
            3 => {
                let (a, b, c) = (source(0), source(1), source(2));
                for (i, p) in inside.chunks_exact_mut(3).enumerate() {
                    (p[0], p[1], p[2]) = (a[i], b[i], c[i]);
                }
            }
            _ => {
                for c in 0..c_in {
                    for (p, &v) in inside[c..].iter_mut().step_by(c_in).zip(source(c)) {
                        *p = v;
                    }
                }
            }
        }
    }
}

/// Finds runs in the band.
struct Band {
    shape: ConvShape,
    pixels: *const f32,
    dense_rows: bool,
}

// SAFETY: only read, and only addresses are computed here.
unsafe impl Sync for Band {}

impl Inputs for Band {
    #[inline]
    fn fill(&self, _image: usize, position: usize, taps: Range<usize>, writer: &mut TapWriter<'_>) {
        let s = &self.shape;
        let row_floats = band_width(s) * s.c_in;
        let (mut y, mut x) = (position / s.window.output[1], position % s.window.output[1]);
        for row in 0..writer.rows() {
            let corner = y * s.window.strides[0] * row_floats + x * s.window.strides[1] * s.c_in;
            writer.corner(row, self.pixels.wrapping_add(corner));
            x += 1;
            if x == s.window.output[1] {
                (x, y) = (0, y + 1);
            }
        }
        for tap in taps {
            let offset = if self.dense_rows {
                tap * s.window.dilations[0] * row_floats
            } else {
                tap / s.window.kernel[1] * s.window.dilations[0] * row_floats
                    + tap % s.window.kernel[1] * s.window.dilations[1] * s.c_in
            };
            writer.tap(tap, offset, writer.all());
        }
    }
}

/// Columns of a band: all that the output row reaches.
pub(crate) fn band_width(s: &ConvShape) -> usize {
    (s.window.output[1].max(1) - 1) * s.window.strides[1]
        + (s.window.kernel[1] - 1) * s.window.dilations[1]
        + 1
}

/// Input rows that so many output rows need.
pub(crate) fn band_rows(s: &ConvShape, rows: usize) -> usize {
    (rows.max(1) - 1) * s.window.strides[0] + (s.window.kernel[0] - 1) * s.window.dilations[0] + 1
}

/// Most output rows of a band.
fn most_rows(s: &ConvShape) -> usize {
    let row_bytes = band_width(s).saturating_mul(s.c_in * size_of::<f32>());
    let most = (BAND_BYTES / row_bytes)
        .saturating_sub((s.window.kernel[0] - 1) * s.window.dilations[0] + 1);
    (most / s.window.strides[0] + 1).min(s.window.output[0].max(1))
}

/// Output rows of a task: a band, or less where the workers would not all have some.
fn task_rows(s: &ConvShape, workers: usize) -> usize {
    let most = most_rows(s);
    if workers < 2 {
        return most;
    }
    most.min((s.window.output[0] * s.batch).div_ceil(workers * 4))
        .max(1)
}

/// Floats of a band, a multiple of a cache line; saturating, so that no shape can wrap it.
fn band_floats(s: &ConvShape) -> usize {
    if s.check().is_err() {
        return 0;
    }
    let floats = checked_product(&[band_rows(s, most_rows(s)), band_width(s), s.c_in]);
    floats.unwrap_or(usize::MAX / 2).next_multiple_of(LANES)
}
