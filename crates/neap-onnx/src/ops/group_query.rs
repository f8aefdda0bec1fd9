//! onnxruntime's attention of language models: fewer heads of keys and values than of queries, which are turned by their
//! positions, windows, soft caps, sinks, and a cache.
//!
//! ```text
//!   queries, keys ─► norms of heads ─► turned by positions ─┐
//!   past, keys ────► the cache with the new rows in place ──┴─► softmax(q kᵀ + what is seen, and sinks) v
//! ```
//! How long each sequence is must be known when the model is opened, as it decides where its new rows go.

use super::attention::{self, Heads, heads_first};
use super::dot_attention::{self, Added, Steps};
use super::slicing::part;
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, scalar};
use neap_ir::op::{Binary, HeadLayout};
use neap_ir::{Literal, Op, ValueId};

/// A mask that is made while reading has at most so many elements.
const MASK_ELEMENTS: usize = 1 << 22;

pub(super) fn group_query(c: &mut Ctx) -> Outputs {
    check_options(c)?;
    let (heads, kv_heads) = (c.size("num_heads", 0)?, c.size("kv_num_heads", 0)?);
    let [mut q, mut k, v] = operands(c, heads, kv_heads)?;
    let shape = c.shape_of_rank(q, 3)?;
    let (batch, queries, width) = (shape[0], shape[1], shape[2]);
    if heads == 0 || kv_heads == 0 || !width.is_multiple_of(heads) {
        return Err(c.bad(format!("rows of {width} do not fit {heads} heads")));
    }
    let depth = width / heads;
    for (rows, norm) in [(&mut q, 14), (&mut k, 15)] {
        if let Some(weight) = c.optional(norm) {
            *rows = normed(c, *rows, weight, depth)?;
        }
    }
    let places = Places::new(c, batch, queries)?;
    if c.flag("do_rotary", false)? {
        let positions = places.positions(c)?;
        for (rows, heads) in [(&mut q, heads), (&mut k, kv_heads)] {
            *rows = turned(c, *rows, heads, positions)?;
        }
    }
    let mut present = [k, v];
    for (at, value) in present.iter_mut().enumerate() {
        let new = heads_first(c, *value, kv_heads)?;
        *value = places.with_past(c, c.optional(3 + at), new)?;
    }
    let mut kept = present;
    let bias = seen(c, &places, heads, &mut kept)?;
    let scale = match c.float("scale", 0.0)? {
        0.0 => None,
        scale => Some(scale),
    };
    let q_heads = Heads {
        layout: HeadLayout::RowMajor,
        heads,
        rows: queries,
        width: depth,
    };
    let kv = Heads {
        layout: HeadLayout::HeadMajor,
        heads: kv_heads,
        rows: c.shape(kept[0])[2],
        width: depth,
    };
    let parts = dot_attention::Parts::new(c, [(q, q_heads), (kept[0], kv), (kept[1], kv)], scale)?;
    let y = match c.float("softcap", 0.0)? {
        0.0 => dot_attention::whole(c, parts, bias)?,
        cap => {
            let steps = Steps {
                cap,
                precision: c.dtype(q),
                given: None,
            };
            let (y, _) = dot_attention::steps(c, &parts, &steps, bias.as_ref())?;
            dot_attention::heads_last(c, y)?
        }
    };
    let [key, value] = present;
    Ok(vec![Some(y), Some(key), Some(value)])
}

fn check_options(c: &Ctx) -> Result<(), OnnxError> {
    let in_floats = |name: &str| {
        c.string(name, "NONE")
            .map(|kind| matches!(kind, "NONE" | ""))
    };
    let given = |at: usize| c.optional(at).is_some();
    let why = if c.wants(3) || c.int("qk_output", 0)? != 0 {
        "output of scores"
    } else if !in_floats("k_quant_type")? || !in_floats("v_quant_type")? || given(12) || given(13) {
        "a cache in few bits"
    } else if c.flag("sliding_window_cache", false)? {
        "a cache that is as long as a window"
    } else {
        return Ok(());
    };
    Err(c.unsupported(why))
}

