//! Softmax and its logarithm.
//!
//! The largest element is subtracted first, so finite rows never overflow. A row of nothing but
//! -inf gives NaN, as the formula does.

use std::ops::Range;

use super::fold::{self, each, first_lanes};
use super::{Input, TASK_ELEMENTS};
use crate::error::{KernelError, check_len, checked_product};
use crate::parallel::Parallel;
use crate::share::{Chunks, Dst, Src};
use crate::simd::{Isa, LANES, Simd, math, simd_kernel};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Softmax {
    /// `e^x / Σ e^x`
    Plain,
    /// `x - ln Σ e^x`
    Log,
}

/// Along contiguous rows: `[rows][cols]`.
///
/// # Errors
/// Slices shorter than the sizes say.
pub fn softmax(
    isa: Isa,
    par: &dyn Parallel,
    kind: Softmax,
    rows: usize,
    cols: usize,
    src: Input<'_>,
    dst: &mut [f32],
) -> Result<(), KernelError> {
    let needed = checked_product(&[rows, cols]);
    check_len("softmax destination", dst.len(), needed)?;
    let dst = Dst::new(dst);
    let src = src.view(needed, dst)?;
    if rows * cols == 0 {
        return Ok(());
    }
    let chunks = Chunks::new(rows, TASK_ELEMENTS / 4 / cols);
    par.run(chunks.count(), &|piece, _| {
        // SAFETY: lengths were checked; tasks have disjoint rows.
        unsafe { softmax_rows(isa, kind, cols, src, dst, chunks.range(piece)) };
    });
    Ok(())
}

/// Along the middle axis of `[outer][axis][inner]`.
///
/// # Errors
/// Slices shorter than the sizes say.
pub fn softmax_axis(
    isa: Isa,
    par: &dyn Parallel,
    kind: Softmax,
    shape: [usize; 3],
    src: Input<'_>,
    dst: &mut [f32],
) -> Result<(), KernelError> {
    let [outer, axis, inner] = shape;
    if inner == 1 {
        return softmax(isa, par, kind, outer, axis, src, dst);
    }
    let needed = checked_product(&[outer, axis, inner]);
    check_len("softmax destination", dst.len(), needed)?;
    let dst = Dst::new(dst);
    let src = src.view(needed, dst)?;
    if outer * axis * inner == 0 {
        return Ok(());
    }
    let columns = inner.div_ceil(LANES);
    let chunks = Chunks::new(outer * columns, TASK_ELEMENTS / 4 / (axis * LANES));
    par.run(chunks.count(), &|piece, _| {
        // SAFETY: lengths were checked; tasks have disjoint columns.
        unsafe { softmax_columns(isa, kind, axis, inner, src, dst, chunks.range(piece)) };
    });
    Ok(())
}

simd_kernel! {
    /// # Safety
    /// The rows lie inside both buffers; nobody else writes them.
    unsafe fn softmax_rows(kind: Softmax, cols: usize, src: Src, dst: Dst, rows: Range<usize>) = softmax_rows_generic;
}

#[inline(always)]
unsafe fn softmax_rows_generic<S: Simd>(
    s: S,
    kind: Softmax,
    cols: usize,
    src: Src,
    dst: Dst,
    rows: Range<usize>,
) {
    for row in rows {
        // SAFETY: the caller vouches for the row.
        unsafe {
            let (from, to) = (src.at(row * cols), dst.at(row * cols));
            let top = s.splat(fold::max(s, from, cols).max(f32::MIN));
            match kind {
                Softmax::Plain => {
                    let sum = exp_row(s, from, to, cols, s.splat(1.0), top);
                    let scale = s.splat(1.0 / sum);
                    each!(s, to.cast_const(), to, cols, |x, i, _left| s.mul(x, scale));
                }
                Softmax::Log => {
                    let sum = exp_sum(s, from, cols, top);
                    // The constant is added after the subtraction, which keeps its digits.
                    let log = s.splat(sum.ln());
                    each!(s, from, to, cols, |x, i, _left| s.sub(s.sub(x, top), log));
                }
            }
        }
    }
}

