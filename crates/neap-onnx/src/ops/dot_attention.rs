//! `Attention` of opsets 23 to 25, and the steps that `FlexAttention` shares with it.
//!
//! ```text
//!   mask, order, window, lengths ─► what is added to scores ─┬─► rows that no key is left for ─┐
//!   q, keys and values behind those of before ───────────────┴─► softmax(q kᵀ + …) v ──────────┴─► zero there
//! ```
//! Where nobody asks for scores, one operator computes it and holds no scores; else each step is an operator.

use super::attention::{Heads, heads, heads_first};
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs};
use neap_ir::infer::AttentionDims;
use neap_ir::op::{
    Activation, AttentionAttrs, Binary, HeadLayout, PadMode, Reduce, Softmax, Unary,
};
use neap_ir::{DType, Literal, Op, ValueId};

/// What is added to scores and made while reading has at most so many elements.
const MADE_ELEMENTS: usize = 1 << 22;

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "Attention" => attention(c),
        _ => return None,
    })
}

/// Queries, keys and values of fitting sizes.
pub(crate) struct Parts {
    pub(crate) q: ValueId,
    k: ValueId,
    v: ValueId,
    attrs: AttentionAttrs,
    dims: AttentionDims,
}

impl Parts {
    /// Checks that they fit each other. `scale` is `1 / sqrt(depth)` where it is not given.
    pub(super) fn new(
        c: &Ctx,
        [(q, qh), (k, kh), (v, vh)]: [(ValueId, Heads); 3],
        scale: Option<f32>,
    ) -> Result<Parts, OnnxError> {
        let scale = scale.unwrap_or_else(|| 1.0 / (qh.width as f32).sqrt());
        let attrs = AttentionAttrs {
            heads: qh.heads,
            kv_heads: kh.heads,
            scale,
            causal: false,
            nan_is_zero: false,
            q: qh.layout,
            k: kh.layout,
            v: vh.layout,
            out: qh.layout,
        };
        let shapes = [q, k, v].map(|x| c.shape(x));
        let dims = AttentionDims::of(&attrs, &shapes[0], &shapes[1], &shapes[2]);
        let Some(dims) = dims.filter(|_| kh.heads == vh.heads) else {
            let [q, k, v] = shapes;
            return Err(c.bad(format!("its operands {q:?}, {k:?}, {v:?} do not fit")));
        };
        Ok(Parts {
            q,
            k,
            v,
            attrs,
            dims,
        })
    }

    /// Of the first three operands, whose axes are batch, heads, rows and depth.
    pub(crate) fn of_heads(c: &Ctx) -> Result<Parts, OnnxError> {
        let part = |index: usize| {
            let x = c.input(index)?;
            match c.rank(x) {
                4 => Ok((x, heads(c, x, "")?)),
                _ => Err(c.bad(format!("operand {index} has not four axes"))),
            }
        };
        Parts::new(c, [part(0)?, part(1)?, part(2)?], scale(c)?)
    }

    /// `[batch, heads, queries, keys]`
    fn scores_shape(&self) -> [usize; 4] {
        let d = &self.dims;
        [d.batch, d.heads, d.queries, d.keys]
    }

    /// All query heads that use one head of keys, as rows of one matrix.
    fn grouped(&self, columns: usize) -> [usize; 4] {
        let d = &self.dims;
        let rows = d.heads / d.kv_heads * d.queries;
        [d.batch, d.kv_heads, rows, columns]
    }
}

fn scale(c: &Ctx) -> Result<Option<f32>, OnnxError> {
    match c.attribute("scale") {
        Some(_) => c.float("scale", 1.0).map(Some),
        None => Ok(None),
    }
}

