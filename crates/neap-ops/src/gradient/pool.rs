//! Backward of sliding pools: each result's derivative goes back to the elements of its window.

use crate::args::Args;
use crate::nd::{Ptr, split};
use crate::scalar::{Float, Num, with_float};
use crate::window::Taps;
use crate::{Context, OpError};
use neap_ir::op::Window;

pub(super) fn max(window: &Window, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, dy) = (args.input(0)?, args.input(1)?);
    let Some(taps) = Taps::of(window, &x.shape()[2..], &dy.shape()[2..]) else {
        return args.fail("has too many axes");
    };
    with_float!(args.op, x.dtype(), T => {
        let (values, inside) = (Ptr::<T>::of(x.as_ptr()), taps.in_positions());
        planes::<T>(&taps, 1, args, ctx, |plane, at, dy, sums| {
            let mut best = T::lowest();
            let mut best_at = None;
            taps.each(at, |_, from| {
                // SAFETY: taps are inside the plane.
                let v = unsafe { values.read(plane * inside + from) };
                // The forward pass' own choice.
                let beats = v > best || (Num::is_nan(v) && !Num::is_nan(best));
                if best_at.is_none() || beats {
                    (best, best_at) = (v, Some(from));
                }
            });
            if let Some(from) = best_at {
                sums(from, dy);
            }
        })
    })
}

pub(super) fn average(
    window: &Window,
    count_include_pad: bool,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (dy, dx) = (args.input(0)?, args.output(0)?);
    let Some(taps) = Taps::of(window, &dx.shape()[2..], &dy.shape()[2..]) else {
        return args.fail("has too many axes");
    };
    with_float!(args.op, dy.dtype(), T => {
        planes::<T>(&taps, 0, args, ctx, |_, at, dy, sums| {
            let mut count = 0;
            taps.each(at, |_, _| count += 1);
            let n = if count_include_pad { taps.padded_count(at) } else { count };
            taps.each(at, |_, from| sums(from, dy / n as f64));
        })
    })
}

/// For every plane, calls `body(plane, result position, dy, add)` for its results in order; what is added is `dx`.
///
/// Sums are rounded to `T` at each step: windows overlap little.
fn planes<T: Float>(
    taps: &Taps,
    dy_index: usize,
    args: &Args,
    ctx: &mut Context,
    body: impl Fn(usize, [usize; 3], f64, &mut dyn FnMut(usize, f64)) + Sync,
) -> Result<(), OpError> {
    let (dy, dx) = (args.input(dy_index)?, args.output(0)?);
    let (inside, outside) = (taps.in_positions(), taps.out_positions());
    let count = dx.shape()[..2].iter().product();
    let (dy, dx) = (Ptr::<T>::of(dy.as_ptr()), Ptr::<T>(dx.as_ptr().cast()));
    split(ctx.par, count, 1, &|range, _| {
        for plane in range {
            // SAFETY: a plane belongs to one task.
            let sums = unsafe { dx.slice_mut(plane * inside, inside) };
            sums.fill(T::ZERO);
            for position in 0..outside {
                // SAFETY: the position is inside the plane.
                let dy = unsafe { dy.read(plane * outside + position) }.to_f64();
                body(plane, taps.position(position), dy, &mut |at, v| {
                    sums[at] = T::from_f64(sums[at].to_f64() + v);
                });
            }
        }
    });
    Ok(())
}
