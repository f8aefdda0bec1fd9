//! Backward of attention. Each query's scores are computed again: with `p` the weights of its keys, `dp_j = dy · v_j` and
//! `ds = p (dp - Σ p dp)`, the derivatives are `dq = scale Σ ds_j k_j`, `dk_j = scale Σ ds_j q` and `dv_j = Σ p_j dy`
//! (Dao et al. 2022, *FlashAttention*, section 3.1).
//!
//! A head of keys with all its queries is one task's, so what adds up over queries is added in one order. Sums are in f64.

use crate::args::{Args, Scratch, scratch_bytes};
use crate::attention::Steps;
use crate::nd::{GRAIN, Ptr, Strides, split};
use crate::scalar::{Float, with_float};
use crate::{Context, OpError, TensorRef};
use neap_ir::DType;
use neap_ir::infer::AttentionDims;
use neap_ir::op::{AttentionAttrs, HeadLayout};

const LANES: usize = 8;

/// Numbers that a worker keeps: derivatives of a head's keys and values; a query's weights and their derivatives; the query, its
/// derivative and dy.
fn share(dims: &AttentionDims) -> usize {
    let head = dims.keys.saturating_mul(dims.depth + dims.value_depth);
    head.saturating_add(2 * (dims.keys + dims.depth) + dims.value_depth)
}

pub(super) fn workspace_bytes(dims: &AttentionDims, workers: usize) -> usize {
    scratch_bytes::<f64>(share(dims).saturating_mul(workers))
}

pub(super) fn attention(
    attrs: &AttentionAttrs,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (q, k, v) = (args.input(0)?, args.input(1)?, args.input(2)?);
    let Some(dims) = AttentionDims::of(attrs, q.shape(), k.shape(), v.shape()) else {
        return args.fail("operands do not fit");
    };
    with_float!(args.op, q.dtype(), T => run::<T>(attrs, &dims, args, ctx))
}

/// One operand, with where its heads and rows lie.
#[derive(Clone, Copy)]
struct Heads<T> {
    data: Ptr<T>,
    steps: Steps,
    depth: usize,
}

impl<T: Float> Heads<T> {
    /// # Safety
    /// `at` is a row's first element, and nobody writes it.
    unsafe fn load(&self, at: usize, row: &mut [f64]) {
        for (d, v) in row.iter_mut().enumerate() {
            // SAFETY: the row is inside the operand.
            *v = unsafe { self.data.read(at + d * self.steps.depth) }.to_f64();
        }
    }

    /// # Safety
    /// `at` is a row's first element, and no other task touches it.
    unsafe fn store(&self, at: usize, row: &[f64]) {
        for (d, &v) in row.iter().enumerate() {
            // SAFETY: the row is inside the operand.
            unsafe { self.data.write(at + d * self.steps.depth, T::from_f64(v)) };
        }
    }

    /// The product of a row with another.
    ///
    /// # Safety
    /// As [`Heads::load`].
    unsafe fn dot(&self, at: usize, row: &[f64]) -> f64 {
        let mut sums = [0.0; LANES];
        if self.steps.depth == 1 {
            // SAFETY: the row is inside the operand.
            let own = unsafe { self.data.slice(at, row.len()) };
            let ((a, a_tail), (b, b_tail)) = (own.as_chunks::<LANES>(), row.as_chunks::<LANES>());
            for (a, b) in a.iter().zip(b) {
                (0..LANES).for_each(|lane| sums[lane] += a[lane].to_f64() * b[lane]);
            }
            for (lane, (a, b)) in a_tail.iter().zip(b_tail).enumerate() {
                sums[lane] += a.to_f64() * b;
            }
        } else {
            for (d, b) in row.iter().enumerate() {
                // SAFETY: the row is inside the operand.
                let a = unsafe { self.data.read(at + d * self.steps.depth) };
                sums[d % LANES] += a.to_f64() * b;
            }
        }
        sums.iter().sum()
    }

