//! Normalisation over the places of channel-blocked images, whole or strip by strip: moments of all places first, then each place.
//!
//! Moments are added place by place, so strips give the bits that the whole does.

use crate::args::{Args, Scratch, scratch_bytes};
use crate::error::Named;
use crate::nd::{GRAIN, Ptr, split};
use crate::{Context, OpError, TensorMut, TensorRef};
use neap_ir::Layout;
use neap_ir::graph::LANES;
use neap_ir::op::{Activation, SpaceNorm};
use neap_kernels::elementwise;
use neap_kernels::parallel::Parallel;
use neap_kernels::rows::{self, FACTORS, Input, MOMENTS};
use neap_kernels::simd::Isa;

/// `[images, channel blocks, positions]`.
fn blocked(shape: &[usize]) -> [usize; 3] {
    let positions = shape[2..].iter().product();
    [shape[0], shape[1].div_ceil(LANES), positions]
}

/// x, optional moments of other strips → moments of both.
pub(crate) fn moments(args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let before = args.opt_input(1);
    if before.is_none_or(|before| !y.is_at(&before)) {
        // SAFETY: the output overlaps no input that is not in its place.
        let out = unsafe { y.f64s_mut() };
        match before {
            Some(before) => out.copy_from_slice(before.f64s()),
            None => out.fill(0.0),
        }
    }
    // SAFETY: as above; it holds the moments before.
    add(x, unsafe { y.f64s_mut() }, ctx.isa, ctx.par);
    Ok(())
}

fn add(x: TensorRef, moments: &mut [f64], isa: Isa, par: &dyn Parallel) {
    if x.layout == Layout::Plain {
        return add_plain(x, moments);
    }
    let [images, blocks, positions] = blocked(x.shape());
    let source = x.f32s();
    let planes = images * blocks;
    debug_assert_eq!(moments.len(), planes * MOMENTS * LANES);
    let sums = Ptr(moments.as_mut_ptr());
    let plane = positions * LANES;
    split(par, planes, GRAIN / plane.max(1), &|range, _| {
        for at in range {
            // SAFETY: planes are disjoint, and there are moments for each.
            let own = unsafe { sums.slice_mut(at * MOMENTS * LANES, MOMENTS * LANES) };
            if let Ok(own) = own.try_into() {
                rows::add_moments(isa, &source[at * plane..][..plane], own);
            }
        }
    });
}

/// In the same order, so these are the same bits.
fn add_plain(x: TensorRef, moments: &mut [f64]) {
    let [_, blocks, positions] = blocked(x.shape());
    let planes = x.f32s().chunks_exact(positions.max(1));
    for (plane, values) in planes.enumerate() {
        let [sum, squares] = [0, 1].map(|which| place(plane, x.shape()[1], blocks, which, MOMENTS));
        for &v in values {
            moments[sum] += f64::from(v);
            moments[squares] += f64::from(v) * f64::from(v);
        }
    }
}

/// Where number `which` of `each` of a channel's lies, for a plane of a plain tensor.
fn place(plane: usize, channels: usize, blocks: usize, which: usize, each: usize) -> usize {
    let (image, c) = (plane / channels, plane % channels);
    ((image * blocks + c / LANES) * each + which) * LANES + c % LANES
}

/// moments, scale and bias of each channel → mean, scale and bias of each channel.
pub(crate) fn factors(norm: &SpaceNorm, args: &Args) -> Result<(), OpError> {
    let (moments, y) = (args.input(0)?, args.output(0)?);
    let (scale, bias) = (args.input(1)?.f32s(), args.input(2)?.f32s());
    // SAFETY: the output does not overlap its inputs.
    let out = unsafe { y.f32s_mut() };
    let positions = norm.positions as f64;
    fill_factors(
        norm.groups,
        norm.epsilon,
        positions,
        [scale, bias],
        moments.f64s(),
        out,
    );
    Ok(())
}

