//! Normalisations by channel: batch, instance, group, local response.
//!
//! Any float type in plain layout, computed in f64.

use crate::args::{Args, Scratch};
use crate::elementwise::vector::padded;
use crate::error::Named;
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Scalar, with_float};
use crate::{Context, OpError};
use neap_ir::Layout;
use neap_ir::graph::LANES;
use neap_ir::op::Activation;
use neap_kernels::elementwise::{Operand, affine};

/// `[images, channels, positions]`.
fn sizes(shape: &[usize]) -> (usize, usize, usize) {
    (shape[0], shape[1], shape[2..].iter().product())
}

pub(crate) fn batch_norm(epsilon: f32, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let (images, channels, positions) = sizes(x.shape());
    with_float!(args.op, x.dtype(), T => {
        let parameter = |i: usize| Ok::<_, OpError>(Ptr::<T>::of(args.input(i)?.as_ptr()));
        let (scale, bias) = (parameter(1)?, parameter(2)?);
        let (mean, variance) = (parameter(3)?, parameter(4)?);
        let (src, dst) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
        let per_task = GRAIN / positions.max(1);
        split(ctx.par, images * channels, per_task, &|range, _| {
            for plane in range {
                let c = plane % channels;
                // SAFETY: parameters have one element for each channel; planes are disjoint.
                unsafe {
                    let inverse = 1.0 / (variance.read(c).to_f64() + f64::from(epsilon)).sqrt();
                    let factor = scale.read(c).to_f64() * inverse;
                    let (mean, bias) = (mean.read(c).to_f64(), bias.read(c).to_f64());
                    for i in plane * positions..(plane + 1) * positions {
                        let v = (src.read(i).to_f64() - mean) * factor + bias;
                        dst.write(i, T::from_f64(v));
                    }
                }
            }
        });
        Ok(())
    })
}

/// Instance norm is group norm with one channel for each group.
pub(crate) fn group_norm(
    groups: usize,
    epsilon: f32,
    per_group: bool,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let (images, channels, positions) = sizes(x.shape());
    if x.elements() == 0 {
        return Ok(());
    }
    let width = channels / groups;
    let length = width * positions;
    with_float!(args.op, x.dtype(), T => {
        let scale = Ptr::<T>::of(args.input(1)?.as_ptr());
        let bias = Ptr::<T>::of(args.input(2)?.as_ptr());
        let (src, dst) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
        split(ctx.par, images * groups, GRAIN / length, &|range, _| {
            for unit in range {
                let base = unit * length;
                // SAFETY: groups are disjoint ranges of both tensors.
                let values = unsafe { src.slice(base, length) };
                let n = length as f64;
                let mean = values.iter().map(|v| v.to_f64()).sum::<f64>() / n;
                let square = |v: &T| (v.to_f64() - mean) * (v.to_f64() - mean);
                let variance = values.iter().map(square).sum::<f64>() / n;
                let inverse = 1.0 / (variance + f64::from(epsilon)).sqrt();
                for i in 0..length {
                    let group = unit % groups;
                    let c = if per_group { group } else { group * width + i / positions };
                    // SAFETY: parameters have one element for each channel or group.
                    unsafe {
                        let factor = scale.read(c).to_f64() * inverse;
                        let v = (src.read(base + i).to_f64() - mean) * factor;
                        dst.write(base + i, T::from_f64(v + bias.read(c).to_f64()));
                    }
                }
            }
        });
        Ok(())
    })
}

pub(crate) fn lrn(
    (alpha, beta, bias): (f32, f32, f32),
    size: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let (images, channels, positions) = sizes(x.shape());
    let (before, after) = ((size - 1) / 2, size / 2);
    with_float!(args.op, x.dtype(), T => {
        let (src, dst) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
        let per_task = GRAIN / (positions * size.min(channels)).max(1);
        split(ctx.par, images * channels, per_task, &|range, _| {
            for plane in range {
                let (image, c) = (plane / channels, plane % channels);
                let near = c.saturating_sub(before)..(c.saturating_add(after) + 1).min(channels);
                for p in 0..positions {
                    // SAFETY: neighbouring channels are clamped to the image's.
                    unsafe {
                        let at = |c: usize| src.read((image * channels + c) * positions + p);
                        let sum: f64 = near.clone().map(|c| at(c).to_f64() * at(c).to_f64()).sum();
                        let base = f64::from(bias) + f64::from(alpha) / size as f64 * sum;
                        let v = at(c).to_f64() / base.powf(f64::from(beta));
                        dst.write(plane * positions + p, T::from_f64(v));
                    }
                }
            }
        });
        Ok(())
    })
}

/// `activation(x * scale + shift)` by channel; plain or blocked.
pub(crate) fn scale_shift(
    activation: Activation,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let (scale, shift) = (args.input(1)?.f32s(), args.input(2)?.f32s());
    let (images, channels, positions) = sizes(x.shape());
    let source = if y.is_at(&x) {
        Operand::InPlace
    } else {
        Operand::Full(x.f32s())
    };
    let (rows, cols, scale, shift) = if y.layout == Layout::Blocked {
        let mut scratch = Scratch::new(args.op, ctx.workspace);
        (
            images * channels.div_ceil(LANES),
            positions * LANES,
            Operand::Lanes(padded(scale, &mut scratch)?),
            Operand::Lanes(padded(shift, &mut scratch)?),
        )
    } else {
        (
            images * channels,
            positions,
            Operand::Column(scale),
            Operand::Column(shift),
        )
    };
    // SAFETY: the output overlaps the input only when it takes its place, and then is read itself.
    let out = unsafe { y.f32s_mut() };
    let activation = crate::layer::activation(activation);
    affine(
        ctx.isa, ctx.par, rows, cols, source, scale, shift, out, activation,
    )
    .named(args.op)
}
