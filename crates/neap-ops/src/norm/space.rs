//! Normalisation and pooling over the places of images, whole or strip by strip: what all places of a channel say first, then
//! what is made of it.
//!
//! Places are added one by one, so strips give the bits that the whole does.

use crate::args::{Args, Scratch, scratch_bytes};
use crate::error::Named;
use crate::movement::join::{Stretch, stretches};
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::Num;
use crate::{Context, OpError, TensorMut, TensorRef};
use neap_ir::Layout;
use neap_ir::graph::LANES;
use neap_ir::op::{Activation, SpaceNorm};
use neap_ir::strips::{PlaceFold, PlacePool, Rows};
use neap_kernels::elementwise;
use neap_kernels::error::KernelError;
use neap_kernels::parallel::Parallel;
use neap_kernels::planes::Planes;
use neap_kernels::rows::{self, FACTORS, Input, MOMENTS};
use neap_kernels::simd::Isa;

/// `[images, channel blocks, positions]`.
fn blocked(shape: &[usize]) -> [usize; 3] {
    let positions = shape[2..].iter().product();
    [shape[0], shape[1].div_ceil(LANES), positions]
}

/// What is found out about each channel, place by place.
#[derive(Clone, Copy)]
enum Found {
    Moments,
    Fold(PlaceFold),
}

impl Found {
    /// Numbers for each channel.
    fn each(self) -> usize {
        match self {
            Found::Moments => MOMENTS,
            Found::Fold(_) => 1,
        }
    }

    /// Of no place.
    fn start(self) -> f64 {
        match self {
            Found::Fold(PlaceFold::Largest) => f64::NEG_INFINITY,
            _ => 0.0,
        }
    }

    /// Adds a blocked plane.
    fn add(self, isa: Isa, plane: &[f32], own: &mut [f64]) {
        match self {
            Found::Moments => own.try_into().map(|own| rows::add_moments(isa, plane, own)),
            Found::Fold(PlaceFold::Sum) => {
                own.try_into().map(|own| rows::add_sums(isa, plane, own))
            }
            Found::Fold(PlaceFold::Largest) => own
                .try_into()
                .map(|own| rows::take_largest(isa, plane, own)),
        }
        .unwrap_or(());
    }

    /// Adds a number to those of its channel.
    fn add_one(self, v: f64, own: &mut [f64; MOMENTS]) {
        match self {
            Found::Moments => *own = [own[0] + v, own[1] + v * v],
            Found::Fold(PlaceFold::Sum) => own[0] += v,
            Found::Fold(PlaceFold::Largest) => own[0] = own[0].max_nan(v),
        }
    }
}

/// x, optional moments of other strips → moments of both.
pub(crate) fn moments(args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    find(Found::Moments, args, ctx)
}

/// x, optional result for other strips → that for both.
pub(crate) fn fold(of: PlaceFold, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    find(Found::Fold(of), args, ctx)
}

fn find(what: Found, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let before = args.opt_input(1);
    if before.is_none_or(|before| !y.is_at(&before)) {
        // SAFETY: the output overlaps no input that is not in its place.
        let out = unsafe { y.f64s_mut() };
        match before {
            Some(before) => out.copy_from_slice(before.f64s()),
            None => out.fill(what.start()),
        }
    }
    // SAFETY: as above; it holds what was found before.
    add(what, x, unsafe { y.f64s_mut() }, ctx.isa, ctx.par);
    Ok(())
}

fn add(what: Found, x: TensorRef, found: &mut [f64], isa: Isa, par: &dyn Parallel) {
    if x.layout == Layout::Plain {
        return add_plain(what, x, found);
    }
    let [images, blocks, positions] = blocked(x.shape());
    let source = x.f32s();
    let (planes, each) = (images * blocks, what.each() * LANES);
    debug_assert_eq!(found.len(), planes * each);
    let found = Ptr(found.as_mut_ptr());
    let plane = positions * LANES;
    split(par, planes, GRAIN / plane.max(1), &|range, _| {
        for at in range {
            // SAFETY: planes are disjoint, and there are numbers for each.
            let own = unsafe { found.slice_mut(at * each, each) };
            what.add(isa, &source[at * plane..][..plane], own);
        }
    });
}

/// In the same order, so these are the same bits.
fn add_plain(what: Found, x: TensorRef, found: &mut [f64]) {
    let [_, blocks, positions] = blocked(x.shape());
    let (channels, each) = (x.shape()[1], what.each());
    let planes = x.f32s().chunks_exact(positions.max(1));
    for (plane, values) in planes.enumerate() {
        let at = |which: usize| place(plane, channels, blocks, which, each);
        let mut own = [0.0; MOMENTS];
        (0..each).for_each(|which| own[which] = found[at(which)]);
        for &v in values {
            what.add_one(f64::from(v), &mut own);
        }
        (0..each).for_each(|which| found[at(which)] = own[which]);
    }
}

