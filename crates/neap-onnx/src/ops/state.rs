//! Operators whose state goes from run to run as an operand and a result: CausalConvWithState, LinearAttention and
//! TensorScatter.

use super::slicing::part;
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one, scalar};
use neap_ir::op::{Activation, Binary, ScatterReduction, Unary, Window};
use neap_ir::{DType, Literal, Op, ValueId};

/// Places of a sequence that a recurrence is written out for: some ten nodes each, as many as a loop may become.
const MOST_PLACES: usize = 100;

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "CausalConvWithState" => causal_conv(c),
        "LinearAttention" => linear_attention(c),
        "TensorScatter" => one(tensor_scatter(c)),
        _ => return None,
    })
}

/// Each channel with weights of its own, over the present place and those before it.
fn causal_conv(c: &mut Ctx) -> Outputs {
    let (x, weights) = (c.input(0)?, c.input(1)?);
    let (shape, weight_shape) = (c.shape(x), c.shape(weights));
    let &[batch, channels, length] = &shape[..] else {
        return Err(c.bad(format!("an input of shape {shape:?} has not three axes")));
    };
    let kernel = match weight_shape[..] {
        [rows, 1, kernel] if rows == channels && kernel > 0 => kernel,
        _ => {
            let what = format!("weights of shape {weight_shape:?} do not fit {channels} channels");
            return Err(c.bad(what));
        }
    };
    let before = [batch, channels, kernel - 1];
    let past = match c.optional(3) {
        Some(past) if c.shape(past) == before => past,
        Some(past) => {
            let shape = c.shape(past);
            return Err(c.bad(format!("a state of shape {shape:?} is not {before:?}")));
        }
        None => c.filled(scalar(c.dtype(x), 0.0), &before)?,
    };
    let (joined, state) = match kernel {
        1 => (x, past),
        _ => {
            let joined = c.emit(Op::Concat { axis: 2 }, &[past, x])?;
            (joined, part(c, joined, 2, length, kernel - 1)?)
        }
    };
    let window = Window {
        kernel: vec![kernel],
        strides: vec![1],
        dilations: vec![1],
        pads_begin: vec![0],
        pads_end: vec![0],
    };
    let mut inputs = vec![Some(joined), Some(weights)];
    inputs.extend(c.optional(2).map(Some));
    let y = c.emit_optional(Op::Conv(window, channels), &inputs)?;
    let y = match c.string("activation", "none")? {
        "none" => y,
        "silu" | "swish" => c.unary(Unary::Activation(Activation::Silu), y)?,
        _ => return Err(c.bad("attribute 'activation' is neither silu, swish nor none")),
    };
    Ok(vec![Some(y), Some(state)])
}

/// How a state is changed by each place of a sequence.
struct Rule {
    /// `[B, T, heads, depth or 1]`: what the state is multiplied with.
    decay: Option<ValueId>,
    /// `[B, T, heads or 1]`: how much of what is new is written.
    rate: Option<ValueId>,
}

impl Rule {
    fn new(c: &mut Ctx, batch: usize, places: usize, kv_heads: usize) -> Result<Rule, OnnxError> {
        let (gated, delta) = match c.string("update_rule", "gated_delta")? {
            "linear" => (false, false),
            "gated" => (true, false),
            "delta" => (false, true),
            "gated_delta" => (true, true),
            _ => return Err(c.bad("attribute 'update_rule' is unknown")),
        };
        if gated != c.optional(4).is_some() || delta != c.optional(5).is_some() {
            return Err(c.bad("its decay or its rate does not fit its update_rule"));
        }
        let decay = match c.optional(4) {
            Some(decay) => {
                let width = c.shape_of_rank(decay, 3)?[2];
                if !width.is_multiple_of(kv_heads) {
                    return Err(c.bad(format!("decays of {width} do not fit {kv_heads} heads")));
                }
                let decay = c.unary(Unary::Exp, decay)?;
                Some(c.reshape(decay, &[batch, places, kv_heads, width / kv_heads])?)
            }
            None => None,
        };
        let rate = c.optional(5);
        if let Some(rate) = rate {
            let shape = c.shape(rate);
            if shape != [batch, places, kv_heads] && shape != [batch, places, 1] {
                return Err(c.bad(format!("rates of shape {shape:?} do not fit its heads")));
            }
        }
        Ok(Rule { decay, rate })
    }
}

