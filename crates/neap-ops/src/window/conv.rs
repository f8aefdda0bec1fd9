//! Conv and ConvTranspose whose weights are ordinary tensors: any rank to 3, any groups.
//!
//! f32 has kernels of its own ([`neap_kernels::plain`]). Of other floats one output row is computed at a time: for every
//! input channel and tap, a multiple of an input row is added to it. They sum in f64, over taps in their order.

use super::taps::{MAX_SPATIAL, Taps};
use crate::args::{Args, Scratch, scratch_bytes};
use crate::error::Named;
use crate::nd::{Ptr, split};
use crate::scalar::{Num, Scalar, with_float};
use crate::{Context, OpError, TensorRef};
use neap_ir::op::Window;
use neap_ir::{DType, TensorType};
use neap_kernels::plain::{self, Shape};

/// What the kernels of f32 need, or a row of sums for each worker.
pub(crate) fn workspace_bytes(
    window: &Window,
    groups: usize,
    transposed: bool,
    x: &TensorType,
    y: &TensorType,
    workers: usize,
) -> usize {
    let floats = match transposed {
        true => plain::by_input_scratch_floats,
        false => plain::forward_scratch_floats,
    };
    scratch_of(window, groups, transposed, [x, y], workers, floats)
}

/// The same, enough for any smaller sizes of batch and space too.
pub(crate) fn most_workspace_bytes(
    window: &Window,
    groups: usize,
    transposed: bool,
    x: &TensorType,
    y: &TensorType,
    workers: usize,
) -> usize {
    let floats = match transposed {
        true => plain::most_by_input_scratch_floats,
        false => plain::most_forward_scratch_floats,
    };
    scratch_of(window, groups, transposed, [x, y], workers, floats)
}

fn scratch_of(
    window: &Window,
    groups: usize,
    transposed: bool,
    [x, y]: [&TensorType; 2],
    workers: usize,
    floats: fn(&Shape, usize) -> usize,
) -> usize {
    if x.dtype != DType::F32 {
        let row = y.shape.last().copied().unwrap_or(1);
        return scratch_bytes::<f64>(row.saturating_mul(workers));
    }
    // Seen from where the window slides over inputs.
    let (inputs, results) = if transposed { (y, x) } else { (x, y) };
    let shape = shape(window, groups, &inputs.shape, &results.shape);
    scratch_bytes::<f32>(shape.map_or(0, |shape| floats(&shape, workers)))
}

/// Sizes as the kernels of f32 take them; none where there are too many axes.
pub(super) fn shape(
    window: &Window,
    groups: usize,
    inputs: &[usize],
    results: &[usize],
) -> Option<Shape> {
    let taps = Taps::of(window, inputs.get(2..)?, results.get(2..)?)?;
    Some(Shape {
        batch: inputs[0],
        groups,
        c_in: inputs[1] / groups.max(1),
        c_out: results[1] / groups.max(1),
        window: taps.window,
    })
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
    if x.dtype() != DType::F32 {
        return with_float!(args.op, x.dtype(), T => forward::<T>(&taps, groups, args, ctx));
    }
    let Some(shape) = shape(window, groups, x.shape(), y.shape()) else {
        return args.fail("has too many axes");
    };
    let floats = plain::forward_scratch_floats(&shape, ctx.par.workers());
    let scratch = Scratch::new(args.op, ctx.workspace).take::<f32>(floats)?;
    let (bias, w) = (
        args.opt_input(2).map(|bias| bias.f32s()),
        args.input(1)?.f32s(),
    );
    // SAFETY: the output overlaps no input.
    let out = unsafe { y.f32s_mut() };
    plain::forward(ctx.isa, ctx.par, &shape, x.f32s(), w, bias, out, scratch).named(args.op)
}

fn forward<T: Num>(
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
    let sums = Scratch::new(args.op, ctx.workspace).take::<f64>(row * ctx.par.workers())?;
    let sums = Ptr(sums.as_mut_ptr());
    let lines = y.shape()[0] * c_out * rows_per_plane;
    split(ctx.par, lines, 1, &|range, worker| {
        // SAFETY: every worker has its own row of the scratch.
        let sums = unsafe { sums.slice_mut(worker * row, row) };
        for line in range {
            let (plane, rest) = (line / rows_per_plane, line % rows_per_plane);
            let (image, channel) = (plane / c_out, plane % c_out);
            let (z, r) = (rest / out_h, rest % out_h);
            sums.fill(start::<T>(bias.as_ref(), channel));
            for c in 0..group_in {
                let in_channel = channel / group_out * group_in + c;
                let in_plane = (image * c_in + in_channel) * taps.in_positions();
                let w_plane = (channel * group_in + c) * taps.taps();
                each_row(taps, z, r, |tap_row, in_row| {
                    for k in 0..taps.window.kernel[2] {
                        // SAFETY: taps and rows are inside their tensors.
                        let weight: f64 = unsafe {
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
                            let v: f64 = unsafe { src.read(from + i * stride) }.convert();
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

fn start<T: Num>(bias: Option<&TensorRef>, channel: usize) -> f64 {
    // SAFETY: the bias has one element for each output channel.
    bias.map_or(0.0, |b| unsafe {
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
    if x.dtype() != DType::F32 {
        return with_float!(args.op, x.dtype(), T => backward::<T>(&taps, groups, args, ctx));
    }
    let Some(shape) = shape(window, groups, y.shape(), x.shape()) else {
        return args.fail("has too many axes");
    };
    let floats = plain::by_input_scratch_floats(&shape, ctx.par.workers());
    let scratch = Scratch::new(args.op, ctx.workspace).take::<f32>(floats)?;
    let (bias, w) = (
        args.opt_input(2).map(|bias| bias.f32s()),
        args.input(1)?.f32s(),
    );
    // SAFETY: the output overlaps no input.
    let out = unsafe { y.f32s_mut() };
    plain::by_input(ctx.isa, ctx.par, &shape, x.f32s(), w, bias, out, scratch).named(args.op)
}

fn backward<T: Num>(
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
    let sums = Scratch::new(args.op, ctx.workspace).take::<f64>(row * ctx.par.workers())?;
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
            sums.fill(start::<T>(bias.as_ref(), channel));
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
                            let weight: f64 = unsafe { weights.read(tap_row + tap).convert() };
                            let (inside, to) = inside(taps, tap);
                            for (n, i) in inside.enumerate() {
                                // SAFETY: as above.
                                let v: f64 = unsafe { src.read(from + i) }.convert();
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
