//! The derivative by inputs: for each phase of the strides a convolution of results' derivatives with transposed weights.

use super::grid::{Grid, Line};
use super::product::{Job, Left, job_floats, most_job_floats};
use super::{AXES, Shape};
use crate::parallel::Parallel;
use crate::reorder::transpose_tile;
use crate::share::{Dst, Src};
use crate::simd::{Isa, LANES};
use std::ops::Range;

/// Floats of weights that are transposed at a time, unless one row for each group is more: 4 MiB.
const TURNED_FLOATS: usize = 1 << 20;

/// Distances between rows that are multiples of so many floats make rows contend for the same places of a cache.
const ALIAS: usize = 256;

fn phases(shape: &Shape) -> impl Iterator<Item = Grid> + use<> {
    let window = shape.window;
    let [a, b, c] = window.strides;
    (0..a * b * c).map(move |flat| {
        let phase = [flat / (b * c), flat / c % b, flat % c];
        Grid {
            lines: std::array::from_fn::<_, AXES, _>(|axis| {
                Line::backward(&window.axis(axis), phase[axis])
            }),
        }
    })
}

/// Weights of a phase, transposed: from row to row, and rows that are transposed at a time.
fn turned(shape: &Shape, grid: &Grid) -> (usize, usize) {
    let k = shape.c_out * grid.taps();
    let stride = if k.is_multiple_of(ALIAS) {
        k + LANES
    } else {
        k
    };
    let most = TURNED_FLOATS / (stride * shape.groups).max(1);
    let blocks = shape.c_in.div_ceil(most.max(1)).max(1);
    (stride, shape.c_in.div_ceil(blocks))
}

pub(super) fn floats(shape: &Shape, workers: usize) -> usize {
    let of = |grid: Grid| {
        let (stride, rows) = turned(shape, &grid);
        stride * rows * shape.groups + job_floats(rows, shape.c_out, &grid, shape.batch, workers)
    };
    phases(shape).map(of).max().unwrap_or(0)
}

/// Of the shape with any smaller sizes of batch and space.
pub(super) fn most_floats(shape: &Shape, workers: usize) -> usize {
    let of = |grid: Grid| {
        let (stride, rows) = turned(shape, &grid);
        let job = most_job_floats(rows, shape.c_out, &grid, shape.batch, workers);
        stride * rows * shape.groups + job
    };
    phases(shape).map(of).max().unwrap_or(0)
}

pub(super) fn run(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &Shape,
    dy: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    dx: &mut [f32],
    scratch: &mut [f32],
) {
    let (dx, dy) = (Dst::new(dx), Src::new(dy));
    for grid in phases(shape) {
        let (stride, at_once) = turned(shape, &grid);
        let (left, scratch) = scratch.split_at_mut(stride * at_once * shape.groups);
        let left = Dst::new(left);
        for first in (0..shape.c_in).step_by(at_once.max(1)) {
            let rows = first..(first + at_once).min(shape.c_in);
            turn(isa, parallel, shape, &grid, rows.clone(), w, left, stride);
            let job = Job {
                grid,
                batch: shape.batch,
                groups: shape.groups,
                channels: shape.c_out,
                x: dy,
                left: Left {
                    values: left.as_src(),
                    stride,
                    group: stride * rows.len(),
                },
                rows,
                all_rows: shape.c_in,
                bias: bias.map(Src::new),
                out: dx,
                scratch: Dst::new(scratch),
            };
            // SAFETY: the caller checked all lengths.
            unsafe { job.run(isa, parallel) };
        }
    }
}

/// Writes `[group][rows][c_out·taps of the phase]`, rows `stride` floats apart.
fn turn(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &Shape,
    grid: &Grid,
    rows: Range<usize>,
    w: &[f32],
    to: Dst,
    stride: usize,
) {
    let kernel = shape.window.kernel;
    let (all_taps, taps) = (shape.window.taps(), grid.taps());
    let parts = rows.len().div_ceil(LANES);
    parallel.run(shape.groups * parts, &|task, _| {
        let (group, part) = (task / parts, task % parts);
        let first = rows.start + part * LANES;
        let count = (rows.end - first).min(LANES);
        let weights = &w[group * shape.c_out * shape.c_in * all_taps..];
        // SAFETY: rows of tasks are disjoint parts of the scratch.
        let to = unsafe { to.at((group * rows.len() + part * LANES) * stride) };
        if all_taps == 1 && taps == 1 {
            for result in (0..shape.c_out).step_by(LANES) {
                let results = (shape.c_out - result).min(LANES);
                // SAFETY: inside the weights, and inside the task's rows.
                unsafe {
                    let from = weights.as_ptr().add(result * shape.c_in + first);
                    transpose_tile(
                        isa,
                        from,
                        shape.c_in,
                        to.add(result),
                        stride,
                        results,
                        count,
                    );
                }
            }
            return;
        }
        for result in 0..shape.c_out {
            let from = &weights[(result * shape.c_in + first) * all_taps..][..count * all_taps];
            for tap in 0..taps {
                let kernel_tap = grid.kernel_tap(tap, &kernel);
                for (row, from) in from.chunks_exact(all_taps).enumerate() {
                    // SAFETY: as above.
                    unsafe { *to.add(row * stride + result * taps + tap) = from[kernel_tap] };
                }
            }
        }
    });
}
