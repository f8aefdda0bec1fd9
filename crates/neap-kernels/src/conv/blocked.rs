//! Convolution of a channel-blocked input: any kernel, stride, dilation and padding.

use super::{ConvForm, ConvShape};
use crate::epilogue::{Epilogue, Residual};
use crate::error::{KernelError, check_len};
use crate::parallel::Parallel;
use crate::simd::{Isa, LANES};
use crate::tile::{Destination, Form, Inputs, Product, Reduction, TapWriter, run};
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
pub fn conv_blocked(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &ConvShape,
    panels: Range<usize>,
    weights: &[f32],
    input: &[f32],
    output: &mut [f32],
    epilogue: Epilogue<'_>,
) -> Result<(), KernelError> {
    shape.check_call(ConvForm::Blocked, &panels, weights, output, &epilogue)?;
    check_len("input", input.len(), shape.blocked_input_elements())?;

    let group_panels = (shape.c_out / shape.groups).div_ceil(LANES);
    let group_channels = shape.c_in / shape.groups;
    let in_plane = shape.input[0] * shape.input[1] * LANES;
    let out_plane = shape.output[0] * shape.output[1] * LANES;
    let panel_floats = crate::panel::panel_floats(shape.k());
    let mut from = panels.start;
    while from < panels.end {
        let group = from / group_panels;
        let to = panels.end.min((group + 1) * group_panels);
        let column = from * out_plane;
        let out = output.as_mut_ptr().wrapping_add(column);
        let product = Product {
            form: Form::Dense,
            weights: weights
                .as_ptr()
                .wrapping_add((from - panels.start) * panel_floats),
            panels: to - from,
            ends_layer: false,
            images: shape.batch,
            positions: shape.output[0] * shape.output[1],
            reduction: Reduction {
                taps: shape.kernel[0] * shape.kernel[1],
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
        };
        let first_block = group * group_channels / LANES;
        let inputs = Image {
            shape: *shape,
            pixels: input.as_ptr().wrapping_add(first_block * in_plane),
            image_floats: shape.c_in.div_ceil(LANES) * in_plane,
        };
        // SAFETY: lengths were checked against the shape; taps are given only where the pixel
        // is inside the image; panels and positions have their own output vectors.
        unsafe { run(isa, parallel, &product, &inputs) };
        from = to;
    }
    Ok(())
}

/// Finds the pixels of a blocked input.
pub(super) struct Image {
    pub shape: ConvShape,
    /// First channel block, image 0.
    pub pixels: *const f32,
    pub image_floats: usize,
}

// SAFETY: only read, and only addresses are computed here.
unsafe impl Sync for Image {}

impl Inputs for Image {
    #[inline]
    fn fill(
        &self,
        image: usize,
        position: usize,
        rows: usize,
        taps: Range<usize>,
        writer: &mut TapWriter<'_>,
    ) {
        let s = &self.shape;
        let [height, width] = s.input;
        let pixels = self.pixels.wrapping_add(image * self.image_floats);
        // Top left input pixel of each position; negative in the padding.
        let mut corners = [(0isize, 0isize); crate::tile::MAX_ROWS];
        let (mut y, mut x) = (position / s.output[1], position % s.output[1]);
        for corner in &mut corners[..rows] {
            *corner = (
                (y * s.strides[0]) as isize - s.pads_begin[0] as isize,
                (x * s.strides[1]) as isize - s.pads_begin[1] as isize,
            );
            x += 1;
            if x == s.output[1] {
                (x, y) = (0, y + 1);
            }
        }
        for tap in taps {
            let dy = (tap / s.kernel[1] * s.dilations[0]) as isize;
            let dx = (tap % s.kernel[1] * s.dilations[1]) as isize;
            writer.begin(tap);
            for (row, &(cy, cx)) in corners[..rows].iter().enumerate() {
                let (y, x) = (cy + dy, cx + dx);
                // Negative coordinates become huge, so one comparison each is enough.
                if (y as usize) < height && (x as usize) < width {
                    writer.inside(
                        row,
                        pixels.wrapping_add((y as usize * width + x as usize) * LANES),
                    );
                }
            }
            writer.end();
        }
    }
}
