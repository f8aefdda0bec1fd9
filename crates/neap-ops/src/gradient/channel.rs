//! Normalisation by a batch's own statistics, forward and backward; over axis 1.
//!
//! f32 has kernels of its own ([`neap_kernels::plain`]). Of other floats sums are of [`LANES`] parts, each of every so-manyth element of a run: a single one would wait for its last addition each
//! time.

use crate::args::Args;
use crate::error::Named;
use crate::nd::{Ptr, split};
use crate::scalar::{Float, with_float};
use crate::{Context, OpError, TensorMut, TensorRef};
use neap_ir::DType;
use neap_kernels::parallel::Parallel;
use neap_kernels::plain::{self, Derivatives, Statistics};

const LANES: usize = 8;

/// Where a channel's elements lie: `images` runs of `inner`, `channels * inner` apart.
#[derive(Clone, Copy)]
struct Channels {
    images: usize,
    channels: usize,
    inner: usize,
}

impl Channels {
    fn of(shape: &[usize]) -> Channels {
        Channels {
            images: shape[0],
            channels: shape[1],
            inner: shape[2..].iter().product(),
        }
    }

    fn count(&self) -> f64 {
        (self.images * self.inner) as f64
    }

    /// Calls `f` with the index of every element of a channel.
    fn each(&self, channel: usize, mut f: impl FnMut(usize)) {
        for image in 0..self.images {
            let first = (image * self.channels + channel) * self.inner;
            (first..first + self.inner).for_each(&mut f);
        }
    }

    /// The sum of `N` terms of each element of a channel.
    fn sums<const N: usize>(&self, channel: usize, term: impl Fn(usize) -> [f64; N]) -> [f64; N] {
        let mut lanes = [[0.0; LANES]; N];
        for image in 0..self.images {
            let first = (image * self.channels + channel) * self.inner;
            let end = first + self.inner;
            let whole = first + self.inner / LANES * LANES;
            for base in (first..whole).step_by(LANES) {
                for lane in 0..LANES {
                    let terms = term(base + lane);
                    (0..N).for_each(|n| lanes[n][lane] += terms[n]);
                }
            }
            for (lane, i) in (whole..end).enumerate() {
                let terms = term(i);
                (0..N).for_each(|n| lanes[n][lane] += terms[n]);
            }
        }
        lanes.map(|parts| parts.iter().sum())
    }

    fn run(&self, par: &dyn Parallel, body: impl Fn(usize) + Sync) {
        split(par, self.channels, 1, &|range, _| range.for_each(&body));
    }
}

/// `y = (x - mean) / sqrt(variance + epsilon) * scale + bias`.
pub(crate) fn batch_norm_training(
    epsilon: f32,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    match args.input(0)?.dtype() {
        DType::F32 => forward_f32(epsilon, args, ctx),
        dtype => with_float!(args.op, dtype, T => forward::<T>(epsilon, args, ctx)),
    }
}

fn sizes(shape: &[usize]) -> plain::Channels {
    let of = Channels::of(shape);
    plain::Channels {
        images: of.images,
        channels: of.channels,
        positions: of.inner,
    }
}

/// An operand's elements, if they do not lie where the result does.
fn apart<'a>(operand: TensorRef<'a>, result: Option<&TensorMut<'a>>) -> Option<&'a [f32]> {
    match result.is_some_and(|result| result.is_at(&operand)) {
        true => None,
        false => Some(operand.f32s()),
    }
}

fn forward_f32(epsilon: f32, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let parameters = [args.input(1)?.f32s(), args.input(2)?.f32s()];
    let x_values = apart(x, Some(&y));
    // SAFETY: outputs overlap nothing else, but the first the input whose place it takes, which is not read otherwise.
    let [y, mean, variance] = [Some(y), args.opt_output(1), args.opt_output(2)]
        .map(|output| output.map(|output| unsafe { output.f32s_mut() }));
    let Some(y) = y else {
        return Ok(());
    };
    let statistics = Statistics { mean, variance };
    let of = sizes(x.shape());
    plain::batch_norm(
        ctx.isa, ctx.par, &of, epsilon, x_values, parameters, y, statistics,
    )
    .named(args.op)
}