fn attention(c: &mut Ctx) -> Outputs {
    let past = match (c.optional(4), c.optional(5)) {
        (Some(key), Some(value)) => Some([key, value]),
        (None, None) => None,
        _ => return Err(c.bad("it has past keys or past values alone")),
    };
    let (q, mut present) = (c.input(0)?, [c.input(1)?, c.input(2)?]);
    let query_heads = heads(c, q, "q_num_heads")?;
    let mut kept = Vec::new();
    for (at, value) in present.iter_mut().enumerate() {
        let mut own = heads(c, *value, "kv_num_heads")?;
        let is_kept = past.is_some() || c.wants(1) || c.wants(2);
        if is_kept && own.layout == HeadLayout::RowMajor {
            *value = heads_first(c, *value, own.heads)?;
            own.layout = HeadLayout::HeadMajor;
        }
        if let Some(past) = past {
            *value = c.emit(Op::Concat { axis: 2 }, &[past[at], *value])?;
        }
        kept.push((*value, own));
    }
    let before = match past {
        Some([key, _]) => c.shape_of_rank(key, 4)?[2],
        None => 0,
    };
    let rows_first = query_heads.layout == HeadLayout::RowMajor;
    let (Some(values), Some(keys)) = (kept.pop(), kept.pop()) else {
        return Err(c.bad("it has no keys"));
    };
    let parts = Parts::new(c, [(q, query_heads), keys, values], scale(c)?)?;
    let dtype = c.dtype(q);
    let precision = match c.optional_int("softmax_precision")? {
        Some(number) => c.element_type(number)?,
        None => dtype,
    };
    let cap = c.float("softcap", 0.0)?;
    let by_steps = c.wants(3) || cap != 0.0 || precision != dtype;
    let order = Order::new(c, before)?;
    let added = order.added(c, &parts, by_steps)?;
    let (y, scores) = match by_steps {
        true => {
            let given = c.wants(3).then_some(c.int("qk_matmul_output_mode", 0)?);
            let of = Steps {
                cap,
                precision,
                given,
            };
            let (y, scores) = steps(c, &parts, &of, added.as_ref())?;
            (if rows_first { heads_last(c, y)? } else { y }, scores)
        }
        false => (whole(c, parts, added)?, None),
    };
    let [key, value] = present;
    Ok(vec![Some(y), Some(key), Some(value), scores])
}

/// What is added to scores, and which rows it leaves no key.
pub(super) struct Added {
    /// Broadcasts to the scores; `None` where query `i` sees keys up to `i` and nothing else is added.
    pub(super) bias: Option<ValueId>,
    /// `[.., queries, 1]`; `None` where no row is such.
    pub(super) empty_rows: Option<ValueId>,
}

/// Which keys a query sees, counted from its own place among the keys.
struct Order {
    causal: bool,
    left: Option<i64>,
    right: Option<i64>,
    /// Keys before the first query's place, where they are the same for all of a batch.
    before: usize,
    /// How many keys there are for each of a batch: its last query's place is the last of them.
    lengths: Option<ValueId>,
}

impl Order {
    fn new(c: &Ctx, before: usize) -> Result<Order, OnnxError> {
        let side = |name: &str| match c.int(name, -1)? {
            -1 => Ok(None),
            size if size >= 0 => Ok(Some(size)),
            _ => Err(c.bad(format!("attribute '{name}' is less than -1"))),
        };
        let lengths = c.optional(6);
        if lengths.is_some() && c.optional(4).is_some() {
            return Err(c.bad("it has past keys and numbers of keys"));
        }
        Ok(Order {
            causal: c.flag("is_causal", false)?,
            left: side("left_window_size")?,
            right: side("right_window_size")?,
            before,
            lengths,
        })
    }

    fn is_open(&self) -> bool {
        !self.causal && self.left.is_none() && self.right.is_none()
    }

