//! Attention over strided heads.
//!
//! Any float type and layout: one query at a time, scores of that query in the workspace, sums in
//! f64. f32 goes to the tiled kernel where its strides fit.

use crate::args::{Args, Scratch, scratch_bytes};
use crate::error::Named;
use crate::nd::{Ptr, Strides, split};
use crate::scalar::{Float, with_float};
use crate::{Context, OpError};
use neap_ir::infer::AttentionDims;
use neap_ir::op::{AttentionAttrs, HeadLayout};
use neap_ir::strips::KeyStrip;
use neap_ir::{DType, Layout, TensorType};
use neap_kernels::attention as kernels;

/// Element steps of one operand of an attention.
#[derive(Debug, Clone, Copy)]
pub struct Steps {
    pub batch: usize,
    pub head: usize,
    pub row: usize,
    /// From element to element of a row.
    pub depth: usize,
    /// Of the first element.
    pub offset: usize,
}

impl Steps {
    pub fn of(layout: HeadLayout, heads: usize, rows: usize, depth: usize) -> Steps {
        let wide = |row: usize, offset: usize| Steps {
            batch: rows * row,
            head: depth,
            row,
            depth: 1,
            offset,
        };
        match layout {
            HeadLayout::HeadMajor => Steps {
                batch: heads * rows * depth,
                head: rows * depth,
                row: depth,
                depth: 1,
                offset: 0,
            },
            HeadLayout::HeadMajorTransposed => Steps {
                batch: heads * rows * depth,
                head: rows * depth,
                row: 1,
                depth: rows,
                offset: 0,
            },
            HeadLayout::RowMajor => wide(heads * depth, 0),
            HeadLayout::Packed { row, offset } => wide(row, offset),
        }
    }

    pub fn at(&self, batch: usize, head: usize, row: usize) -> usize {
        self.offset + batch * self.batch + head * self.head + row * self.row
    }
}

/// What the tiled kernel needs, or scores of one query for each worker.
pub(crate) fn workspace_bytes(
    attrs: &AttentionAttrs,
    dims: &AttentionDims,
    ty: &TensorType,
    workers: usize,
) -> usize {
    let loops = scratch_bytes::<f64>((dims.keys + dims.value_depth) * workers);
    match tiled(attrs, dims) {
        Some(shape) if ty.dtype == DType::F32 => {
            let bytes = kernels::attention_scratch_bytes(&shape, workers);
            loops.max(scratch_bytes::<f32>(bytes.div_ceil(4)))
        }
        _ => loops,
    }
}

/// Where the strip lies among the keys of the whole.
fn place(of: &KeyStrip) -> kernels::KeyStrip {
    kernels::KeyStrip {
        start: of.start,
        total: of.total,
    }
}

pub(crate) fn strip_workspace_bytes(of: &KeyStrip, dims: &AttentionDims, workers: usize) -> usize {
    tiled(&of.attrs, dims).map_or(0, |shape| {
        let bytes = kernels::attention_strip_scratch_bytes(&shape, place(of), workers);
        scratch_bytes::<f32>(bytes.div_ceil(4))
    })
}

pub(crate) fn strip_supported(of: &KeyStrip, inputs: &[Option<(&TensorType, Layout)>]) -> bool {
    let ty = |i: usize| inputs.get(i).copied().flatten().map(|(ty, _)| ty);
    let shape = |i: usize| ty(i).map_or(&[][..], |ty| &ty.shape);
    let is_f32 = (0..4).all(|i| ty(i).is_none_or(|ty| ty.dtype == DType::F32));
    let dims = AttentionDims::of(&of.attrs, shape(0), shape(1), shape(2));
    let fits = |dims: AttentionDims| tiled(&of.attrs, &dims).is_some() && place(of).fits(dims.keys);
    is_f32 && !of.attrs.causal && !of.attrs.nan_is_zero && dims.is_some_and(fits)
}

