//! Quantised tensors: what is stored in few bits keeps its place and its type, what passes between layers stays `f32`.
//!
//! ```text
//!   Cast(w) [- zero] * scale                     DequantizeLinear(w, scale, zero)
//!   x -> Quantize -> MaxPool -> Dequantize       x -> Requantize -> MaxPool
//!   MatMul of integers -> int32 -> f32           MatMul of integers
//!   Relu -> Requantize                           Requantize whose steps begin at the zero point
//!   Requantize -> MaxPool -> Requantize          Requantize -> MaxPool, where the steps are the same
//! ```
//! Requantize gives the numbers that Quantize and Dequantize give one after the other, to the bit. As an activation it
//! needs no memory of its own, and convolutions and products absorb it.

use crate::edit::Editor;
use crate::fuse::operands;
use neap_ir::op::{Activation, Binary, Op, Pool, Unary};
use neap_ir::{DType, Literal, Node, ValueId};

pub(crate) fn run(editor: &mut Editor) {
    editor.each(|editor, at| {
        name_dequantize(editor, at) || requantize(editor, at) || keep_sums(editor, at)
    });
    editor.each(clip_steps);
    editor.each(rounded_before);
    editor.remove_dead();
}

/// The value behind a cast of 8-bit integers to `f32`.
pub(crate) fn cast_of_steps(editor: &Editor, value: ValueId) -> Option<ValueId> {
    let node = editor.node(editor.producer(value)?);
    let x = node.input(0)?;
    let is_cast = node.op == Op::Cast { to: DType::F32 };
    let is_small = matches!(editor.ty(x).dtype, DType::I8 | DType::U8);
    (is_cast && is_small && editor.is_const(x)).then_some(x)
}

/// Stored integers times a scale, as some exporters write a DequantizeLinear.
fn name_dequantize(editor: &mut Editor, at: usize) -> bool {
    let found = (|| {
        let [a, b] = operands(editor, at, Binary::Mul)?;
        let (value, scale) = if editor.is_const(b) { (a, b) } else { (b, a) };
        let output = editor.node(at).outputs[0]?;
        if editor.graph.literal(scale)?.as_f32().is_none() || editor.ty(output) != editor.ty(value)
        {
            return None;
        }
        let (x, zero) = match cast_of_steps(editor, value) {
            Some(x) => (x, None),
            None => {
                let [x, zero] = operands(editor, editor.producer(value)?, Binary::Sub)?;
                (cast_of_steps(editor, x)?, Some(zero))
            }
        };
        let shape = editor.ty(x).shape.clone();
        let axis = along(&editor.ty(scale).shape, &shape)?;
        let flat = [editor.ty(scale).elements()];
        let scale = editor.graph.literal(scale)?.clone().reshaped(&flat);
        let zero = match zero {
            None => None,
            Some(zero) => {
                // As many as there are scales, in the type of the integers.
                let literal = editor.graph.literal(zero)?;
                let same = along(literal.shape(), &shape)? == axis
                    && literal.elements() == scale.elements();
                let values = literal.as_f32().filter(|_| same)?;
                let dtype = editor.ty(x).dtype;
                let bytes: Option<Vec<u8>> = values.iter().map(|&v| step_byte(v, dtype)).collect();
                Some(Literal::from_bytes(dtype, &flat, &bytes?)?)
            }
        };
        Some((x, scale, zero, axis))
    })();
    let Some((x, scale, zero, axis)) = found else {
        return false;
    };
    let node = editor.node(at).clone();
    let scale = editor
        .graph
        .add_literal(format!("{}.scale", node.name), scale);
    let mut inputs = vec![Some(x), Some(scale)];
    if let Some(zero) = zero {
        let zero = editor
            .graph
            .add_literal(format!("{}.zero", node.name), zero);
        inputs.push(Some(zero));
    }
    let dequantize = Node {
        op: Op::Dequantize { axis },
        inputs,
        ..node
    };
    editor.replace(at, dequantize, &[]);
    true
}

/// The byte of an integer that an 8-bit type holds.
fn step_byte(x: f32, dtype: DType) -> Option<u8> {
    match dtype {
        DType::I8 => (f32::from(x as i8) == x).then_some(x as i8 as u8),
        _ => (f32::from(x as u8) == x).then_some(x as u8),
    }
}

