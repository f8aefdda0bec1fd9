//! onnxruntime's attention operators, in terms of one attention over rows of heads.
//!
//! ```text
//!   Attention              x, one matrix for queries, keys and values
//!   MultiHeadAttention     queries, keys and values apart
//!   QAttention             Attention with x and its matrix in 8 bits
//! ```
//! Keys and values of before come as `[B, heads, P, D]` and go out with the new ones behind them.

use super::attention::{self, heads_first};
use super::group_query;
use super::quantize::Quantized;
use super::slicing::part;
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::op::{AttentionAttrs, Binary, HeadLayout};
use neap_ir::{DType, Literal, Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "Attention" => self_attention(c),
        "MultiHeadAttention" => multi_head(c),
        "QAttention" => quantized_self_attention(c),
        "GroupQueryAttention" => group_query::group_query(c),
        "RotaryEmbedding" => one(rotary(c)),
        _ => return None,
    })
}

/// A mask that is made in memory has at most so many elements.
const MASK_ELEMENTS: usize = 1 << 22;

/// What attention is computed of.
struct Parts {
    /// `[B, S, heads * D]`
    q: ValueId,
    /// `[B, L, kv_heads * D]`, or `[B, kv_heads, L, D]`.
    k: ValueId,
    v: ValueId,
    heads: usize,
    kv_heads: usize,
    /// Keys and values of before, `[B, kv_heads, P, D]`.
    past: Option<[ValueId; 2]>,
    /// Added to the scores `[B, heads, S, P + L]`.
    mask: Option<ValueId>,
    causal: bool,
}

/// A result `[B, S, heads * D]`, and all keys and values.
struct Attended {
    y: ValueId,
    present: [ValueId; 2],
}

fn attend(c: &mut Ctx, parts: Parts, keeps: bool) -> Result<Attended, OnnxError> {
    let (q_shape, k_shape) = (c.shape(parts.q), c.shape(parts.k));
    let &[_, queries, width] = &q_shape[..] else {
        return Err(c.bad(format!("queries of shape {q_shape:?} are no rows")));
    };
    if parts.heads == 0 || width % parts.heads != 0 {
        return Err(c.bad(format!("rows of {width} do not fit {} heads", parts.heads)));
    }
    let mut present = [parts.k, parts.v];
    let mut layout = match k_shape.len() {
        4 => HeadLayout::HeadMajor,
        _ => HeadLayout::RowMajor,
    };
    if layout == HeadLayout::RowMajor && (keeps || parts.past.is_some()) {
        for value in &mut present {
            *value = heads_first(c, *value, parts.kv_heads)?;
        }
        layout = HeadLayout::HeadMajor;
    }
    if let Some(past) = parts.past {
        for (value, past) in present.iter_mut().zip(past) {
            *value = c.emit(Op::Concat { axis: 2 }, &[past, *value])?;
        }
    }
    let keys_axis = if layout == HeadLayout::HeadMajor {
        2
    } else {
        1
    };
    let keys = c.shape(present[0]).get(keys_axis).copied().unwrap_or(0);
    let mut mask = parts.mask;
    if parts.causal && keys != queries {
        let past = keys.saturating_sub(queries);
        let future = causal_mask(c, queries, keys, past)?;
        mask = Some(match mask {
            Some(mask) => c.binary(Binary::Add, mask, future)?,
            None => future,
        });
    }
    let attrs = AttentionAttrs {
        heads: parts.heads,
        kv_heads: parts.kv_heads,
        scale: match c.float("scale", 0.0)? {
            0.0 => 1.0 / ((width / parts.heads) as f32).sqrt(),
            scale => scale,
        },
        causal: parts.causal && keys == queries,
        nan_is_zero: false,
        q: HeadLayout::RowMajor,
        k: layout,
        v: layout,
        out: HeadLayout::RowMajor,
    };
    let mut inputs = vec![Some(parts.q), Some(present[0]), Some(present[1])];
    inputs.extend(mask.map(Some));
    let y = c.emit_optional(Op::Attention(attrs), &inputs)?;
    Ok(Attended { y, present })
}

/// `[queries, keys]`: query `i` sees keys up to `past + i`.
fn causal_mask(
    c: &mut Ctx,
    queries: usize,
    keys: usize,
    past: usize,
) -> Result<ValueId, OnnxError> {
    if queries.saturating_mul(keys) > MASK_ELEMENTS {
        return Err(c.unsupported("a causal mask of this size"));
    }
    let at = |i: usize| {
        let (query, key) = (i / keys, i % keys);
        if key > past + query { f32::MIN } else { 0.0 }
    };
    let data: Vec<f32> = (0..queries * keys).map(at).collect();
    Ok(c.constant(Literal::from_f32(&[queries, keys], &data)))
}

