//! The derivative of a convolution's weights: every tap's products of inputs and results' derivatives.
//!
//! ```text
//! dW [c_out][c_in·taps]  =  Σ over images and pieces   dY [c_out][some positions]  ×  unfoldedᵀ
//! ```
//! f32 with enough channels goes through matrix products, a bounded piece of the unfolded image at a time. Pieces
//! follow from the shape alone. Otherwise each weight is summed by itself in f64, row by row, in [`LANES`] sums of every
//! so-manyth column: a single one would wait for its last addition each time.

use super::conv;
use super::taps::Taps;
use super::unfold::{Group, unfold};
use crate::args::{Args, Scratch, scratch_bytes};
use crate::error::Named;
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Float, with_float};
use crate::{Context, OpError};
use neap_ir::graph::LANES;
use neap_ir::op::Window;
use neap_ir::{DType, TensorType};
use neap_kernels::linear::{MatMulShape, matmul, matmul_scratch_bytes};

/// Floats of an unfolded piece, unless the smallest useful one is larger.
const PIECE_FLOATS: usize = 256 * 1024;

fn group(window: &Window, groups: usize, x: &[usize], dy: &[usize]) -> Group {
    Group {
        input: x[1] / groups.max(1),
        output: dy[1] / groups.max(1),
        taps: window.kernel.iter().product(),
        positions: dy[2..].iter().product(),
    }
}

/// The product of one piece: `[c_out][n] × [c_in·taps][n]ᵀ`.
fn piece(group: &Group) -> MatMulShape {
    let columns = group.input * group.taps;
    let n = (PIECE_FLOATS / columns / LANES * LANES).clamp(LANES, 4096);
    let n = n.min(group.positions);
    MatMulShape {
        b_transposed: true,
        a_stride: group.positions,
        b_stride: n,
        ..MatMulShape::dense(1, group.output, n, columns)
    }
}

pub(crate) fn workspace_bytes(
    window: &Window,
    groups: usize,
    x: &TensorType,
    dy: &[usize],
    workers: usize,
) -> usize {
    if dy.len() < 2 || x.shape.len() < 2 {
        return 0;
    }
    let group = group(window, groups, &x.shape, dy);
    if x.dtype != DType::F32 || !group.pays() {
        return 0;
    }
    let shape = piece(&group);
    let packed = matmul_scratch_bytes(&shape, workers);
    scratch_bytes::<f32>(packed.div_ceil(4))
        + scratch_bytes::<f32>(shape.k * shape.n)
        + scratch_bytes::<f32>(shape.m * shape.n)
}

pub(crate) fn conv_weight(
    window: &Window,
    groups: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, dy) = (args.input(0)?, args.input(1)?);
    let Some(taps) = Taps::of(window, &x.shape()[2..], &dy.shape()[2..]) else {
        return args.fail("has too many axes");
    };
    let group = group(window, groups, x.shape(), dy.shape());
    if x.dtype() == DType::F32 && group.pays() && dy.elements() > 0 {
        return products(&taps, &group, groups, args, ctx);
    }
    with_float!(args.op, x.dtype(), T => sums::<T>(&taps, &group, groups, args, ctx))
}

fn products(
    taps: &Taps,
    group: &Group,
    groups: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, dy, dw) = (args.input(0)?, args.input(1)?, args.output(0)?);
    let images = x.shape()[0];
    let (x, dy) = (x.f32s(), dy.f32s());
    let whole = piece(group);
    let (par, isa) = (ctx.par, ctx.isa);
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let packed = scratch.take::<f32>(matmul_scratch_bytes(&whole, par.workers()).div_ceil(4))?;
    let unfolded = scratch.take::<f32>(whole.k * whole.n)?;
    let product = scratch.take::<f32>(whole.m * whole.n)?;
    // SAFETY: the output overlaps no input.
    let out = unsafe { dw.f32s_mut() };
    out.fill(0.0);
    for unit in 0..images * groups {
        let image = &x[unit * group.input * taps.in_positions()..];
        let results = &dy[unit * group.output * group.positions..];
        let to = &mut out[unit % groups * whole.m * whole.n..][..whole.m * whole.n];
        for first in (0..group.positions).step_by(whole.k) {
            let k = whole.k.min(group.positions - first);
            unfold(taps, image, first..first + k, group.input, unfolded, par);
            let shape = MatMulShape {
                k,
                b_stride: k,
                ..whole
            };
            matmul(
                isa,
                par,
                &shape,
                &results[first..],
                unfolded,
                product,
                packed,
            )
            .named(args.op)?;
            let (from, sums) = (&*product, Ptr(to.as_mut_ptr()));
            split(par, from.len(), GRAIN, &|range, _| {
                // SAFETY: ranges of tasks are disjoint parts of the group's weights.
                let sums = unsafe { sums.slice_mut(range.start, range.len()) };
                sums.iter_mut().zip(&from[range]).for_each(|(s, v)| *s += v);
            });
        }
    }
    Ok(())
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
    group: &Group,
    groups: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, dy, dw) = (args.input(0)?, args.input(1)?, args.output(0)?);
    let images = x.shape()[0];
    let (c_in, c_out) = (group.input * groups, group.output * groups);
    let (inside, outside) = (taps.in_positions(), taps.out_positions());
    let (x, dy) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>::of(dy.as_ptr()));
    let dw = Ptr::<T>(dw.as_ptr().cast());
    let [_, kernel_h, kernel_w] = taps.window.kernel;
    split(ctx.par, c_out * group.input * group.taps, 1, &|range, _| {
        for weight in range {
            let (pair, tap) = (weight / group.taps, weight % group.taps);
            let (channel, in_group) = (pair / group.input, pair % group.input);
            let source = channel / group.output * group.input + in_group;
            let tap = [
                tap / (kernel_h * kernel_w),
                tap / kernel_w % kernel_h,
                tap % kernel_w,
            ];
            let (columns, first) = conv::inside(taps, tap[2]);
            let stride = taps.window.strides[2];
            let mut lanes = [0.0; LANES];
            for image in 0..images {
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
