//! The register-tiled product both halves of attention are made of: `C = A·B` or `C += A·B`, where
//! A is broadcast element by element and B comes in panels of 16 columns.

use crate::simd::{LANES, Simd, simd_kernel};

/// One product. Sizes and strides in floats.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    /// `[rows][k]`
    pub a: *const f32,
    pub a_row: usize,
    /// Panels `[k][16]`, `b_row` from one vector of a panel to the next, `b_panel` between panels.
    pub b: *const f32,
    pub b_row: usize,
    pub b_panel: usize,
    /// `[rows][panels * 16]`
    pub c: *mut f32,
    pub c_row: usize,
    pub rows: usize,
    pub k: usize,
    /// Where `Some(n)`, only the first `n + r` elements of row `r` of A may differ from zero.
    pub k_growth: Option<isize>,
    pub panels: usize,
    /// Columns of the last panel that exist in C.
    pub last_lanes: usize,
    /// Adds to what C holds.
    pub accumulate: bool,
}

simd_kernel! {
    /// # Safety
    /// A, B and C reach as far as the operands say; C overlaps neither.
    pub(super) unsafe fn product(o: &Operands) = product_generic;
}

#[inline(always)]
unsafe fn product_generic<S: Simd>(s: S, o: &Operands) {
    let mut panel = 0;
    while panel < o.panels {
        let left = o.panels - panel;
        // SAFETY: the caller vouches for all panels.
        unsafe {
            panel += if S::VECTOR_REGISTERS >= 32 && left >= 4 {
                strip::<S, 4>(s, o, panel);
                4
            } else if S::VECTOR_REGISTERS >= 32 && left >= 2 {
                strip::<S, 2>(s, o, panel);
                2
            } else {
                strip::<S, 1>(s, o, panel);
                1
            };
        }
    }
}

/// All rows of `P` panels.
///
/// # Safety
/// As [`product`].
#[inline(always)]
unsafe fn strip<S: Simd, const P: usize>(s: S, o: &Operands, panel: usize) {
    let lanes = if panel + P == o.panels {
        o.last_lanes
    } else {
        LANES
    };
    let mut row = 0;
    while row < o.rows {
        let left = o.rows - row;
        // SAFETY: the caller vouches for all rows.
        unsafe {
            row += if S::VECTOR_REGISTERS >= 32 && P <= 2 && left >= 12 {
                tile::<S, P, 12>(s, o, panel, row, lanes);
                12
            } else if left >= 6 {
                tile::<S, P, 6>(s, o, panel, row, lanes);
                6
            } else if left >= 4 {
                tile::<S, P, 4>(s, o, panel, row, lanes);
                4
            } else if left >= 2 {
                tile::<S, P, 2>(s, o, panel, row, lanes);
                2
            } else {
                tile::<S, P, 1>(s, o, panel, row, lanes);
                1
            };
        }
    }
}

/// `R` rows of `P` panels, one accumulator for each.
///
/// # Safety
/// As [`product`].
#[inline(always)]
unsafe fn tile<S: Simd, const P: usize, const R: usize>(
    s: S,
    o: &Operands,
    panel: usize,
    row: usize,
    lanes: usize,
) {
    let k = match o.k_growth {
        Some(n) => {
            o.k.min(n.saturating_add((row + R - 1) as isize).max(0) as usize)
        }
        None => o.k,
    };
    // SAFETY: the caller vouches for rows `row..row + R` of A and C, the panels, and `k`.
    unsafe {
        let a = o.a.add(row * o.a_row);
        let c = o.c.add(row * o.c_row + panel * LANES);
        let mut sum = [[s.zero(); P]; R];
        if o.accumulate {
            for r in 0..R {
                for p in 0..P {
                    let at = c.add(r * o.c_row + p * LANES);
                    sum[r][p] = if p + 1 == P && lanes < LANES {
                        s.load_partial(at, lanes)
                    } else {
                        s.load(at)
                    };
                }
            }
        }
        let mut b = o.b.wrapping_add(panel * o.b_panel);
        for i in 0..k {
            let mut w = [s.zero(); P];
            for p in 0..P {
                w[p] = s.load(b.add(p * o.b_panel));
            }
            for r in 0..R {
                let x = s.splat(*a.add(r * o.a_row + i));
                for p in 0..P {
                    sum[r][p] = s.fma(x, w[p], sum[r][p]);
                }
            }
            b = b.wrapping_add(o.b_row);
        }
        for r in 0..R {
            for p in 0..P {
                let at = c.add(r * o.c_row + p * LANES);
                if p + 1 == P && lanes < LANES {
                    s.store_partial(at, lanes, sum[r][p]);
                } else {
                    s.store(at, sum[r][p]);
                }
            }
        }
    }
}
