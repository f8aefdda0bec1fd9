//! OneHot, EyeLike, ReverseSequence, CumSum.

use crate::args::Args;
use crate::copy::fill;
use crate::index::Indices;
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Num, Scalar, with_any, with_numeric, with_width};
use crate::{Context, OpError};

/// Indices out of range give a row of `off`.
pub(crate) fn one_hot(
    axis: usize,
    depth: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, values, y) = (args.input(0)?, args.input(1)?, args.output(0)?);
    let inner: usize = x.shape()[axis..].iter().product();
    let indices = Indices::of(&x);
    with_width!(y.dtype().size_bytes(), T => {
        // SAFETY: `values` holds two elements, `y` as many as its type says.
        unsafe {
            fill(ctx.par, size_of::<T>(), y.elements(), values.as_ptr(), y.as_ptr());
            let on = *values.as_ptr().cast::<T>().add(1);
            let dst = Ptr::<T>(y.as_ptr().cast());
            for i in 0..x.elements() {
                if let Some(hot) = indices.position(i, depth) {
                    dst.write((i / inner * depth + hot) * inner + i % inner, on);
                }
            }
        }
    });
    Ok(())
}

pub(crate) fn eye_like(diagonal: i64, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let y = args.output(0)?;
    let &[rows, cols] = y.shape() else {
        return args.fail("gives a matrix");
    };
    with_any!(y.dtype(), T => {
        let (zero, one) = (T::from_i64(0), T::from_i64(1));
        let dst = Ptr::<T>(y.as_ptr().cast());
        // SAFETY: the column is inside its row.
        unsafe {
            fill(ctx.par, size_of::<T>(), rows * cols, (&raw const zero).cast(), y.as_ptr());
            for row in 0..rows {
                let col = row as i128 + i128::from(diagonal);
                if (0..cols as i128).contains(&col) {
                    dst.write(row * cols + col as usize, one);
                }
            }
        }
    });
    Ok(())
}

pub(crate) fn reverse_sequence(
    batch_axis: usize,
    time_axis: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, lengths, y) = (args.input(0)?, args.input(1)?, args.output(0)?);
    let lead = batch_axis.max(time_axis) + 1;
    args.require(lead == 2, "reverses along the first two axes only")?;
    let (steps, batch) = (x.shape()[time_axis], x.shape()[batch_axis]);
    let inner: usize = x.shape()[2..].iter().product();
    let lengths = Indices::of(&lengths);
    for b in 0..batch {
        // SAFETY: there is one length for each batch entry.
        let length = unsafe { lengths.get(b) };
        if !(0..=steps as i64).contains(&length) {
            return Err(OpError::data(args.op, "a sequence length is out of range"));
        }
    }
    let run = inner * y.dtype().size_bytes();
    let (src, dst) = (Ptr::<u8>::of(x.as_ptr()), Ptr(y.as_ptr()));
    split(ctx.par, steps * batch, GRAIN / inner.max(1), &|range, _| {
        for unit in range {
            let (t, b) = (unit / batch, unit % batch);
            let at = |t: usize| match time_axis {
                0 => (t * batch + b) * run,
                _ => (b * steps + t) * run,
            };
            // SAFETY: steps and batch entries are inside both tensors.
            unsafe {
                let length = lengths.get(b) as usize;
                let from = if t < length { length - 1 - t } else { t };
                std::ptr::copy_nonoverlapping(src.get().add(at(from)), dst.get().add(at(t)), run);
            }
        }
    });
    Ok(())
}

pub(crate) fn cum_sum(
    axis: usize,
    exclusive: bool,
    reverse: bool,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let length = x.shape()[axis];
    let inner: usize = x.shape()[axis + 1..].iter().product();
    let lines = x.shape()[..axis].iter().product::<usize>() * inner;
    if x.elements() == 0 {
        return Ok(());
    }
    with_numeric!(args.op, x.dtype(), T => {
        let (src, dst) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
        split(ctx.par, lines, GRAIN / length, &|range, _| {
            for line in range {
                let base = line / inner * length * inner + line % inner;
                let mut sum = T::ZERO;
                for i in 0..length {
                    let i = if reverse { length - 1 - i } else { i };
                    let at = base + i * inner;
                    // SAFETY: the line is inside both tensors; each element is read before its
                    // place is written.
                    unsafe {
                        let v = src.read(at);
                        let total = sum.add(v);
                        dst.write(at, if exclusive { sum } else { total });
                        sum = total;
                    }
                }
            }
        });
        Ok(())
    })
}
