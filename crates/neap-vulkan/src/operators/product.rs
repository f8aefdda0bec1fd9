//! Products of two activations, and attention.

use super::strided::Axes;
use super::{Call, blocked, is_at, is_whole};
use crate::dispatch::{Dispatch, Span};
use crate::kernel::Kernel;
use crate::tiles::Way;
use crate::words::Words;
use neap_ir::DType;
use neap_ir::infer::AttentionDims;
use neap_ir::op::AttentionAttrs;
use neap_ops::{HeadSteps, TensorRef};

/// Where the shape of a product names the first matrix.
const FIRST_MATRIX: usize = 21;
/// Of a head's values, as many as 64 invocations hold in four registers each.
const MOST_DEPTH: usize = 256;
/// By tiles, as many as those have room for.
const MOST_TILE_DEPTH: usize = 128;
/// Of 16 queries of a tile, so many at least must be there.
const LEAST_QUERIES: usize = 4;

/// Steps are in elements, of rows and columns.
struct Product {
    m: usize,
    k: usize,
    n: usize,
    a: [usize; 2],
    b: [usize; 2],
    batch: Axes,
    alpha: f32,
    /// What is added, its steps, and times what.
    c: Option<(Span, [usize; 2])>,
    beta: f32,
}

/// Numpy's.
pub(super) fn matmul(call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (a, b) = (call.floats(0)?, call.floats(1)?);
    let (a_lead, m, k) = match a.shape() {
        [] => return None,
        [k] => (&[][..], 1, *k),
        [lead @ .., m, k] => (lead, *m, *k),
    };
    let (b_lead, n) = match b.shape() {
        [] => return None,
        [_] => (&[][..], 1),
        [lead @ .., _, n] => (lead, *n),
    };
    let rank = a_lead.len().max(b_lead.len());
    let mut batch = Axes::default();
    for axis in 0..rank {
        let (a_size, a_step) = matrix_axis(a_lead, axis, rank, m * k);
        let (b_size, b_step) = matrix_axis(b_lead, axis, rank, k * n);
        batch.push(a_size.max(b_size), a_step as isize, b_step as isize);
    }
    let product = Product {
        m,
        k,
        n,
        a: [k, 1],
        b: [n, 1],
        batch,
        alpha: 1.0,
        c: None,
        beta: 0.0,
    };
    product.dispatch(call, out)
}

/// Size and step of a leading axis, of `rank` when broadcast.
fn matrix_axis(lead: &[usize], axis: usize, rank: usize, matrix: usize) -> (usize, usize) {
    let Some(own) = (axis + lead.len()).checked_sub(rank) else {
        return (1, 0);
    };
    match lead[own] {
        1 => (1, 0),
        size => (size, lead[own + 1..].iter().product::<usize>() * matrix),
    }
}

pub(super) fn gemm(
    [alpha, beta]: [f32; 2],
    [trans_a, trans_b]: [bool; 2],
    call: &Call,
    out: &mut Vec<Dispatch>,
) -> Option<()> {
    let (a, b) = (call.floats(0)?, call.floats(1)?);
    let (&[a0, a1], &[b0, b1]) = (a.shape(), b.shape()) else {
        return None;
    };
    let (m, k) = if trans_a { (a1, a0) } else { (a0, a1) };
    let n = if trans_b { b0 } else { b1 };
    let c = match call.input(2).filter(|_| beta != 0.0) {
        Some(_) => {
            let c = call.floats(2)?;
            (!blocked(c.layout)).then_some(())?;
            Some((Span::of(&c), broadcast(&c)?))
        }
        None => None,
    };
    let product = Product {
        m,
        k,
        n,
        a: if trans_a { [1, a1] } else { [a1, 1] },
        b: if trans_b { [1, b1] } else { [b1, 1] },
        batch: Axes::default(),
        alpha,
        c,
        beta,
    };
    product.dispatch(call, out)
}

/// Steps of a tensor of at most two axes.
fn broadcast(c: &TensorRef) -> Option<[usize; 2]> {
    let step = |size: usize, step: usize| if size == 1 { 0 } else { step };
    match *c.shape() {
        [] => Some([0, 0]),
        [n] => Some([0, step(n, 1)]),
        [m, n] => Some([step(m, n), step(n, 1)]),
        _ => None,
    }
}

impl Product {
    fn dispatch(&self, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
        let (a, b, y) = (call.floats(0)?, call.floats(1)?, call.result()?);
        let is_plain = !blocked(a.layout) && !blocked(b.layout) && !blocked(y.layout);
        (is_plain && self.k > 0).then_some(())?;
        let batch = self.batch.padded::<3>()?;
        let [c_row, c_col] = self.c.map_or([0; 2], |(_, steps)| steps);
        let sizes = [
            self.m,
            self.k,
            self.n,
            batch[0].0,
            batch[1].0,
            batch[2].0,
            batch[0].1 as usize,
            batch[1].1 as usize,
            batch[2].1 as usize,
            batch[0].2 as usize,
            batch[1].2 as usize,
            batch[2].2 as usize,
            self.a[0],
            self.a[1],
            self.b[0],
            self.b[1],
            c_row,
            c_col,
            usize::from(self.c.is_some()),
        ];
        let mut words = [0; FIRST_MATRIX + 1];
        for (word, &size) in words.iter_mut().zip(&sizes) {
            *word = u32::try_from(size).ok()?;
        }
        words[19] = self.alpha.to_bits();
        words[20] = self.beta.to_bits();
        let tiles = self.m.div_ceil(4) * self.n.div_ceil(4);
        let matrices: usize = batch.iter().map(|(size, ..)| size).product();
        let most = call.limits.groups[1].max(1) as usize;
        for first in (0..matrices).step_by(most) {
            words[FIRST_MATRIX] = first as u32;
            let count = most.min(matrices - first);
            let dispatch = Dispatch {
                kernel: Kernel::Product,
                words: Words::new(&words),
                groups: [tiles.div_ceil(64) as u32, count as u32, 1],
                reads: [
                    Some(Span::of(&a)),
                    Some(Span::of(&b)),
                    self.c.map(|(span, _)| span),
                ],
                writes: Span::of_mut(&y),
                mask: None,
            };
            call.push(dispatch, out)?;
        }
        Some(())
    }
}