/// The axis along which values of shape `own` differ that broadcast to `shape`; any if they do not differ.
fn along(own: &[usize], shape: &[usize]) -> Option<usize> {
    if own.iter().all(|&n| n == 1) {
        return Some(0);
    }
    let lead = shape.len().checked_sub(own.len())?;
    let mut long = (0..own.len()).filter(|&i| own[i] != 1);
    let axis = lead + long.next()?;
    (long.next().is_none() && own[axis - lead] == shape[axis]).then_some(axis)
}

/// One scale and zero point that are known.
#[derive(Clone, Copy, PartialEq)]
struct Steps {
    scale: f32,
    zero: i64,
    dtype: DType,
}

impl Steps {
    /// Of a Quantize or Dequantize with operands `inputs`, whose integers have type `dtype`.
    fn of(editor: &Editor, node: &Node, dtype: DType) -> Option<Steps> {
        let one = |value: ValueId| {
            let literal = editor.graph.literal(value)?;
            (literal.elements() == 1).then_some(literal)
        };
        let &[scale] = one(node.input(1)?)?.as_f32()? else {
            return None;
        };
        let zero = match node.input(2) {
            Some(zero) => *one(zero)?.to_i64_vec()?.first()?,
            None => 0,
        };
        let is_sound = scale.is_finite() && scale > 0.0;
        is_sound.then_some(Steps { scale, zero, dtype })
    }

    fn activation(self) -> Option<Activation> {
        let (low, high) = match self.dtype {
            DType::I8 => (-128.0, 127.0),
            DType::U8 => (0.0, 255.0),
            DType::I16 => (-32768.0, 32767.0),
            DType::U16 => (0.0, 65535.0),
            _ => return None,
        };
        Some(Activation::Requantize {
            scale: self.scale,
            zero: self.zero as f32,
            low,
            high,
            nan: low,
        })
    }
}

/// What may lie between Quantize and Dequantize: it only moves elements, or picks the largest.
pub(crate) fn keeps_steps(node: &Node, input: ValueId) -> bool {
    let moves = matches!(
        node.op,
        Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Slice { .. }
            | Op::Split { .. }
            | Op::Expand { .. }
            | Op::Tile { .. }
            | Op::Gather { .. }
            | Op::DepthToSpace { .. }
            | Op::SpaceToDepth { .. }
            | Op::Unary(Unary::Identity)
    );
    let picks = matches!(
        node.op,
        Op::Pool {
            kind: Pool::Max { .. },
            ..
        } | Op::GlobalPool(Pool::Max { .. })
    ) && node.present_outputs().count() == 1;
    let elsewhere = node.present_inputs().skip(1).any(|v| v == input);
    (moves || picks) && node.input(0) == Some(input) && !elsewhere
}

/// A Quantize all of whose readers dequantise again by the same steps, maybe after moving elements.
fn requantize(editor: &mut Editor, at: usize) -> bool {
    let node = editor.node(at).clone();
    let (Op::Quantize { to, .. }, &[Some(output)]) = (&node.op, &node.outputs[..]) else {
        return false;
    };
    let found = (|| {
        let steps = Steps::of(editor, &node, *to)?;
        let activation = steps.activation()?;
        let (mut values, mut ends) = (vec![output], Vec::new());
        let mut next = 0;
        while let Some(&value) = values.get(next) {
            if editor.is_output(value) {
                return None;
            }
            for &user in editor.users(value) {
                let reader = editor.node(user);
                if matches!(reader.op, Op::Dequantize { .. }) && reader.input(0) == Some(value) {
                    if Steps::of(editor, reader, *to)? != steps {
                        return None;
                    }
                    ends.push(user);
                } else if keeps_steps(reader, value) {
                    let new = reader.present_outputs().filter(|v| !values.contains(v));
                    let new: Vec<ValueId> = new.collect();
                    values.extend(new);
                } else {
                    return None;
                }
            }
            next += 1;
        }
        (!ends.is_empty()).then_some((activation, values, ends))
    })();
    let Some((activation, values, ends)) = found else {
        return false;
    };
    for value in values {
        editor.graph.values[value.index()].ty.dtype = DType::F32;
    }
    let rounding = Node {
        op: Op::Unary(Unary::Activation(activation)),
        inputs: vec![node.input(0)],
        ..node
    };
    editor.replace(at, rounding, &[]);
    for end in ends {
        let node = editor.node(end).clone();
        let (Some(x), &[Some(y)]) = (node.input(0), &node.outputs[..]) else {
            continue;
        };
        if editor.is_output(y) {
            let same = Node {
                op: Op::Unary(Unary::Identity),
                inputs: vec![Some(x)],
                ..node
            };
            editor.replace(end, same, &[]);
        } else {
            editor.redirect(y, x);
            editor.kill(end);
        }
    }
    true
}

