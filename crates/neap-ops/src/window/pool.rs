//! Pooling: max (with indices), average, Lp; sliding or global.
//!
//! f32 in blocked layout takes the vectorised kernels, and so do maxima of unsigned bytes; everything else the loops here.

use super::taps::Taps;
use super::{over, spatial};
use crate::args::Args;
use crate::error::Named;
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Float, Num, Scalar, with_float, with_numeric};
use crate::{Context, OpError};
use neap_ir::graph::LANES;
use neap_ir::op::{Pool, Window};
use neap_ir::{DType, Layout, TensorType};
use neap_kernels::integer::max_pool_of_steps;
use neap_kernels::pool as kernels;

pub(crate) fn pool(
    kind: Pool,
    window: &Window,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    if y.layout == Layout::Blocked {
        return blocked(kind, window, args, ctx);
    }
    let Some(taps) = Taps::of(window, &x.shape()[2..], &y.shape()[2..]) else {
        return args.fail("has too many axes");
    };
    match kind {
        Pool::Max { column_major } => {
            with_numeric!(args.op, x.dtype(), T => max::<T>(&taps, column_major, args, ctx))
        }
        Pool::Average { count_include_pad } => with_float!(args.op, x.dtype(), T => {
            mean::<T>(&taps, args, ctx, |at, sum, count| {
                let n = if count_include_pad { taps.padded_count(at) } else { count };
                sum / n as f64
            }, |v| v)
        }),
        Pool::Lp { p } => with_float!(args.op, x.dtype(), T => {
            let p = f64::from(p);
            mean::<T>(&taps, args, ctx, |_, sum, _| sum.powf(1.0 / p), |v| v.abs().powf(p))
        }),
    }
}

pub(crate) fn global_pool(kind: Pool, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let positions: usize = x.shape()[2..].iter().product();
    if y.layout == Layout::Blocked {
        let planes = x.shape()[0] * x.shape()[1].div_ceil(LANES);
        // SAFETY: the output does not overlap the input.
        let out = unsafe { y.f32s_mut() };
        let (isa, par, src) = (ctx.isa, ctx.par, x.f32s());
        return match kind {
            Pool::Average { .. } => kernels::global_average(isa, par, planes, positions, src, out),
            Pool::Max { .. } => kernels::global_max(isa, par, planes, positions, src, out),
            Pool::Lp { .. } => return args.fail("takes plain tensors"),
        }
        .named(args.op);
    }
    let planes = y.elements();
    with_float!(args.op, x.dtype(), T => {
        let (src, dst) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
        split(ctx.par, planes, GRAIN / positions.max(1), &|range, _| {
            for plane in range {
                // SAFETY: planes are inside the input, results disjoint.
                unsafe {
                    let values = src.slice(plane * positions, positions);
                    let sum = |f: &dyn Fn(f64) -> f64| {
                        values.iter().fold(0.0, |sum, v| sum + f(v.to_f64()))
                    };
                    let v: f64 = match kind {
                        Pool::Average { .. } => {
                            sum(&|v| v) / positions as f64
                        }
                        Pool::Max { .. } => values
                            .iter()
                            .fold(f64::NEG_INFINITY, |m, v| m.max_nan(v.to_f64())),
                        Pool::Lp { p } => {
                            sum(&|v| v.abs().powi(p as i32)).powf(1.0 / f64::from(p))
                        }
                    };
                    dst.write(plane, T::from_f64(v));
                }
            }
        });
        Ok(())
    })
}

/// Whether the blocked kernels take it.
pub(crate) fn blocks(kind: Pool, outputs: usize) -> bool {
    outputs == 1 && !matches!(kind, Pool::Lp { .. })
}

fn blocked(kind: Pool, window: &Window, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let shape = kernels::Pool {
        planes: x.shape()[0] * x.shape()[1].div_ceil(LANES),
        window: over(window, spatial(x.shape()), spatial(y.shape())),
    };
    if let (Pool::Max { .. }, DType::U8) = (kind, x.dtype()) {
        // SAFETY: the output does not overlap the input.
        let out = unsafe { y.bytes_mut() };
        return max_pool_of_steps(ctx.par, &shape, x.bytes(), out).named(args.op);
    }
    // SAFETY: as above.
    let out = unsafe { y.f32s_mut() };
    match kind {
        Pool::Max { .. } => kernels::max_pool(ctx.isa, ctx.par, &shape, x.f32s(), out),
        Pool::Average { count_include_pad } => {
            kernels::average_pool(ctx.isa, ctx.par, &shape, count_include_pad, x.f32s(), out)
        }
        Pool::Lp { .. } => return args.fail("takes plain tensors"),
    }
    .named(args.op)
}

fn max<T: Num>(
    taps: &Taps,
    column_major: bool,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let indices = args.opt_output(1).map(|t| Ptr::<i64>(t.as_ptr().cast()));
    let (src, dst) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
    let (inside, outside) = (taps.in_positions(), taps.out_positions());
    let per_task = GRAIN / taps.taps().max(1);
    split(ctx.par, y.elements(), per_task, &|range, _| {
        for result in range {
            let plane = result / outside;
            let mut best = T::lowest();
            let mut best_at = None;
            taps.each(taps.position(result % outside), |_, from| {
                // SAFETY: taps are inside the plane.
                let v = unsafe { src.read(plane * inside + from) };
                let beats = v > best || (Num::is_nan(v) && !Num::is_nan(best));
                if best_at.is_none() || beats {
                    (best, best_at) = (v, Some(from));
                }
            });
            // SAFETY: each result belongs to one task.
            unsafe {
                dst.write(result, best);
                if let Some(indices) = indices {
                    let at = best_at.map_or(0, |at| match column_major {
                        true => transposed(taps, at),
                        false => at,
                    });
                    indices.write(result, (plane * inside + at) as i64);
                }
            }
        }
    });
    Ok(())
}

/// The position counted with the first axis innermost.
fn transposed(taps: &Taps, at: usize) -> usize {
    let [d, h, w] = taps.window.input;
    let (z, y, x) = (at / (h * w), at / w % h, at % w);
    (x * h + y) * d + z
}

fn mean<T: Float>(
    taps: &Taps,
    args: &Args,
    ctx: &mut Context,
    finish: impl Fn([usize; 3], f64, usize) -> f64 + Sync,
    map: impl Fn(f64) -> f64 + Sync,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let (src, dst) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
    let (inside, outside) = (taps.in_positions(), taps.out_positions());
    split(
        ctx.par,
        y.elements(),
        GRAIN / taps.taps().max(1),
        &|range, _| {
            for result in range {
                let plane = result / outside;
                let at = taps.position(result % outside);
                let (mut sum, mut count) = (0.0, 0);
                taps.each(at, |_, from| {
                    // SAFETY: taps are inside the plane.
                    sum += map(unsafe { src.read(plane * inside + from) }.to_f64());
                    count += 1;
                });
                // SAFETY: each result belongs to one task.
                unsafe { dst.write(result, T::from_f64(finish(at, sum, count))) };
            }
        },
    );
    Ok(())
}

pub(crate) fn supported(kind: Pool, x: &TensorType) -> Result<(), String> {
    if x.shape.len() > 2 + super::taps::MAX_SPATIAL {
        return Err(format!("for rank {}", x.shape.len()));
    }
    let fits = match kind {
        Pool::Max { .. } => x.dtype != DType::Bool,
        _ => x.dtype.is_float(),
    };
    if fits {
        Ok(())
    } else {
        Err(format!("for {}", x.dtype))
    }
}
