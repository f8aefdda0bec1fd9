//! Normalisation over space of blocked tensors, in two steps that may each see a part of the rows: sums of each channel, then
//! the differences from its mean.
//!
//! Sums are of `f64`, added position by position, so they are the same bits however the positions come in parts, and the squares
//! lose no digits that the inputs had.

use super::{Input, TASK_ELEMENTS};
use crate::epilogue::Activation;
use crate::error::{KernelError, check_len, checked_product};
use crate::parallel::Parallel;
use crate::share::{Chunks, Dst, Src};
use crate::simd::{Isa, LANES, Simd, simd_kernel};

/// Sum and sum of squares of each channel.
pub const MOMENTS: usize = 2;

/// Mean, scale and bias of each channel.
pub const FACTORS: usize = 3;

/// Adds those of one blocked plane, `[positions][16]`, to sums and sums of squares of its lanes.
pub fn add_moments(isa: Isa, plane: &[f32], moments: &mut [f64; MOMENTS * LANES]) {
    plane_moments(isa, plane.as_chunks().0, moments);
}

simd_kernel! {
    fn plane_moments(plane: &[[f32; 16]], moments: &mut [f64; 32]) = plane_generic;
}

#[inline(always)]
fn plane_generic<S: Simd>(_: S, plane: &[[f32; LANES]], moments: &mut [f64; MOMENTS * LANES]) {
    let (mut sums, mut squares) = ([0.0; LANES], [0.0; LANES]);
    sums.copy_from_slice(&moments[..LANES]);
    squares.copy_from_slice(&moments[LANES..]);
    for x in plane {
        for lane in 0..LANES {
            let x = f64::from(x[lane]);
            sums[lane] += x;
            squares[lane] += x * x;
        }
    }
    moments[..LANES].copy_from_slice(&sums);
    moments[LANES..].copy_from_slice(&squares);
}

/// `activation((x - mean) * scale + bias)` of a blocked `[batch][blocks][positions][16]` tensor; `factors` are
/// `[batch][blocks][3][16]`.
///
/// # Errors
/// Slices shorter than the sizes say.
pub fn normalise(
    isa: Isa,
    par: &dyn Parallel,
    shape: [usize; 3],
    factors: &[f32],
    src: Input<'_>,
    dst: &mut [f32],
    activation: Activation,
) -> Result<(), KernelError> {
    let [batch, blocks, positions] = shape;
    let vectors = checked_product(&[batch, blocks, positions]);
    let needed = checked_product(&[batch, blocks, positions, LANES]);
    check_len("normalisation destination", dst.len(), needed)?;
    check_len(
        "normalisation factors",
        factors.len(),
        checked_product(&[batch, blocks, FACTORS, LANES]),
    )?;
    let dst = Dst::new(dst);
    let src = src.view(needed, dst)?;
    let factors = Src::new(factors);
    let chunks = Chunks::new(vectors.unwrap_or(0), TASK_ELEMENTS / LANES);
    par.run(chunks.count(), &|piece, _| {
        let range = chunks.range(piece);
        let mut at = range.start;
        while at < range.end {
            let plane = at / positions;
            let end = range.end.min((plane + 1) * positions);
            // SAFETY: lengths were checked; tasks have disjoint vectors.
            unsafe {
                let factors = factors.at(plane * FACTORS * LANES);
                let (from, to) = (src.at(at * LANES), dst.at(at * LANES));
                stretch(isa, end - at, factors, from, to, activation);
            }
            at = end;
        }
    });
    Ok(())
}

simd_kernel! {
    /// # Safety
    /// `positions` vectors at both addresses, three vectors of factors; nobody else writes there.
    unsafe fn stretch(
        positions: usize,
        factors: *const f32,
        from: *const f32,
        to: *mut f32,
        activation: Activation,
    ) = stretch_generic;
}

#[inline(always)]
unsafe fn stretch_generic<S: Simd>(
    s: S,
    positions: usize,
    factors: *const f32,
    from: *const f32,
    to: *mut f32,
    activation: Activation,
) {
    // SAFETY: the caller vouches for the vectors.
    unsafe {
        let [mean, scale, bias] = [0, 1, 2].map(|i| s.load(factors.add(i * LANES)));
        for p in 0..positions {
            let d = s.sub(s.load(from.add(p * LANES)), mean);
            s.store(
                to.add(p * LANES),
                activation.apply(s, s.fma(d, scale, bias)),
            );
        }
    }
}
