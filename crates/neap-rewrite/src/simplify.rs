//! Nodes that do nothing go; transposes merge; activations get their fusable names.

use crate::edit::Editor;
use neap_ir::op::{Activation, Op, Unary};
use neap_ir::{DType, Node, ValueId};

pub(crate) fn run(editor: &mut Editor) {
    editor.each(|editor, at| {
        drop_identity(editor, at)
            || transpose_matrices(editor, at)
            || merge_transposes(editor, at)
            || name_activation(editor, at)
    });
    editor.remove_dead();
}

/// Readers of an identity read its input instead. Outputs of the graph keep their copy.
fn drop_identity(editor: &mut Editor, at: usize) -> bool {
    let node = editor.node(at);
    let (Some(input), [Some(output)]) = (node.input(0), &node.outputs[..]) else {
        return false;
    };
    let output = *output;
    let same_type = editor.ty(input) == editor.ty(output);
    let nothing = match &node.op {
        Op::Unary(Unary::Identity | Unary::Activation(Activation::None)) => true,
        Op::Cast { .. } | Op::Reshape { .. } | Op::Expand { .. } => same_type,
        Op::Transpose { perm } => perm.iter().enumerate().all(|(i, &p)| i == p),
        Op::Clip {
            low: None,
            high: None,
        } => true,
        _ => false,
    };
    if !nothing || !same_type {
        return false;
    }
    if editor.is_output(output) {
        return false;
    }
    editor.redirect(output, input);
    editor.kill(at);
    true
}

/// Matrices that are transposed as a list, and then named as before, are transposed where they lie.
///
/// ```text
///   [a,b,m,n] -Reshape-> [a*b,m,n] -Transpose-> [a*b,n,m] -Reshape-> [a,b,n,m]
/// ```
fn transpose_matrices(editor: &mut Editor, at: usize) -> bool {
    let found = (|| {
        let reshaped = |value: ValueId| {
            let node = editor.node(editor.producer(value)?);
            matches!(node.op, Op::Reshape { .. }).then(|| node.input(0))?
        };
        let output = editor.node(at).outputs[0]?;
        let turned = reshaped(output)?;
        let turn = editor.node(editor.producer(turned)?);
        if !matches!(&turn.op, Op::Transpose { perm } if perm[..] == [0, 2, 1]) {
            return None;
        }
        let list = turn.input(0)?;
        let x = reshaped(list)?;
        let (from, to) = (&editor.ty(x).shape, &editor.ty(output).shape);
        let lead = from.len().checked_sub(2)?;
        let named = to.len() == from.len() && from[..lead] == to[..lead];
        let is_list = from[lead..] == editor.ty(list).shape[1..];
        let fits = named && is_list && to[lead..] == editor.ty(turned).shape[1..];
        fits.then_some((x, lead))
    })();
    let Some((x, lead)) = found else {
        return false;
    };
    let node = Node {
        op: Op::Transpose {
            perm: (0..lead).chain([lead + 1, lead]).collect(),
        },
        inputs: vec![Some(x)],
        ..editor.node(at).clone()
    };
    editor.replace(at, node, &[]);
    true
}

fn merge_transposes(editor: &mut Editor, at: usize) -> bool {
    let Op::Transpose { perm } = &editor.node(at).op else {
        return false;
    };
    let Some(input) = editor.node(at).input(0) else {
        return false;
    };
    let shape = &editor.ty(input).shape;
    // Moving only axes of size 1 is a reshape.
    let moved: Vec<usize> = perm.iter().copied().filter(|&p| shape[p] != 1).collect();
    if moved.is_sorted() {
        let output = editor
            .node(at)
            .present_outputs()
            .next()
            .expect("transpose has an output");
        let shape = editor.ty(output).shape.clone();
        let node = Node {
            op: Op::Reshape { shape },
            ..editor.node(at).clone()
        };
        editor.replace(at, node, &[]);
        return true;
    }
    let Some(before) = editor.producer(input) else {
        return false;
    };
    let Op::Transpose { perm: first } = &editor.node(before).op else {
        return false;
    };
    let merged = perm.iter().map(|&p| first[p]).collect();
    let source = editor.node(before).inputs[0];
    let node = Node {
        op: Op::Transpose { perm: merged },
        inputs: vec![source],
        ..editor.node(at).clone()
    };
    editor.replace(at, node, &[]);
    true
}

/// `Tanh`, and `Clip` with float limits, are activations that kernels can fuse.
fn name_activation(editor: &mut Editor, at: usize) -> bool {
    let node = editor.node(at);
    let (low, high) = match node.op {
        Op::Clip { low, high } => (low, high),
        Op::Unary(Unary::Tanh) => (None, None),
        _ => return false,
    };
    let Some(input) = node.input(0) else {
        return false;
    };
    if editor.ty(input).dtype != DType::F32 {
        return false;
    }
    let activation = match (low, high) {
        (None, None) => Activation::Tanh,
        (Some(0.0), None) => Activation::Relu,
        (Some(low), Some(high)) => Activation::Clip {
            low: low as f32,
            high: high as f32,
        },
        _ => return false,
    };
    let node = Node {
        op: Op::Unary(Unary::Activation(activation)),
        ..node.clone()
    };
    editor.replace(at, node, &[]);
    true
}