    /// Adds a multiple of a row.
    ///
    /// # Safety
    /// As [`Heads::load`].
    unsafe fn add_to(&self, at: usize, factor: f64, sums: &mut [f64]) {
        for (d, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the row is inside the operand.
            *sum += factor * unsafe { self.data.read(at + d * self.steps.depth) }.to_f64();
        }
    }
}

fn run<T: Float>(
    attrs: &AttentionAttrs,
    dims: &AttentionDims,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (heads, kv_heads) = (dims.heads, dims.kv_heads);
    let of = |data: Ptr<T>, layout, heads, rows, depth| Heads {
        data,
        steps: Steps::of(layout, heads, rows, depth),
        depth,
    };
    let input = |i: usize| Ok::<_, OpError>(Ptr::<T>::of(args.input(i)?.as_ptr()));
    let q = of(input(0)?, attrs.q, heads, dims.queries, dims.depth);
    let k = of(input(1)?, attrs.k, kv_heads, dims.keys, dims.depth);
    let v = of(input(2)?, attrs.v, kv_heads, dims.keys, dims.value_depth);
    let dy = of(input(4)?, attrs.out, heads, dims.queries, dims.value_depth);
    let output = |i: usize| args.opt_output(i).map(|t| Ptr::<T>(t.as_ptr().cast()));
    for (i, layout) in [attrs.q, attrs.k, attrs.v].into_iter().enumerate() {
        if let (HeadLayout::Packed { .. }, Some(out)) = (layout, args.opt_output(i)) {
            let to = Ptr::<T>(out.as_ptr().cast());
            split(ctx.par, out.elements(), GRAIN, &|range, _| {
                // SAFETY: ranges are inside the tensor and disjoint.
                unsafe { to.slice_mut(range.start, range.len()) }.fill(T::ZERO);
            });
        }
    }
    let share = share(dims);
    let scratch = Scratch::new(args.op, ctx.workspace).take::<f64>(share * ctx.par.workers())?;
    let scratch = Ptr(scratch.as_mut_ptr());
    let scores = [dims.batch, heads, dims.queries, dims.keys];
    let pass = Pass {
        attrs,
        dims,
        q,
        k,
        v,
        dy,
        mask: args
            .opt_input(3)
            .map(|mask| (mask, Strides::broadcast(mask.shape(), &scores, 1))),
        dq: output(0).map(|data| Heads { data, ..q }),
        dscores: output(3),
    };
    let (dk, dv) = (
        output(1).map(|data| Heads { data, ..k }),
        output(2).map(|data| Heads { data, ..v }),
    );
    split(ctx.par, dims.batch * kv_heads, 1, &|range, worker| {
        // SAFETY: every worker has its own share of the scratch.
        let own = unsafe { scratch.slice_mut(worker * share, share) };
        let (k_sums, own) = own.split_at_mut(dims.keys * dims.depth);
        let (v_sums, own) = own.split_at_mut(dims.keys * dims.value_depth);
        for unit in range {
            let (b, head) = (unit / kv_heads, unit % kv_heads);
            k_sums.fill(0.0);
            v_sums.fill(0.0);
            let group = heads / kv_heads;
            for h in head * group..(head + 1) * group {
                for i in 0..dims.queries {
                    pass.query([b, h, head, i], k_sums, v_sums, own);
                }
            }
            for (d, sums) in [(dk, &*k_sums), (dv, &*v_sums)] {
                let Some(d) = d else {
                    continue;
                };
                for j in 0..dims.keys {
                    let row = &sums[j * d.depth..(j + 1) * d.depth];
                    // SAFETY: a head's rows belong to one task.
                    unsafe { d.store(d.steps.at(b, head, j), row) };
                }
            }
        }
    });
    Ok(())
}