/// What is added to scores for a mask of keys: `[B]` counts of keys, `[2B]` where they end and where they start, `[B, T]` or
/// `[B, S, T]` with zeros where there is no key.
fn key_mask(c: &mut Ctx, mask: ValueId, batch: usize, keys: usize) -> Result<ValueId, OnnxError> {
    let shape = c.shape(mask);
    let dtype = c.dtype(mask);
    let (allowed, wide) = match shape[..] {
        [count] if count == batch || count == 2 * batch => {
            let places: Vec<i64> = (0..keys as i64).collect();
            let places = c.constant(Literal::from_i64(&[1, keys], &places));
            let places = c.cast(places, dtype)?;
            let bounds = c.reshape(mask, &[count, 1])?;
            let ends = part(c, bounds, 0, 0, batch)?;
            let mut allowed = c.binary(Binary::Less, places, ends)?;
            if count != batch {
                let starts = part(c, bounds, 0, batch, batch)?;
                let is_behind = c.binary(Binary::GreaterOrEqual, places, starts)?;
                allowed = c.binary(Binary::And, allowed, is_behind)?;
            }
            (allowed, [batch, 1, 1, keys])
        }
        [batch, keys] => (positive(c, mask)?, [batch, 1, 1, keys]),
        [batch, queries, keys] => (positive(c, mask)?, [batch, 1, queries, keys]),
        _ => return Err(c.unsupported(format!("a mask of shape {shape:?}"))),
    };
    let nothing = c.scalar(DType::F32, 0.0)?;
    let filter = c.float("mask_filter_value", -10000.0)?;
    let filter = c.scalar(DType::F32, filter.into())?;
    let added = c.emit(Op::Where, &[allowed, nothing, filter])?;
    c.reshape(added, &wide)
}

fn positive(c: &mut Ctx, mask: ValueId) -> Result<ValueId, OnnxError> {
    if c.dtype(mask) == DType::Bool {
        return Ok(mask);
    }
    let zero = c.scalar(c.dtype(mask), 0.0)?;
    c.binary(Binary::Greater, mask, zero)
}

/// Both what a mask of keys and what a bias add to scores.
fn added_scores(
    c: &mut Ctx,
    mask: Option<ValueId>,
    bias: Option<ValueId>,
    [batch, keys]: [usize; 2],
) -> Result<Option<ValueId>, OnnxError> {
    let mask = match mask {
        Some(mask) => Some(key_mask(c, mask, batch, keys)?),
        None => None,
    };
    Ok(match (mask, bias) {
        (Some(mask), Some(bias)) => Some(c.binary(Binary::Add, mask, bias)?),
        (mask, bias) => mask.or(bias),
    })
}

fn self_attention(c: &mut Ctx) -> Outputs {
    let operands = [c.input(0)?, c.input(1)?];
    let others = [c.optional(2), c.optional(3), c.optional(4), c.optional(5)];
    attention_of(c, operands, others)
}

fn quantized_self_attention(c: &mut Ctx) -> Outputs {
    let mut operands = Vec::new();
    for (at, axis) in [(0, 0), (1, 1)] {
        let steps = Quantized {
            x: c.input(at)?,
            scale: c.input(3 + at)?,
            zero: c.optional(6 + at),
            axis,
        };
        operands.push(steps.value(c)?);
    }
    let others = [c.optional(2), c.optional(5), c.optional(8), None];
    attention_of(c, [operands[0], operands[1]], others)
}

/// Of rows and a matrix; bias, mask, keys and values of before, and what else is added to scores.
fn attention_of(
    c: &mut Ctx,
    operands: [ValueId; 2],
    [bias, mask, past, extra]: [Option<ValueId>; 4],
) -> Outputs {
    let heads = c.size("num_heads", 0)?;
    if c.flag("do_rotary", false)? || c.flag("past_present_share_buffer", false)? {
        return Err(c.unsupported("positions or buffers of its own"));
    }
    let mut rows = c.emit(Op::MatMul, &operands)?;
    if let Some(bias) = bias {
        rows = c.binary(Binary::Add, rows, bias)?;
    }
    let shape = c.shape_of_rank(rows, 3)?;
    let (batch, queries, width) = (shape[0], shape[1], shape[2]);
    let sizes = c
        .sizes("qkv_hidden_sizes")?
        .unwrap_or_else(|| vec![width / 3; 3]);
    if sizes.len() != 3 || sizes.iter().sum::<usize>() != width || heads == 0 {
        return Err(c.bad(format!("rows of {width} are no queries, keys and values")));
    }
    let mut parts = Vec::new();
    let mut start = 0;
    for &size in &sizes {
        parts.push(part(c, rows, 2, start, size)?);
        start += size;
    }
    let mut halves_of_past = None;
    let mut before = 0;
    if let Some(both) = past {
        let shape = c.shape_of_rank(both, 5)?;
        before = shape[3];
        let mut halves = [both; 2];
        for (at, half) in halves.iter_mut().enumerate() {
            let one = part(c, both, 0, at, 1)?;
            *half = c.reshape(one, &shape[1..])?;
        }
        halves_of_past = Some(halves);
    }
    let mask = added_scores(c, mask, extra, [batch, before + queries])?;
    let parts = Parts {
        q: parts[0],
        k: parts[1],
        v: parts[2],
        heads,
        kv_heads: heads,
        past: halves_of_past,
        mask,
        causal: c.flag("unidirectional", false)?,
    };
    let wants_present = c.wants(1);
    let Attended { y, present } = attend(c, parts, wants_present)?;
    if !wants_present {
        return Ok(vec![Some(y)]);
    }
    let mut shape = c.shape(present[0]);
    shape.insert(0, 1);
    debug_assert_eq!(shape[1], batch);
    let stacked = [
        c.reshape(present[0], &shape)?,
        c.reshape(present[1], &shape)?,
    ];
    let both = c.emit(Op::Concat { axis: 0 }, &stacked)?;
    Ok(vec![Some(y), Some(both)])
}

