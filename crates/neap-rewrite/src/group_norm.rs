//! Group normalisation as PyTorch exports it becomes one node: groups are the channels of an instance normalisation, and each
//! channel's scale and bias follow.
//!
//! ```text
//! [N, C, H, W] ─► reshape [N, groups, ...] ─► InstanceNorm ─► reshape [N, C, H, W] ─► * scale ─► + bias
//! ```

use crate::RewriteError;
use crate::constants::ConstReader;
use crate::edit::{Editor, is_const_f32};
use crate::fuse::{operands, other};
use crate::steps::is_of_channels;
use crate::stored::floats;
use neap_ir::op::{Binary, Op};
use neap_ir::{DType, Literal, Node, ValueId};

pub(crate) fn run(editor: &mut Editor, reader: &mut dyn ConstReader) -> Result<(), RewriteError> {
    for at in 0..editor.graph.nodes.len() {
        if let Some(found) = matched(editor, at) {
            replace(editor, found, reader)?;
        }
    }
    editor.remove_dead();
    Ok(())
}

struct Found {
    x: ValueId,
    groups: usize,
    epsilon: f32,
    /// Of each group, then of each channel.
    scales: [Option<ValueId>; 2],
    biases: [Option<ValueId>; 2],
    last: usize,
}

fn matched(editor: &Editor, at: usize) -> Option<Found> {
    let node = editor.node(at);
    let Op::InstanceNorm { epsilon } = node.op else {
        return None;
    };
    let reshape = editor.producer(node.input(0)?)?;
    let (grouped, is_reshape) = (&editor.ty(node.input(0)?).shape, |at: usize| {
        matches!(editor.node(at).op, Op::Reshape { .. })
    });
    let x = editor
        .node(reshape)
        .input(0)
        .filter(|_| is_reshape(reshape))?;
    let ty = editor.ty(x);
    let &[images, channels, ref space @ ..] = &ty.shape[..] else {
        return None;
    };
    let &[first, groups, ..] = &grouped[..] else {
        return None;
    };
    let splits = first == images && groups > 0 && channels.is_multiple_of(groups);
    let back = editor
        .sole_user(node.outputs[0]?)
        .filter(|&at| is_reshape(at))?;
    let normal = editor.node(back).outputs[0]?;
    if !splits || space.is_empty() || ty.dtype != DType::F32 || editor.ty(normal) != ty {
        return None;
    }
    let mut found = Found {
        x,
        groups,
        epsilon,
        scales: [node.input(1), None],
        biases: [node.input(2), None],
        last: back,
    };
    let by_channel = |last: usize, kind| {
        let before = editor.node(last).outputs[0]?;
        let next = editor.sole_user(before)?;
        let factor = other(operands(editor, next, kind)?, before)?;
        let fits = is_of_channels(&editor.ty(factor).shape, channels, space.len())
            && is_const_f32(editor, factor)
            && editor.ty(editor.node(next).outputs[0]?) == ty;
        fits.then_some((next, factor))
    };
    if let Some((next, scale)) = by_channel(found.last, Binary::Mul) {
        (found.last, found.scales[1]) = (next, Some(scale));
    }
    if let Some((next, bias)) = by_channel(found.last, Binary::Add) {
        (found.last, found.biases[1]) = (next, Some(bias));
    }
    let known = |v: &Option<ValueId>| v.is_none_or(|v| is_const_f32(editor, v));
    let all_known = found.scales.iter().chain(&found.biases).all(known);
    all_known.then_some(found)
}

fn replace(
    editor: &mut Editor,
    found: Found,
    reader: &mut dyn ConstReader,
) -> Result<(), RewriteError> {
    let channels = editor.ty(found.x).shape[1];
    let mut read = |v: Option<ValueId>, default: f32| match v {
        Some(v) => floats(editor, v, reader),
        None => Ok(vec![default; channels]),
    };
    let (outer_scale, scale) = (read(found.scales[0], 1.0)?, read(found.scales[1], 1.0)?);
    let (outer_bias, bias) = (read(found.biases[0], 0.0)?, read(found.biases[1], 0.0)?);
    let width = channels / found.groups;
    let scales = (0..channels).map(|c| outer_scale[c / width] * scale[c]);
    let biases = (0..channels).map(|c| outer_bias[c / width] * scale[c] + bias[c]);
    let (scales, biases): (Vec<f32>, Vec<f32>) = (scales.collect(), biases.collect());
    let last = editor.node(found.last).clone();
    let mut literal = |suffix: &str, data: &[f32]| {
        let name = format!("{}.{suffix}", last.name);
        let literal = Literal::from_f32(&[channels], data);
        editor.graph.add_literal(name, literal)
    };
    let (scales, biases) = (literal("scale", &scales), literal("bias", &biases));
    let node = Node {
        op: Op::GroupNorm {
            groups: found.groups,
            epsilon: found.epsilon,
            per_group: false,
        },
        inputs: vec![Some(found.x), Some(scales), Some(biases)],
        ..last
    };
    editor.replace(found.last, node, &[]);
    Ok(())
}
