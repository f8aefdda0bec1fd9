//! Products with weights that are floats: F32, F16, BF16.

use crate::machine::{MOST_LANES, Machine};
use crate::product::Job;

/// Sums of an output element, before they are added up.
const SUMS: usize = MOST_LANES;

/// A type of floats.
pub(crate) trait Float {
    const BYTES: usize;
    /// As many floats as there are lanes.
    ///
    /// # Safety
    /// They may be read.
    unsafe fn load<M: Machine>(m: M, at: *const u8) -> M::F;
}

macro_rules! float {
    ($name:ident, $bytes:literal, |$m:ident, $at:ident| $load:expr) => {
        pub(crate) struct $name;

        impl Float for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<M: Machine>($m: M, $at: *const u8) -> M::F {
                // SAFETY: the caller's promise.
                unsafe { $load }
            }
        }
    };
}

float!(F32, 4, |m, at| m.load(at.cast()));
float!(F16, 2, |m, at| m.load_f16(at));
float!(Bf16, 2, |m, at| m.load_bf16(at));

/// All rows of activations with all output rows.
#[inline(always)]
pub(crate) fn drive<M: Machine, T: Float>(m: M, job: &mut Job<'_, '_>) {
    let rows = job.x.rows;
    let mut column = 0;
    while column + 4 <= job.y.columns() {
        if rows == 1 {
            tile::<M, T, 1, 4>(m, job, 0, column);
        } else {
            two_columns::<M, T>(m, job, column);
            two_columns::<M, T>(m, job, column + 2);
        }
        column += 4;
    }
    for column in column..job.y.columns() {
        for row in 0..rows {
            tile::<M, T, 1, 1>(m, job, row, column);
        }
    }
}

/// All rows with two output rows.
#[inline(always)]
fn two_columns<M: Machine, T: Float>(m: M, job: &mut Job<'_, '_>, column: usize) {
    let rows = job.x.rows;
    let mut row = 0;
    if M::LANES == SUMS {
        while row + 4 <= rows {
            tile::<M, T, 4, 2>(m, job, row, column);
            row += 4;
        }
    }
    while row + 2 <= rows {
        tile::<M, T, 2, 2>(m, job, row, column);
        row += 2;
    }
    if row < rows {
        tile::<M, T, 1, 2>(m, job, row, column);
    }
}

/// `R` rows with `C` output rows.
#[inline(always)]
fn tile<M: Machine, T: Float, const R: usize, const C: usize>(
    m: M,
    job: &mut Job<'_, '_>,
    row: usize,
    column: usize,
) {
    let k = job.k;
    let x = &job.x.x[row * k..][..R * k];
    let weights = &job.weights[column * k * T::BYTES..][..C * k * T::BYTES];
    let vectors = SUMS / M::LANES;
    // `SUMS / LANES` are used.
    let mut sums = [[[m.splat_float(0.0); 4]; C]; R];
    for at in (0..k).step_by(SUMS) {
        for v in 0..vectors {
            let at = at + v * M::LANES;
            let mut w = [m.splat_float(0.0); C];
            for (c, w) in w.iter_mut().enumerate() {
                // SAFETY: so many floats from there are in the row, which has a multiple of `SUMS`.
                *w = unsafe { T::load(m, weights.as_ptr().add((c * k + at) * T::BYTES)) };
            }
            for r in 0..R {
                // SAFETY: as above.
                let x = unsafe { m.load(x.as_ptr().add(r * k + at)) };
                for c in 0..C {
                    sums[r][c][v] = m.fma(x, w[c], sums[r][c][v]);
                }
            }
        }
    }
    for r in 0..R {
        let mut results = [0.0; C];
        for c in 0..C {
            let mut lanes = [0.0; SUMS];
            for v in 0..vectors {
                // SAFETY: a part of the lanes.
                unsafe { m.store(lanes.as_mut_ptr().add(v * M::LANES), sums[r][c][v]) };
            }
            results[c] = added_up(lanes);
        }
        job.y.put(row + r, column, &results);
    }
}

#[inline(always)]
fn added_up(mut lanes: [f32; SUMS]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}
