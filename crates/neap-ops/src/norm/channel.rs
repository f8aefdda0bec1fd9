//! Normalisations by channel: batch, instance, group, local response.
//!
//! f32 takes the vectorised kernels, in either layout where they exist; the other types are
//! computed in f64.

use super::space;
use crate::args::{Args, Scratch};
use crate::elementwise::vector::padded;
use crate::error::Named;
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Scalar, with_float};
use crate::{Context, OpError};
use neap_ir::graph::LANES;
use neap_ir::op::Activation;
use neap_ir::{DType, Layout};
use neap_kernels::elementwise::{Operand, affine};
use neap_kernels::parallel::Parallel;
use neap_kernels::rows::{self, Input};
use neap_kernels::simd::Isa;

/// `[images, channels, positions]`.
fn sizes(shape: &[usize]) -> (usize, usize, usize) {
    (shape[0], shape[1], shape[2..].iter().product())
}

pub(crate) fn batch_norm(epsilon: f32, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let (images, channels, positions) = sizes(x.shape());
    if x.dtype() == DType::F32 {
        return batch_norm_f32(epsilon, args, ctx);
    }
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

/// As `x * scale + shift`.
fn batch_norm_f32(epsilon: f32, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let channels = args.input(0)?.shape()[1];
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let scale = padded(args.input(1)?.f32s(), &mut scratch)?;
    let shift = padded(args.input(2)?.f32s(), &mut scratch)?;
    let (mean, variance) = (args.input(3)?.f32s(), args.input(4)?.f32s());
    for c in 0..channels {
        let inverse = 1.0 / (f64::from(variance[c]) + f64::from(epsilon)).sqrt();
        let factor = f64::from(scale[c]) * inverse;
        shift[c] = (f64::from(shift[c]) - f64::from(mean[c]) * factor) as f32;
        scale[c] = factor as f32;
    }
    by_channel(Activation::None, scale, shift, args, ctx.isa, ctx.par)
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
    if y.layout == Layout::Blocked {
        return space::group_norm(groups, epsilon, args, ctx);
    }
    if x.dtype() == DType::F32 && !per_group {
        return group_norm_f32(groups, epsilon, args, ctx);
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

fn group_norm_f32(
    groups: usize,
    epsilon: f32,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let (scale, bias) = (args.input(1)?.f32s(), args.input(2)?.f32s());
    let (images, channels, positions) = sizes(x.shape());
    let (isa, par) = (ctx.isa, ctx.par);
    let source = if y.is_at(&x) {
        Input::InPlace
    } else {
        Input::From(x.f32s())
    };
    // SAFETY: the output overlaps the input only when it takes its place, and then is read itself.
    let out = unsafe { y.f32s_mut() };
    let shape = [images, channels, positions];
    let (scale, bias) = (Some(scale), Some(bias));
    rows::group_norm(isa, par, shape, groups, epsilon, scale, bias, source, out).named(args.op)
}

pub(crate) fn lrn(
    (alpha, beta, bias): (f32, f32, f32),
    size: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let (images, channels, positions) = sizes(x.shape());
    if x.dtype() == DType::F32 {
        let lrn = rows::Lrn {
            size,
            alpha,
            beta,
            bias,
        };
        let shape = [images, channels, positions];
        // SAFETY: the output does not overlap the input.
        let out = unsafe { y.f32s_mut() };
        let (isa, par) = (ctx.isa, ctx.par);
        return match y.layout {
            Layout::Plain => rows::lrn_plain(isa, par, &lrn, shape, x.f32s(), out),
            Layout::Blocked => rows::lrn_blocked(isa, par, &lrn, shape, x.f32s(), out),
        }
        .named(args.op);
    }
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
    let (scale, shift) = (args.input(1)?.f32s(), args.input(2)?.f32s());
    if args.output(0)?.layout == Layout::Plain {
        return by_channel(activation, scale, shift, args, ctx.isa, ctx.par);
    }
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let scale = padded(scale, &mut scratch)?;
    let shift = padded(shift, &mut scratch)?;
    by_channel(activation, scale, shift, args, ctx.isa, ctx.par)
}

/// Factors are padded to whole blocks when the tensor is blocked.
fn by_channel(
    activation: Activation,
    scale: &[f32],
    shift: &[f32],
    args: &Args,
    isa: Isa,
    par: &dyn Parallel,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let (images, channels, positions) = sizes(x.shape());
    let source = if y.is_at(&x) {
        Operand::InPlace
    } else {
        Operand::Full(x.f32s())
    };
    let (rows, cols, scale, shift) = match y.layout {
        Layout::Blocked => (
            images * channels.div_ceil(LANES),
            positions * LANES,
            Operand::Lanes(scale),
            Operand::Lanes(shift),
        ),
        Layout::Plain => (
            images * channels,
            positions,
            Operand::Column(&scale[..channels]),
            Operand::Column(&shift[..channels]),
        ),
    };
    // SAFETY: the output overlaps the input only when it takes its place, and then is read itself.
    let out = unsafe { y.f32s_mut() };
    let activation = crate::layer::activation(activation);
    affine(isa, par, rows, cols, source, scale, shift, out, activation).named(args.op)
}
