//! Conv and ConvTranspose whose weights are ordinary tensors: any rank to 3, any groups.
//!
//! f32 with enough channels goes through matrix products ([`super::unfold`]). Otherwise one output
//! row is computed at a time: for every input channel and tap, a multiple of an input
//! row is added to it. Floats sum in f32 (f32) or f64 (others), over taps in their order.

use super::taps::{MAX_SPATIAL, Taps};
use super::unfold::{self, Group};
use crate::args::{Args, Scratch, scratch_bytes};
use crate::nd::{Ptr, split};
use crate::scalar::{Num, with_float};
use crate::{Context, OpError, TensorRef};
use neap_ir::op::Window;
use neap_ir::{DType, TensorType};

/// Pieces of the unfolded image (f32), or a row of sums for each worker.
pub(crate) fn workspace_bytes(
    window: &Window,
    groups: usize,
    transposed: bool,
    x: &TensorType,
    y: &TensorType,
    workers: usize,
) -> usize {
    let row = y.shape.last().copied().unwrap_or(1);
    let loops = scratch_bytes::<f64>(row.saturating_mul(workers));
    let group = group(window, groups, transposed, &x.shape, &y.shape);
    if x.dtype != DType::F32 || !group.pays() {
        return loops;
    }
    if transposed {
        group.backward_bytes(workers)
    } else {
        group.forward_bytes(workers)
    }
}

fn group(window: &Window, groups: usize, transposed: bool, x: &[usize], y: &[usize]) -> Group {
    let spatial = if transposed { x } else { y };
    Group {
        input: x[1] / groups.max(1),
        output: y[1] / groups.max(1),
        taps: window.kernel.iter().product(),
        positions: spatial[2..].iter().product(),
    }
}

pub(crate) fn supported(x: &TensorType) -> Result<(), String> {
    if x.shape.len() > 2 + MAX_SPATIAL {
        return Err(format!("for rank {}", x.shape.len()));
    }
    Ok(())
}

pub(crate) fn conv(
    window: &Window,
    groups: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    if y.elements() == 0 {
        return Ok(());
    }
    let Some(taps) = Taps::of(window, &x.shape()[2..], &y.shape()[2..]) else {
        return args.fail("has too many axes");
    };
    let group = group(window, groups, false, x.shape(), y.shape());
    if x.dtype() == DType::F32 && group.pays() {
        return unfold::conv(&taps, &group, args, ctx);
    }
    match x.dtype() {
        DType::F32 => forward::<f32, f32>(&taps, groups, args, ctx),
        dtype => with_float!(args.op, dtype, T => forward::<T, f64>(&taps, groups, args, ctx)),
    }
}

fn forward<T: Num, S: Num + crate::args::Pod>(
    taps: &Taps,
    groups: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, w, y) = (args.input(0)?, args.input(1)?, args.output(0)?);
    let (c_in, c_out) = (x.shape()[1], y.shape()[1]);
    let (group_in, group_out) = (c_in / groups, c_out / groups);
    let bias = args.opt_input(2);
    let row = taps.window.output[2];
    let [_, out_h, _] = taps.window.output;
    let rows_per_plane = taps.window.output[0] * out_h;
    let (src, weights) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>::of(w.as_ptr()));
    let dst = Ptr::<T>(y.as_ptr().cast());
    let sums = Scratch::new(args.op, ctx.workspace).take::<S>(row * ctx.par.workers())?;
    let sums = Ptr(sums.as_mut_ptr());
    let lines = y.shape()[0] * c_out * rows_per_plane;
    split(ctx.par, lines, 1, &|range, worker| {
        // SAFETY: every worker has its own row of the scratch.
        let sums = unsafe { sums.slice_mut(worker * row, row) };
        for line in range {
            let (plane, rest) = (line / rows_per_plane, line % rows_per_plane);
            let (image, channel) = (plane / c_out, plane % c_out);
            let (z, r) = (rest / out_h, rest % out_h);
            sums.fill(start::<T, S>(bias.as_ref(), channel));
            for c in 0..group_in {
                let in_channel = channel / group_out * group_in + c;
                let in_plane = (image * c_in + in_channel) * taps.in_positions();
                let w_plane = (channel * group_in + c) * taps.taps();
                each_row(taps, z, r, |tap_row, in_row| {
                    for k in 0..taps.window.kernel[2] {
                        // SAFETY: taps and rows are inside their tensors.
                        let weight: S = unsafe {
                            weights
                                .read(w_plane + tap_row * taps.window.kernel[2] + k)
                                .convert()
                        };
                        let (inside, from) = inside(taps, k);
                        let from = in_plane + in_row * taps.window.input[2] + from;
                        let stride = taps.window.strides[2];
                        if stride == 1 {
                            // SAFETY: as above.
                            let values = unsafe { src.slice(from, inside.len()) };
                            for (sum, v) in sums[inside].iter_mut().zip(values) {
                                *sum = sum.add(weight.mul(v.convert()));
                            }
                            continue;
                        }
                        for (i, sum) in sums[inside].iter_mut().enumerate() {
                            // SAFETY: as above.
                            let v: S = unsafe { src.read(from + i * stride) }.convert();
                            *sum = sum.add(weight.mul(v));
                        }
                    }
                });
            }
            for (i, sum) in sums.iter().enumerate() {
                // SAFETY: rows of the output belong to one task.
                unsafe { dst.write(line * row + i, sum.convert()) };
            }
        }
    });
    Ok(())
}

fn start<T: Num, S: Num>(bias: Option<&TensorRef>, channel: usize) -> S {
    // SAFETY: the bias has one element for each output channel.
    bias.map_or(S::ZERO, |b| unsafe {
        Ptr::<T>::of(b.as_ptr()).read(channel).convert()
    })
}