/// Sums of products of integers that become integers and `f32` again stay what they are.
fn keep_sums(editor: &mut Editor, at: usize) -> bool {
    let found = (|| {
        let node = editor.node(at);
        let inner = editor.node(editor.producer(node.input(0)?)?);
        let sums = inner.input(0)?;
        let product = editor.node(editor.producer(sums)?);
        let is_product = matches!(product.op, Op::MatMul | Op::Conv(..));
        let is_integer = |value: Option<ValueId>| {
            let producer = value.and_then(|value| editor.producer(value));
            producer.is_some_and(|at| {
                let node = editor.node(at);
                let scale = node.input(1).and_then(|scale| editor.scalar(scale));
                matches!(node.op, Op::Dequantize { .. }) && scale == Some(1.0)
            })
        };
        let casts =
            node.op == Op::Cast { to: DType::F32 } && inner.op == Op::Cast { to: DType::I32 };
        let output = node.outputs[0]?;
        let keeps = casts
            && is_product
            && is_integer(product.input(0))
            && is_integer(product.input(1))
            && product.input(2).is_none()
            && !editor.is_output(output);
        keeps.then_some((output, sums))
    })();
    let Some((output, sums)) = found else {
        return false;
    };
    editor.redirect(output, sums);
    editor.kill(at);
    true
}

/// A clip before the steps are taken is a clip of the steps: rounding keeps order.
fn clip_steps(editor: &mut Editor, at: usize) -> bool {
    let found = (|| {
        let node = editor.node(at);
        let Op::Unary(Unary::Activation(Activation::Requantize {
            scale,
            zero,
            low,
            high,
            nan,
        })) = node.op
        else {
            return None;
        };
        let x = node.input(0)?;
        let before = editor.node(editor.producer(x)?);
        let (least, most) = match before.op {
            Op::Unary(Unary::Activation(Activation::Relu)) => (0.0, f32::INFINITY),
            Op::Unary(Unary::Activation(Activation::Clip { low, high })) => (low, high),
            _ => return None,
        };
        editor.sole_user(x)?;
        let step = |x: f32| (x / scale).round_ties_even() + zero;
        let activation = Activation::Requantize {
            scale,
            zero,
            low: low.max(step(least)).min(high),
            high: high.min(step(most)).max(low),
            // A clip leaves NaN what it is.
            nan,
        };
        Some((before.input(0)?, activation))
    })();
    let Some((x, activation)) = found else {
        return false;
    };
    let node = Node {
        op: Op::Unary(Unary::Activation(activation)),
        inputs: vec![Some(x)],
        ..editor.node(at).clone()
    };
    editor.replace(at, node, &[]);
    true
}

/// Numbers that lie on steps are not rounded to the same steps again.
fn rounded_before(editor: &mut Editor, at: usize) -> bool {
    /// Nodes that only move or pick numbers, one after the other.
    const MOST_MOVES: usize = 16;
    let rounding = |node: &Node| match node.op {
        Op::Unary(Unary::Activation(Activation::Requantize {
            scale,
            zero,
            low,
            high,
            nan,
        })) => Some(([scale, zero], [low.min(nan), low, high])),
        _ => None,
    };
    let found = (|| {
        let node = editor.node(at);
        let (own, [_, low, high]) = rounding(node)?;
        let (x, output) = (node.input(0)?, node.outputs[0]?);
        let mut value = x;
        for _ in 0..MOST_MOVES {
            let maker = editor.node(editor.producer(value)?);
            if let Some((same, [least, _, most])) = rounding(maker) {
                let fits = same == own && low <= least && most <= high;
                return (fits && !editor.is_output(output)).then_some((x, output));
            }
            let input = maker.input(0)?;
            if !keeps_steps(maker, input) {
                return None;
            }
            value = input;
        }
        None
    })();
    let Some((x, output)) = found else {
        return false;
    };
    editor.redirect(output, x);
    editor.kill(at);
    true
}