/// The tiled kernel's view of an attention without its mask; `None` where strides do not fit.
fn tiled(attrs: &AttentionAttrs, dims: &AttentionDims) -> Option<kernels::Attention<'static>> {
    let steps = |layout, heads, rows, depth| {
        let steps = Steps::of(layout, heads, rows, depth);
        let strides = kernels::Strides {
            batch: steps.batch,
            head: steps.head,
            row: steps.row,
        };
        (layout != HeadLayout::HeadMajorTransposed).then_some(strides)
    };
    let (keys, k) = match steps(attrs.k, dims.kv_heads, dims.keys, dims.depth) {
        Some(strides) => (kernels::KeyLayout::Rows, strides),
        None => {
            let steps = Steps::of(attrs.k, dims.kv_heads, dims.keys, dims.depth);
            let strides = kernels::Strides {
                batch: steps.batch,
                head: steps.head,
                row: steps.depth,
            };
            (kernels::KeyLayout::Transposed, strides)
        }
    };
    if dims.keys == 0 || dims.depth == 0 {
        return None;
    }
    Some(kernels::Attention {
        batch: dims.batch,
        heads_q: dims.heads,
        heads_kv: dims.kv_heads,
        q_len: dims.queries,
        kv_len: dims.keys,
        head_dim: dims.depth,
        v_dim: dims.value_depth,
        scale: attrs.scale,
        softcap: 0.0,
        causal: attrs.causal.then_some(0),
        nan_is_zero: attrs.nan_is_zero,
        mask: None,
        q: steps(attrs.q, dims.heads, dims.queries, dims.depth)?,
        k,
        v: steps(attrs.v, dims.kv_heads, dims.keys, dims.value_depth)?,
        out: steps(attrs.out, dims.heads, dims.queries, dims.value_depth)?,
        keys,
    })
}

/// The mask of keys `from..` of so many.
fn mask_of<'a>(
    shape: &kernels::Attention<'static>,
    [from, keys]: [usize; 2],
    args: &Args<'_, 'a>,
) -> Option<kernels::Mask<'a>> {
    let scores = [shape.batch, shape.heads_q, shape.q_len, keys];
    args.opt_input(3).map(|mask| {
        let strides = Strides::broadcast(mask.shape(), &scores, 1);
        let strides = std::array::from_fn(|i| strides[i] as usize);
        let values = mask.f32s().get(from * strides[3]..).unwrap_or(&[]);
        kernels::Mask { values, strides }
    })
}

/// Queries, keys and values, from the first element on that is one.
fn operands<'a>(attrs: &AttentionAttrs, args: &Args<'_, 'a>) -> Result<[&'a [f32]; 3], OpError> {
    let operand = |i: usize, layout| {
        let tensor = args.input(i)?;
        let offset = match layout {
            HeadLayout::Packed { offset, .. } => offset,
            _ => 0,
        };
        match tensor.f32s().get(offset..) {
            Some(values) => Ok(values),
            None => args.fail("an operand is too short"),
        }
    };
    Ok([
        operand(0, attrs.q)?,
        operand(1, attrs.k)?,
        operand(2, attrs.v)?,
    ])
}

/// Over a strip of keys: what was found for those before is gone on with, in place or in a copy.
pub(crate) fn over_keys(of: &KeyStrip, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (q, k, v) = (args.input(0)?, args.input(1)?, args.input(2)?);
    let dims = AttentionDims::of(&of.attrs, q.shape(), k.shape(), v.shape());
    let Some(shape) = dims.and_then(|dims| tiled(&of.attrs, &dims)) else {
        return args.fail("operands do not fit");
    };
    let mask = mask_of(&shape, [of.start, of.total], args);
    let shape = kernels::Attention { mask, ..shape };
    let results = [args.output(0)?, args.output(1)?];
    for (y, before) in results.iter().zip([4, 5]) {
        if let Some(before) = args.opt_input(before)
            && !y.is_at(&before)
        {
            // SAFETY: the output overlaps no input that is not in its place.
            unsafe { y.f32s_mut() }.copy_from_slice(before.f32s());
        }
    }
    let bytes = kernels::attention_strip_scratch_bytes(&shape, place(of), ctx.par.workers());
    let scratch = Scratch::new(args.op, ctx.workspace).take::<f32>(bytes.div_ceil(4))?;
    let operands = operands(&of.attrs, args)?;
    // SAFETY: as above; the results are apart.
    let [y, state] = results.map(|y| unsafe { y.f32s_mut() });
    let (isa, par, place) = (ctx.isa, ctx.par, place(of));
    kernels::attention_strip(isa, par, &shape, place, operands, y, state, scratch).named(args.op)
}

fn by_tiles(
    attrs: &AttentionAttrs,
    shape: kernels::Attention<'static>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let mask = mask_of(&shape, [0, shape.kv_len], args);
    let shape = kernels::Attention { mask, ..shape };
    let floats = kernels::attention_scratch_bytes(&shape, ctx.par.workers()).div_ceil(4);
    let scratch = Scratch::new(args.op, ctx.workspace).take::<f32>(floats)?;
    let [q, k, v] = operands(attrs, args)?;
    // SAFETY: the output overlaps no input.
    let out = unsafe { args.output(0)?.f32s_mut() };
    kernels::attention(ctx.isa, ctx.par, &shape, q, k, v, out, scratch).named(args.op)
}

