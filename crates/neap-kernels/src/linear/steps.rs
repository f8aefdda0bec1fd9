//! Few rows times panels of 8-bit integers, which are widened in registers.
//!
//! ```text
//!   out[row][16 p ..] = (sum of x[k] * w[k] - zero * sum of x[k]) * scale + bias      w: 16 bytes of panel p
//! ```
//! Each panel is read once from end to end. A sum does not depend on which others are computed beside it.

use super::matrix_elements;
use crate::error::{KernelError, check_len};
use crate::panel::{Format, Panels};
use crate::simd::{Isa, LANES, Simd, simd_kernel};

/// Rows and panels of [`few_by_panels`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FewByPanels {
    pub rows: usize,
    pub k: usize,
    /// All lanes of each are results.
    pub panels: usize,
    /// From row to row, in floats.
    pub row_stride: usize,
    pub out_stride: usize,
}

/// Rows of floats times panels of [`Format::I8`], on the calling thread.
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers, and other formats.
pub fn few_by_panels(
    isa: Isa,
    shape: &FewByPanels,
    rows: &[f32],
    panels: Panels<'_>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    let s = shape;
    let columns = s.panels.checked_mul(LANES);
    if s.rows > 1 && (s.row_stride < s.k || columns.is_none_or(|n| s.out_stride < n)) {
        return Err(KernelError::Invalid("rows overlap"));
    }
    if panels.format() != Format::I8 {
        return Err(KernelError::Unsupported("weights of this format"));
    }
    panels.check(Some(s.k), s.panels)?;
    check_len(
        "rows",
        rows.len(),
        matrix_elements(s.rows, s.k, s.row_stride),
    )?;
    let needed = columns.and_then(|n| matrix_elements(s.rows, n, s.out_stride));
    check_len("out", out.len(), needed)?;
    // SAFETY: all lengths were checked; `out` is borrowed exclusively.
    unsafe { few_by_panels_run(isa, shape, rows.as_ptr(), panels.as_ptr(), out.as_mut_ptr()) };
    Ok(())
}

simd_kernel! {
    /// [`few_by_panels`] of what was checked before.
    ///
    /// # Safety
    /// The pointers reach all that the shape says, `panels` is aligned for floats, and no one else uses those elements of `out`.
    pub unsafe fn few_by_panels_run(shape: &FewByPanels, rows: *const f32, panels: *const u8, out: *mut f32) = few_by_panels_generic;
}

/// Panels of a tile.
const WIDE: usize = 4;

#[inline(always)]
unsafe fn few_by_panels_generic<S: Simd>(
    s: S,
    shape: &FewByPanels,
    rows: *const f32,
    panels: *const u8,
    out: *mut f32,
) {
    // Sixteen sums, four of the rows, and what they are made of fit into 32 registers.
    let tallest = if S::VECTOR_REGISTERS >= 32 { 4 } else { 1 };
    let panel_bytes = Format::I8.head_bytes() + shape.k * LANES;
    let mut panel = 0;
    while panel < shape.panels {
        let wide = if shape.panels - panel >= WIDE {
            WIDE
        } else {
            1
        };
        let mut row = 0;
        while row < shape.rows {
            let tall = tallest.min(shape.rows - row);
            // SAFETY: the tile lies inside; the caller's promise for the rest.
            unsafe {
                let a = rows.add(row * shape.row_stride);
                let b = panels.add(panel * panel_bytes);
                let to = out.add(row * shape.out_stride + panel * LANES);
                match (wide, tall) {
                    (WIDE, 4) => tile::<S, WIDE, 4>(s, shape, a, b, to),
                    (WIDE, 3) => tile::<S, WIDE, 3>(s, shape, a, b, to),
                    (WIDE, 2) => tile::<S, WIDE, 2>(s, shape, a, b, to),
                    (WIDE, _) => tile::<S, WIDE, 1>(s, shape, a, b, to),
                    _ => {
                        for at in 0..tall {
                            let a = a.add(at * shape.row_stride);
                            tile::<S, 1, 1>(s, shape, a, b, to.add(at * shape.out_stride));
                        }
                    }
                }
            }
            row += tall;
        }
        panel += wide;
    }
}

/// `P` panels times `R` rows.
///
/// # Safety
/// The pointers reach so many panels, rows of `k` elements, and results.
#[inline(always)]
unsafe fn tile<S: Simd, const P: usize, const R: usize>(
    s: S,
    shape: &FewByPanels,
    a: *const f32,
    b: *const u8,
    to: *mut f32,
) {
    let panel_bytes = Format::I8.head_bytes() + shape.k * LANES;
    let mut sums = [[s.zero(); P]; R];
    let mut of_rows = [s.zero(); R];
    let mut from = b.wrapping_add(Format::I8.head_bytes());
    for k in 0..shape.k {
        let mut weights = [s.zero(); P];
        for p in 0..P {
            // SAFETY: the panel has `k` steps of 16 bytes.
            weights[p] = unsafe { s.load_i8(from.wrapping_add(p * panel_bytes)) };
        }
        for r in 0..R {
            // SAFETY: `k` elements of the row.
            let x = s.splat(unsafe { *a.wrapping_add(r * shape.row_stride + k) });
            of_rows[r] = s.add(of_rows[r], x);
            for p in 0..P {
                sums[r][p] = s.fma(x, weights[p], sums[r][p]);
            }
        }
        from = from.wrapping_add(LANES);
    }
    for p in 0..P {
        // SAFETY: a panel begins with bias, scales and zero points; the results are the tile's.
        unsafe {
            let head = b.add(p * panel_bytes).cast::<f32>();
            let (bias, scale) = (s.load(head), s.load(head.add(LANES)));
            let zero = s.load(head.add(2 * LANES));
            for r in 0..R {
                let sum = s.fnma(zero, of_rows[r], sums[r][p]);
                let at = to.add(r * shape.out_stride + p * LANES);
                s.store(at, s.fma(sum, scale, bias));
            }
        }
    }
}
