//! Reduce over any set of axes.
//!
//! Floating point accumulates in f64 and integers in 64 bits, in an order that only shapes decide:
//! sixteen partial results over a contiguous run, folded from the first to the last, or one per
//! element where the innermost axis is kept.

use crate::args::Args;
use crate::nd::{GRAIN, MAX_RANK, Nd, Ptr, Strides, offset_of, split};
use crate::scalar::{Num, Scalar, with_numeric};
use crate::{Context, OpError};
use neap_ir::DType;
use neap_ir::op::Reduce;
use neap_kernels::rows::extremes;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Partial results of a contiguous run, and elements handled together where the run is kept.
const LANES: usize = 16;

pub(crate) fn reduce(
    kind: Reduce,
    axes: &[usize],
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let plan = Plan::of(x.shape(), axes);
    let (src, dst) = (x.as_ptr(), y.as_ptr());
    if let (Reduce::Max | Reduce::Min, 1) = (kind, y.elements())
        && let Some(extreme) = extreme(kind, x.f32s(), ctx)
    {
        // SAFETY: the output is one float, and overlaps no input.
        unsafe { dst.cast::<f32>().write(extreme) };
        return Ok(());
    }
    if x.dtype() == DType::Bool {
        // As bytes of 0 and 1.
        match kind {
            Reduce::Max => {
                plan.run::<u8, i64, Max>(src, dst, ctx, |v, _| u8::from_i64(i64::from(v > 0)))
            }
            _ => plan.run::<u8, i64, Min>(src, dst, ctx, |v, _| u8::from_i64(i64::from(v > 0))),
        }
        return Ok(());
    }
    with_numeric!(args.op, x.dtype(), T => {
        if T::FLOAT {
            float::<T>(kind, &plan, src, dst, ctx);
        } else if x.dtype() == DType::U64 {
            integer::<T, u64>(kind, &plan, src, dst, ctx);
        } else {
            integer::<T, i64>(kind, &plan, src, dst, ctx);
        }
        Ok(())
    })
}

/// The extreme of floats; `None` where some are not finite, or it is a zero, whose sign depends on the order.
fn extreme(kind: Reduce, x: &[f32], ctx: &Context) -> Option<f32> {
    let (found, undecided) = (AtomicI32::new(i32::MIN), AtomicBool::new(x.is_empty()));
    let sign = if kind == Reduce::Max { 1.0 } else { -1.0 };
    split(
        ctx.par,
        x.len(),
        GRAIN,
        &|range, _| match extremes(ctx.isa, &x[range]) {
            Some([low, high]) => {
                let own = if kind == Reduce::Max { high } else { -low };
                found.fetch_max(in_order(own.to_bits() as i32), Ordering::Relaxed);
            }
            None => undecided.store(true, Ordering::Relaxed),
        },
    );
    let most = f32::from_bits(in_order(found.into_inner()) as u32);
    (!undecided.into_inner() && most != 0.0).then_some(sign * most)
}

/// Integers in the order of the floats that have these bits, and back.
fn in_order(bits: i32) -> i32 {
    bits ^ (bits >> 31 & i32::MAX)
}

fn float<T: Num>(kind: Reduce, plan: &Plan, src: *const u8, dst: *mut u8, ctx: &mut Context) {
    match kind {
        Reduce::Sum => plan.run::<T, f64, Sum>(src, dst, ctx, |v, _| T::from_f64(v)),
        Reduce::Mean => plan.run::<T, f64, Sum>(src, dst, ctx, |v, n| T::from_f64(v / n as f64)),
        Reduce::Max => plan.run::<T, f64, Max>(src, dst, ctx, |v, _| T::from_f64(v)),
        Reduce::Min => plan.run::<T, f64, Min>(src, dst, ctx, |v, _| T::from_f64(v)),
        Reduce::Prod => plan.run::<T, f64, Prod>(src, dst, ctx, |v, _| T::from_f64(v)),
        Reduce::L1 => plan.run::<T, f64, SumAbs>(src, dst, ctx, |v, _| T::from_f64(v)),
        Reduce::L2 => plan.run::<T, f64, SumSquare>(src, dst, ctx, |v, _| T::from_f64(v.sqrt())),
        Reduce::LogSum => plan.run::<T, f64, Sum>(src, dst, ctx, |v, _| T::from_f64(v.ln())),
        Reduce::SumSquare => plan.run::<T, f64, SumSquare>(src, dst, ctx, |v, _| T::from_f64(v)),
        Reduce::LogSumExp => {
            plan.run::<T, LogSum, LogSumExp>(src, dst, ctx, |v, _| T::from_f64(v.value()));
        }
    }
}

