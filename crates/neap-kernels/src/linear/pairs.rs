//! Rows rounded to bfloat16 times panels of it, with sums of floats.

use super::{LinearShape, raw};
use crate::epilogue::Epilogue;
use crate::error::{KernelError, check_len};
use crate::panel::{Format, Panels};
use crate::parallel::Parallel;
use crate::simd::Isa;
use crate::tile::round_pairs;
use std::ops::Range;

/// Bytes of scratch of [`linear_in_pairs`].
#[must_use]
pub fn linear_pairs_scratch_bytes(shape: &LinearShape) -> usize {
    scratch_floats(shape)
        .and_then(|floats| floats.checked_mul(size_of::<f32>()))
        .unwrap_or(usize::MAX)
}

fn scratch_floats(shape: &LinearShape) -> Option<usize> {
    shape.m.checked_mul(shape.k.div_ceil(2))
}

/// As [`super::linear`], of panels of [`Format::Bf16`]: rows are rounded to the nearest bfloat16 first, ties to even. Sums are
/// those of `bias + residual` and the products in the order of k, as the instruction set adds pairs.
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers, other formats, and instruction sets without pairs
/// ([`Isa::has_pairs`]).
pub fn linear_in_pairs(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &LinearShape,
    panels: Range<usize>,
    weights: Panels<'_>,
    a: &[f32],
    out: &mut [f32],
    epilogue: Epilogue<'_>,
    scratch: &mut [f32],
) -> Result<(), KernelError> {
    if !isa.has_pairs() || weights.format() != Format::Bf16 {
        return Err(KernelError::Unsupported("pairs of this format"));
    }
    check_len("scratch", scratch.len(), scratch_floats(shape))?;
    let mut call = raw(shape, panels, weights, a, out, epilogue)?;
    if shape.m == 0 || call.panels.is_empty() {
        return Ok(());
    }
    let pairs = shape.k.div_ceil(2);
    let to = scratch.as_mut_ptr();
    // SAFETY: lengths were checked; scratch is borrowed exclusively.
    unsafe {
        round_pairs(
            isa,
            parallel,
            shape.m,
            shape.k,
            (a.as_ptr(), shape.a_stride),
            (to, pairs),
        )
    };
    call.pairs_of = Some(shape.k);
    call.a = to.cast_const();
    call.shape = LinearShape {
        k: pairs,
        a_stride: pairs,
        ..*shape
    };
    // SAFETY: lengths were checked; `out` is borrowed exclusively, and rows are rounded.
    unsafe { call.run(isa, parallel) };
    Ok(())
}