/// Stores `e^(scale * x - top)`, which must not be above 1 by more than rounding, and returns the sum.
///
/// # Safety
/// `n` floats at both addresses, which are equal or do not overlap.
#[inline(always)]
pub(crate) unsafe fn exp_row<S: Simd>(
    s: S,
    from: *const f32,
    to: *mut f32,
    n: usize,
    scale: S::V,
    top: S::V,
) -> f32 {
    let minus = s.neg(top);
    let mut sums = [s.zero(); 2];
    let mut i = 0;
    // SAFETY: whole vectors below `n`, then a partial one that ends at it.
    unsafe {
        while i + 2 * LANES <= n {
            for j in 0..2 {
                let x = s.load(from.add(i + j * LANES));
                let e = math::exp_small(s, s.fma(x, scale, minus));
                s.store(to.add(i + j * LANES), e);
                sums[j] = s.add(sums[j], e);
            }
            i += 2 * LANES;
        }
        while i < n {
            let left = n - i;
            let x = s.load_partial(from.add(i), left);
            let e = math::exp_small(s, s.fma(x, scale, minus));
            s.store_partial(to.add(i), left, e);
            sums[0] = s.add(sums[0], s.select(first_lanes(s, left), e, s.zero()));
            i += LANES;
        }
    }
    s.reduce_sum(s.add(sums[0], sums[1]))
}

/// `Σ e^(x - top)`
///
/// # Safety
/// `n` floats are readable.
#[inline(always)]
unsafe fn exp_sum<S: Simd>(s: S, from: *const f32, n: usize, top: S::V) -> f32 {
    let mut sum = s.zero();
    let mut i = 0;
    while i < n {
        // SAFETY: a vector that ends at `n` at the latest.
        let x = unsafe { s.load_partial(from.add(i), n - i) };
        let e = math::exp_small(s, s.sub(x, top));
        sum = s.add(sum, s.select(first_lanes(s, n - i), e, s.zero()));
        i += LANES;
    }
    s.reduce_sum(sum)
}

simd_kernel! {
    /// Columns of 16 neighbouring inner elements, numbered through all outer ones.
    ///
    /// # Safety
    /// The columns lie inside both buffers; nobody else writes them.
    unsafe fn softmax_columns(
        kind: Softmax,
        axis: usize,
        inner: usize,
        src: Src,
        dst: Dst,
        range: Range<usize>,
    ) = softmax_columns_generic;
}

#[inline(always)]
unsafe fn softmax_columns_generic<S: Simd>(
    s: S,
    kind: Softmax,
    axis: usize,
    inner: usize,
    src: Src,
    dst: Dst,
    range: Range<usize>,
) {
    let columns = inner.div_ceil(LANES);
    for column in range {
        let i = column % columns * LANES;
        let lanes = (inner - i).min(LANES);
        let at = column / columns * axis * inner + i;
        // SAFETY: the caller vouches for the column; the last one is partial.
        unsafe {
            let (from, to) = (src.at(at), dst.at(at));
            let mut top = s.splat(f32::MIN);
            for k in 0..axis {
                top = s.max(top, s.load_partial(from.add(k * inner), lanes));
            }
            let mut sum = s.zero();
            for k in 0..axis {
                let e = math::exp_small(s, s.sub(s.load_partial(from.add(k * inner), lanes), top));
                sum = s.add(sum, e);
                if kind == Softmax::Plain {
                    s.store_partial(to.add(k * inner), lanes, e);
                }
            }
            match kind {
                Softmax::Plain => {
                    let scale = s.div(s.splat(1.0), sum);
                    for k in 0..axis {
                        let e = s.load_partial(to.add(k * inner), lanes);
                        s.store_partial(to.add(k * inner), lanes, s.mul(e, scale));
                    }
                }
                Softmax::Log => {
                    let log = math::log(s, sum);
                    for k in 0..axis {
                        s.store_partial(
                            to.add(k * inner),
                            lanes,
                            s.sub(s.sub(s.load_partial(from.add(k * inner), lanes), top), log),
                        );
                    }
                }
            }
        }
    }
}