struct Pass<'a, T> {
    attrs: &'a AttentionAttrs,
    dims: &'a AttentionDims,
    q: Heads<T>,
    k: Heads<T>,
    v: Heads<T>,
    dy: Heads<T>,
    mask: Option<(TensorRef<'a>, Strides)>,
    dq: Option<Heads<T>>,
    dscores: Option<Ptr<T>>,
}

impl<T: Float> Pass<'_, T> {
    /// Adds one query's part to the derivatives of keys and values, and writes its own.
    fn query(
        &self,
        [b, h, kv, i]: [usize; 4],
        k_sums: &mut [f64],
        v_sums: &mut [f64],
        own: &mut [f64],
    ) {
        let (depth, value_depth) = (self.dims.depth, self.dims.value_depth);
        let (weights, own) = own.split_at_mut(self.dims.keys);
        let (slopes, own) = own.split_at_mut(self.dims.keys);
        let (query, own) = own.split_at_mut(depth);
        let (dq, dy) = own.split_at_mut(depth);
        let scale = f64::from(self.attrs.scale);
        // SAFETY: here and below: rows are inside their operands; what is written belongs to one task.
        unsafe {
            self.q.load(self.q.steps.at(b, h, i), query);
            self.dy.load(self.dy.steps.at(b, h, i), dy);
        }
        // What later keys of a causal attention have is 0.
        let keys = match self.attrs.causal {
            true => self.dims.keys.min(i + 1),
            false => self.dims.keys,
        };
        let mut largest = f64::NEG_INFINITY;
        for (j, score) in weights[..keys].iter_mut().enumerate() {
            // SAFETY: as above.
            let dot = unsafe { self.k.dot(self.k.steps.at(b, kv, j), query) };
            *score = self.masked(dot * scale, [b, h, i, j]);
            largest = largest.max(*score);
        }
        let mut total = 0.0;
        for weight in &mut weights[..keys] {
            *weight = (*weight - largest).exp();
            total += *weight;
        }
        let mut along = 0.0;
        for (j, weight) in weights[..keys].iter_mut().enumerate() {
            *weight /= total;
            // SAFETY: as above.
            slopes[j] = unsafe { self.v.dot(self.v.steps.at(b, kv, j), dy) };
            along += *weight * slopes[j];
        }
        dq.fill(0.0);
        for (j, weight) in weights[..keys].iter().enumerate() {
            slopes[j] = weight * (slopes[j] - along);
            let factor = scale * slopes[j];
            // SAFETY: as above.
            unsafe { self.k.add_to(self.k.steps.at(b, kv, j), factor, dq) };
            let row = &mut k_sums[j * depth..(j + 1) * depth];
            let pairs = row.iter_mut().zip(&*query);
            pairs.for_each(|(sum, q)| *sum += factor * q);
            let row = &mut v_sums[j * value_depth..(j + 1) * value_depth];
            let pairs = row.iter_mut().zip(&*dy);
            pairs.for_each(|(sum, dy)| *sum += weight * dy);
        }
        if let Some(to) = self.dq {
            // SAFETY: as above.
            unsafe { to.store(to.steps.at(b, h, i), dq) };
        }
        if let Some(to) = self.dscores {
            slopes[keys..].fill(0.0);
            let first = ((b * self.dims.heads + h) * self.dims.queries + i) * self.dims.keys;
            for (j, &v) in slopes.iter().enumerate() {
                // SAFETY: as above.
                unsafe { to.write(first + j, T::from_f64(v)) };
            }
        }
    }

    fn masked(&self, score: f64, place: [usize; 4]) -> f64 {
        let Some((mask, strides)) = &self.mask else {
            return score;
        };
        let at = (0..4)
            .map(|axis| place[axis] * strides[axis] as usize)
            .sum();
        // SAFETY: the mask broadcasts to the scores.
        unsafe {
            if mask.dtype() == DType::Bool {
                let sees = *mask.as_ptr().add(at) != 0;
                return if sees { score } else { f64::NEG_INFINITY };
            }
            score + Ptr::<T>::of(mask.as_ptr()).read(at).to_f64()
        }
    }
}