fn forward<T: Float>(epsilon: f32, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let input = |i: usize| Ok::<_, OpError>(Ptr::<T>::of(args.input(i)?.as_ptr()));
    let (x, scale, bias) = (input(0)?, input(1)?, input(2)?);
    let y = Ptr::<T>(args.output(0)?.as_ptr().cast());
    let kept = |i: usize| args.opt_output(i).map(|t| Ptr::<T>(t.as_ptr().cast()));
    let (mean_out, variance_out) = (kept(1), kept(2));
    let channels = Channels::of(args.input(0)?.shape());
    let n = channels.count();
    if n == 0.0 {
        return args.fail("has no elements to take statistics of");
    }
    channels.run(ctx.par, |channel| {
        // SAFETY: elements are inside the tensors, and a channel belongs to one task. The result may lie where an operand does: an
        // element is written after it was read for the last time.
        unsafe {
            let [sum] = channels.sums(channel, |i| [x.read(i).to_f64()]);
            let mean = sum / n;
            let [squares] = channels.sums(channel, |i| [(x.read(i).to_f64() - mean).powi(2)]);
            let variance = squares / n;
            let factor = scale.read(channel).to_f64() / (variance + f64::from(epsilon)).sqrt();
            let bias = bias.read(channel).to_f64();
            channels.each(channel, |i| {
                let v = (x.read(i).to_f64() - mean) * factor + bias;
                y.write(i, T::from_f64(v));
            });
            mean_out.inspect(|p| p.write(channel, T::from_f64(mean)));
            variance_out.inspect(|p| p.write(channel, T::from_f64(variance)));
        }
    });
    Ok(())
}

/// With `n = (x - mean) / deviation`: `dscale = Σ dy n`, `dbias = Σ dy`,
/// `dx = scale / deviation (dy - mean(dy) - n mean(dy n))`.
pub(super) fn batch_norm(epsilon: f32, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    match args.input(0)?.dtype() {
        DType::F32 => backward_f32(epsilon, args, ctx),
        dtype => with_float!(args.op, dtype, T => backward::<T>(epsilon, args, ctx)),
    }
}

fn backward_f32(epsilon: f32, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, dy) = (args.input(0)?, args.input(4)?);
    let parameters = [
        args.input(1)?.f32s(),
        args.input(2)?.f32s(),
        args.input(3)?.f32s(),
    ];
    let dx = args.opt_output(0);
    let operands = [apart(x, dx.as_ref()), apart(dy, dx.as_ref())];
    // SAFETY: outputs overlap nothing else, but the first the input whose place it takes, which is not read otherwise.
    let [dx, dscale, dbias] = [dx, args.opt_output(1), args.opt_output(2)]
        .map(|output| output.map(|output| unsafe { output.f32s_mut() }));
    let derivatives = Derivatives { dx, dscale, dbias };
    let of = sizes(x.shape());
    plain::batch_norm_backward(
        ctx.isa,
        ctx.par,
        &of,
        epsilon,
        operands,
        parameters,
        derivatives,
    )
    .named(args.op)
}

fn backward<T: Float>(epsilon: f32, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let input = |i: usize| Ok::<_, OpError>(Ptr::<T>::of(args.input(i)?.as_ptr()));
    let (x, scale, mean, variance) = (input(0)?, input(1)?, input(2)?, input(3)?);
    let dy = input(4)?;
    let output = |i: usize| args.opt_output(i).map(|t| Ptr::<T>(t.as_ptr().cast()));
    let (dx, dscale, dbias) = (output(0), output(1), output(2));
    let channels = Channels::of(args.input(0)?.shape());
    let n = channels.count();
    channels.run(ctx.par, |channel| {
        // SAFETY: elements are inside the tensors, and a channel belongs to one task. The result may lie where an operand does: an
        // element is written after it was read for the last time.
        unsafe {
            let mean = mean.read(channel).to_f64();
            let inverse = 1.0 / (variance.read(channel).to_f64() + f64::from(epsilon)).sqrt();
            let normal = |i: usize| (x.read(i).to_f64() - mean) * inverse;
            let [sum, along] = channels.sums(channel, |i| {
                let dy = dy.read(i).to_f64();
                [dy, dy * normal(i)]
            });
            dscale.inspect(|p| p.write(channel, T::from_f64(along)));
            dbias.inspect(|p| p.write(channel, T::from_f64(sum)));
            let Some(dx) = dx else {
                return;
            };
            let factor = scale.read(channel).to_f64() * inverse;
            let (sum, along) = (sum / n, along / n);
            channels.each(channel, |i| {
                let v = factor * (dy.read(i).to_f64() - sum - normal(i) * along);
                dx.write(i, T::from_f64(v));
            });
        }
    });
    Ok(())
}
