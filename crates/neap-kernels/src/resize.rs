//! Resizing channel-blocked activations `[planes][H][W][16]` (`planes = batch * channel blocks`)
//! with index and weight tables that the caller has worked out for each axis.
//!
//! The tables carry everything about coordinate transformations, so one kernel serves them all.
//! Slices that are too short and indices outside the input are refused.

use std::ops::Range;

use crate::error::{KernelError, check_len, checked_product};
use crate::parallel::Parallel;
use crate::share::{Chunks, Dst, Src};
use crate::simd::{Isa, LANES, Simd, simd_kernel};

/// Linear interpolation along one axis: output `o` is
/// `(1 - weight[o]) * input[low[o]] + weight[o] * input[high[o]]`.
#[derive(Debug, Clone, Copy)]
pub struct LinearAxis<'a> {
    pub low: &'a [u32],
    pub high: &'a [u32],
    pub weight: &'a [f32],
}

/// Vectors that one task writes, about.
const TASK_VECTORS: usize = 2 * 1024;

/// `dst[y][x] = src[rows[y]][cols[x]]`; the output is `rows.len()` × `cols.len()`.
///
/// # Errors
/// Slices shorter than the sizes say, and rows or columns outside the input.
pub fn nearest(
    par: &dyn Parallel,
    planes: usize,
    input: [usize; 2],
    rows: &[u32],
    cols: &[u32],
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    let [in_h, in_w] = input;
    let (out_h, out_w) = (rows.len(), cols.len());
    check_indices(rows, in_h)?;
    check_indices(cols, in_w)?;
    check_len(
        "resize source",
        src.len(),
        checked_product(&[planes, in_h, in_w, LANES]),
    )?;
    check_len(
        "resize destination",
        dst.len(),
        checked_product(&[planes, out_h, out_w, LANES]),
    )?;
    if planes * out_h * out_w == 0 {
        return Ok(());
    }
    let (src, dst) = (Src::new(src), Dst::new(dst));
    let pieces = Chunks::new(planes * out_h, (TASK_VECTORS / out_w).max(1));
    par.run(pieces.count(), &|piece, _| {
        for row in pieces.range(piece) {
            let (plane, y) = (row / out_h, row % out_h);
            let from = (plane * in_h + rows[y] as usize) * in_w;
            for (x, &col) in cols.iter().enumerate() {
                // SAFETY: indices were checked against the input and lengths against the sizes;
                // tasks write disjoint rows.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        src.at((from + col as usize) * LANES),
                        dst.at((row * out_w + x) * LANES),
                        LANES,
                    );
                }
            }
        }
    });
    Ok(())
}

/// Bilinear interpolation; the output is `rows.low.len()` × `cols.low.len()`.
///
/// # Errors
/// Slices shorter than the sizes say, and rows or columns outside the input.
pub fn bilinear(
    isa: Isa,
    par: &dyn Parallel,
    planes: usize,
    input: [usize; 2],
    rows: LinearAxis<'_>,
    cols: LinearAxis<'_>,
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    let [in_h, in_w] = input;
    let (out_h, out_w) = (rows.low.len(), cols.low.len());
    for (axis, size) in [(&rows, in_h), (&cols, in_w)] {
        let n = axis.low.len();
        if axis.high.len() != n || axis.weight.len() != n {
            return Err(KernelError::Invalid("resize tables differ in length"));
        }
        check_indices(axis.low, size)?;
        check_indices(axis.high, size)?;
    }
    check_len(
        "resize source",
        src.len(),
        checked_product(&[planes, in_h, in_w, LANES]),
    )?;
    check_len(
        "resize destination",
        dst.len(),
        checked_product(&[planes, out_h, out_w, LANES]),
    )?;
    if planes * out_h * out_w == 0 {
        return Ok(());
    }
    let (src, dst) = (Src::new(src), Dst::new(dst));
    let pieces = Chunks::new(planes * out_h, (TASK_VECTORS / out_w).max(1));
    par.run(pieces.count(), &|piece, _| {
        // SAFETY: indices and lengths were checked; tasks write disjoint rows.
        unsafe { bilinear_rows(isa, input, rows, cols, src, dst, pieces.range(piece)) };
    });
    Ok(())
}

fn check_indices(table: &[u32], size: usize) -> Result<(), KernelError> {
    if table.iter().any(|&i| i as usize >= size) {
        return Err(KernelError::Invalid("resize index outside the input"));
    }
    Ok(())
}

simd_kernel! {
    /// Output rows `range`, numbered through all planes.
    ///
    /// # Safety
    /// Tables index inside the input, buffers are long enough, nobody else writes these rows.
    unsafe fn bilinear_rows(
        input: [usize; 2],
        rows: LinearAxis<'_>,
        cols: LinearAxis<'_>,
        src: Src,
        dst: Dst,
        range: Range<usize>,
    ) = bilinear_rows_generic;
}

#[inline(always)]
unsafe fn bilinear_rows_generic<S: Simd>(
    s: S,
    input: [usize; 2],
    rows: LinearAxis<'_>,
    cols: LinearAxis<'_>,
    src: Src,
    dst: Dst,
    range: Range<usize>,
) {
    let [in_h, in_w] = input;
    let (out_h, out_w) = (rows.low.len(), cols.low.len());
    for row in range {
        let (plane, y) = (row / out_h, row % out_h);
        // SAFETY: the caller vouches for tables and buffers.
        unsafe {
            let top = src.at((plane * in_h + rows.low[y] as usize) * in_w * LANES);
            let bottom = src.at((plane * in_h + rows.high[y] as usize) * in_w * LANES);
            let down = s.splat(rows.weight[y]);
            for x in 0..out_w {
                let (left, right) = (cols.low[x] as usize * LANES, cols.high[x] as usize * LANES);
                let across = s.splat(cols.weight[x]);
                let a = mix(s, s.load(top.add(left)), s.load(top.add(right)), across);
                let b = mix(
                    s,
                    s.load(bottom.add(left)),
                    s.load(bottom.add(right)),
                    across,
                );
                s.store(dst.at((row * out_w + x) * LANES), mix(s, a, b, down));
            }
        }
    }
}

/// `(1 - w) * a + w * b`; exactly `a` at `w = 0`, and where both are the same.
#[inline(always)]
fn mix<S: Simd>(s: S, a: S::V, b: S::V, w: S::V) -> S::V {
    let mixed = s.fma(w, s.sub(b, a), a);
    // The difference of what is infinite, or nearly, is none.
    let apart = s.fma(w, b, s.mul(s.sub(s.splat(1.0), w), a));
    s.select(s.lt(s.abs(mixed), s.splat(f32::INFINITY)), mixed, apart)
}
