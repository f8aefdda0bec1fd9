//! Inverse matrices, by elimination with the largest pivot of each column.

use crate::args::{Args, Scratch, scratch_bytes};
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Scalar, with_float};
use crate::{Context, OpError};
use neap_ir::TensorType;

pub(crate) fn workspace_bytes(x: &TensorType, workers: usize) -> usize {
    let size = x.shape.last().copied().unwrap_or(0);
    let cells = size.saturating_mul(size).saturating_mul(2);
    scratch_bytes::<f64>(cells.saturating_mul(workers))
}

pub(crate) fn inverse(args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let size = x.shape()[x.shape().len() - 1];
    let cells = size * size;
    if y.elements() == 0 {
        return Ok(());
    }
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let rows = Ptr(scratch
        .take::<f64>(2 * cells * ctx.par.workers())?
        .as_mut_ptr());
    with_float!(args.op, x.dtype(), T => {
        let (from, to) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
        split(ctx.par, y.elements() / cells, GRAIN / (cells * size).max(1), &|range, worker| {
            // SAFETY: every worker has its own part of the scratch.
            let beside = unsafe { rows.slice_mut(worker * 2 * cells, 2 * cells) };
            for unit in range {
                for (row, line) in beside.chunks_exact_mut(2 * size).enumerate() {
                    for (column, cell) in line[..size].iter_mut().enumerate() {
                        // SAFETY: there are as many matrices as results.
                        *cell = unsafe { from.read(unit * cells + row * size + column) }.to_f64();
                    }
                    line[size..].fill(0.0);
                    line[size + row] = 1.0;
                }
                eliminate(beside, size);
                for (row, line) in beside.chunks_exact(2 * size).enumerate() {
                    for (column, &cell) in line[size..].iter().enumerate() {
                        // SAFETY: each element of the output is written once.
                        unsafe { to.write(unit * cells + row * size + column, T::from_f64(cell)) };
                    }
                }
            }
        });
        Ok(())
    })
}

/// Rows of a matrix with those of another beside them: makes the matrix one of ones, and what is beside it its inverse.
fn eliminate(rows: &mut [f64], size: usize) {
    let width = 2 * size;
    for column in 0..size {
        let by_magnitude = |&a: &usize, &b: &usize| {
            let at = |row: usize| rows[row * width + column].abs();
            at(a).total_cmp(&at(b))
        };
        let pivot = (column..size).max_by(by_magnitude).unwrap_or(column);
        if pivot != column {
            for i in 0..width {
                rows.swap(pivot * width + i, column * width + i);
            }
        }
        let value = rows[column * width + column];
        for cell in &mut rows[column * width..][..width] {
            *cell /= value;
        }
        let (before, rest) = rows.split_at_mut(column * width);
        let (top, after) = rest.split_at_mut(width);
        let others = before.chunks_exact_mut(width);
        for row in others.chain(after.chunks_exact_mut(width)) {
            let factor = row[column];
            for (cell, top) in row.iter_mut().zip(&*top) {
                *cell -= factor * top;
            }
        }
    }
}
