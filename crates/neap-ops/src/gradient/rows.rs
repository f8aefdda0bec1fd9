//! Backward over lines of a tensor: softmax, and layer and RMS norms.

use crate::args::{Args, Scratch};
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Float, Scalar, with_float};
use crate::{Context, OpError};

/// Numbers kept for each row between the passes of a norm.
pub(super) const STATISTICS: usize = 2;

/// `dx = y (dy - Σ y dy)`; of the logarithm `dx = dy - exp(y) Σ dy`. The output may take either input's place.
pub(super) fn softmax(
    axis: usize,
    log: bool,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (y, dy, dx) = (args.input(0)?, args.input(1)?, args.output(0)?);
    let length = y.shape()[axis];
    let step: usize = y.shape()[axis + 1..].iter().product();
    if y.elements() == 0 {
        return Ok(());
    }
    let lines = y.elements() / length;
    with_float!(args.op, y.dtype(), T => {
        let (y, dy) = (Ptr::<T>::of(y.as_ptr()), Ptr::<T>::of(dy.as_ptr()));
        let dx = Ptr::<T>(dx.as_ptr().cast());
        split(ctx.par, lines, GRAIN / 4 / length, &|range, _| {
            for line in range {
                let base = line / step * length * step + line % step;
                // SAFETY: lines are inside the tensors and belong to one task; an element is read before it is
                // written.
                unsafe {
                    let at = |i: usize| {
                        let index = base + i * step;
                        (y.read(index).to_f64(), dy.read(index).to_f64())
                    };
                    let sum: f64 = (0..length)
                        .map(|i| {
                            let (y, dy) = at(i);
                            if log { dy } else { y * dy }
                        })
                        .sum();
                    for i in 0..length {
                        let (y, dy) = at(i);
                        let v = if log { dy - y.exp() * sum } else { y * (dy - sum) };
                        dx.write(base + i * step, T::from_f64(v));
                    }
                }
            }
        });
        Ok(())
    })
}

/// With `n = (x - mean) / deviation` (for RMS norms `n = x / root mean square`) and `g = dy scale`:
/// `dx = (g - mean(g) - n mean(g n)) / deviation`, without `mean(g)` for RMS norms.
pub(super) fn norm(
    axis: usize,
    epsilon: f32,
    centred: bool,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let dtype = args.input(0)?.dtype();
    with_float!(args.op, dtype, T => norm_of::<T>(axis, epsilon, centred, args, ctx))
}

fn norm_of<T: Float>(
    axis: usize,
    epsilon: f32,
    centred: bool,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, scale, dy) = (args.input(0)?, args.input(1)?, args.input(2)?);
    let columns: usize = x.shape()[axis..].iter().product();
    let rows: usize = x.shape()[..axis].iter().product();
    let n = columns as f64;
    let (x, scale) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>::of(scale.as_ptr()));
    let dy = Ptr::<T>::of(dy.as_ptr());
    // SAFETY: rows and columns are inside the tensors.
    let x_at = |row: usize, i: usize| unsafe { x.read(row * columns + i) }.to_f64();
    // SAFETY: as above.
    let dy_at = |row: usize, i: usize| unsafe { dy.read(row * columns + i) }.to_f64();
    // SAFETY: as above.
    let scale_at = |i: usize| unsafe { scale.read(i) }.to_f64();

    let statistics = Scratch::new(args.op, ctx.workspace).take::<f64>(rows * STATISTICS)?;
    let kept = Ptr(statistics.as_mut_ptr());
    let per_task = GRAIN / 4 / columns.max(1);
    split(ctx.par, rows, per_task, &|range, _| {
        for row in range {
            let sum = |f: &dyn Fn(f64) -> f64| (0..columns).map(|i| f(x_at(row, i))).sum::<f64>();
            let mean = if centred { sum(&|v| v) / n } else { 0.0 };
            let variance = sum(&|v| (v - mean) * (v - mean)) / n;
            let inverse = 1.0 / (variance + f64::from(epsilon)).sqrt();
            // SAFETY: each row's numbers belong to one task.
            unsafe {
                kept.write(row * STATISTICS, mean);
                kept.write(row * STATISTICS + 1, inverse);
            }
        }
    });
    let statistics = &*statistics;
    let normal = |row: usize, i: usize| {
        (x_at(row, i) - statistics[row * STATISTICS]) * statistics[row * STATISTICS + 1]
    };

    let pointer = |index: usize| args.opt_output(index).map(|t| Ptr::<T>(t.as_ptr().cast()));
    let (dscale, dbias) = (pointer(1), pointer(2));
    if dscale.is_some() || dbias.is_some() {
        split(
            ctx.par,
            columns,
            (GRAIN / 4 / rows.max(1)).max(16),
            &|range, _| {
                for i in range {
                    let (mut of_scale, mut of_bias) = (0.0, 0.0);
                    for row in 0..rows {
                        let dy = dy_at(row, i);
                        of_scale += dy * normal(row, i);
                        of_bias += dy;
                    }
                    // SAFETY: each column belongs to one task.
                    unsafe {
                        dscale.inspect(|p| p.write(i, T::from_f64(of_scale)));
                        dbias.inspect(|p| p.write(i, T::from_f64(of_bias)));
                    }
                }
            },
        );
    }
    let Some(dx) = pointer(0) else {
        return Ok(());
    };
    split(ctx.par, rows, per_task, &|range, _| {
        for row in range {
            let (mut sum, mut along) = (0.0, 0.0);
            for i in 0..columns {
                let g = dy_at(row, i) * scale_at(i);
                sum += g;
                along += g * normal(row, i);
            }
            let mean = if centred { sum / n } else { 0.0 };
            let along = along / n;
            for i in 0..columns {
                let g = dy_at(row, i) * scale_at(i);
                let v = (g - mean - normal(row, i) * along) * statistics[row * STATISTICS + 1];
                // SAFETY: each row belongs to one task.
                unsafe { dx.write(row * columns + i, T::from_f64(v)) };
            }
        }
    });
    Ok(())
}

/// `dx_i = dy Π x_j` over the other elements of a row, also where one of them is 0.
pub(super) fn product(args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, dy, dx) = (args.input(0)?, args.input(1)?, args.output(0)?);
    let (rows, columns) = (x.shape()[0], x.shape()[1]);
    with_float!(args.op, x.dtype(), T => {
        let (x, dy) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>::of(dy.as_ptr()));
        let dx = Ptr::<T>(dx.as_ptr().cast());
        split(ctx.par, rows, GRAIN / 4 / columns.max(1), &|range, _| {
            for row in range {
                // SAFETY: rows are inside the tensors, and each belongs to one task.
                unsafe {
                    let x = x.slice(row * columns, columns);
                    let dx = dx.slice_mut(row * columns, columns);
                    let zeros = x.iter().filter(|v| v.to_f64() == 0.0).count();
                    let others = x.iter().map(|v| v.to_f64()).filter(|v| *v != 0.0);
                    let product = dy.read(row).to_f64() * others.product::<f64>();
                    for (x, out) in x.iter().zip(dx) {
                        let v = match (zeros, x.to_f64()) {
                            (0, x) => product / x,
                            (1, 0.0) => product,
                            _ => 0.0,
                        };
                        *out = T::from_f64(v);
                    }
                }
            }
        });
        Ok(())
    })
}