pub(super) fn attention(
    attrs: &AttentionAttrs,
    call: &Call,
    out: &mut Vec<Dispatch>,
) -> Option<()> {
    let (q, k, v) = (call.floats(0)?, call.floats(1)?, call.floats(2)?);
    let y = call.result()?;
    let dims = AttentionDims::of(attrs, q.shape(), k.shape(), v.shape())?;
    let is_plain = [&q, &k, &v].iter().all(|t| !blocked(t.layout)) && !blocked(y.layout);
    let fits = dims.keys > 0 && dims.depth > 0 && (1..=MOST_DEPTH).contains(&dims.value_depth);
    (is_plain && fits).then_some(())?;
    let mask = call.input(3);
    let mask_kind = match mask.map(|mask| (mask.dtype(), is_whole(&mask))) {
        None => 0,
        Some((DType::F32, _)) => 1,
        Some((DType::Bool, true)) => 2,
        Some(_) => return None,
    };
    let operands = [
        HeadSteps::of(attrs.q, dims.heads, dims.queries, dims.depth),
        HeadSteps::of(attrs.k, dims.kv_heads, dims.keys, dims.depth),
        HeadSteps::of(attrs.v, dims.kv_heads, dims.keys, dims.value_depth),
        HeadSteps::of(attrs.out, dims.heads, dims.queries, dims.value_depth),
    ];
    let scores = [dims.batch, dims.heads, dims.queries, dims.keys];
    let mask_steps = match &mask {
        Some(mask) => mask_steps(mask, scores)?,
        None => [0; 4],
    };
    let head = [
        dims.keys,
        dims.depth,
        dims.value_depth,
        dims.heads / dims.kv_heads,
        attrs.scale.to_bits() as usize,
        usize::from(attrs.causal) + 2 * usize::from(attrs.nan_is_zero),
        mask_kind,
    ];
    let steps = operands.map(|of| [of.batch, of.head, of.row, of.depth]);
    let firsts = [operands[0].offset, operands[1].offset, operands[2].offset];
    let sizes = (head.iter().chain(steps.iter().flatten())).chain(mask_steps.iter().chain(&firsts));
    let sizes = sizes.chain([&dims.queries]);
    let mut words = [0; 31];
    for (word, &size) in words.iter_mut().zip(sizes) {
        *word = u32::try_from(size).ok()?;
    }
    let in_fours = |steps: &[usize; 4]| {
        let [lead @ .., depth] = steps;
        *depth == 1 && lead.iter().all(|step| step.is_multiple_of(4))
    };
    // Where a tensor begins in its memory follows from the program alone.
    let has_fours = steps.iter().all(in_fours)
        && { firsts.iter() }.all(|first| first.is_multiple_of(4))
        && [dims.depth, dims.value_depth]
            .iter()
            .all(|n| n.is_multiple_of(4))
        && { [q.as_ptr(), k.as_ptr(), v.as_ptr(), y.as_ptr().cast_const()] }
            .iter()
            .all(|at| at.addr().is_multiple_of(16));
    // Results so far are kept where they go.
    let is_apart = ![&q, &k, &v].iter().any(|x| is_at(&y, x));
    let fits_tiles =
        dims.queries >= LEAST_QUERIES && dims.depth.max(dims.value_depth) <= MOST_TILE_DEPTH;
    let (kernel, queries) = match (call.way, mask_kind) {
        (Way::Lanes, 0) if has_fours && is_apart => {
            (Kernel::AttentionLanes, dims.queries.div_ceil(32))
        }
        (Way::Lanes, _) if has_fours && is_apart => {
            (Kernel::AttentionMasked, dims.queries.div_ceil(32))
        }
        (Way::Tiles { .. }, _) if has_fours && is_apart && fits_tiles => {
            (Kernel::AttentionTiles, dims.queries.div_ceil(16))
        }
        _ => (Kernel::Attention, dims.queries),
    };
    let dispatch = Dispatch {
        kernel,
        words: Words::new(&words),
        groups: [queries as u32, dims.heads as u32, dims.batch as u32],
        reads: [Some(Span::of(&q)), Some(Span::of(&k)), Some(Span::of(&v))],
        writes: Span::of_mut(&y),
        mask: mask.as_ref().map(Span::of),
    };
    call.push(dispatch, out)
}

/// Of a mask that broadcasts to the scores.
fn mask_steps(mask: &TensorRef, scores: [usize; 4]) -> Option<[usize; 4]> {
    let shape = mask.shape();
    let lead = scores.len().checked_sub(shape.len())?;
    let mut steps = [0; 4];
    for (axis, step) in steps.iter_mut().enumerate().skip(lead) {
        if shape[axis - lead] != 1 {
            *step = shape[axis - lead + 1..].iter().product();
        }
    }
    (!blocked(mask.layout)).then_some(steps)
}