/// Rows of queries, keys and values; they may come side by side.
fn operands(c: &mut Ctx, heads: usize, kv_heads: usize) -> Result<[ValueId; 3], OnnxError> {
    let query = c.input(0)?;
    match (c.optional(1), c.optional(2)) {
        (Some(key), Some(value)) => Ok([query, key, value]),
        (None, None) => {
            let width = c.shape_of_rank(query, 3)?[2];
            let all = heads.saturating_add(kv_heads.saturating_mul(2));
            if all == 0 || width % all != 0 {
                return Err(c.bad(format!("rows of {width} do not fit {all} heads")));
            }
            let (own, kv) = (width / all * heads, width / all * kv_heads);
            Ok([
                part(c, query, 2, 0, own)?,
                part(c, query, 2, own, kv)?,
                part(c, query, 2, own + kv, kv)?,
            ])
        }
        _ => Err(c.bad("it has keys or values alone")),
    }
}

/// A norm of each head.
fn normed(c: &mut Ctx, rows: ValueId, weight: ValueId, depth: usize) -> Result<ValueId, OnnxError> {
    let shape = c.shape_of_rank(rows, 3)?;
    let apart = [shape[0], shape[1], shape[2] / depth.max(1), depth];
    let heads = c.reshape(rows, &apart)?;
    let epsilon = c.float("qk_norm_epsilon", 1e-6)?;
    let normed = c.emit(Op::RmsNorm { axis: 3, epsilon }, &[heads, weight])?;
    c.reshape(normed, &shape)
}

fn turned(
    c: &mut Ctx,
    rows: ValueId,
    heads: usize,
    positions: ValueId,
) -> Result<ValueId, OnnxError> {
    let tables = [c.input(7)?, c.input(8)?];
    let width = 2 * c.shape_of_rank(tables[0], 2)?[1];
    let interleaved = c.flag("rotary_interleaved", false)?;
    let shape = c.shape(rows);
    let first = heads_first(c, rows, heads)?;
    let turned = attention::turned(c, first, tables, Some(positions), width, interleaved)?;
    let perm = vec![0, 2, 1, 3];
    let back = c.emit(Op::Transpose { perm }, &[turned])?;
    c.reshape(back, &shape)
}

/// Where the new rows of each sequence go.
struct Places {
    /// The first row's, for each sequence.
    starts: Vec<usize>,
    /// How many keys each sequence has then.
    ends: Vec<usize>,
    queries: usize,
    /// Rows of the cache, before and after.
    past: usize,
    present: usize,
    /// Nothing of the cache is read.
    is_first: bool,
}

impl Places {
    fn new(c: &mut Ctx, batch: usize, queries: usize) -> Result<Places, OnnxError> {
        let past = match (c.optional(3), c.optional(4)) {
            (Some(key), Some(_)) => c.shape_of_rank(key, 4)?[2],
            (None, None) => 0,
            _ => return Err(c.bad("it has past keys or past values alone")),
        };
        let lengths = c.input(5)?;
        let lengths = c.known_i64(lengths, "the lengths of its sequences")?;
        let ends = lengths.iter().map(|&last| usize::try_from(last + 1).ok());
        let ends: Option<Vec<usize>> = ends.collect();
        let longest = ends.as_ref().and_then(|ends| ends.iter().copied().max());
        let total = match c.known_scalar(6, "its total length")? {
            Some(total) => usize::try_from(total).ok(),
            None => longest,
        };
        let (Some(ends), Some(total)) = (ends.filter(|ends| ends.len() == batch), total) else {
            return Err(c.bad("the lengths of its sequences do not fit its batch"));
        };
        let is_first = total == queries;
        let start = |end: &usize| match is_first {
            true => Some(0),
            false => end.checked_sub(queries).filter(|&start| start <= past),
        };
        let starts: Option<Vec<usize>> = ends.iter().map(start).collect();
        let present = past.max(total);
        let starts = starts.filter(|starts| {
            let fits = |start: &usize| start + queries <= present;
            starts.iter().all(fits) && ends.iter().all(|&end| end <= present)
        });
        Ok(Places {
            starts: starts.ok_or_else(|| c.bad("its sequences do not fit its cache"))?,
            ends,
            queries,
            past,
            present,
            is_first,
        })
    }