/// A state for each head, changed place by place and read by queries.
fn linear_attention(c: &mut Ctx) -> Outputs {
    let (q, k, v) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let (heads, kv_heads) = (c.size("q_num_heads", 0)?, c.size("kv_num_heads", 0)?);
    if kv_heads == 0 || heads == 0 || heads % kv_heads != 0 {
        return Err(c.bad(format!(
            "{heads} heads of queries do not fit {kv_heads} of keys"
        )));
    }
    let shapes = [q, k, v].map(|x| c.shape(x));
    let ([batch, places, q_width], [kb, kp, k_width], [vb, vp, v_width]) =
        (&shapes[0][..], &shapes[1][..], &shapes[2][..])
    else {
        return Err(c.bad("its queries, keys or values have not three axes"));
    };
    let (batch, places) = (*batch, *places);
    let (depth, value_depth) = (q_width / heads, v_width / kv_heads);
    let fits = [*kb, *vb] == [batch; 2] && [*kp, *vp] == [places; 2];
    if !fits
        || depth * heads != *q_width
        || depth * kv_heads != *k_width
        || value_depth * kv_heads != *v_width
    {
        return Err(c.bad(format!("its operands {shapes:?} do not fit its heads")));
    }
    if places == 0 || places > MOST_PLACES {
        let what = format!("a sequence of {places} places (1 to {MOST_PLACES} are written out)");
        return Err(c.unsupported(what));
    }
    let dtype = c.dtype(q);
    let rule = Rule::new(c, batch, places, kv_heads)?;
    let state_shape = [batch, kv_heads, depth, value_depth];
    let mut state = match c.optional(3) {
        Some(past) if c.shape(past) == state_shape => c.cast(past, dtype)?,
        Some(_) => return Err(c.bad(format!("its state has not the shape {state_shape:?}"))),
        None => c.filled(scalar(dtype, 0.0), &state_shape)?,
    };
    let scale = match c.float("scale", 0.0)? {
        0.0 => 1.0 / (depth as f64).sqrt(),
        scale => scale.into(),
    };
    let scale = c.scalar(dtype, scale)?;
    let q = c.binary(Binary::Mul, q, scale)?;
    let mut read = Vec::with_capacity(places);
    for place in 0..places {
        let at = |c: &mut Ctx, x: ValueId, shape: &[usize]| {
            let x = part(c, x, 1, place, 1)?;
            c.reshape(x, shape)
        };
        if let Some(decay) = rule.decay {
            let width = c.shape(decay)[3];
            let decay = at(c, decay, &[batch, kv_heads, width, 1])?;
            state = c.binary(Binary::Mul, state, decay)?;
        }
        let key = at(c, k, &[batch, kv_heads, depth, 1])?;
        let mut value = at(c, v, &[batch, kv_heads, 1, value_depth])?;
        if let Some(rate) = rule.rate {
            let row = c.reshape(key, &[batch, kv_heads, 1, depth])?;
            let held = c.emit(Op::MatMul, &[row, state])?;
            let new = c.binary(Binary::Sub, value, held)?;
            let width = c.shape(rate)[2];
            let rate = at(c, rate, &[batch, width, 1, 1])?;
            value = c.binary(Binary::Mul, new, rate)?;
        }
        let written = c.binary(Binary::Mul, key, value)?;
        state = c.binary(Binary::Add, state, written)?;
        let queries = at(c, q, &[batch, kv_heads, heads / kv_heads, depth])?;
        let y = c.emit(Op::MatMul, &[queries, state])?;
        read.push(c.reshape(y, &[batch, 1, heads * value_depth])?);
    }
    let y = match read[..] {
        [only] => only,
        _ => c.emit(Op::Concat { axis: 1 }, &read)?,
    };
    let state = match c.optional(3).map(|past| c.dtype(past)) {
        Some(wanted) => c.cast(state, wanted)?,
        None => state,
    };
    Ok(vec![Some(y), Some(state)])
}

/// Rows of a cache written anew, from a place on that is given for each of a batch.
fn tensor_scatter(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (cache, update) = (c.input(0)?, c.input(1)?);
    let (whole, shape) = (c.shape(cache), c.shape(update));
    let axis = c.axis(c.int("axis", -2)?, whole.len())?;
    let is_circular = match c.string("mode", "linear")? {
        "linear" => false,
        "circular" => true,
        _ => return Err(c.bad("attribute 'mode' is neither linear nor circular")),
    };
    let same = |i: usize| whole[i] == shape[i];
    let fits = whole.len() == shape.len() && (0..whole.len()).all(|i| i == axis || same(i));
    if axis == 0 || !fits || shape[axis] > whole[axis] {
        return Err(c.bad(format!(
            "an update of shape {shape:?} does not fit axis {axis} of {whole:?}"
        )));
    }
    let places: Vec<i64> = (0..shape[axis] as i64).collect();
    let mut aligned = vec![1; shape.len()];
    aligned[axis] = shape[axis];
    let mut places = c.constant(Literal::from_i64(&aligned, &places));
    if let Some(first) = c.optional(2) {
        aligned[axis] = 1;
        aligned[0] = shape[0];
        let first = c.cast(first, DType::I64)?;
        let first = c.reshape(first, &aligned)?;
        places = c.binary(Binary::Add, places, first)?;
    }
    if is_circular {
        let length = c.constant(Literal::from_i64(&[], &[whole[axis] as i64]));
        places = c.binary(Binary::Mod { fmod: false }, places, length)?;
    }
    let places = c.expand(places, &shape)?;
    let op = Op::ScatterElements {
        axis,
        reduction: ScatterReduction::None,
    };
    c.emit(op, &[cache, places, update])
}
