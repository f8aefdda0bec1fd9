//! What follows an operator with constant weights and becomes part of it: bias, residual, activation.

use crate::RewriteError;
use crate::constants::ConstReader;
use crate::edit::{Editor, is_const_f32, output};
use crate::fuse::{operands, other};
use crate::recipes::Recipes;
use crate::steps::{StepsSource, is_of_channels};
use crate::stored::floats;
use neap_ir::op::{Activation, Binary, Op, Unary};
use neap_ir::panel::{Epilogue, Integers};
use neap_ir::recipe::{Affine, Recipe};
use neap_ir::{Node, ValueId};

/// Residual and activation found after a weighted node.
pub(crate) struct Tail {
    pub(crate) last: usize,
    residual: Option<ValueId>,
    /// What the layer reads instead, where it is computed in integers.
    source: Option<StepsSource>,
    pub(crate) epilogue: Epilogue,
}

impl Tail {
    pub(crate) fn of_steps(&mut self, source: Option<StepsSource>) {
        self.epilogue.integers = source.map(|_| Integers::default());
        self.source = source;
    }
}

pub(crate) fn absorb_epilogue(editor: &Editor, from: usize) -> Tail {
    let mut tail = Tail {
        last: from,
        residual: None,
        source: None,
        epilogue: Epilogue::default(),
    };
    if let Some((next, residual)) = residual_after(editor, from) {
        tail.last = next;
        tail.residual = Some(residual);
        tail.epilogue.residual = true;
    }
    if let Some((next, activation)) = activation_after(editor, tail.last) {
        tail.last = next;
        tail.epilogue.activation = activation;
    }
    tail
}

/// `Add` of this result and another of the same type that is ready by then. Of two candidates the
/// later producer absorbs the sum, since the node moves to the place of the `Add`.
fn residual_after(editor: &Editor, at: usize) -> Option<(usize, ValueId)> {
    let sum = output(editor, at);
    let add = editor.sole_user(sum)?;
    let residual = other(operands(editor, add, Binary::Add)?, sum)?;
    if residual == sum
        || editor.is_const(residual)
        || editor.ty(residual) != editor.ty(sum)
        || editor.ty(residual) != editor.ty(output(editor, add))
    {
        return None;
    }
    let competitor = editor.producer(residual).filter(|&p| {
        p > at
            && editor.sole_user(residual) == Some(add)
            && matches!(
                editor.node(p).op,
                Op::Conv(..) | Op::MatMul | Op::Gemm { .. } | Op::BatchNorm { .. }
            )
    });
    match competitor {
        Some(_) => None,
        None => Some((add, residual)),
    }
}

pub(crate) fn activation_after(editor: &Editor, at: usize) -> Option<(usize, Activation)> {
    let next = editor.sole_user(output(editor, at))?;
    match editor.node(next).op {
        Op::Unary(Unary::Activation(activation)) => Some((next, activation)),
        _ => None,
    }
}

/// `Add` of a constant row after a matrix product; of a number for each channel, before `inner` axes, after a convolution.
pub(crate) fn absorb_bias(
    editor: &Editor,
    at: usize,
    n: usize,
    inner: usize,
    affine: &mut Affine,
    reader: &mut dyn ConstReader,
) -> Result<usize, RewriteError> {
    if affine.bias.is_some() {
        return Ok(at);
    }
    let product = output(editor, at);
    let Some(add) = editor.sole_user(product) else {
        return Ok(at);
    };
    let Some(row) = operands(editor, add, Binary::Add).and_then(|pair| other(pair, product)) else {
        return Ok(at);
    };
    let shape = &editor.ty(row).shape;
    let is_row = is_of_channels(shape, n, inner);
    if !is_row || !is_const_f32(editor, row) || editor.ty(output(editor, add)) != editor.ty(product)
    {
        return Ok(at);
    }
    affine.bias = Some(floats(editor, row, reader)?);
    Ok(add)
}

/// Puts the panel node where the chain ended and drops the chain.
pub(crate) fn emit(
    editor: &mut Editor,
    at: usize,
    x: ValueId,
    op: Op,
    recipe: Recipe,
    tail: Tail,
    recipes: &mut Recipes,
) {
    let packed = recipes.add(recipe);
    let inputs = match tail.source {
        None => [Some(x)]
            .into_iter()
            .chain(tail.residual.map(Some))
            .collect(),
        Some(source) => vec![
            Some(source.x),
            tail.residual,
            Some(source.scale),
            Some(source.zero),
        ],
    };
    let node = Node {
        name: editor.node(at).name.clone(),
        op,
        inputs,
        outputs: vec![Some(output(editor, tail.last))],
        panels: Some(packed),
    };
    // Nodes between `at` and the end of the chain have no other readers.
    let mut absorbed = Vec::new();
    let mut step = at;
    while step != tail.last {
        absorbed.push(step);
        step = editor
            .sole_user(output(editor, step))
            .expect("the chain was followed before");
    }
    editor.replace(tail.last, node, &absorbed);
}
