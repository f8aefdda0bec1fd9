//! Products of few rows with a matrix that lies as it is: packing it would cost more than multiplying.
//!
//! ```text
//!   b [k][n]    out[row][..] += a[row][k] * b[k][..], four k at a time: rows of b are read from end to end
//!   b [n][k]    dot products, see `dots`
//! ```

use super::dots::{DotsShape, dots_run};
use super::product::MatMulShape;
use crate::parallel::Parallel;
use crate::simd::{Isa, LANES, Simd, simd_kernel};

/// Most rows that are multiplied so.
const FEW_ROWS: usize = 4;

/// Multiply-adds that are worth a task of their own.
const TASK_PRODUCTS: usize = 64 * 1024;

/// k whose rows of `b` are read side by side.
const DEEP: usize = 4;

/// Whether a batch of products is computed so.
pub(super) fn takes(shape: &MatMulShape) -> bool {
    shape.m <= FEW_ROWS && (is_in_rows(shape) || shape.n >= LANES)
}

/// Whether a column of the right-hand matrix lies side by side.
fn is_in_rows(shape: &MatMulShape) -> bool {
    shape.b_transposed || shape.n == 1 && shape.b_stride == 1
}

/// Columns of one product, as a task has them.
#[derive(Clone, Copy)]
pub(super) struct Few {
    pub shape: MatMulShape,
    pub a: *const f32,
    pub b: *const f32,
    pub out: *mut f32,
}

// SAFETY: tasks read shared memory and write disjoint columns.
unsafe impl Sync for Few {}

impl Few {
    /// All products.
    ///
    /// # Safety
    /// The pointers reach all that the shape says, and no one else uses the products.
    pub unsafe fn run(&self, isa: Isa, parallel: &dyn Parallel) {
        let s = self.shape;
        let work = s.batch * s.m * s.k * s.n;
        let tasks = (work / TASK_PRODUCTS).clamp(1, parallel.workers().max(1));
        // A batch is shared out by products, a single one by columns.
        let parts = match s.batch >= tasks {
            true => 1,
            false => tasks.div_ceil(s.batch),
        };
        let columns = s.n.div_ceil(parts).next_multiple_of(LANES);
        let parts = s.n.div_ceil(columns);
        let units = s.batch * parts;
        let each = units.div_ceil(tasks);
        parallel.run(units.div_ceil(each), &|task, _| {
            for unit in task * each..((task + 1) * each).min(units) {
                let first = unit % parts * columns;
                let count = columns.min(s.n - first);
                // SAFETY: units differ in product or columns; the caller's promise for the rest.
                unsafe { self.columns(isa, unit / parts, first, count) };
            }
        });
    }

    /// # Safety
    /// The columns lie in the product, and no one else uses them.
    unsafe fn columns(&self, isa: Isa, item: usize, first: usize, count: usize) {
        let s = &self.shape;
        let step = match is_in_rows(s) {
            true => s.b_stride,
            false => 1,
        };
        let a = self.a.wrapping_add(item * s.a_batch_stride);
        let b = self.b.wrapping_add(item * s.b_batch_stride + first * step);
        let out = self.out.wrapping_add(item * s.out_batch_stride + first);
        if !is_in_rows(s) {
            // SAFETY: the caller's promise.
            unsafe { add_rows(isa, s, count, a, b, out) };
            return;
        }
        let shape = DotsShape {
            rows: s.m,
            units: count,
            k: s.k,
            row_stride: s.a_stride,
            unit_stride: s.b_stride,
            out_stride: s.out_stride,
        };
        // SAFETY: the caller's promise.
        unsafe {
            dots_run(isa, &shape, a, b, out);
            if s.alpha != 1.0 {
                for row in 0..s.m {
                    for at in 0..count {
                        *out.add(row * s.out_stride + at) *= s.alpha;
                    }
                }
            }
        }
    }
}

simd_kernel! {
    /// `count` columns of all rows.
    ///
    /// # Safety
    /// The pointers reach so many columns of the shape's rows, and no one else uses those of `out`.
    unsafe fn add_rows(shape: &MatMulShape, count: usize, a: *const f32, b: *const f32, out: *mut f32) = add_rows_generic;
}

#[inline(always)]
unsafe fn add_rows_generic<S: Simd>(
    s: S,
    shape: &MatMulShape,
    count: usize,
    a: *const f32,
    b: *const f32,
    out: *mut f32,
) {
    let mut k = 0;
    // At least once, so that a product of nothing is zero.
    while k == 0 || k < shape.k {
        let deep = DEEP.min(shape.k - k);
        for row in 0..shape.m {
            let mut factors = [s.zero(); DEEP];
            for (i, factor) in factors[..deep].iter_mut().enumerate() {
                // SAFETY: `deep` elements of the row, from `k` on.
                *factor = s.splat(unsafe { *a.add(row * shape.a_stride + k + i) } * shape.alpha);
            }
            let from = b.wrapping_add(k * shape.b_stride);
            let to = out.wrapping_add(row * shape.out_stride);
            let mut at = 0;
            while at < count {
                let left = count - at;
                // SAFETY: `left` columns of `deep` rows of `b` and of the row of the result.
                unsafe {
                    let mut sum = if k == 0 {
                        s.zero()
                    } else if left >= LANES {
                        s.load(to.add(at))
                    } else {
                        s.load_partial(to.add(at), left)
                    };
                    for i in 0..deep {
                        let p = from.add(i * shape.b_stride + at);
                        let w = if left >= LANES {
                            s.load(p)
                        } else {
                            s.load_partial(p, left)
                        };
                        sum = s.fma(factors[i], w, sum);
                    }
                    if left >= LANES {
                        s.store(to.add(at), sum);
                    } else {
                        s.store_partial(to.add(at), left, sum);
                    }
                }
                at += LANES;
            }
        }
        k += DEEP;
    }
}
