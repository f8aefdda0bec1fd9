//! Operators over one axis or a run of trailing axes: softmax family, layer, RMS and Lp norms.
//!
//! These take any float type and compute in f64; f32 goes to vectorised kernels where one fits.

use crate::args::Args;
use crate::error::Named;
use crate::nd::{GRAIN, Ptr, Strides, offset_of, split};
use crate::scalar::{Float, with_float};
use crate::{Context, OpError, TensorRef};
use neap_ir::DType;
use neap_ir::op::Softmax;
use neap_kernels::rows::{self, Input};

/// A line of a tensor: `length` elements, `step` apart.
#[derive(Clone, Copy)]
struct Line<T> {
    src: Ptr<T>,
    dst: Ptr<T>,
    base: usize,
    step: usize,
    length: usize,
}

impl<T: Float> Line<T> {
    fn get(&self, i: usize) -> f64 {
        // SAFETY: the line was made inside its tensors.
        unsafe { self.src.read(self.base + i * self.step) }.to_f64()
    }

    fn put(&self, i: usize, v: f64) {
        // SAFETY: as above; a line belongs to one task.
        unsafe { self.dst.write(self.base + i * self.step, T::from_f64(v)) };
    }

    fn sum(&self, f: impl Fn(f64) -> f64) -> f64 {
        (0..self.length).map(|i| f(self.get(i))).sum()
    }
}

/// Calls `body` for every line along `axis` of input 0 and output 0.
fn along<T: Float>(
    axis: usize,
    args: &Args,
    ctx: &mut Context,
    body: impl Fn(Line<T>) + Sync,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let length = x.shape()[axis];
    let step: usize = x.shape()[axis + 1..].iter().product();
    let lines = x.shape()[..axis].iter().product::<usize>() * step;
    let (src, dst) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
    if x.elements() == 0 {
        return Ok(());
    }
    split(ctx.par, lines, GRAIN / 4 / length, &|range, _| {
        for line in range {
            body(Line {
                src,
                dst,
                base: line / step * length * step + line % step,
                step,
                length,
            });
        }
    });
    Ok(())
}

pub(crate) fn softmax(
    axis: usize,
    kind: Softmax,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let dtype = args.input(0)?.dtype();
    if dtype == DType::F32 && kind != Softmax::Hardmax {
        let kind = match kind {
            Softmax::LogSoftmax => rows::Softmax::Log,
            _ => rows::Softmax::Plain,
        };
        let (shape, source, out) = middle_axis(axis, args)?;
        return rows::softmax_axis(ctx.isa, ctx.par, kind, shape, source, out).named(args.op);
    }
    with_float!(args.op, dtype, T => along::<T>(axis, args, ctx, |line| {
        let (mut largest, mut largest_at) = (f64::NEG_INFINITY, 0);
        for i in 0..line.length {
            let v = line.get(i);
            if v > largest || v.is_nan() {
                (largest, largest_at) = (v, i);
            }
            if v.is_nan() {
                break;
            }
        }
        if kind == Softmax::Hardmax {
            for i in 0..line.length {
                line.put(i, if i == largest_at { 1.0 } else { 0.0 });
            }
            return;
        }
        let sum = line.sum(|v| (v - largest).exp());
        let log = sum.ln();
        for i in 0..line.length {
            let v = line.get(i) - largest;
            line.put(i, match kind {
                Softmax::LogSoftmax => v - log,
                _ => v.exp() / sum,
            });
        }
    }))
}

pub(crate) fn lp_norm(axis: usize, p: u32, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let dtype = args.input(0)?.dtype();
    if dtype == DType::F32 {
        let norm = if p == 1 {
            rows::Norm::L1
        } else {
            rows::Norm::L2
        };
        let (shape, source, out) = middle_axis(axis, args)?;
        return rows::lp_norm(ctx.isa, ctx.par, norm, shape, source, out).named(args.op);
    }
    with_float!(args.op, dtype, T => along::<T>(axis, args, ctx, |line| {
        let norm = match p {
            1 => line.sum(f64::abs),
            _ => line.sum(|v| v * v).sqrt(),
        };
        for i in 0..line.length {
            // A zero line stays zero, as onnxruntime has it.
            let v = line.get(i);
            line.put(i, if norm == 0.0 { 0.0 } else { v / norm });
        }
    }))
}

