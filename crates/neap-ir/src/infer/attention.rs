//! Attention: sizes read off its operands' layouts.

use super::{Inferred, Operands};
use crate::op::{AttentionAttrs, HeadLayout};
use crate::strips::KeyStrip;
use crate::{DType, TensorType};

/// Sizes of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionDims {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub queries: usize,
    pub keys: usize,
    /// Elements of a query and a key.
    pub depth: usize,
    /// Elements of a value.
    pub value_depth: usize,
}

/// One operand's sizes; `depth` is unknown where it is a part of a wider row.
struct Part {
    batch: usize,
    rows: usize,
    depth: Option<usize>,
}

impl AttentionDims {
    /// Sizes for operands of these shapes; `None` where they do not fit each other.
    ///
    /// `HeadMajor` takes `[B,H,S,D]` or `[B*H,S,D]`; `RowMajor` `[B,S,H,D]`, `[B,S,H*D]` or
    /// `[S,H*D]`; `Packed` any shape whose trailing axes make up one row. Where all operands are
    /// packed, the row is taken to be queries, keys and values, or keys and values, of equal depth.
    pub fn of(
        attrs: &AttentionAttrs,
        q: &[usize],
        k: &[usize],
        v: &[usize],
    ) -> Option<AttentionDims> {
        let (heads, kv_heads) = (attrs.heads, attrs.kv_heads);
        if heads == 0 || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return None;
        }
        let qs = part(attrs.q, q, heads)?;
        let ks = part(attrs.k, k, kv_heads)?;
        let vs = part(attrs.v, v, kv_heads)?;
        let depth = qs.depth.or(ks.depth).or_else(|| packed_depth(attrs))?;
        if ks.depth.is_some_and(|d| d != depth) {
            return None;
        }
        let dims = AttentionDims {
            batch: qs.batch,
            heads,
            kv_heads,
            queries: qs.rows,
            keys: ks.rows,
            depth,
            value_depth: vs.depth.unwrap_or(depth),
        };
        let fits = ks.batch == dims.batch
            && vs.batch == dims.batch
            && vs.rows == dims.keys
            && in_row(attrs.q, heads, depth)
            && in_row(attrs.k, kv_heads, depth)
            && in_row(attrs.v, kv_heads, dims.value_depth);
        fits.then_some(dims)
    }

    /// Shape of the result in the given layout.
    pub fn output_shape(&self, layout: HeadLayout) -> Option<Vec<usize>> {
        let (b, h, s, d) = (self.batch, self.heads, self.queries, self.value_depth);
        Some(match layout {
            HeadLayout::HeadMajor => vec![b, h, s, d],
            HeadLayout::RowMajor => vec![b, s, h.checked_mul(d)?],
            HeadLayout::HeadMajorTransposed => vec![b, h, d, s],
            HeadLayout::Packed { .. } => return None,
        })
    }
}

/// Depth where only packed rows are given: `[q k v]` or `[k v]`.
fn packed_depth(attrs: &AttentionAttrs) -> Option<usize> {
    let HeadLayout::Packed { row, .. } = attrs.q else {
        return None;
    };
    let parts = attrs.heads.checked_add(attrs.kv_heads.checked_mul(2)?)?;
    row.is_multiple_of(parts).then(|| row / parts)
}

fn in_row(layout: HeadLayout, heads: usize, depth: usize) -> bool {
    match layout {
        HeadLayout::Packed { row, offset } => heads
            .checked_mul(depth)
            .and_then(|width| width.checked_add(offset))
            .is_some_and(|end| end <= row),
        _ => true,
    }
}

fn part(layout: HeadLayout, shape: &[usize], heads: usize) -> Option<Part> {
    let split = |width: usize| width.is_multiple_of(heads).then(|| width / heads);
    let (batch, rows, depth) = match (layout, shape) {
        (HeadLayout::HeadMajor, &[b, h, s, d]) if h == heads => (b, s, Some(d)),
        (HeadLayout::HeadMajor, &[bh, s, d]) => (split(bh)?, s, Some(d)),
        (HeadLayout::HeadMajorTransposed, &[b, h, d, s]) if h == heads => (b, s, Some(d)),
        (HeadLayout::HeadMajorTransposed, &[bh, d, s]) => (split(bh)?, s, Some(d)),
        (HeadLayout::RowMajor, &[b, s, h, d]) if h == heads => (b, s, Some(d)),
        (HeadLayout::RowMajor, &[b, s, width]) => (b, s, Some(split(width)?)),
        (HeadLayout::RowMajor, &[s, width]) => (1, s, Some(split(width)?)),
        (HeadLayout::Packed { row, .. }, _) => {
            let mut width = 1usize;
            let mut lead = shape.len();
            while lead > 0 && (width != row || lead > 2) {
                lead -= 1;
                width = width.checked_mul(shape[lead])?;
                if width > row {
                    return None;
                }
            }
            match (&shape[..lead], width == row) {
                (&[b, s], true) => (b, s, None),
                (&[s], true) => (1, s, None),
                _ => return None,
            }
        }
        _ => return None,
    };
    Some(Part { batch, rows, depth })
}

pub(super) fn infer(attrs: &AttentionAttrs, o: &Operands) -> Inferred<TensorType> {
    Ok(masked(attrs, None, o)?.1)
}

pub(super) fn over_keys(of: &KeyStrip, o: &Operands) -> Inferred<Vec<TensorType>> {
    let (dims, y) = masked(&of.attrs, Some(of.total), o)?;
    o.require(y.dtype == DType::F32, "takes float32")?;
    let end = of.start.checked_add(dims.keys);
    o.require(
        end.is_some_and(|end| end <= of.total),
        "its keys lie outside the whole",
    )?;
    let state = [dims.batch, dims.heads, 2, dims.queries];
    o.check_size(&state)?;
    let found = vec![y, TensorType::new(DType::F32, &state)];
    let before = [o.opt(4), o.opt(5)];
    let fits = match of.start {
        0 => before == [None, None],
        _ => before == [found.first(), found.get(1)],
    };
    o.require(fits, "takes its results for the keys before")?;
    Ok(found)
}

/// Sizes and result; the mask is of so many keys, or of those that are here.
fn masked(
    attrs: &AttentionAttrs,
    keys: Option<usize>,
    o: &Operands,
) -> Inferred<(AttentionDims, TensorType)> {
    let (q, k, v) = (o.get(0)?, o.get(1)?, o.get(2)?);
    o.require_float(q)?;
    o.same_dtype(q, k)?;
    o.same_dtype(q, v)?;
    let Some(dims) = AttentionDims::of(attrs, &q.shape, &k.shape, &v.shape) else {
        return o.fail(format!(
            "operands {:?}, {:?}, {:?} do not fit {} heads",
            q.shape, k.shape, v.shape, attrs.heads
        ));
    };
    if let Some(mask) = o.opt(3) {
        let keys = keys.unwrap_or(dims.keys);
        let scores = [dims.batch, dims.heads, dims.queries, keys];
        o.require(
            mask.dtype == DType::Bool || mask.dtype == q.dtype,
            "takes a boolean mask or one of its own type",
        )?;
        o.require(
            super::broadcasts_to(&mask.shape, &scores),
            "mask does not broadcast to the scores",
        )?;
    }
    match dims.output_shape(attrs.out) {
        Some(shape) => Ok((dims, TensorType::new(q.dtype, &shape))),
        None => o.fail("cannot give a packed result"),
    }
}