/// Calls `f(kernel row, input row)` for the rows under output row `(z, r)` that are inside.
fn each_row(taps: &Taps, z: usize, r: usize, mut f: impl FnMut(usize, usize)) {
    for d in 0..taps.window.kernel[0] {
        let Some(in_z) = taps.source(0, z, d) else {
            continue;
        };
        for k in 0..taps.window.kernel[1] {
            if let Some(in_r) = taps.source(1, r, k) {
                f(
                    d * taps.window.kernel[1] + k,
                    in_z * taps.window.input[1] + in_r,
                );
            }
        }
    }
}

/// Outputs of a row for which tap `k` is inside, and the input column of the first.
pub(super) fn inside(taps: &Taps, k: usize) -> (std::ops::Range<usize>, usize) {
    let (stride, shift) = (taps.window.strides[2], k * taps.window.dilations[2]);
    let pad = taps.window.pads_begin[2];
    let first = pad.saturating_sub(shift).div_ceil(stride);
    let room = (taps.window.input[2] + pad).saturating_sub(shift);
    let last = room.div_ceil(stride).min(taps.window.output[2]);
    let first = first.min(last);
    let from = (first * stride + shift).saturating_sub(pad);
    (first..last, from)
}

/// The input's positions and the output's change roles: output `i·stride + k·dilation - pad` gets
/// a product from input `i`.
pub(crate) fn conv_transpose(
    window: &Window,
    groups: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    if y.elements() == 0 {
        return Ok(());
    }
    // Seen from the output, which the window slides over.
    let Some(taps) = Taps::of(window, &y.shape()[2..], &x.shape()[2..]) else {
        return args.fail("has too many axes");
    };
    let group = group(window, groups, true, x.shape(), y.shape());
    if x.dtype() == DType::F32 && group.pays() {
        return unfold::conv_transpose(&taps, &group, args, ctx);
    }
    match x.dtype() {
        DType::F32 => backward::<f32, f32>(&taps, groups, args, ctx),
        dtype => with_float!(args.op, dtype, T => backward::<T, f64>(&taps, groups, args, ctx)),
    }
}

fn backward<T: Num, S: Num + crate::args::Pod>(
    taps: &Taps,
    groups: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, w, y) = (args.input(0)?, args.input(1)?, args.output(0)?);
    let (c_in, c_out) = (x.shape()[1], y.shape()[1]);
    let (group_in, group_out) = (c_in / groups, c_out / groups);
    let bias = args.opt_input(2);
    // `taps.window.input` is this operator's output and the other way round.
    let row = taps.window.input[2];
    let out_h = taps.window.input[1];
    let rows_per_plane = taps.window.input[0] * out_h;
    let (src, weights) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>::of(w.as_ptr()));
    let dst = Ptr::<T>(y.as_ptr().cast());
    let sums = Scratch::new(args.op, ctx.workspace).take::<S>(row * ctx.par.workers())?;
    let sums = Ptr(sums.as_mut_ptr());
    let lines = y.shape()[0] * c_out * rows_per_plane;
    split(ctx.par, lines, 1, &|range, worker| {
        // SAFETY: every worker has its own row of the scratch.
        let sums = unsafe { sums.slice_mut(worker * row, row) };
        for line in range {
            let (plane, rest) = (line / rows_per_plane, line % rows_per_plane);
            let (image, channel) = (plane / c_out, plane % c_out);
            let (z, r) = (rest / out_h, rest % out_h);
            let (group, in_group) = (channel / group_out, channel % group_out);
            sums.fill(start::<T, S>(bias.as_ref(), channel));
            for c in 0..group_in {
                let in_channel = group * group_in + c;
                let in_plane = (image * c_in + in_channel) * taps.out_positions();
                let w_plane = (in_channel * group_out + in_group) * taps.taps();
                for d in 0..taps.window.kernel[0] {
                    let Some(in_z) = origin(taps, 0, z, d) else {
                        continue;
                    };
                    for k in 0..taps.window.kernel[1] {
                        let Some(in_r) = origin(taps, 1, r, k) else {
                            continue;
                        };
                        let from = in_plane
                            + (in_z * taps.window.output[1] + in_r) * taps.window.output[2];
                        let tap_row =
                            w_plane + (d * taps.window.kernel[1] + k) * taps.window.kernel[2];
                        for tap in 0..taps.window.kernel[2] {
                            // SAFETY: taps and rows are inside their tensors.
                            let weight: S = unsafe { weights.read(tap_row + tap).convert() };
                            let (inside, to) = inside(taps, tap);
                            for (n, i) in inside.enumerate() {
                                // SAFETY: as above.
                                let v: S = unsafe { src.read(from + i) }.convert();
                                let sum = &mut sums[to + n * taps.window.strides[2]];
                                *sum = sum.add(weight.mul(v));
                            }
                        }
                    }
                }
            }
            for (i, sum) in sums.iter().enumerate() {
                // SAFETY: rows of the output belong to one task.
                unsafe { dst.write(line * row + i, sum.convert()) };
            }
        }
    });
    Ok(())
}

/// The input coordinate whose tap `tap` lands on output coordinate `at`.
fn origin(taps: &Taps, axis: usize, at: usize, tap: usize) -> Option<usize> {
    let reach =
        (at + taps.window.pads_begin[axis]).checked_sub(tap * taps.window.dilations[axis])?;
    let stride = taps.window.strides[axis];
    let from = reach / stride;
    (reach % stride == 0 && from < taps.window.output[axis]).then_some(from)
}
