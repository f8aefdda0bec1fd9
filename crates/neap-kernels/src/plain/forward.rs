//! Results of a convolution.

use super::grid::{Grid, Line};
use super::product::{Job, Left, job_floats, most_job_floats};
use super::{AXES, Shape};
use crate::parallel::Parallel;
use crate::share::{Dst, Src};
use crate::simd::Isa;

fn grid(shape: &Shape) -> Grid {
    Grid {
        lines: std::array::from_fn::<_, AXES, _>(|axis| Line::forward(&shape.window.axis(axis))),
    }
}

pub(super) fn floats(shape: &Shape, workers: usize) -> usize {
    job_floats(shape.c_out, shape.c_in, &grid(shape), shape.batch, workers)
}

/// Of the shape with any smaller sizes of batch and space.
pub(super) fn most_floats(shape: &Shape, workers: usize) -> usize {
    most_job_floats(shape.c_out, shape.c_in, &grid(shape), shape.batch, workers)
}

pub(super) fn run(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &Shape,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let grid = grid(shape);
    let k = shape.c_in * grid.taps();
    let job = Job {
        grid,
        batch: shape.batch,
        groups: shape.groups,
        channels: shape.c_in,
        x: Src::new(x),
        rows: 0..shape.c_out,
        all_rows: shape.c_out,
        left: Left {
            values: Src::new(w),
            stride: k,
            group: shape.c_out * k,
        },
        bias: bias.map(Src::new),
        out: Dst::new(y),
        scratch: Dst::new(scratch),
    };
    // SAFETY: the caller checked all lengths.
    unsafe { job.run(isa, parallel) };
}