/// Where number `which` of `each` of a channel's lies, for a plane of a plain tensor.
fn place(plane: usize, channels: usize, blocks: usize, which: usize, each: usize) -> usize {
    let (image, c) = (plane / channels, plane % channels);
    ((image * blocks + c / LANES) * each + which) * LANES + c % LANES
}

/// What a global pooling gives, from what was found in all strips.
pub(crate) fn pool(of: &PlacePool, args: &Args) -> Result<(), OpError> {
    let (found, y) = (args.input(0)?.f64s(), args.output(0)?);
    let blocks = of.shape[1].div_ceil(LANES);
    let finish = |v: f64| match of.fold {
        PlaceFold::Sum => (v / of.positions.max(1) as f64) as f32,
        PlaceFold::Largest => v as f32,
    };
    // SAFETY: the output does not overlap its input.
    let out = unsafe { y.f32s_mut() };
    for (at, out) in out.iter_mut().enumerate() {
        let from = match y.layout {
            Layout::Plain => place(at, of.shape[1], blocks, 0, 1),
            Layout::Blocked => at,
        };
        *out = finish(found[from]);
    }
    Ok(())
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
            // A variance that is no number stays none.
            let variance = (sum(1) / count - mean * mean).max_nan(0.0);
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

/// `activation((x - mean) * scale + bias)` of some rows, with factors of each channel.
pub(crate) fn normalise(
    activation: Activation,
    rows: &Rows,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (factors, y) = (args.input(0)?.f32s(), args.output(0)?);
    stretches(rows, 1, args, |own| {
        apply(activation, factors, &own, y, ctx.isa, ctx.par).named(args.op)
    })
}

fn apply(
    activation: Activation,
    factors: &[f32],
    rows: &Stretch,
    y: TensorMut,
    isa: Isa,
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    let x = rows.strip;
    if x.layout == Layout::Plain {
        return apply_plain(activation, factors, rows, y, isa, par);
    }
    let [images, blocks, positions] = blocked(x.shape());
    let row = positions / x.shape()[2].max(1) * LANES;
    let source = match y.is_at(&x) {
        true => Input::InPlace,
        false => Input::From(&x.f32s()[rows.from * row..]),
    };
    let planes = Planes {
        input: positions * LANES,
        output: y.shape()[2] * row,
    };
    let shape = [images, blocks, rows.len * row / LANES];
    let activation = crate::layer::activation(activation);
    // SAFETY: the output overlaps the input only when it takes its place, and then is read itself.
    let out = unsafe { &mut y.f32s_mut()[rows.to * row..] };
    rows::normalise(isa, par, shape, planes, factors, source, out, activation)
}

fn apply_plain(
    activation: Activation,
    factors: &[f32],
    rows: &Stretch,
    y: TensorMut,
    isa: Isa,
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    let x = rows.strip;
    let [images, blocks, positions] = blocked(x.shape());
    let (channels, row) = (x.shape()[1], positions / x.shape()[2].max(1));
    let apart = y.shape()[2] * row;
    let activation = crate::layer::activation(activation).into();
    for plane in 0..images * channels {
        let factor = |which| factors[place(plane, channels, blocks, which, FACTORS)];
        let from = plane * positions + rows.from * row;
        let to = plane * apart + rows.to * row;
        // SAFETY: both ranges are inside their tensors; the output overlaps the input only when it takes its place, and each number is
        // read before it is written.
        let made = unsafe {
            let source = Ptr::<f32>::of(x.as_ptr());
            let target = Ptr::<f32>(y.as_ptr().cast());
            for i in 0..rows.len * row {
                let centred = source.read(from + i) - factor(0);
                target.write(to + i, centred.mul_add(factor(1), factor(2)));
            }
            target.slice_mut(to, rows.len * row)
        };
        elementwise::unary_in_place(isa, par, activation, made);
    }
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
    add(Found::Moments, x, moments, ctx.isa, ctx.par);
    fill_factors(
        groups,
        epsilon,
        positions as f64,
        [scale, bias],
        moments,
        factors,
    );
    let rows = Stretch {
        strip: x,
        from: 0,
        to: 0,
        len: x.shape()[2],
    };
    apply(Activation::None, factors, &rows, y, ctx.isa, ctx.par).named(args.op)
}