fn fill_factors(
    groups: usize,
    epsilon: f32,
    positions: f64,
    [scale, bias]: [&[f32]; 2],
    moments: &[f64],
    out: &mut [f32],
) {
    let channels = scale.len();
    let (width, blocks) = (channels / groups, channels.div_ceil(LANES));
    let count = width as f64 * positions;
    let images = moments.chunks_exact(blocks * MOMENTS * LANES);
    for (moments, out) in images.zip(out.chunks_exact_mut(blocks * FACTORS * LANES)) {
        // Lanes past the channels give zeros.
        out.fill(0.0);
        let of = |c: usize, which: usize| (c / LANES * MOMENTS + which) * LANES + c % LANES;
        for group in 0..groups {
            let members = group * width..(group + 1) * width;
            let sum = |which| members.clone().map(|c| moments[of(c, which)]).sum::<f64>();
            let mean = sum(0) / count;
            let variance = (sum(1) / count - mean * mean).max(0.0);
            let inverse = 1.0 / (variance + f64::from(epsilon)).sqrt();
            for c in members {
                let at = |which: usize| (c / LANES * FACTORS + which) * LANES + c % LANES;
                out[at(0)] = mean as f32;
                out[at(1)] = (f64::from(scale[c]) * inverse) as f32;
                out[at(2)] = bias[c];
            }
        }
    }
}

/// `activation((x - mean) * scale + bias)`, with factors of each channel.
pub(crate) fn normalise(
    activation: Activation,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let factors = args.input(1)?.f32s();
    apply(activation, factors, x, y, ctx.isa, ctx.par).named(args.op)
}

fn apply(
    activation: Activation,
    factors: &[f32],
    x: TensorRef,
    y: TensorMut,
    isa: Isa,
    par: &dyn Parallel,
) -> Result<(), neap_kernels::error::KernelError> {
    let source = match y.is_at(&x) {
        true => Input::InPlace,
        false => Input::From(x.f32s()),
    };
    let shape = blocked(x.shape());
    if x.layout == Layout::Plain {
        return apply_plain(activation, factors, x, y, isa, par);
    }
    let activation = crate::layer::activation(activation);
    // SAFETY: the output overlaps the input only when it takes its place, and then is read itself.
    let out = unsafe { y.f32s_mut() };
    rows::normalise(isa, par, shape, factors, source, out, activation)
}

fn apply_plain(
    activation: Activation,
    factors: &[f32],
    x: TensorRef,
    y: TensorMut,
    isa: Isa,
    par: &dyn Parallel,
) -> Result<(), neap_kernels::error::KernelError> {
    let [_, blocks, positions] = blocked(x.shape());
    let (from, to) = (Ptr::<f32>::of(x.as_ptr()), Ptr::<f32>(y.as_ptr().cast()));
    for at in 0..x.elements() {
        let plane = at / positions;
        let factor = |which| factors[place(plane, x.shape()[1], blocks, which, FACTORS)];
        // SAFETY: both have so many elements; the output overlaps the input only when it takes its place.
        unsafe {
            let centred = from.read(at) - factor(0);
            to.write(at, centred.mul_add(factor(1), factor(2)));
        }
    }
    // SAFETY: the input is not read any more.
    let out = unsafe { y.f32s_mut() };
    let activation = crate::layer::activation(activation);
    elementwise::unary_in_place(isa, par, activation.into(), out);
    Ok(())
}

pub(crate) fn workspace_bytes(shape: &[usize]) -> usize {
    let [images, blocks, _] = blocked(shape);
    let lanes = images * blocks * LANES;
    scratch_bytes::<f64>(lanes * MOMENTS) + scratch_bytes::<f32>(lanes * FACTORS)
}

/// The whole normalisation at once.
pub(crate) fn group_norm(
    groups: usize,
    epsilon: f32,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let (scale, bias) = (args.input(1)?.f32s(), args.input(2)?.f32s());
    let [images, blocks, positions] = blocked(x.shape());
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let moments = scratch.take::<f64>(images * blocks * MOMENTS * LANES)?;
    let factors = scratch.take::<f32>(images * blocks * FACTORS * LANES)?;
    moments.fill(0.0);
    add(x, moments, ctx.isa, ctx.par);
    fill_factors(
        groups,
        epsilon,
        positions as f64,
        [scale, bias],
        moments,
        factors,
    );
    apply(Activation::None, factors, x, y, ctx.isa, ctx.par).named(args.op)
}
