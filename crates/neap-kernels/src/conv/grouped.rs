//! Convolution in groups narrower than a panel, as wide in as out (ResNeXt's 32 groups of 4).

use super::blocked::Image;
use super::{ConvForm, ConvShape};
use crate::epilogue::{Epilogue, Residual};
use crate::error::KernelError;
use crate::panel::Panels;
use crate::parallel::Parallel;
use crate::planes::Planes;
use crate::simd::{Isa, LANES};
use crate::tile::{Destination, Form, Product, Reduction, run};
use std::ops::Range;

/// `output[panels] = activation(conv(input, weights) + bias + residual)`, groups 1, 2, 4 or 8 wide.
///
/// * `weights`: the panels of the range, contiguous, k order `[kh][kw][channel in group]`
///   (see [`crate::panel::pack_conv`])
/// * `input`: blocked `[batch][ceil(c_in/16)][height][width][16]`
/// * `output`, residual: blocked, the whole layer's; only the range's channels are touched
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers; other groups.
pub fn conv_narrow_groups<'a>(
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
    conv_narrow_groups_band(
        isa, parallel, shape, planes, panels, weights, input, output, epilogue,
    )
}

/// [`conv_narrow_groups`] of a band of rows: input, output and residual have planes as far apart as `planes`
/// says, and begin at the band's first row.
///
/// # Errors
/// As [`conv_narrow_groups`], and planes that overlap.
pub fn conv_narrow_groups_band<'a>(
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
        ConvForm::NarrowGroups,
        &planes,
        &panels,
        &weights,
        output,
        &epilogue,
    )?;
    shape.check_blocked_input(&planes, input)?;

    let width = shape.c_in / shape.groups;
    let (in_plane, out_plane) = (planes.input, planes.output);
    let column = panels.start * out_plane;
    let out = output.as_mut_ptr().wrapping_add(column);
    let product = Product {
        form: Form::Groups {
            panels: 1,
            step_bytes: in_plane * size_of::<f32>(),
            first_panel: panels.start,
            narrow: Some(width),
        },
        weights: weights.as_ptr(),
        format: weights.format(),
        panels: panels.len(),
        ends_layer: false,
        images: shape.batch,
        positions: shape.window.output[0] * shape.window.output[1],
        reduction: Reduction {
            taps: shape.window.kernel[0] * shape.window.kernel[1],
            channels: width,
            block_len: width,
            block_step_bytes: 0,
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
    };
    let inputs = Image::new(shape, in_plane, input.as_ptr(), LANES);
    // SAFETY: lengths were checked against the shape; input and output have the same channels,
    // so panel p's inputs are channel block p, which is 16 floats wide whatever the count.
    unsafe { run(isa, parallel, &product, &inputs) };
    Ok(())
}