/// `A` holds every `T`; sums and products wrap, except those that a mean is taken of.
fn integer<T: Num, A>(kind: Reduce, plan: &Plan, src: *const u8, dst: *mut u8, ctx: &mut Context)
where
    A: Accumulator + Num,
    Sum: Fold<A>,
    SumAbs: Fold<A>,
    SumSquare: Fold<A>,
    Prod: Fold<A>,
    Max: Fold<A>,
    Min: Fold<A>,
{
    match kind {
        Reduce::Sum => plan.run::<T, A, Sum>(src, dst, ctx, |v, _| v.convert()),
        Reduce::Mean => {
            plan.run::<T, i128, Sum>(src, dst, ctx, |v, n| v.div(n as i128).convert());
        }
        Reduce::Max => plan.run::<T, A, Max>(src, dst, ctx, |v, _| clamped(v)),
        Reduce::Min => plan.run::<T, A, Min>(src, dst, ctx, |v, _| clamped(v)),
        Reduce::Prod => plan.run::<T, A, Prod>(src, dst, ctx, |v, _| v.convert()),
        Reduce::L1 => plan.run::<T, A, SumAbs>(src, dst, ctx, |v, _| v.convert()),
        Reduce::L2 => plan.run::<T, f64, SumSquare>(src, dst, ctx, |v, _| T::from_f64(v.sqrt())),
        Reduce::LogSum => plan.run::<T, f64, Sum>(src, dst, ctx, |v, _| T::from_f64(v.ln())),
        Reduce::SumSquare => plan.run::<T, A, SumSquare>(src, dst, ctx, |v, _| v.convert()),
        Reduce::LogSumExp => {
            plan.run::<T, LogSum, LogSumExp>(src, dst, ctx, |v, _| T::from_f64(v.value()));
        }
    }
}

/// The extreme of an empty set lies outside narrow types.
fn clamped<A: Num, T: Num>(v: A) -> T {
    let (low, high) = (T::lowest().to_i128(), T::highest().to_i128());
    v.to_i128().clamp(low, high).convert()
}

/// What partial results are kept in.
pub(crate) trait Accumulator: Copy + Send + Sync {
    fn of<T: Scalar>(x: T) -> Self;
}

impl Accumulator for f64 {
    #[inline(always)]
    fn of<T: Scalar>(x: T) -> f64 {
        x.to_f64()
    }
}

impl Accumulator for i64 {
    #[inline(always)]
    fn of<T: Scalar>(x: T) -> i64 {
        x.to_i64()
    }
}

impl Accumulator for u64 {
    #[inline(always)]
    fn of<T: Scalar>(x: T) -> u64 {
        x.to_i64() as u64
    }
}

impl Accumulator for i128 {
    #[inline(always)]
    fn of<T: Scalar>(x: T) -> i128 {
        x.to_i128()
    }
}

/// `ln(sum of exp)` as the largest exponent and the sum relative to it.
#[derive(Clone, Copy)]
struct LogSum {
    largest: f64,
    sum: f64,
}

impl LogSum {
    fn value(self) -> f64 {
        if self.largest == f64::INFINITY {
            return f64::INFINITY;
        }
        if self.sum == 0.0 {
            return f64::NEG_INFINITY;
        }
        self.largest + self.sum.ln()
    }
}

impl Accumulator for LogSum {
    fn of<T: Scalar>(x: T) -> LogSum {
        let largest = x.to_f64();
        LogSum {
            largest,
            sum: if largest == f64::NEG_INFINITY {
                0.0
            } else {
                1.0
            },
        }
    }
}

trait Fold<A> {
    fn start() -> A;
    fn map(x: A) -> A {
        x
    }
    fn fold(a: A, b: A) -> A;
}

macro_rules! number_folds {
    ($($t:ident)*) => {$(
        impl Fold<$t> for Sum {
            fn start() -> $t { $t::ZERO }
            #[inline(always)]
            fn fold(a: $t, b: $t) -> $t { a.add(b) }
        }
        impl Fold<$t> for SumAbs {
            fn start() -> $t { $t::ZERO }
            #[inline(always)]
            fn map(x: $t) -> $t { Num::abs(x) }
            #[inline(always)]
            fn fold(a: $t, b: $t) -> $t { a.add(b) }
        }
        impl Fold<$t> for SumSquare {
            fn start() -> $t { $t::ZERO }
            #[inline(always)]
            fn map(x: $t) -> $t { x.mul(x) }
            #[inline(always)]
            fn fold(a: $t, b: $t) -> $t { a.add(b) }
        }
        impl Fold<$t> for Prod {
            fn start() -> $t { $t::ONE }
            #[inline(always)]
            fn fold(a: $t, b: $t) -> $t { a.mul(b) }
        }
        impl Fold<$t> for Max {
            fn start() -> $t { $t::lowest() }
            #[inline(always)]
            fn fold(a: $t, b: $t) -> $t { a.max_nan(b) }
        }
        impl Fold<$t> for Min {
            fn start() -> $t { $t::highest() }
            #[inline(always)]
            fn fold(a: $t, b: $t) -> $t { a.min_nan(b) }
        }
    )*};
}

struct Sum;
struct SumAbs;
struct SumSquare;
struct Prod;
struct Max;
struct Min;
struct LogSumExp;
number_folds! { f64 i64 u64 i128 }

