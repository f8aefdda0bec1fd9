//! Convolution of a channel-blocked input: any kernel, stride, dilation and padding.

use super::{ConvForm, ConvShape};
use crate::epilogue::{Epilogue, Residual};
use crate::error::KernelError;
use crate::panel::Panels;
use crate::parallel::Parallel;
use crate::planes::Planes;
use crate::simd::{Isa, LANES};
use crate::tile::{Destination, Form, Inputs, MAX_ROWS, Product, Reduction, TapWriter, run};
use std::ops::Range;

/// `output[panels] = activation(conv(input, weights) + bias + residual)`.
///
/// * `weights`: the panels of the range, contiguous, k order
///   `[channel block][kh][kw][channel in block]` (see [`crate::panel::pack_conv`])
/// * `input`: blocked `[batch][ceil(c_in/16)][height][width][16]`
/// * `output`, residual: blocked, the whole layer's; only the range's channels are touched
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers; groups narrower than 16.
pub fn conv_blocked<'a>(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &ConvShape,
    panels: Range<usize>,
    weights: impl Into<Panels<'a>>,
    input: &[f32],
    output: &mut [f32],
    epilogue: Epilogue<'_>,
) -> Result<(), KernelError> {
    let planes = shape.whole_planes();
    conv_blocked_band(
        isa, parallel, shape, planes, panels, weights, input, output, epilogue,
    )
}

/// [`conv_blocked`] of a band of rows: input, output and residual have planes as far apart as `planes`
/// says, and begin at the band's first row.
///
/// # Errors
/// As [`conv_blocked`], and planes that overlap.
pub fn conv_blocked_band<'a>(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &ConvShape,
    planes: Planes,
    panels: Range<usize>,
    weights: impl Into<Panels<'a>>,
    input: &[f32],
    output: &mut [f32],
    epilogue: Epilogue<'_>,
) -> Result<(), KernelError> {
    let weights: Panels = weights.into();
    shape.check_call(
        ConvForm::Blocked,
        &planes,
        &panels,
        &weights,
        output,
        &epilogue,
    )?;
    shape.check_blocked_input(&planes, input)?;

    let out = output.as_mut_ptr();
    let product = product(shape, &planes, panels, weights, out, epilogue);
    let inputs = Image::new(shape, planes.input, input.as_ptr(), LANES);
    // SAFETY: lengths were checked against the shape; taps are given only where the pixel
    // is inside the image; panels and positions have their own output vectors.
    unsafe { run(isa, parallel, &product, &inputs) };
    Ok(())
}

/// The product of a range of panels, as everything was checked.
pub(super) fn product(
    shape: &ConvShape,
    planes: &Planes,
    panels: Range<usize>,
    weights: Panels<'_>,
    output: *mut f32,
    epilogue: Epilogue<'_>,
) -> Product {
    let (in_plane, out_plane) = (planes.input, planes.output);
    let group_channels = shape.c_in / shape.groups;
    let column = panels.start * out_plane;
    let out = output.wrapping_add(column);
    Product {
        form: if shape.groups == 1 {
            Form::Dense
        } else {
            Form::Groups {
                panels: shape.c_out / shape.groups / LANES,
                step_bytes: group_channels / LANES * in_plane * size_of::<f32>(),
                first_panel: panels.start,
                narrow: None,
            }
        },
        weights: weights.as_ptr(),
        format: weights.format(),
        panels: panels.len(),
        ends_layer: false,
        images: shape.batch,
        positions: shape.window.output[0] * shape.window.output[1],
        reduction: Reduction {
            taps: shape.window.kernel[0] * shape.window.kernel[1],
            channels: group_channels,
            block_len: LANES,
            block_step_bytes: in_plane * size_of::<f32>(),
        },
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
        activation: epilogue.activation,
        pairs_of: None,
    }
}

/// Finds the pixels of a blocked input.
pub(super) struct Image {
    shape: ConvShape,
    /// First channel block, image 0.
    pixels: *const f32,
    image_floats: usize,
    /// Of a pixel.
    lanes: usize,
    /// Position p reads pixel p.
    pointwise: bool,
    /// Windows whose top left pixel comes before this lie in the image whole.
    whole_until: [usize; 2],
}

impl Image {
    /// `pixels` is where the first channel block of image 0 begins, the next `plane` floats later; a pixel has `lanes` floats.
    pub(super) fn new(shape: &ConvShape, plane: usize, pixels: *const f32, lanes: usize) -> Self {
        Image {
            shape: *shape,
            pixels,
            image_floats: shape.c_in.div_ceil(LANES) * plane,
            lanes,
            pointwise: shape.window.kernel == [1, 1]
                && shape.window.strides == [1, 1]
                && shape.window.pads_begin == [0, 0]
                && shape.window.input == shape.window.output,
            whole_until: [0, 1].map(|axis| {
                let reach = (shape.window.kernel[axis] - 1) * shape.window.dilations[axis];
                shape.window.input[axis].saturating_sub(reach)
            }),
        }
    }
}

// SAFETY: only read, and only addresses are computed here.
unsafe impl Sync for Image {}

impl Inputs for Image {
    #[inline]
    fn fill(&self, image: usize, position: usize, taps: Range<usize>, writer: &mut TapWriter<'_>) {
        let s = &self.shape;
        let [height, width] = s.window.input;
        let pixels = self.pixels.wrapping_add(image * self.image_floats);
        let rows = writer.rows();
        if self.pointwise {
            let first = pixels.wrapping_add(position * self.lanes);
            for row in 0..rows {
                writer.corner(row, first.wrapping_add(row * self.lanes));
            }
            writer.tap(0, 0, writer.all());
            return;
        }
        // Top left input pixel of each position; in the padding coordinates wrap to huge ones.
        let mut corners = [(0usize, 0usize); MAX_ROWS];
        let (mut y, mut x) = (position / s.window.output[1], position % s.window.output[1]);
        let mut whole = true;
        for (row, corner) in corners[..rows].iter_mut().enumerate() {
            let top = (y * s.window.strides[0]).wrapping_sub(s.window.pads_begin[0]);
            let left = (x * s.window.strides[1]).wrapping_sub(s.window.pads_begin[1]);
            *corner = (top, left);
            let pixel = top.wrapping_mul(width).wrapping_add(left);
            writer.corner(row, pixels.wrapping_add(pixel.wrapping_mul(self.lanes)));
            whole &= top < self.whole_until[0] && left < self.whole_until[1];
            x += 1;
            if x == s.window.output[1] {
                (x, y) = (0, y + 1);
            }
        }
        let (mut ky, mut kx) = (
            taps.start / s.window.kernel[1],
            taps.start % s.window.kernel[1],
        );
        for tap in taps {
            let (dy, dx) = (ky * s.window.dilations[0], kx * s.window.dilations[1]);
            let mut inside = writer.all();
            if !whole {
                inside = 0;
                for (row, &(top, left)) in corners[..rows].iter().enumerate() {
                    let is_inside = top.wrapping_add(dy) < height && left.wrapping_add(dx) < width;
                    inside |= u32::from(is_inside) << row;
                }
            }
            writer.tap(tap, (dy * width + dx) * self.lanes, inside);
            kx += 1;
            if kx == s.window.kernel[1] {
                (kx, ky) = (0, ky + 1);
            }
        }
    }
}
