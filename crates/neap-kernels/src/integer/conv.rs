//! Convolution of blocked steps.

use super::drive::{Call, Inputs, MAX_TAPS, Place, scratch_bytes};
use super::tile::{MAX_ROWS, Reduction, Tap};
use super::{Finish, MOST_K, Results, Steps};
use crate::conv::{ConvForm, ConvShape, supports};
use crate::error::{KernelError, checked_product};
use crate::panel::{Format, Panels};
use crate::parallel::Parallel;
use crate::planes::{Planes, check_planes, planes_elements};
use crate::simd::{Isa, LANES};
use std::ops::Range;

fn reduction(shape: &ConvShape) -> Reduction {
    let channels = shape.c_in / shape.groups.max(1);
    let blocks = channels.div_ceil(LANES).max(1);
    Reduction {
        taps: shape.window.taps(),
        blocks,
        block_len: LANES,
        last_len: channels.saturating_sub((blocks - 1) * LANES),
        block_step: plane(shape.window.input),
        // A pixel has sixteen channels, of which some may be none.
        overreads: true,
    }
}

fn plane([height, width]: [usize; 2]) -> usize {
    checked_product(&[height, width, LANES]).unwrap_or(usize::MAX)
}

/// Whether [`integer_conv`] takes a shape.
#[must_use]
pub fn takes_conv(shape: &ConvShape) -> bool {
    supports(ConvForm::Blocked, shape) && shape.window.taps() <= MAX_TAPS && shape.k() <= MOST_K
}

fn rows(shape: &ConvShape) -> usize {
    checked_product(&[shape.batch, shape.window.output[0], shape.window.output[1]])
        .unwrap_or(usize::MAX)
}

/// Bytes of scratch of [`integer_conv`], aligned to 64.
#[must_use]
pub fn conv_scratch_bytes(shape: &ConvShape, workers: usize) -> usize {
    scratch_bytes(&reduction(shape), rows(shape), workers)
}

/// As [`crate::conv::conv_blocked`], of blocked steps. What lies outside the input is zero.
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers, other formats, what [`takes_conv`] refuses, and zero points of
/// weights in a layer of groups.
pub fn integer_conv(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &ConvShape,
    panels: Range<usize>,
    weights: Panels<'_>,
    input: &[u8],
    steps: Steps,
    results: Results<'_>,
    finish: Finish<'_>,
    scratch: &mut [u8],
) -> Result<(), KernelError> {
    let planes = Planes {
        input: plane(shape.window.input),
        output: plane(shape.window.output),
    };
    integer_conv_band(
        isa, parallel, shape, planes, panels, weights, input, steps, results, finish, scratch,
    )
}

/// [`integer_conv`] of some rows of taller tensors, whose planes lie so many elements apart.
///
/// # Errors
/// As [`integer_conv`], and planes that overlap.
pub fn integer_conv_band(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &ConvShape,
    planes: Planes,
    panels: Range<usize>,
    weights: Panels<'_>,
    input: &[u8],
    steps: Steps,
    mut results: Results<'_>,
    finish: Finish<'_>,
    scratch: &mut [u8],
) -> Result<(), KernelError> {
    if !takes_conv(shape) || weights.format() != Format::I8 {
        return Err(KernelError::Unsupported("integers of this format or size"));
    }
    if panels.start > panels.end || panels.end > shape.panels() {
        return Err(KernelError::Invalid("panel range outside the layer"));
    }
    weights.check(Some(shape.k()), panels.len())?;
    let blocks = shape.c_in.div_ceil(LANES);
    let count = checked_product(&[shape.batch, blocks]);
    let in_plane = Some(plane(shape.window.input));
    check_planes("input", input.len(), count, planes.input, in_plane)?;
    let count = checked_product(&[shape.batch, shape.panels()]);
    let elements = planes_elements(count, planes.output, plane(shape.window.output))?;
    let target = results.target(&finish, elements, LANES, planes.output)?;
    if rows(shape) == 0 || panels.is_empty() {
        return Ok(());
    }
    let inputs = Pixels {
        shape: *shape,
        input: input.as_ptr(),
        image_bytes: blocks * planes.input,
        group_bytes: shape.c_in / shape.groups / LANES * planes.input,
        positions: shape.window.output[0] * shape.window.output[1],
        image_elements: shape.panels() * planes.output,
    };
    let call = Call {
        rows: rows(shape),
        reduction: Reduction {
            block_step: planes.input,
            ..reduction(shape)
        },
        steps,
        weights,
        panels,
        group_panels: match shape.groups {
            1 => shape.panels(),
            groups => shape.c_out / groups / LANES,
        },
        last_lanes: LANES,
        layer_panels: shape.panels(),
        // Not so in row bands, where depthwise layers have too few rows.
        prefers_rows: planes.output == plane(shape.window.output)
            && planes.input == plane(shape.window.input),
        target,
        inputs: &inputs,
    };
    // SAFETY: lengths were checked against the shape; taps are inside only where the pixel is in the image.
    unsafe { call.run(isa, parallel, scratch) }
}