fn multi_head(c: &mut Ctx) -> Outputs {
    let query = c.input(0)?;
    let heads = c.size("num_heads", 0)?;
    if c.optional(8).is_some() || c.optional(9).is_some() || c.wants(3) {
        return Err(c.unsupported("a shared cache, or output of scores,"));
    }
    let (Some(key), Some(value)) = (c.optional(1), c.optional(2)) else {
        return Err(c.unsupported("packed queries, keys or values"));
    };
    let mut parts = [query, key, value];
    let shape = c.shape_of_rank(parts[1], 3)?;
    if let Some(bias) = c.optional(3) {
        if shape.len() != 3 {
            return Err(c.unsupported("a bias beside keys that are heads already"));
        }
        let mut start = 0;
        for rows in &mut parts {
            let width = c.shape(*rows)[2];
            let own = part(c, bias, 0, start, width)?;
            *rows = c.binary(Binary::Add, *rows, own)?;
            start += width;
        }
    }
    let past = match (c.optional(6), c.optional(7)) {
        (Some(key), Some(value)) => Some([key, value]),
        (None, None) => None,
        _ => return Err(c.bad("it has past keys or past values alone")),
    };
    let before = past.map_or(0, |[key, _]| c.shape(key).get(2).copied().unwrap_or(0));
    let own = shape[if shape.len() == 4 { 2 } else { 1 }];
    let batch = shape[0];
    let mask = added_scores(c, c.optional(4), c.optional(5), [batch, before + own])?;
    let parts = Parts {
        q: parts[0],
        k: parts[1],
        v: parts[2],
        heads,
        kv_heads: heads,
        past,
        mask,
        causal: c.flag("unidirectional", false)?,
    };
    let keeps = c.wants(1) || c.wants(2);
    let Attended { y, present } = attend(c, parts, keeps)?;
    Ok(vec![Some(y), Some(present[0]), Some(present[1])])
}

/// Positions are a table `[B, S]`, or where the first place begins.
fn rotary(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, positions) = (c.input(0)?, c.input(1)?);
    let tables = [c.input(2)?, c.input(3)?];
    if c.float("scale", 1.0)? != 1.0 || c.flag("is_packed_batching", false)? {
        return Err(c.unsupported("a scale, or packed batches,"));
    }
    let shape = c.shape_of_rank(x, 3)?;
    let turned = c.size("rotary_embedding_dim", 0)?;
    let rows_axis = shape.len() - 2;
    let (batch, rows) = (shape[0], shape[rows_axis]);
    let positions = if c.ty(positions).elements() == 1 && c.rank(positions) <= 1 {
        let places: Vec<i64> = (0..rows as i64).collect();
        let places = c.constant(Literal::from_i64(&[1, rows], &places));
        let begin = c.cast(positions, DType::I64)?;
        let begin = c.reshape(begin, &[1, 1])?;
        let own = c.binary(Binary::Add, places, begin)?;
        c.expand(own, &[batch, rows])?
    } else {
        positions
    };
    let interleaved = c.flag("interleaved", false)?;
    if shape.len() == 4 {
        return attention::turned(c, x, tables, Some(positions), turned, interleaved);
    }
    let heads = match c.size("num_heads", 0)? {
        0 => {
            let half = c.shape(tables[0]).last().copied().unwrap_or(0);
            if half == 0 || shape[2] % (2 * half) != 0 {
                return Err(c.bad(format!("rows of {} do not fit its tables", shape[2])));
            }
            shape[2] / (2 * half)
        }
        heads => heads,
    };
    let first = heads_first(c, x, heads)?;
    let result = attention::turned(c, first, tables, Some(positions), turned, interleaved)?;
    let perm = vec![0, 2, 1, 3];
    let back = c.emit(Op::Transpose { perm }, &[result])?;
    c.reshape(back, &shape)
}