    /// The position of each query `[B, S]`.
    fn positions(&self, c: &mut Ctx) -> Result<ValueId, OnnxError> {
        let (batch, queries) = (self.starts.len(), self.queries);
        let given = c.optional(9);
        if let Some(given) = given.filter(|_| !self.is_first) {
            return Ok(given);
        }
        let places = |start: &usize| (*start as i64..).take(queries);
        let all: Vec<i64> = self.starts.iter().flat_map(places).collect();
        let all = c.constant(Literal::from_i64(&[batch, queries], &all));
        let Some(given) = given else { return Ok(all) };
        // Of a first prompt onnxruntime reads one position, and counts on from it.
        let first = part(c, given, 0, 0, 1)?;
        let first = part(c, first, 1, 0, 1)?;
        c.binary(Binary::Add, all, first)
    }

    /// The cache with new rows `[B, heads, S, D]`; what is behind them is zero.
    fn with_past(
        &self,
        c: &mut Ctx,
        past: Option<ValueId>,
        new: ValueId,
    ) -> Result<ValueId, OnnxError> {
        if self.starts.windows(2).all(|pair| pair[0] == pair[1]) {
            let start = self.starts.first().copied().unwrap_or(0);
            return self.joined(c, past, new, start);
        }
        let mut sequences = Vec::new();
        for (at, &start) in self.starts.iter().enumerate() {
            let own = part(c, new, 0, at, 1)?;
            let past = match past {
                Some(past) => Some(part(c, past, 0, at, 1)?),
                None => None,
            };
            sequences.push(self.joined(c, past, own, start)?);
        }
        c.emit(Op::Concat { axis: 0 }, &sequences)
    }

    fn joined(
        &self,
        c: &mut Ctx,
        past: Option<ValueId>,
        new: ValueId,
        start: usize,
    ) -> Result<ValueId, OnnxError> {
        let mut rows = Vec::new();
        if let Some(past) = past.filter(|_| start > 0) {
            rows.push(match start == self.past {
                true => past,
                false => part(c, past, 2, 0, start)?,
            });
        }
        rows.push(new);
        let behind = self.present - start - self.queries;
        if behind > 0 {
            let mut shape = c.shape(new);
            shape[2] = behind;
            rows.push(c.filled(scalar(c.dtype(new), 0.0), &shape)?);
        }
        match rows[..] {
            [only] => Ok(only),
            _ => c.emit(Op::Concat { axis: 2 }, &rows),
        }
    }
}

/// What is added to scores. A sink is the score of one more key, which is added to the cache: it and its value are zero.
fn seen(
    c: &mut Ctx,
    places: &Places,
    heads: usize,
    kept: &mut [ValueId; 2],
) -> Result<Option<Added>, OnnxError> {
    let (queries, keys) = (places.queries, places.present);
    let sink = c.optional(11);
    let has_sink = sink.is_some() || c.int("smooth_softmax", -1)? > 0;
    let mut bias = c.optional(10);
    if let Some(given) = bias
        && c.rank(given) == 4
        && c.shape(given)[3] > keys
    {
        bias = Some(part(c, given, 3, 0, keys)?);
    }
    let order = order(c, places)?;
    let by_steps = c.float("softcap", 0.0)? != 0.0;
    if order.is_plain && bias.is_none() && !has_sink && !by_steps {
        return Ok(Some(Added {
            bias: None,
            empty_rows: None,
        }));
    }
    if let Some(mask) = order.mask(c, places)? {
        bias = Some(match bias {
            Some(bias) => c.binary(Binary::Add, bias, mask)?,
            None => mask,
        });
    }
    if has_sink {
        let dtype = c.dtype(kept[0]);
        let bias_of_keys = match bias {
            Some(bias) => bias,
            None => c.filled(scalar(dtype, 0.0), &[1, 1, queries, keys])?,
        };
        bias = Some(with_sink(c, bias_of_keys, sink, heads)?);
        for value in kept {
            let mut shape = c.shape(*value);
            shape[2] = 1;
            let zeros = c.filled(scalar(dtype, 0.0), &shape)?;
            *value = c.emit(Op::Concat { axis: 2 }, &[*value, zeros])?;
        }
    }
    Ok(bias.map(|bias| Added {
        bias: Some(bias),
        empty_rows: None,
    }))
}