/// f32 operands as `[outer][axis][inner]`.
fn middle_axis<'a>(
    axis: usize,
    args: &Args<'_, 'a>,
) -> Result<([usize; 3], Input<'a>, &'a mut [f32]), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let shape = [
        x.shape()[..axis].iter().product(),
        x.shape()[axis],
        x.shape()[axis + 1..].iter().product(),
    ];
    let source = if y.is_at(&x) {
        Input::InPlace
    } else {
        Input::From(x.f32s())
    };
    // SAFETY: the output overlaps the input only when it takes its place, and then is read itself.
    Ok((shape, source, unsafe { y.f32s_mut() }))
}

/// A scale or bias that broadcasts to the normalised axes.
#[derive(Clone, Copy)]
struct Parameter<'a, T> {
    data: Ptr<T>,
    /// One value for each element of the line, or broadcast strides.
    strides: Option<(Strides, &'a [usize])>,
}

impl<'a, T: Float> Parameter<'a, T> {
    fn of(tensor: TensorRef, normalised: &'a [usize]) -> Parameter<'a, T> {
        let whole = tensor.elements() == normalised.iter().product::<usize>();
        Parameter {
            data: Ptr::of(tensor.as_ptr()),
            strides: (!whole).then(|| {
                (
                    Strides::broadcast(tensor.shape(), normalised, 1),
                    normalised,
                )
            }),
        }
    }

    fn get(&self, i: usize) -> f64 {
        let at = match &self.strides {
            None => i,
            Some((strides, dims)) => offset_of(i, dims, strides.as_slice()) as usize,
        };
        // SAFETY: `i` is below the normalised size, which the parameter broadcasts to.
        unsafe { self.data.read(at) }.to_f64()
    }
}

/// Layer norm, and RMS norm when `centred` is false.
pub(crate) fn layer_norm(
    axis: usize,
    epsilon: f32,
    centred: bool,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let normalised = &x.shape()[axis..];
    let length: usize = normalised.iter().product();
    let lines: usize = x.shape()[..axis].iter().product();
    let statistics = [1, 2].map(|i| args.opt_output(i).map(|t| Ptr::<f32>(t.as_ptr().cast())));
    if length == 0 {
        for out in statistics.iter().flatten() {
            // SAFETY: one element for each line. Nothing has no mean.
            (0..lines).for_each(|line| unsafe { out.write(line, f32::NAN) });
        }
        return Ok(());
    }
    let (scale, bias) = (args.input(1)?, args.opt_input(2));
    let whole = scale.elements() == length && bias.is_none_or(|b| b.elements() == length);
    if x.dtype() == DType::F32 && whole && statistics.iter().all(Option::is_none) {
        let (isa, par) = (ctx.isa, ctx.par);
        let (_, source, out) = middle_axis(axis, args)?;
        let (scale, bias) = (Some(scale.f32s()), bias.map(|b| b.f32s()));
        return if centred {
            rows::layer_norm(isa, par, lines, length, epsilon, scale, bias, source, out)
        } else {
            rows::rms_norm(isa, par, lines, length, epsilon, scale, source, out)
        }
        .named(args.op);
    }
    with_float!(args.op, x.dtype(), T => {
        let scale = Parameter::<T>::of(args.input(1)?, normalised);
        let bias = args.opt_input(2).map(|b| Parameter::<T>::of(b, normalised));
        let (src, dst) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
        split(ctx.par, lines, GRAIN / 4 / length, &|range, _| {
            for unit in range {
                let line = Line { src, dst, base: unit * length, step: 1, length };
                let n = length as f64;
                let mean = if centred { line.sum(|v| v) / n } else { 0.0 };
                let variance = line.sum(|v| (v - mean) * (v - mean)) / n;
                let inverse = 1.0 / (variance + f64::from(epsilon)).sqrt();
                for i in 0..length {
                    let v = (line.get(i) - mean) * inverse * scale.get(i);
                    line.put(i, v + bias.as_ref().map_or(0.0, |b| b.get(i)));
                }
                for (statistic, value) in statistics.iter().zip([mean, inverse]) {
                    if let Some(out) = statistic {
                        // SAFETY: one element for each line.
                        unsafe { out.write(unit, value as f32) };
                    }
                }
            }
        });
        Ok(())
    })
}
