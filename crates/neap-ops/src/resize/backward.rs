//! Backward of a resize along one axis: each result's derivative goes back to the inputs that it is made of, by the same weights.
//!
//! A resize along several axes is one along each of them in turn.

use super::Table;
use super::axis::{Axis, MAX_TAPS};
use crate::args::{Args, Scratch, scratch_bytes};
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Float, with_float};
use crate::{Context, OpError};
use neap_ir::op::ResizeAttrs;

/// Lines side by side that one task takes at once.
const LANES: usize = 16;

pub(crate) fn backward_supported(
    attrs: &ResizeAttrs,
    axis: usize,
    input: usize,
) -> Result<(), String> {
    if input > u32::MAX as usize {
        return Err("for so long an axis".into());
    }
    if Axis::of(attrs, axis, input).taps() > MAX_TAPS {
        return Err("when shrinking so much".into());
    }
    Ok(())
}

pub(crate) fn backward_workspace_bytes(
    attrs: &ResizeAttrs,
    axis: usize,
    input: usize,
    workers: usize,
) -> usize {
    let of = Axis::of(attrs, axis, input);
    let entries = of.output.saturating_mul(of.taps());
    scratch_bytes::<u32>(entries)
        + scratch_bytes::<f64>(entries)
        + scratch_bytes::<u8>(of.output)
        + scratch_bytes::<f64>(input.saturating_mul(LANES).saturating_mul(workers))
}

pub(crate) fn backward(
    attrs: &ResizeAttrs,
    axis: usize,
    input: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let dtype = args.input(0)?.dtype();
    let of = Axis::of(attrs, axis, input);
    with_float!(args.op, dtype, T => run::<T>(of, axis, args, ctx))
}

fn run<T: Float>(of: Axis, axis: usize, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (dy, dx) = (args.input(0)?, args.output(0)?);
    let (outputs, inputs) = (of.output, of.input);
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let table = Table::of(of, inputs, args, &mut scratch)?;
    let sums = scratch.take::<f64>(inputs * LANES * ctx.par.workers())?;
    let sums = Ptr(sums.as_mut_ptr());
    let lead: usize = dy.shape()[..axis].iter().product();
    let inner: usize = dy.shape()[axis + 1..].iter().product();
    let runs = inner.div_ceil(LANES);
    let (dy, dx) = (Ptr::<T>::of(dy.as_ptr()), Ptr::<T>(dx.as_ptr().cast()));
    let per_task = GRAIN / (LANES * (outputs * table.taps + inputs));
    split(ctx.par, lead * runs, per_task, &|range, worker| {
        // SAFETY: every worker has its own sums.
        let sums = unsafe { sums.slice_mut(worker * inputs * LANES, inputs * LANES) };
        for unit in range {
            let (outer, first) = (unit / runs, unit % runs * LANES);
            let width = LANES.min(inner - first);
            sums.fill(0.0);
            for at in (0..outputs).filter(|&at| table.inside[at] == 1) {
                // SAFETY: the run is inside the tensor.
                let dy = unsafe { dy.slice((outer * outputs + at) * inner + first, width) };
                for tap in 0..table.taps {
                    let (index, weight) = table.entry(at, tap);
                    let to = &mut sums[index * LANES..][..width];
                    let pairs = to.iter_mut().zip(dy);
                    pairs.for_each(|(sum, dy)| *sum += weight * dy.to_f64());
                }
            }
            for (i, sums) in sums.chunks(LANES).enumerate() {
                let place = (outer * inputs + i) * inner + first;
                for (lane, &sum) in sums[..width].iter().enumerate() {
                    // SAFETY: the run is inside the tensor and belongs to one task.
                    unsafe { dx.write(place + lane, T::from_f64(sum)) };
                }
            }
        }
    });
    Ok(())
}
