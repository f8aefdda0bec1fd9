//! Local response normalisation over neighbouring channels.

use std::ops::Range;

use super::TASK_ELEMENTS;
use crate::error::{KernelError, check_len, checked_product};
use crate::parallel::Parallel;
use crate::share::{Chunks, Dst, Src};
use crate::simd::{Isa, LANES, Simd, math, simd_kernel};

/// `y = x / (bias + alpha / size * Σ x²)^beta`, the sum over the `size` channels around x's own:
/// `(size - 1) / 2` before it (rounded down) and the rest after it, as far as they exist.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lrn {
    pub size: usize,
    pub alpha: f32,
    pub beta: f32,
    pub bias: f32,
}

impl Lrn {
    fn before(&self) -> usize {
        (self.size - 1) / 2
    }

    fn after(&self) -> usize {
        self.size - 1 - self.before()
    }

    fn check(&self) -> Result<(), KernelError> {
        if self.size == 0 {
            Err(KernelError::Invalid("a window of no channels"))
        } else {
            Ok(())
        }
    }
}

/// Of a plain `[batch][channels][positions]` tensor.
///
/// # Errors
/// Slices shorter than the sizes say.
pub fn lrn_plain(
    isa: Isa,
    par: &dyn Parallel,
    lrn: &Lrn,
    shape: [usize; 3],
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    let [batch, channels, positions] = shape;
    lrn.check()?;
    let needed = checked_product(&[batch, channels, positions]);
    check_len("source", src.len(), needed)?;
    check_len("normalisation destination", dst.len(), needed)?;
    if batch * channels * positions == 0 {
        return Ok(());
    }
    let (src, dst) = (Src::new(src), Dst::new(dst));
    let rows = Chunks::new(batch * channels, TASK_ELEMENTS / positions);
    par.run(rows.count(), &|piece, _| {
        // SAFETY: lengths were checked; tasks have disjoint rows.
        unsafe { plain_rows(isa, lrn, channels, positions, src, dst, rows.range(piece)) };
    });
    Ok(())
}

/// Of a blocked `[batch][ceil(channels/16)][positions][16]` tensor. Windows reach at most 16
/// channels to either side.
///
/// # Errors
/// Slices shorter than the sizes say, and windows that reach further.
pub fn lrn_blocked(
    isa: Isa,
    par: &dyn Parallel,
    lrn: &Lrn,
    shape: [usize; 3],
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    let [batch, channels, positions] = shape;
    lrn.check()?;
    if lrn.after() > LANES {
        return Err(KernelError::Unsupported(
            "response normalisation over more than 33 channels",
        ));
    }
    let blocks = channels.div_ceil(LANES);
    let needed = checked_product(&[batch, blocks, positions, LANES]);
    check_len("source", src.len(), needed)?;
    check_len("normalisation destination", dst.len(), needed)?;
    if batch * blocks * positions == 0 {
        return Ok(());
    }
    let (src, dst) = (Src::new(src), Dst::new(dst));
    let rows = Chunks::new(batch * blocks * positions, TASK_ELEMENTS / LANES);
    par.run(rows.count(), &|piece, _| {
        // SAFETY: lengths were checked; tasks have disjoint vectors.
        unsafe { blocked_vectors(isa, lrn, channels, positions, src, dst, rows.range(piece)) };
    });
    Ok(())
}

simd_kernel! {
    /// # Safety
    /// The rows' images lie inside both buffers; nobody else writes the rows.
    unsafe fn plain_rows(
        lrn: &Lrn,
        channels: usize,
        positions: usize,
        src: Src,
        dst: Dst,
        rows: Range<usize>,
    ) = plain_rows_generic;
}

#[inline(always)]
unsafe fn plain_rows_generic<S: Simd>(
    s: S,
    lrn: &Lrn,
    channels: usize,
    positions: usize,
    src: Src,
    dst: Dst,
    rows: Range<usize>,
) {
    for row in rows {
        let channel = row % channels;
        let first = row - channel.min(lrn.before());
        let last = row + lrn.after().min(channels - 1 - channel);
        for p in (0..positions).step_by(LANES) {
            let lanes = (positions - p).min(LANES);
            // SAFETY: the caller vouches for the rows of this image; the last vector is partial.
            unsafe {
                let mut sum = s.zero();
                for other in first..=last {
                    let x = s.load_partial(src.at(other * positions + p), lanes);
                    sum = s.fma(x, x, sum);
                }
                let x = s.load_partial(src.at(row * positions + p), lanes);
                s.store_partial(dst.at(row * positions + p), lanes, respond(s, lrn, x, sum));
            }
        }
    }
}

simd_kernel! {
    /// Vectors numbered through all planes.
    ///
    /// # Safety
    /// Both buffers hold whole images; nobody else writes the vectors.
    unsafe fn blocked_vectors(
        lrn: &Lrn,
        channels: usize,
        positions: usize,
        src: Src,
        dst: Dst,
        range: Range<usize>,
    ) = blocked_vectors_generic;
}

#[inline(always)]
unsafe fn blocked_vectors_generic<S: Simd>(
    s: S,
    lrn: &Lrn,
    channels: usize,
    positions: usize,
    src: Src,
    dst: Dst,
    range: Range<usize>,
) {
    let blocks = channels.div_ceil(LANES);
    for vector in range {
        let (plane, p) = (vector / positions, vector % positions);
        let block = plane % blocks;
        // Squares of this block's channels and of its neighbours'; zero where there are none.
        let mut squares = [0.0f32; 3 * LANES];
        for side in 0..3 {
            let neighbour = block + side;
            if neighbour == 0 || neighbour > blocks {
                continue;
            }
            let real = (channels - (neighbour - 1) * LANES).min(LANES);
            // SAFETY: the neighbour is a block of the same image; pad lanes are not read.
            unsafe {
                let at = ((plane + side - 1) * positions + p) * LANES;
                let x = s.load_partial(src.at(at), real);
                s.store(squares.as_mut_ptr().add(side * LANES), s.mul(x, x));
            }
        }
        // SAFETY: windows reach at most one block to either side; the vector is the task's own.
        unsafe {
            let mut sum = s.zero();
            for at in LANES - lrn.before()..=LANES + lrn.after() {
                sum = s.add(sum, s.load(squares.as_ptr().add(at)));
            }
            let x = s.load(src.at(vector * LANES));
            s.store(dst.at(vector * LANES), respond(s, lrn, x, sum));
        }
    }
}

/// `x / (bias + alpha / size * sum)^beta`
#[inline(always)]
fn respond<S: Simd>(s: S, lrn: &Lrn, x: S::V, sum: S::V) -> S::V {
    let base = s.fma(s.splat(lrn.alpha / lrn.size as f32), sum, s.splat(lrn.bias));
    if lrn.beta == 0.75 {
        // The usual exponent, from roots alone.
        let root = s.sqrt(base);
        return s.div(x, s.mul(root, s.sqrt(root)));
    }
    s.mul(
        x,
        math::exp(s, s.mul(s.splat(-lrn.beta), math::log(s, base))),
    )
}