    /// `None` where nothing is added and every query sees every key.
    fn added(
        &self,
        c: &mut Ctx,
        parts: &Parts,
        by_steps: bool,
    ) -> Result<Option<Added>, OnnxError> {
        let [batch, _, _, keys] = parts.scores_shape();
        let dtype = c.dtype(parts.q);
        let mut biases = Vec::new();
        if let Some(mask) = c.optional(3) {
            biases.push(added_by(c, mask, dtype, &parts.scores_shape())?);
        }
        let is_plain = self.left.is_none() && self.right.is_none() && self.before == 0;
        if biases.is_empty() && self.lengths.is_none() && self.causal && is_plain && !by_steps {
            return Ok(Some(Added {
                bias: None,
                empty_rows: None,
            }));
        }
        if let Some(lengths) = self.lengths {
            if c.shape(lengths) != [batch] {
                return Err(c.bad("its numbers of keys do not fit its batch"));
            }
            let lengths = c.reshape(lengths, &[batch, 1, 1, 1])?;
            let places = (0..keys as i64).collect::<Vec<_>>();
            let places = c.constant(Literal::from_i64(&[keys], &places));
            let is_there = c.binary(Binary::Less, places, lengths)?;
            biases.push(allowed(c, is_there, dtype)?);
            if !self.is_open() {
                let seen = self.seen_by_each(c, parts, lengths)?;
                biases.push(allowed(c, seen, dtype)?);
            }
        } else if !self.is_open()
            && let Some(seen) = self.seen_by_all(c, parts)?
        {
            biases.push(allowed(c, seen, dtype)?);
        }
        let mut biases = biases.into_iter();
        let Some(mut bias) = biases.next() else {
            return Ok(None);
        };
        for next in biases {
            bias = c.binary(Binary::Add, bias, next)?;
        }
        let empty_rows = empty_rows(c, bias)?;
        Ok(Some(Added {
            bias: Some(bias),
            empty_rows,
        }))
    }

    /// Whether a query sees a key that is so many places before its own.
    fn sees(&self, back: i64) -> bool {
        (!self.causal || back >= 0)
            && self.left.is_none_or(|left| back <= left)
            && self.right.is_none_or(|right| -back <= right)
    }

    /// `[queries, keys]`; `None` where all see all.
    fn seen_by_all(&self, c: &mut Ctx, parts: &Parts) -> Result<Option<ValueId>, OnnxError> {
        let [_, _, queries, keys] = parts.scores_shape();
        if queries.saturating_mul(keys) > MADE_ELEMENTS {
            return Err(c.unsupported("a causal mask or a window of this size"));
        }
        let pairs = (0..queries).flat_map(|q| (0..keys).map(move |k| (q, k)));
        let seen = pairs.map(|(q, k)| self.sees((self.before + q) as i64 - k as i64));
        let seen: Vec<u8> = seen.map(u8::from).collect();
        if seen.iter().all(|&seen| seen == 1) {
            return Ok(None);
        }
        let literal = Literal::from_bytes(DType::Bool, &[queries, keys], &seen);
        let literal = literal.ok_or_else(|| c.bad("its scores have no size"))?;
        Ok(Some(c.constant(literal)))
    }

    /// `[batch, 1, queries, keys]`, by the number of keys of each.
    fn seen_by_each(
        &self,
        c: &mut Ctx,
        parts: &Parts,
        lengths: ValueId,
    ) -> Result<ValueId, OnnxError> {
        let [_, _, queries, keys] = parts.scores_shape();
        if queries.saturating_mul(keys) > MADE_ELEMENTS {
            return Err(c.unsupported("a causal mask or a window of this size"));
        }
        let pairs = (0..queries).flat_map(|q| (0..keys).map(move |k| (q, k)));
        let back: Vec<i64> = pairs
            .map(|(q, k)| q as i64 - k as i64 - queries as i64)
            .collect();
        let back = c.constant(Literal::from_i64(&[queries, keys], &back));
        let back = c.binary(Binary::Add, lengths, back)?;
        let mut seen = None;
        let limits = [
            (Binary::GreaterOrEqual, self.causal.then_some(0)),
            (Binary::LessOrEqual, self.left),
            (Binary::GreaterOrEqual, self.right.map(|right| -right)),
        ];
        for (compare, limit) in limits {
            let Some(limit) = limit else { continue };
            let limit = c.constant(Literal::from_i64(&[], &[limit]));
            let within = c.binary(compare, back, limit)?;
            seen = Some(match seen {
                Some(seen) => c.binary(Binary::And, seen, within)?,
                None => within,
            });
        }
        seen.ok_or_else(|| c.bad("it keeps no order"))
    }
}

/// Nothing is added where a key is allowed, and minus infinity elsewhere.
fn allowed(c: &mut Ctx, allowed: ValueId, dtype: DType) -> Result<ValueId, OnnxError> {
    let nothing = c.scalar(dtype, 0.0)?;
    let never = c.scalar(dtype, f64::NEG_INFINITY)?;
    c.emit(Op::Where, &[allowed, nothing, never])
}

