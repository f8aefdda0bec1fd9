//! Convolution of a channel-blocked input that is rounded to bfloat16, with panels of it and sums of floats.

use super::blocked::{Image, product};
use super::{ConvForm, ConvShape, check_form};
use crate::epilogue::Epilogue;
use crate::error::{KernelError, check_len, checked_product};
use crate::panel::{Format, Panels};
use crate::parallel::Parallel;
use crate::simd::{Isa, LANES};
use crate::tile::{round_pairs, run};
use std::ops::Range;

/// Whether [`conv_in_pairs`] takes the shape: blocked, with an even number of input channels in each group.
#[must_use]
pub fn takes_pairs(shape: &ConvShape) -> bool {
    let even = shape.groups > 0 && (shape.c_in / shape.groups).is_multiple_of(2);
    even && check_form(ConvForm::Blocked, shape).is_ok() && shape.check().is_ok()
}

/// Bytes of scratch of [`conv_in_pairs`].
#[must_use]
pub fn conv_pairs_scratch_bytes(shape: &ConvShape) -> usize {
    scratch_floats(shape)
        .and_then(|floats| floats.checked_mul(size_of::<f32>()))
        .unwrap_or(usize::MAX)
}

fn scratch_floats(shape: &ConvShape) -> Option<usize> {
    let [height, width] = shape.window.input;
    checked_product(&[
        shape.batch,
        shape.c_in.div_ceil(LANES),
        height,
        width,
        LANES / 2,
    ])
}

/// As [`super::conv_blocked`], of panels of [`Format::Bf16`]: the input is rounded to the nearest bfloat16 first, ties to even.
/// Sums are as [`crate::linear::linear_in_pairs`] makes them.
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers, other formats, shapes that [`takes_pairs`] refuses, and instruction sets
/// without pairs ([`Isa::has_pairs`]).
pub fn conv_in_pairs(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &ConvShape,
    panels: Range<usize>,
    weights: Panels<'_>,
    input: &[f32],
    output: &mut [f32],
    epilogue: Epilogue<'_>,
    scratch: &mut [f32],
) -> Result<(), KernelError> {
    if !isa.has_pairs() || weights.format() != Format::Bf16 || !takes_pairs(shape) {
        return Err(KernelError::Unsupported("pairs of this format or shape"));
    }
    let planes = shape.whole_planes();
    shape.check_call(
        ConvForm::Blocked,
        &planes,
        &panels,
        &weights,
        output,
        &epilogue,
    )?;
    shape.check_blocked_input(&planes, input)?;
    check_len("scratch", scratch.len(), scratch_floats(shape))?;
    if panels.is_empty() || scratch.is_empty() {
        return super::conv_blocked(
            isa, parallel, shape, panels, weights, input, output, epilogue,
        );
    }
    let rows = shape.batch * shape.c_in.div_ceil(LANES) * shape.window.input[0];
    let row = shape.window.input[1] * LANES;
    let to = scratch.as_mut_ptr();
    // SAFETY: lengths were checked; scratch is borrowed exclusively, and planes follow each other without gaps.
    unsafe {
        round_pairs(
            isa,
            parallel,
            rows,
            row,
            (input.as_ptr(), row),
            (to, row / 2),
        )
    };
    let out = output.as_mut_ptr();
    let mut product = product(shape, &planes, panels, weights, out, epilogue);
    product.pairs_of = Some(shape.k());
    let r = &mut product.reduction;
    (r.channels, r.block_len) = (r.channels / 2, r.block_len / 2);
    r.block_step_bytes /= 2;
    if let crate::tile::Form::Groups { step_bytes, .. } = &mut product.form {
        *step_bytes /= 2;
    }
    let inputs = Image::new(shape, planes.input / 2, to.cast_const(), LANES / 2);
    // SAFETY: lengths were checked against the shape; taps are given only where the pixel
    // is inside the image; panels and positions have their own output vectors.
    unsafe { run(isa, parallel, &product, &inputs) };
    Ok(())
}