/// One more column: the sinks of heads, or zero.
fn with_sink(
    c: &mut Ctx,
    bias: ValueId,
    sink: Option<ValueId>,
    heads: usize,
) -> Result<ValueId, OnnxError> {
    let mut shape = vec![1; 4 - c.rank(bias).min(4)];
    shape.extend(c.shape(bias));
    let mut bias = c.reshape(bias, &shape)?;
    let column = match sink {
        Some(sink) => {
            shape[1] = heads;
            bias = c.expand(bias, &shape)?;
            let sink = c.reshape(sink, &[1, heads, 1, 1])?;
            c.cast(sink, c.dtype(bias))?
        }
        None => c.scalar(c.dtype(bias), 0.0)?,
    };
    shape[3] = 1;
    let column = c.expand(column, &shape)?;
    c.emit(Op::Concat { axis: 3 }, &[bias, column])
}

/// Which keys a query sees.
struct Order {
    causal: bool,
    /// How many it sees at most: its own and those before.
    window: Option<usize>,
    /// Query `i` sees keys up to `i`, and there are no others.
    is_plain: bool,
}

fn order(c: &Ctx, places: &Places) -> Result<Order, OnnxError> {
    let causal = c.flag("causal", true)?;
    let window = match c.int("local_window_size", -1)? {
        -1 => None,
        size => Some(c.checked_size("local_window_size", size)?),
    };
    let window = window.filter(|&window| window < places.present);
    let ends = places.ends.iter();
    let is_whole = places.present == places.queries
        && ends.copied().all(|end| end == places.queries)
        && places.is_first;
    Ok(Order {
        causal,
        window,
        is_plain: causal && window.is_none() && is_whole,
    })
}

impl Order {
    fn sees(&self, places: &Places, sequence: usize, query: usize, key: usize) -> bool {
        let own = places.starts[sequence] + query;
        key < places.ends[sequence]
            && (!self.causal || key <= own)
            && self.window.is_none_or(|window| key + window > own)
    }

    /// `[1 or B, 1, S, keys]`; `None` where all see all.
    fn mask(&self, c: &mut Ctx, places: &Places) -> Result<Option<ValueId>, OnnxError> {
        let alike = |list: &[usize]| list.windows(2).all(|pair| pair[0] == pair[1]);
        let sequences = match alike(&places.starts) && alike(&places.ends) {
            true => places.starts.len().min(1),
            false => places.starts.len(),
        };
        let (queries, keys) = (places.queries, places.present);
        let shape = [sequences, 1, queries, keys];
        if shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)) > Some(MASK_ELEMENTS) {
            return Err(c.unsupported("a causal mask or a window of this size"));
        }
        let cells = (0..sequences)
            .flat_map(|b| (0..queries).flat_map(move |q| (0..keys).map(move |k| (b, q, k))));
        let added = |(b, q, k)| match self.sees(places, b, q, k) {
            true => 0.0,
            false => f32::MIN,
        };
        let data: Vec<f32> = cells.map(added).collect();
        if data.iter().all(|&added| added == 0.0) {
            return Ok(None);
        }
        Ok(Some(c.constant(Literal::from_f32(&shape, &data))))
    }
}