/// What a mask adds. Keys that a shorter one does not reach are left out.
fn added_by(
    c: &mut Ctx,
    mask: ValueId,
    dtype: DType,
    scores: &[usize; 4],
) -> Result<ValueId, OnnxError> {
    let mut added = match c.dtype(mask) {
        DType::Bool => allowed(c, mask, dtype)?,
        _ => c.cast(mask, dtype)?,
    };
    let mut shape = c.shape(mask);
    let keys = scores[3];
    if let Some(last) = shape.len().checked_sub(1)
        && c.version >= 24
        && shape[last] < keys
    {
        let reached = shape[last];
        if reached == 1 {
            // By its words it is both one that is repeated and one that is filled up.
            return Err(c.unsupported("a mask for one of several keys"));
        }
        let mut pads = vec![(0, 0); shape.len()];
        pads[last] = (0, (keys - reached) as isize);
        let mode = PadMode::Constant;
        let never = c.scalar(dtype, f64::NEG_INFINITY)?;
        added = c.emit(Op::Pad { mode, pads }, &[added, never])?;
        shape[last] = keys;
    }
    let mut pairs = shape.iter().rev().zip(scores.iter().rev());
    if shape.len() > 4 || pairs.any(|(&own, &whole)| own != 1 && own != whole) {
        return Err(c.bad(format!(
            "a mask of shape {shape:?} does not fit scores {scores:?}"
        )));
    }
    Ok(added)
}

/// Rows in which minus infinity is added to every score.
fn empty_rows(c: &mut Ctx, bias: ValueId) -> Result<Option<ValueId>, OnnxError> {
    let bias = match c.rank(bias) {
        0 => c.reshape(bias, &[1])?,
        _ => bias,
    };
    let reduce = Op::Reduce {
        kind: Reduce::Max,
        axes: vec![c.rank(bias) - 1],
        keep_dims: true,
    };
    let most = c.emit(reduce, &[bias])?;
    let never = c.scalar(c.dtype(bias), f64::NEG_INFINITY)?;
    let rows = c.binary(Binary::Equal, most, never)?;
    let known = c.builder.known(rows)?;
    let is_none = known.is_some_and(|rows| rows.bytes().iter().all(|&row| row == 0));
    Ok((!is_none).then_some(rows))
}

/// By the operator that holds no scores.
pub(super) fn whole(c: &mut Ctx, parts: Parts, added: Option<Added>) -> Result<ValueId, OnnxError> {
    let Parts {
        q,
        k,
        v,
        mut attrs,
        dims,
    } = parts;
    attrs.causal = matches!(added, Some(Added { bias: None, .. }));
    let (bias, empty_rows) = added.map_or((None, None), |added| (added.bias, added.empty_rows));
    let layout = attrs.out;
    let mut inputs = vec![Some(q), Some(k), Some(v)];
    inputs.extend(bias.map(Some));
    let y = c.emit_optional(Op::Attention(attrs), &inputs)?;
    let Some(rows) = empty_rows else {
        return Ok(y);
    };
    let mut shape = vec![1; 4 - c.rank(rows)];
    shape.extend(c.shape(rows));
    let mut rows = c.reshape(rows, &shape)?;
    let nothing = c.scalar(c.dtype(y), 0.0)?;
    if layout == HeadLayout::HeadMajor {
        return c.emit(Op::Where, &[rows, nothing, y]);
    }
    let perm = vec![0, 2, 1, 3];
    rows = c.emit(Op::Transpose { perm }, &[rows])?;
    let apart = [dims.batch, dims.queries, dims.heads, dims.value_depth];
    let given = c.shape(y);
    let y = c.reshape(y, &apart)?;
    let y = c.emit(Op::Where, &[rows, nothing, y])?;
    c.reshape(y, &given)
}

/// How scores become weights.
pub(super) struct Steps {
    /// Of scores, by its tanh; 0 for none.
    pub(super) cap: f32,
    /// Of the softmax.
    pub(super) precision: DType,
    /// Which scores are asked for, by the standard's number.
    pub(super) given: Option<i64>,
}