struct Pixels {
    shape: ConvShape,
    input: *const u8,
    image_bytes: usize,
    group_bytes: usize,
    /// Of an image.
    positions: usize,
    image_elements: usize,
}

// SAFETY: only addresses are computed here.
unsafe impl Sync for Pixels {}

impl Pixels {
    /// Whether each output is made of the pixel at its place: positions are counted along one row then.
    #[inline(always)]
    fn is_pointwise(&self) -> bool {
        let w = &self.shape.window;
        w.kernel == [1; 2] && w.input == w.output && w.strides == [1; 2] && w.pads_begin == [0; 2]
    }

    /// In its image.
    fn position(&self, at: Place) -> usize {
        at.y * self.shape.window.output[1] + at.x
    }
}

/// A bit for each that is so.
#[inline(always)]
fn bits<T: Copy>(of: &[T], is: impl Fn(T) -> bool) -> u32 {
    let bits = of.iter().enumerate();
    bits.fold(0, |bits, (i, &x)| bits | u32::from(is(x)) << i)
}

impl Inputs for Pixels {
    fn place(&self, row: usize) -> Place {
        let (image, position) = (row / self.positions, row % self.positions);
        if self.is_pointwise() {
            let (x, y) = (position, 0);
            return Place { image, y, x };
        }
        let width = self.shape.window.output[1];
        Place {
            image,
            y: position / width,
            x: position % width,
        }
    }

    fn fill(
        &self,
        group: usize,
        place: &mut Place,
        rows: usize,
        corners: &mut [*const u8; MAX_ROWS],
        taps: &mut [Tap],
    ) -> usize {
        let begins = place.image * self.image_elements + self.position(*place) * LANES;
        let w = &self.shape.window;
        let [height, width] = w.input;
        let Place { image, y, x } = place;
        let pixels = *image * self.image_bytes + group * self.group_bytes;
        let pixels = self.input.wrapping_add(pixels);
        if self.is_pointwise() {
            for (i, corner) in corners.iter_mut().enumerate() {
                *corner = pixels.wrapping_add((*x + i) * LANES);
            }
            taps[0] = Tap {
                offset: 0,
                inside: u32::MAX,
            };
            *x += rows;
            if *x == self.positions {
                (*x, *image) = (0, *image + 1);
            }
            return begins;
        }
        // Top left input pixel of each position; in the padding coordinates wrap to huge ones.
        let mut tops = [(0usize, 0usize); MAX_ROWS];
        let reach = [0, 1].map(|axis| (w.kernel[axis] - 1) * w.dilations[axis]);
        let mut all_inside = true;
        for (corner, at) in corners.iter_mut().zip(&mut tops).take(rows) {
            let top = (*y * w.strides[0]).wrapping_sub(w.pads_begin[0]);
            let left = (*x * w.strides[1]).wrapping_sub(w.pads_begin[1]);
            *at = (top, left);
            all_inside &= top < height && top + reach[0] < height;
            all_inside &= left < width && left + reach[1] < width;
            let pixel = top.wrapping_mul(width).wrapping_add(left);
            *corner = pixels.wrapping_add(pixel.wrapping_mul(LANES));
            *x += 1;
            if *x == w.output[1] {
                (*x, *y) = (0, *y + 1);
            }
        }
        // Rows whose taps of a column are inside, and those of a row.
        let mut columns = [u32::MAX; MAX_TAPS];
        if !all_inside {
            for (kx, inside) in columns[..w.kernel[1]].iter_mut().enumerate() {
                let dx = kx * w.dilations[1];
                *inside = bits(&tops[..rows], |(_, left)| left.wrapping_add(dx) < width);
            }
        }
        for (ky, taps) in taps.chunks_mut(w.kernel[1]).enumerate() {
            let dy = ky * w.dilations[0];
            let mut of_row = u32::MAX;
            if !all_inside {
                of_row = bits(&tops[..rows], |(top, _)| top.wrapping_add(dy) < height);
            }
            for (kx, (tap, of_column)) in taps.iter_mut().zip(columns).enumerate() {
                *tap = Tap {
                    offset: (dy * width + kx * w.dilations[1]) * LANES,
                    inside: of_row & of_column,
                };
            }
        }
        if *y == w.output[0] {
            (*y, *image) = (0, *image + 1);
        }
        begins
    }

    fn together(&self, from: Place) -> usize {
        self.positions - self.position(from)
    }
}