pub(crate) fn attention(
    attrs: &AttentionAttrs,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (q, k, v) = (args.input(0)?, args.input(1)?, args.input(2)?);
    let Some(dims) = AttentionDims::of(attrs, q.shape(), k.shape(), v.shape()) else {
        return args.fail("operands do not fit");
    };
    args.require(
        args.output(0)?.elements() == dims.batch * dims.heads * dims.queries * dims.value_depth,
        "the result has the wrong size",
    )?;
    let additive = args
        .opt_input(3)
        .is_none_or(|mask| mask.dtype() == DType::F32);
    if q.dtype() == DType::F32
        && additive
        && let Some(shape) = tiled(attrs, &dims)
    {
        return by_tiles(attrs, shape, args, ctx);
    }
    with_float!(args.op, q.dtype(), T => plain::<T>(attrs, &dims, args, ctx))
}

fn plain<T: Float>(
    attrs: &AttentionAttrs,
    dims: &AttentionDims,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let AttentionDims {
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        depth,
        value_depth,
    } = *dims;
    let data = |i: usize| Ok::<_, OpError>(Ptr::<T>::of(args.input(i)?.as_ptr()));
    let (q, k, v) = (data(0)?, data(1)?, data(2)?);
    let y = Ptr::<T>(args.output(0)?.as_ptr().cast());
    let sq = Steps::of(attrs.q, heads, queries, depth);
    let sk = Steps::of(attrs.k, kv_heads, keys, depth);
    let sv = Steps::of(attrs.v, kv_heads, keys, value_depth);
    let sy = Steps::of(attrs.out, heads, queries, value_depth);
    let mask = args.opt_input(3).map(|mask| {
        let strides = Strides::broadcast(mask.shape(), &[batch, heads, queries, keys], 1);
        (mask, strides)
    });
    let share = keys + value_depth;
    let scratch = Scratch::new(args.op, ctx.workspace).take::<f64>(share * ctx.par.workers())?;
    let scratch = Ptr(scratch.as_mut_ptr());
    split(ctx.par, batch * heads * queries, 1, &|range, worker| {
        // SAFETY: every worker has its own share of the scratch.
        let own = unsafe { scratch.slice_mut(worker * share, share) };
        let (scores, sums) = own.split_at_mut(keys);
        for unit in range {
            let (b, h, i) = (
                unit / (heads * queries),
                unit / queries % heads,
                unit % queries,
            );
            let kv = h / (heads / kv_heads);
            let mut largest = f64::NEG_INFINITY;
            for (j, score) in scores.iter_mut().enumerate() {
                let (at_q, at_k) = (sq.at(b, h, i), sk.at(b, kv, j));
                let mut dot = 0.0;
                for d in 0..depth {
                    // SAFETY: positions are inside operands of these sizes and layouts.
                    unsafe {
                        let (x, w) = (q.read(at_q + d * sq.depth), k.read(at_k + d * sk.depth));
                        dot += x.to_f64() * w.to_f64();
                    }
                }
                *score = dot * f64::from(attrs.scale);
                if let Some((mask, strides)) = &mask {
                    let at = (b * strides[0] as usize) + (h * strides[1] as usize);
                    let at = at + i * strides[2] as usize + j * strides[3] as usize;
                    // SAFETY: the mask broadcasts to the scores.
                    unsafe {
                        if mask.dtype() == DType::Bool {
                            if *mask.as_ptr().add(at) == 0 {
                                *score = f64::NEG_INFINITY;
                            }
                        } else {
                            *score += Ptr::<T>::of(mask.as_ptr()).read(at).to_f64();
                        }
                    }
                }
                if attrs.causal && j > i {
                    *score = f64::NEG_INFINITY;
                }
                largest = largest.max(*score);
            }
            let mut total = 0.0;
            sums.fill(0.0);
            for (j, &score) in scores.iter().enumerate() {
                // A query that sees no key gets NaN, as the formula has it.
                let weight = (score - largest).exp();
                total += weight;
                let at_v = sv.at(b, kv, j);
                for (d, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: as above.
                    *sum += weight * unsafe { v.read(at_v + d * sv.depth) }.to_f64();
                }
            }
            if keys == 0 {
                // A sum of nothing.
                total = 1.0;
            }
            let has_weights = total > 0.0;
            if attrs.nan_is_zero && !has_weights {
                // The weights are zeros; zero times what is no number is none.
                total = 1.0;
                sums.fill(0.0);
                for j in 0..keys {
                    let at_v = sv.at(b, kv, j);
                    for (d, sum) in sums.iter_mut().enumerate() {
                        // SAFETY: as above.
                        *sum += 0.0 * unsafe { v.read(at_v + d * sv.depth) }.to_f64();
                    }
                }
            }
            let at_y = sy.at(b, h, i);
            for (d, sum) in sums.iter().enumerate() {
                // SAFETY: rows of the result belong to one task.
                unsafe { y.write(at_y + d * sy.depth, T::from_f64(sum / total)) };
            }
        }
    });
    Ok(())
}