/// Step by step: `[batch, heads, queries, depth]`, and the scores that are asked for.
pub(super) fn steps(
    c: &mut Ctx,
    parts: &Parts,
    of: &Steps,
    added: Option<&Added>,
) -> Result<(ValueId, Option<ValueId>), OnnxError> {
    let dtype = c.dtype(parts.q);
    let Steps { cap, precision, .. } = *of;
    let raw = scores(c, parts)?;
    let capped = if cap == 0.0 {
        raw
    } else {
        let cap = c.scalar(dtype, cap.into())?;
        let part = c.binary(Binary::Div, raw, cap)?;
        let part = c.unary(Unary::Activation(Activation::Tanh), part)?;
        c.binary(Binary::Mul, part, cap)?
    };
    let biased = match added.and_then(|added| added.bias) {
        Some(bias) => c.binary(Binary::Add, capped, bias)?,
        None => capped,
    };
    let mut weights = softmax(c, biased, precision)?;
    if let Some(rows) = added.and_then(|added| added.empty_rows) {
        let nothing = c.scalar(precision, 0.0)?;
        weights = c.emit(Op::Where, &[rows, nothing, weights])?;
    }
    let weights = c.cast(weights, dtype)?;
    let y = weighted(c, parts, weights)?;
    let given = match of.given {
        None => None,
        Some(0) => Some(raw),
        Some(1) => Some(capped),
        Some(2) => Some(biased),
        Some(3) => Some(weights),
        Some(mode) => return Err(c.bad(format!("attribute 'qk_matmul_output_mode' is {mode}"))),
    };
    Ok((y, given))
}

/// `[batch, heads, queries, keys]`: products of queries and keys, scaled.
pub(crate) fn scores(c: &mut Ctx, parts: &Parts) -> Result<ValueId, OnnxError> {
    let dims = parts.dims;
    let q = as_heads(c, parts.q, parts.attrs.q, dims.heads)?;
    let k = as_heads(c, parts.k, parts.attrs.k, dims.kv_heads)?;
    let scale = c.scalar(c.dtype(q), parts.attrs.scale.into())?;
    let q = c.binary(Binary::Mul, q, scale)?;
    let q = c.reshape(q, &parts.grouped(dims.depth))?;
    let perm = vec![0, 1, 3, 2];
    let k = c.emit(Op::Transpose { perm }, &[k])?;
    let products = c.emit(Op::MatMul, &[q, k])?;
    c.reshape(products, &parts.scores_shape())
}

/// Of scores, over the keys; computed in `precision`.
pub(crate) fn softmax(
    c: &mut Ctx,
    scores: ValueId,
    precision: DType,
) -> Result<ValueId, OnnxError> {
    let scores = c.cast(scores, precision)?;
    let kind = Softmax::Softmax;
    c.emit(Op::Softmax { axis: 3, kind }, &[scores])
}

/// `[batch, heads, queries, depth]`: the values by their weights.
pub(crate) fn weighted(c: &mut Ctx, parts: &Parts, weights: ValueId) -> Result<ValueId, OnnxError> {
    let dims = parts.dims;
    let v = as_heads(c, parts.v, parts.attrs.v, dims.kv_heads)?;
    let weights = c.reshape(weights, &parts.grouped(dims.keys))?;
    let sums = c.emit(Op::MatMul, &[weights, v])?;
    c.reshape(
        sums,
        &[dims.batch, dims.heads, dims.queries, dims.value_depth],
    )
}

fn as_heads(
    c: &mut Ctx,
    x: ValueId,
    layout: HeadLayout,
    heads: usize,
) -> Result<ValueId, OnnxError> {
    match layout {
        HeadLayout::RowMajor => heads_first(c, x, heads),
        _ => Ok(x),
    }
}

/// `[B, heads, S, D]` as `[B, S, heads * D]`.
pub(super) fn heads_last(c: &mut Ctx, x: ValueId) -> Result<ValueId, OnnxError> {
    let &[batch, heads, rows, depth] = &c.shape(x)[..] else {
        return Err(c.bad("its result has no heads"));
    };
    let perm = vec![0, 2, 1, 3];
    let x = c.emit(Op::Transpose { perm }, &[x])?;
    c.reshape(x, &[batch, rows, heads * depth])
}
