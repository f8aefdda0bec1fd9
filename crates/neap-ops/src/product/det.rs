//! Determinants, by elimination with the largest pivot of each column.

use crate::args::{Args, Scratch, scratch_bytes};
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Scalar, with_float};
use crate::{Context, OpError};
use neap_ir::TensorType;

pub(crate) fn workspace_bytes(x: &TensorType, workers: usize) -> usize {
    let size = x.shape.last().copied().unwrap_or(0);
    scratch_bytes::<f64>(size.saturating_mul(size).saturating_mul(workers))
}

pub(crate) fn det(args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let size = x.shape()[x.shape().len() - 1];
    let cells = size * size;
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let rows = Ptr(scratch.take::<f64>(cells * ctx.par.workers())?.as_mut_ptr());
    with_float!(args.op, x.dtype(), T => {
        let (from, to) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
        split(ctx.par, y.elements(), GRAIN / (cells * size).max(1), &|range, worker| {
            // SAFETY: every worker has its own part of the scratch.
            let matrix = unsafe { rows.slice_mut(worker * cells, cells) };
            for unit in range {
                for (i, cell) in matrix.iter_mut().enumerate() {
                    // SAFETY: there are as many matrices as results.
                    *cell = unsafe { from.read(unit * cells + i) }.to_f64();
                }
                // SAFETY: each result is written once.
                unsafe { to.write(unit, T::from_f64(eliminated(matrix, size))) };
            }
        });
        Ok(())
    })
}

fn eliminated(matrix: &mut [f64], size: usize) -> f64 {
    let mut result = 1.0;
    for column in 0..size {
        let by_magnitude = |&a: &usize, &b: &usize| {
            let at = |row: usize| matrix[row * size + column].abs();
            at(a).total_cmp(&at(b))
        };
        let pivot = (column..size).max_by(by_magnitude).unwrap_or(column);
        if pivot != column {
            result = -result;
            for i in 0..size {
                matrix.swap(pivot * size + i, column * size + i);
            }
        }
        let value = matrix[column * size + column];
        result *= value;
        if value == 0.0 {
            return 0.0;
        }
        let (done, below) = matrix.split_at_mut((column + 1) * size);
        let top = &done[column * size..];
        for row in below.chunks_exact_mut(size) {
            let factor = row[column] / value;
            for i in column..size {
                row[i] -= factor * top[i];
            }
        }
    }
    result
}