impl Fold<LogSum> for LogSumExp {
    fn start() -> LogSum {
        LogSum {
            largest: f64::NEG_INFINITY,
            sum: 0.0,
        }
    }

    fn fold(a: LogSum, b: LogSum) -> LogSum {
        let largest = a.largest.max_nan(b.largest);
        if largest.is_infinite() {
            return LogSum {
                largest,
                sum: a.sum + b.sum,
            };
        }
        LogSum {
            largest,
            sum: a.sum * (a.largest - largest).exp() + b.sum * (b.largest - largest).exp(),
        }
    }
}

/// Which axes go and which stay, with joined neighbours.
struct Plan {
    kept: Nd<1>,
    folded: Nd<1>,
    /// Elements folded into each result.
    count: usize,
    results: usize,
}

impl Plan {
    fn of(shape: &[usize], axes: &[usize]) -> Plan {
        let own = Strides::row_major(shape, 1);
        let (mut kept_dims, mut folded_dims) = ([1usize; MAX_RANK], [1usize; MAX_RANK]);
        let (mut kept, mut folded) = (Strides::empty(), Strides::empty());
        let (mut n_kept, mut n_folded) = (0, 0);
        for (axis, &dim) in shape.iter().enumerate() {
            if axes.contains(&axis) {
                folded_dims[n_folded] = dim;
                folded.push(own[axis]);
                n_folded += 1;
            } else {
                kept_dims[n_kept] = dim;
                kept.push(own[axis]);
                n_kept += 1;
            }
        }
        let kept = Nd::new(&kept_dims[..n_kept], [&kept]);
        let folded = Nd::new(&folded_dims[..n_folded], [&folded]);
        Plan {
            count: folded.total(),
            results: kept.total(),
            kept,
            folded,
        }
    }

    /// Offsets of the kept and folded index spaces.
    fn offset(nd: &Nd<1>, index: usize) -> usize {
        offset_of(index, &nd.dims[..nd.rank], &nd.strides[0][..nd.rank]) as usize
    }

    fn run<T: Scalar, A: Accumulator, F: Fold<A>>(
        &self,
        src: *const u8,
        dst: *mut u8,
        ctx: &mut Context,
        finish: impl Fn(A, usize) -> T + Sync,
    ) {
        let (src, dst) = (Ptr::<T>::of(src), Ptr::<T>(dst.cast()));
        let [kept_step] = self.kept.inner();
        let line = self.kept.dims[self.kept.rank - 1];
        let inner_kept = kept_step == 1 && line > 1 && self.results > 0;
        let [folded_step] = self.folded.inner();
        let run = self.folded.dims[self.folded.rank - 1];
        let jumps = self.count.checked_div(run).unwrap_or(0);
        let lanes = if inner_kept { LANES } else { 1 };
        let groups = if inner_kept {
            self.results / line * line.div_ceil(LANES)
        } else {
            self.results
        };
        let per_task = GRAIN / (self.count.max(1) * lanes);
        split(ctx.par, groups, per_task, &|range, _| {
            for group in range {
                if inner_kept {
                    // Up to 16 neighbouring results at a time.
                    let per_line = line.div_ceil(LANES);
                    let at = group / per_line * line + group % per_line * LANES;
                    let width = LANES.min(line - group % per_line * LANES);
                    let base = Plan::offset(&self.kept, at);
                    let mut sums = [F::start(); LANES];
                    for jump in 0..jumps {
                        let from = base + Plan::offset(&self.folded, jump * run);
                        for i in 0..run {
                            let row = from + i * folded_step as usize;
                            for (lane, sum) in sums[..width].iter_mut().enumerate() {
                                // SAFETY: kept and folded indices are inside the input.
                                let v = unsafe { src.read(row + lane) };
                                *sum = F::fold(*sum, F::map(A::of(v)));
                            }
                        }
                    }
                    for (lane, &sum) in sums[..width].iter().enumerate() {
                        // SAFETY: each result belongs to one group.
                        unsafe { dst.write(at + lane, finish(sum, self.count)) };
                    }
                    continue;
                }
                let base = Plan::offset(&self.kept, group);
                let mut sums = [F::start(); LANES];
                for jump in 0..jumps {
                    let from = base + Plan::offset(&self.folded, jump * run);
                    let mut i = 0;
                    while i + LANES <= run {
                        for (lane, sum) in sums.iter_mut().enumerate() {
                            // SAFETY: as above.
                            let v = unsafe { src.read(from + (i + lane) * folded_step as usize) };
                            *sum = F::fold(*sum, F::map(A::of(v)));
                        }
                        i += LANES;
                    }
                    for (lane, i) in (i..run).enumerate() {
                        // SAFETY: as above.
                        let v = unsafe { src.read(from + i * folded_step as usize) };
                        sums[lane] = F::fold(sums[lane], F::map(A::of(v)));
                    }
                }
                let sum = sums[1..].iter().fold(sums[0], |a, &b| F::fold(a, b));
                // SAFETY: as above.
                unsafe { dst.write(group, finish(sum, self.count)) };
            }
        });
    }
}
