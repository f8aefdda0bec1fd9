//! BatchNorm whose statistics are constants: a scale and a shift for each channel.

use crate::RewriteError;
use crate::constants::ConstReader;
use crate::edit::{Editor, is_const_f32};
use crate::stored::floats;
use crate::tail::activation_after;
use neap_ir::op::{Activation, Op};
use neap_ir::recipe::Affine;
use neap_ir::{DType, Node, ValueId};

/// BatchNorm that follows no convolution: a per-channel scale and shift.
pub(crate) fn batch_norm(
    editor: &mut Editor,
    at: usize,
    reader: &mut dyn ConstReader,
) -> Result<bool, RewriteError> {
    let Op::BatchNorm { epsilon } = editor.node(at).op else {
        return Ok(false);
    };
    let Some(x) = editor.node(at).input(0) else {
        return Ok(false);
    };
    if editor.ty(x).dtype != DType::F32 || editor.ty(x).shape.len() < 2 {
        return Ok(false);
    }
    // A convolution before it may still absorb it; convolutions come first in the schedule.
    let Some((scale, shift)) = bn_affine(editor, at, epsilon, reader)? else {
        return Ok(false);
    };
    let mut last = at;
    let mut activation = Activation::None;
    if let Some((next, found)) = activation_after(editor, at) {
        last = next;
        activation = found;
    }
    let name = editor.node(at).name.clone();
    let literal = |data: &[f32]| neap_ir::Literal::from_f32(&[data.len()], data);
    let scale = editor
        .graph
        .add_literal(format!("{name}.scale"), literal(&scale));
    let shift = editor
        .graph
        .add_literal(format!("{name}.shift"), literal(&shift));
    let node = Node {
        name,
        op: Op::ScaleShift { activation },
        inputs: vec![Some(x), Some(scale), Some(shift)],
        outputs: editor.node(last).outputs.clone(),
        panels: None,
    };
    let absorbed: &[usize] = if last == at { &[] } else { &[at] };
    editor.replace(last, node, absorbed);
    Ok(true)
}

/// One of each per channel.
pub(crate) type ScaleAndShift = (Vec<f32>, Vec<f32>);

/// Scale and shift of a BatchNorm whose statistics are constants.
pub(crate) fn bn_affine(
    editor: &Editor,
    at: usize,
    epsilon: f32,
    reader: &mut dyn ConstReader,
) -> Result<Option<ScaleAndShift>, RewriteError> {
    let node = editor.node(at);
    let statistics: Option<Vec<ValueId>> = (1..5).map(|i| node.input(i)).collect();
    let Some(statistics) = statistics else {
        return Ok(None);
    };
    if !statistics.iter().all(|&v| is_const_f32(editor, v)) {
        return Ok(None);
    }
    let mut read = |i: usize| floats(editor, statistics[i], reader);
    let (gamma, beta, mean, var) = (read(0)?, read(1)?, read(2)?, read(3)?);
    // In f64: folding must not lose what the unfused operator keeps.
    let mut scale = Vec::with_capacity(gamma.len());
    let mut shift = Vec::with_capacity(gamma.len());
    for c in 0..gamma.len() {
        let s = f64::from(gamma[c]) / (f64::from(var[c]) + f64::from(epsilon)).sqrt();
        scale.push(s as f32);
        shift.push((f64::from(beta[c]) - f64::from(mean[c]) * s) as f32);
    }
    Ok(Some((scale, shift)))
}

/// `y = (w*scale) x + bias`, then `scale * y + shift`.
pub(crate) fn compose(affine: &mut Affine, scale: &[f32], shift: &[f32]) {
    let bias = match affine.bias.take() {
        Some(bias) => bias
            .iter()
            .zip(scale.iter().zip(shift))
            .map(|(b, (s, t))| b * s + t)
            .collect(),
        None => shift.to_vec(),
    };
    affine.bias = Some(bias);
    affine.scale = Some(match affine.scale.take() {
        Some(before) => before.iter().zip(scale).map(|(a, b)| a * b).collect(),
        None => scale.to_vec(),
    });
}
