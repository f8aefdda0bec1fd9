//! Layer normalisation written out in primitive operators becomes one node.
//!
//! ```text
//! d = x - mean(x);  y = d / sqrt(mean(d^2) + eps) * scale + bias
//! ```

use crate::edit::Editor;
use crate::fuse::{operands, other, rounded, with_scalar};
use neap_ir::op::{Binary, Op, Reduce, Unary};
use neap_ir::{Node, ValueId};

pub(crate) fn run(editor: &mut Editor) {
    editor.each(layer_norm);
    editor.remove_dead();
}

fn layer_norm(editor: &mut Editor, at: usize) -> bool {
    let Some(found) = matched(editor, at) else {
        return false;
    };
    let node = Node {
        op: Op::LayerNorm {
            axis: found.axis,
            epsilon: found.epsilon,
        },
        inputs: vec![Some(found.x), Some(found.scale), Some(found.bias)],
        ..editor.node(found.last).clone()
    };
    editor.replace(found.last, node, &[]);
    true
}

struct Found {
    x: ValueId,
    scale: ValueId,
    bias: ValueId,
    axis: usize,
    epsilon: f32,
    last: usize,
}

fn matched(editor: &Editor, at: usize) -> Option<Found> {
    let [d, deviation] = operands(editor, at, Binary::Div)?;
    let [x, mean] = operands(editor, editor.producer(d)?, Binary::Sub)?;
    let axis = last_axis_mean(editor, mean, x)?;
    let root = editor.producer(deviation)?;
    let Op::Unary(Unary::Sqrt) = editor.node(root).op else {
        return None;
    };
    let (variance, epsilon) = with_scalar(
        editor,
        editor.producer(editor.node(root).input(0)?)?,
        Binary::Add,
    )?;
    let square = editor.node(editor.producer(variance)?).input(0)?;
    if last_axis_mean(editor, variance, square)? != axis {
        return None;
    }
    let square_at = editor.producer(square)?;
    let squares = match operands(editor, square_at, Binary::Pow) {
        Some([base, exponent]) => base == d && editor.scalar(exponent) == Some(2.0),
        None => operands(editor, square_at, Binary::Mul) == Some([d, d]),
    };
    if !squares {
        return None;
    }
    let normal = rounded(editor, editor.node(at).outputs[0]?);
    let scale_at = editor.sole_user(normal)?;
    let scale = other(operands(editor, scale_at, Binary::Mul)?, normal)?;
    let scaled = editor.node(scale_at).outputs[0]?;
    let bias_at = editor.sole_user(scaled)?;
    let bias = other(operands(editor, bias_at, Binary::Add)?, scaled)?;
    let row = &editor.ty(x).shape[axis..];
    let fits = |v: ValueId| editor.is_const(v) && editor.ty(v).shape == row;
    (fits(scale) && fits(bias)).then_some(Found {
        x,
        scale,
        bias,
        axis,
        epsilon,
        last: bias_at,
    })
}

fn last_axis_mean(editor: &Editor, mean: ValueId, of: ValueId) -> Option<usize> {
    let node = editor.node(editor.producer(mean)?);
    let last = editor.ty(of).shape.len().checked_sub(1)?;
    match &node.op {
        Op::Reduce {
            kind: Reduce::Mean,
            axes,
            keep_dims: true,
        } if axes[..] == [last] && node.input(0) == Some(of) => Some(last),
        _ => None,
    }
}
