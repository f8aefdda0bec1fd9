//! The derivative of a convolution's weights: every tap's products of inputs and results' derivatives.
//!
//! f32 has kernels of its own ([`neap_kernels::plain`]). Of other floats each weight is summed by itself in f64, row by row,
//! in [`LANES`] sums of every so-manyth column: a single one would wait for its last addition each time.

use super::conv;
use super::taps::Taps;
use crate::args::{Args, Scratch, scratch_bytes};
use crate::error::Named;
use crate::nd::{Ptr, split};
use crate::scalar::{Float, with_float};
use crate::{Context, OpError};
use neap_ir::graph::LANES;
use neap_ir::op::Window;
use neap_ir::{DType, TensorType};
use neap_kernels::plain::{self, Shape};

pub(crate) fn workspace_bytes(
    window: &Window,
    groups: usize,
    x: &TensorType,
    dy: &[usize],
    workers: usize,
) -> usize {
    if x.dtype != DType::F32 {
        return 0;
    }
    let floats = conv::shape(window, groups, &x.shape, dy)
        .map_or(0, |shape| plain::by_weight_scratch_floats(&shape, workers));
    scratch_bytes::<f32>(floats)
}

pub(crate) fn conv_weight(
    window: &Window,
    groups: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, dy, dw) = (args.input(0)?, args.input(1)?, args.output(0)?);
    let taps = Taps::of(window, &x.shape()[2..], &dy.shape()[2..]);
    let shape = conv::shape(window, groups, x.shape(), dy.shape());
    let (Some(taps), Some(shape)) = (taps, shape) else {
        return args.fail("has too many axes");
    };
    if x.dtype() != DType::F32 {
        return with_float!(args.op, x.dtype(), T => sums::<T>(&taps, &shape, args, ctx));
    }
    let floats = plain::by_weight_scratch_floats(&shape, ctx.par.workers());
    let scratch = Scratch::new(args.op, ctx.workspace).take::<f32>(floats)?;
    // SAFETY: the output overlaps no input.
    let out = unsafe { dw.f32s_mut() };
    plain::by_weight(ctx.isa, ctx.par, &shape, x.f32s(), dy.f32s(), out, scratch).named(args.op)
}

/// Adds the products of `count` columns; `x`'s are `stride` apart.
///
/// # Safety
/// The columns are inside the tensors.
#[inline(always)]
unsafe fn add_row<T: Float>(
    lanes: &mut [f64; LANES],
    (x, from, stride): (Ptr<T>, usize, usize),
    (dy, to): (Ptr<T>, usize),
    count: usize,
) {
    // SAFETY: the caller's to vouch for.
    let product =
        |i: usize| unsafe { x.read(from + i * stride).to_f64() * dy.read(to + i).to_f64() };
    let whole = count / LANES * LANES;
    for base in (0..whole).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += product(base + lane);
        }
    }
    for (lane, i) in (whole..count).enumerate() {
        lanes[lane] += product(i);
    }
}

fn sums<T: Float>(
    taps: &Taps,
    shape: &Shape,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, dy, dw) = (args.input(0)?, args.input(1)?, args.output(0)?);
    let (c_in, c_out) = (shape.c_in * shape.groups, shape.c_out * shape.groups);
    let (inside, outside) = (taps.in_positions(), taps.out_positions());
    let (x, dy) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>::of(dy.as_ptr()));
    let dw = Ptr::<T>(dw.as_ptr().cast());
    let [_, kernel_h, kernel_w] = taps.window.kernel;
    let all_taps = taps.taps();
    split(ctx.par, c_out * shape.c_in * all_taps, 1, &|range, _| {
        for weight in range {
            let (pair, tap) = (weight / all_taps, weight % all_taps);
            let (channel, in_group) = (pair / shape.c_in, pair % shape.c_in);
            let source = channel / shape.c_out * shape.c_in + in_group;
            let tap = [
                tap / (kernel_h * kernel_w),
                tap / kernel_w % kernel_h,
                tap % kernel_w,
            ];
            let (columns, first) = conv::inside(taps, tap[2]);
            let stride = taps.window.strides[2];
            let mut lanes = [0.0; LANES];
            for image in 0..shape.batch {
                let x_plane = (image * c_in + source) * inside;
                let dy_plane = (image * c_out + channel) * outside;
                for row in 0..taps.window.output[0] * taps.window.output[1] {
                    let (z, r) = (row / taps.window.output[1], row % taps.window.output[1]);
                    let sources = (taps.source(0, z, tap[0]), taps.source(1, r, tap[1]));
                    let (Some(in_z), Some(in_r)) = sources else {
                        continue;
                    };
                    let in_row = in_z * taps.window.input[1] + in_r;
                    let from = x_plane + in_row * taps.window.input[2] + first;
                    let to = dy_plane + row * taps.window.output[2] + columns.start;
                    // SAFETY: the columns are inside both rows.
                    unsafe { add_row(&mut lanes, (x, from, stride), (dy, to), columns.len()) };
                }
            }
            let sum: f64 = lanes.iter().sum();
            // SAFETY: each weight belongs to one task.
            unsafe { dw.write(weight, T::from_f64(sum)) };
        }
    });
    Ok(())
}
