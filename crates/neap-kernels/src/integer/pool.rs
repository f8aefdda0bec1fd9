//! Largest step under a window, of blocked steps.

use crate::error::{KernelError, check_len, checked_product};
use crate::parallel::Parallel;
use crate::pool::Pool;
use crate::share::{Chunks, Dst, Src};
use crate::simd::LANES;
use crate::window::Axis;
use std::ops::Range;

/// Vectors that one task reads, about.
const TASK_READS: usize = 16 * 1024;

/// As [`crate::pool::max_pool`], of steps. An empty window gives 0.
///
/// # Errors
/// Sizes that contradict each other or exceed the slices.
pub fn max_pool_of_steps(
    parallel: &dyn Parallel,
    pool: &Pool,
    src: &[u8],
    dst: &mut [u8],
) -> Result<(), KernelError> {
    let [in_h, in_w] = pool.window.input;
    let [out_h, out_w] = pool.window.output;
    let axes = [pool.window.axis(0), pool.window.axis(1)];
    axes[0].check()?;
    axes[1].check()?;
    let needed = checked_product(&[pool.planes, in_h, in_w, LANES]);
    check_len("pool source", src.len(), needed)?;
    let needed = checked_product(&[pool.planes, out_h, out_w, LANES]);
    check_len("pool destination", dst.len(), needed)?;
    if pool.planes * out_h * out_w == 0 {
        return Ok(());
    }
    let (src, dst) = (Src::new(src), Dst::new(dst));
    let reads = out_w * pool.window.taps();
    let rows = Chunks::new(pool.planes * out_h, (TASK_READS / reads).max(1));
    parallel.run(rows.count(), &|piece, _| {
        for row in rows.range(piece) {
            let (plane, y) = (row / out_h, row % out_h);
            // SAFETY: lengths were checked; tasks write disjoint output rows.
            unsafe {
                let from = src.at(plane * in_h * in_w * LANES);
                pool_row(axes, y, from, dst.at(row * out_w * LANES));
            }
        }
    });
    Ok(())
}

/// # Safety
/// `from` is readable for a plane, `to` writable for an output row, and nobody else does so.
unsafe fn pool_row([vertical, horizontal]: [Axis; 2], y: usize, from: *const u8, to: *mut u8) {
    let rows = vertical.taps(y);
    let interior = horizontal.interior();
    for x in 0..horizontal.output {
        let columns = match interior.contains(&x) {
            true => 0..horizontal.kernel,
            false => horizontal.taps(x),
        };
        // SAFETY: taps lie inside the plane.
        unsafe {
            let best = largest([vertical, horizontal], [y, x], rows.clone(), columns, from);
            to.add(x * LANES).cast::<[u8; LANES]>().write(best);
        }
    }
}

/// # Safety
/// The taps lie inside the plane at `from`.
unsafe fn largest(
    [vertical, horizontal]: [Axis; 2],
    [y, x]: [usize; 2],
    rows: Range<usize>,
    columns: Range<usize>,
    from: *const u8,
) -> [u8; LANES] {
    let mut best = [0; LANES];
    for ky in rows {
        let row = vertical.at(y, ky) * horizontal.input;
        for kx in columns.clone() {
            let at = (row + horizontal.at(x, kx)) * LANES;
            // SAFETY: the caller's promise.
            let steps = unsafe { from.add(at).cast::<[u8; LANES]>().read() };
            for (best, step) in best.iter_mut().zip(steps) {
                *best = (*best).max(step);
            }
        }
    }
    best
}
