//! Optimisers' steps, an element at a time; f32 is computed in f32, other types in f64.

use crate::args::Args;
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Float, with_float};
use crate::{Context, OpError};
use neap_ir::DType;
use neap_ir::update::Update;

/// Most tensors that are kept besides the parameter.
const MOMENTS: usize = 2;

/// Of the parameter's elements from `start` on, as many as the gradient has.
pub(crate) fn update(
    update: Update,
    start: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    match args.input(0)?.dtype() {
        DType::F32 => step::<f32, f32>(update, start, args, ctx),
        dtype => with_float!(args.op, dtype, T => step::<T, f64>(update, start, args, ctx)),
    }
}

/// `T` is stored, `S` computed with.
fn step<T: Float, S: Real>(
    update: Update,
    start: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let input = |i: usize| Ok::<_, OpError>(Ptr::<T>::of(args.input(i)?.as_ptr()));
    let output = |i: usize| Ok::<_, OpError>(Ptr::<T>(args.output(i)?.as_ptr().cast()));
    let (w, g, w_out) = (input(0)?, input(1)?, output(0)?);
    // SAFETY: both have one element.
    let (rate, t) = unsafe {
        let t = Ptr::<i64>::of(args.input(3)?.as_ptr()).read(0);
        (input(2)?.read(0).to_f64(), t)
    };
    let count = update.moments();
    let (mut kept, mut kept_out) = ([w; MOMENTS], [w_out; MOMENTS]);
    for i in 0..count {
        kept[i] = input(4 + i)?;
        kept_out[i] = output(1 + i)?;
    }
    let rule = Rule::<S>::of(update, rate, t);
    let (whole, part) = (args.output(0)?.elements(), args.input(1)?.elements());
    args.require(
        start <= whole && part <= whole - start,
        "has a part beyond its parameter",
    )?;
    if part < whole && w.get() != w_out.get() {
        // Not where the parameter lies: the other elements come along.
        split(ctx.par, whole, GRAIN, &|range, _| {
            // SAFETY: both have so many elements, and a task's are its own.
            unsafe {
                let from = w.slice(range.start, range.len());
                w_out
                    .slice_mut(range.start, range.len())
                    .copy_from_slice(from);
            }
        });
    }
    split(ctx.par, part, GRAIN, &|range, _| {
        for i in range {
            // SAFETY: gradient and moments have as many elements, the parameter from `start` on; each is written by one
            // task, after it was read.
            unsafe {
                let mut moments = [S::of(0.0); MOMENTS];
                for k in 0..count {
                    moments[k] = S::of(kept[k].read(i).to_f64());
                }
                let (w, g) = (w.read(start + i).to_f64(), g.read(i).to_f64());
                let moved = rule.apply(S::of(w), S::of(g), &mut moments);
                w_out.write(start + i, T::from_f64(moved.wide()));
                for k in 0..count {
                    kept_out[k].write(i, T::from_f64(moments[k].wide()));
                }
            }
        }
    });
    Ok(())
}

/// A floating-point type that rules compute with.
trait Real:
    Copy
    + Send
    + Sync
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
{
    fn of(v: f64) -> Self;
    fn wide(self) -> f64;
    fn sqrt(self) -> Self;
}

impl Real for f32 {
    fn of(v: f64) -> f32 {
        v as f32
    }
    fn wide(self) -> f64 {
        self.into()
    }
    fn sqrt(self) -> f32 {
        self.sqrt()
    }
}

impl Real for f64 {
    fn of(v: f64) -> f64 {
        v
    }
    fn wide(self) -> f64 {
        self
    }
    fn sqrt(self) -> f64 {
        self.sqrt()
    }
}

/// An update with what is the same for all elements computed once.
enum Rule<S> {
    Sgd {
        rate: S,
        momentum: S,
        has_momentum: bool,
        nesterov: bool,
        decay: S,
    },
    AdamW {
        /// `1 - rate * decay`
        shrink: S,
        /// `rate / (1 - beta1^t)`
        rate: S,
        /// `1 / sqrt(1 - beta2^t)`
        widen: S,
        betas: [S; 2],
        others: [S; 2],
        epsilon: S,
    },
    Adagrad {
        rate: S,
        epsilon: S,
        decay: S,
    },
}

impl<S: Real> Rule<S> {
    fn of(update: Update, rate: f64, t: i64) -> Rule<S> {
        match update {
            Update::Sgd {
                momentum,
                nesterov,
                decay,
            } => Rule::Sgd {
                rate: S::of(rate),
                momentum: S::of(momentum),
                has_momentum: momentum != 0.0,
                nesterov,
                decay: S::of(decay),
            },
            Update::AdamW {
                beta1,
                beta2,
                epsilon,
                decay,
            } => {
                let t = t.max(1) as f64;
                Rule::AdamW {
                    shrink: S::of(1.0 - rate * decay),
                    rate: S::of(rate / (1.0 - beta1.powf(t))),
                    widen: S::of(1.0 / (1.0 - beta2.powf(t)).sqrt()),
                    betas: [S::of(beta1), S::of(beta2)],
                    others: [S::of(1.0 - beta1), S::of(1.0 - beta2)],
                    epsilon: S::of(epsilon),
                }
            }
            Update::Adagrad {
                epsilon,
                rate_decay,
                decay,
            } => Rule::Adagrad {
                rate: S::of(rate / (1.0 + (t.max(1) - 1) as f64 * rate_decay)),
                epsilon: S::of(epsilon),
                decay: S::of(decay),
            },
        }
    }

    #[inline(always)]
    fn apply(&self, w: S, g: S, moments: &mut [S; MOMENTS]) -> S {
        match *self {
            Rule::Sgd {
                rate,
                momentum,
                has_momentum,
                nesterov,
                decay,
            } => {
                let g = g + decay * w;
                if !has_momentum {
                    return w - rate * g;
                }
                moments[0] = momentum * moments[0] + g;
                if nesterov {
                    w - rate * (g + momentum * moments[0])
                } else {
                    w - rate * moments[0]
                }
            }
            Rule::AdamW {
                shrink,
                rate,
                widen,
                betas,
                others,
                epsilon,
            } => {
                moments[0] = betas[0] * moments[0] + others[0] * g;
                moments[1] = betas[1] * moments[1] + others[1] * g * g;
                shrink * w - rate * moments[0] / (moments[1].sqrt() * widen + epsilon)
            }
            Rule::Adagrad {
                rate,
                epsilon,
                decay,
            } => {
                let g = g + decay * w;
                moments[0] = moments[0] + g * g;
                w - rate * g / (moments[0].sqrt() + epsilon)
            }
        }
    }
}
