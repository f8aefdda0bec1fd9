//! Few rows times a matrix whose rows lie as they are stored: dot products, without panels.
//!
//! ```text
//!   out[row][unit] = rows[row] · matrix[unit]       each sum: 16 lanes along k, added up at its end
//! ```
//! Panels of a matrix that is used for few rows cost more than the products. A sum does not depend on which others are computed
//! beside it.

use super::matrix_elements;
use crate::error::{KernelError, check_len};
use crate::simd::{Isa, LANES, Simd, simd_kernel};

/// Rows and matrix of [`dots`], in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DotsShape {
    pub rows: usize,
    /// Rows of the matrix.
    pub units: usize,
    pub k: usize,
    /// From row to row.
    pub row_stride: usize,
    pub unit_stride: usize,
    pub out_stride: usize,
}

/// `out[row][unit] = rows[row] · matrix[unit]`, on the calling thread.
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers.
pub fn dots(
    isa: Isa,
    shape: &DotsShape,
    rows: &[f32],
    matrix: &[f32],
    out: &mut [f32],
) -> Result<(), KernelError> {
    let s = shape;
    if s.rows > 1 && (s.row_stride < s.k || s.out_stride < s.units)
        || s.units > 1 && s.unit_stride < s.k
    {
        return Err(KernelError::Invalid("rows overlap"));
    }
    check_len(
        "rows",
        rows.len(),
        matrix_elements(s.rows, s.k, s.row_stride),
    )?;
    check_len(
        "matrix",
        matrix.len(),
        matrix_elements(s.units, s.k, s.unit_stride),
    )?;
    check_len(
        "out",
        out.len(),
        matrix_elements(s.rows, s.units, s.out_stride),
    )?;
    // SAFETY: all lengths were checked; `out` is borrowed exclusively.
    unsafe { dots_run(isa, shape, rows.as_ptr(), matrix.as_ptr(), out.as_mut_ptr()) };
    Ok(())
}

simd_kernel! {
    /// [`dots`] of what was checked before.
    ///
    /// # Safety
    /// The pointers reach all that the shape says, and no one else uses those elements of `out`.
    pub unsafe fn dots_run(shape: &DotsShape, rows: *const f32, matrix: *const f32, out: *mut f32) = dots_generic;
}

/// Units of a tile.
const UNITS: usize = 4;

#[inline(always)]
unsafe fn dots_generic<S: Simd>(
    s: S,
    shape: &DotsShape,
    rows: *const f32,
    matrix: *const f32,
    out: *mut f32,
) {
    // Sixteen sums and what they are made of fit into 32 registers.
    let tallest = if S::VECTOR_REGISTERS >= 32 { 4 } else { 1 };
    let mut unit = 0;
    while unit < shape.units {
        let units = UNITS.min(shape.units - unit);
        let mut row = 0;
        while row < shape.rows {
            let tall = tallest.min(shape.rows - row);
            // SAFETY: the tile lies inside; the caller's promise for the rest.
            unsafe {
                let a = rows.add(row * shape.row_stride);
                let b = matrix.add(unit * shape.unit_stride);
                let to = out.add(row * shape.out_stride + unit);
                match (units, tall) {
                    (UNITS, 4) => tile::<S, UNITS, 4>(s, shape, a, b, to),
                    (UNITS, 3) => tile::<S, UNITS, 3>(s, shape, a, b, to),
                    (UNITS, 2) => tile::<S, UNITS, 2>(s, shape, a, b, to),
                    (UNITS, _) => tile::<S, UNITS, 1>(s, shape, a, b, to),
                    _ => {
                        for (at, one) in (0..units).flat_map(|u| (0..tall).map(move |r| (u, r))) {
                            let a = a.add(one * shape.row_stride);
                            let b = b.add(at * shape.unit_stride);
                            tile::<S, 1, 1>(s, shape, a, b, to.add(one * shape.out_stride + at));
                        }
                    }
                }
            }
            row += tall;
        }
        unit += units;
    }
}

/// `U` units times `R` rows.
///
/// # Safety
/// The pointers reach so many rows of `k` elements, and the sums.
#[inline(always)]
unsafe fn tile<S: Simd, const U: usize, const R: usize>(
    s: S,
    shape: &DotsShape,
    a: *const f32,
    b: *const f32,
    to: *mut f32,
) {
    let mut sums = [[s.zero(); U]; R];
    let mut k = 0;
    while k < shape.k {
        let left = shape.k - k;
        let mut weights = [s.zero(); U];
        for u in 0..U {
            let from = b.wrapping_add(u * shape.unit_stride + k);
            // SAFETY: `left` elements of the unit's row, from `k` on.
            weights[u] = unsafe { load(s, from, left) };
        }
        for r in 0..R {
            let from = a.wrapping_add(r * shape.row_stride + k);
            // SAFETY: `left` elements of the row, from `k` on.
            let x = unsafe { load(s, from, left) };
            for u in 0..U {
                sums[r][u] = s.fma(weights[u], x, sums[r][u]);
            }
        }
        k += LANES;
    }
    for r in 0..R {
        for u in 0..U {
            // SAFETY: the sum is one of the tile's.
            unsafe { *to.add(r * shape.out_stride + u) = s.reduce_sum(sums[r][u]) };
        }
    }
}

/// # Safety
/// `p` is readable for the smaller of `left` and 16 floats.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, p: *const f32, left: usize) -> S::V {
    // SAFETY: the caller's promise.
    unsafe {
        if left >= LANES {
            s.load(p)
        } else {
            s.load_partial(p, left)
        }
    }
}
