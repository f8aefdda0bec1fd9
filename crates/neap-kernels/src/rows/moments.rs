//! Normalisation and pooling over space of blocked tensors, in two steps that may each see a part of the rows: sums of each
//! channel, then what is made of them.
//!
//! Sums are of `f64`, added position by position, so they are the same bits however the positions come in parts, and the squares
//! lose no digits that the inputs had.

use super::{Input, TASK_ELEMENTS};
use crate::epilogue::Activation;
use crate::error::{KernelError, check_len, checked_product};
use crate::parallel::Parallel;
use crate::planes::{Planes, check_planes};
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

/// Adds one blocked plane to sums of its lanes.
pub fn add_sums(isa: Isa, plane: &[f32], sums: &mut [f64; LANES]) {
    plane_sums(isa, plane.as_chunks().0, sums);
}

simd_kernel! {
    fn plane_sums(plane: &[[f32; 16]], sums: &mut [f64; 16]) = sums_generic;
}

#[inline(always)]
fn sums_generic<S: Simd>(_: S, plane: &[[f32; LANES]], sums: &mut [f64; LANES]) {
    let mut own = *sums;
    for x in plane {
        for lane in 0..LANES {
            own[lane] += f64::from(x[lane]);
        }
    }
    *sums = own;
}

/// The largest of these numbers, which are `f32`, and those of one blocked plane, by lane.
pub fn take_largest(isa: Isa, plane: &[f32], largest: &mut [f64; LANES]) {
    plane_largest(isa, plane.as_chunks().0, largest);
}

simd_kernel! {
    fn plane_largest(plane: &[[f32; 16]], largest: &mut [f64; 16]) = largest_generic;
}

#[inline(always)]
fn largest_generic<S: Simd>(s: S, plane: &[[f32; LANES]], largest: &mut [f64; LANES]) {
    let mut own = largest.map(|v| v as f32);
    // SAFETY: all are 16 floats.
    unsafe {
        let mut best = s.load(own.as_ptr());
        for x in plane {
            best = s.max(best, s.load(x.as_ptr()));
        }
        s.store(own.as_mut_ptr(), best);
    }
    *largest = own.map(f64::from);
}

/// `activation((x - mean) * scale + bias)` of a blocked `[batch][blocks][positions][16]` tensor; `factors` are
/// `[batch][blocks][3][16]`. Planes are as far apart as `planes` says: where the positions are some rows of each.
///
/// # Errors
/// Slices shorter than the sizes say, planes that overlap.
pub fn normalise(
    isa: Isa,
    par: &dyn Parallel,
    [batch, blocks, positions]: [usize; 3],
    planes: Planes,
    factors: &[f32],
    src: Input<'_>,
    dst: &mut [f32],
    activation: Activation,
) -> Result<(), KernelError> {
    let count = checked_product(&[batch, blocks]);
    let plane = checked_product(&[positions, LANES]);
    check_planes(
        "normalisation destination",
        dst.len(),
        count,
        planes.output,
        plane,
    )?;
    if let Input::From(src) = src {
        check_planes(
            "normalisation source",
            src.len(),
            count,
            planes.input,
            plane,
        )?;
    }
    check_len(
        "normalisation factors",
        factors.len(),
        checked_product(&[batch, blocks, FACTORS, LANES]),
    )?;
    let dst = Dst::new(dst);
    let (src, apart) = match src {
        Input::InPlace => (dst.as_src(), planes.output),
        Input::From(src) => (Src::new(src), planes.input),
    };
    let factors = Src::new(factors);
    let vectors = checked_product(&[batch, blocks, positions]);
    let chunks = Chunks::new(vectors.unwrap_or(0), TASK_ELEMENTS / LANES);
    par.run(chunks.count(), &|piece, _| {
        let range = chunks.range(piece);
        let mut at = range.start;
        while at < range.end {
            let (plane, position) = (at / positions, at % positions);
            let end = range.end.min((plane + 1) * positions);
            // SAFETY: lengths were checked; tasks have disjoint vectors.
            unsafe {
                let factors = factors.at(plane * FACTORS * LANES);
                let from = src.at(plane * apart + position * LANES);
                let to = dst.at(plane * planes.output + position * LANES);
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
