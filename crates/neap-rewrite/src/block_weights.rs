//! Matrices in 4 bits, and in blocks of 4 or 8 bits: weights of layers, and tables of which rows are gathered.
//!
//! ```text
//!   MatMul(x, Transpose(Dequantize(w)))       one PanelLinear, whose panels are in blocks
//!   Gather(Dequantize(table), indices)        Dequantize(Gather(table, indices))
//! ```
//! The integers are bytes of the model's file, behind a `Nibbles` where they have four bits, and may have columns that
//! only fill the last block.

use crate::RewriteError;
use crate::constants::{ConstReader, stored_type};
use crate::edit::Editor;
use crate::recipes::Recipes;
use crate::stored::peel_transpose;
use crate::tail::{absorb_bias, absorb_epilogue, emit};
use neap_ir::op::Op;
use neap_ir::panel::{BLOCK_LENS, PanelLinear};
use neap_ir::recipe::{Affine, Recipe, Steps};
use neap_ir::{DType, Node, TensorType, ValueId};

/// Steps of k that share a scale where one scale serves a whole output channel.
const CHANNEL_BLOCK: usize = 128;

/// Weights in blocks.
pub(crate) struct BlockWeights {
    recipe: Recipe,
    /// See [`PanelLinear::rounds`].
    rounds: Option<usize>,
}

/// Weights whose output channels lie along axis `channels` of the matrix `value`, if they are in blocks of k or in 4 bits.
pub(crate) fn block_weights(
    editor: &Editor,
    value: ValueId,
    channels: usize,
) -> Option<BlockWeights> {
    let shape = &editor.ty(value).shape;
    let &[_, _] = &shape[..] else {
        return None;
    };
    let (n, k) = (shape[channels], shape[1 - channels]);
    let (inner, turned) = peel_transpose(editor, value);
    // Of the stored matrix.
    let channel_axis = if turned { 1 - channels } else { channels };
    let dequantize = editor.node(editor.producer(first_columns(editor, inner))?);
    let (x, scale, zero) = (
        dequantize.input(0)?,
        dequantize.input(1)?,
        dequantize.input(2),
    );
    let weight = steps(editor, x)?;
    let rows = [n, k][usize::from(channel_axis == 1)];
    let stored = &editor.ty(x).shape;
    let mut rounds = None;
    let block = match dequantize.op {
        Op::DequantizeBlocks {
            axis,
            block,
            rounds_other,
        } if axis != channel_axis => {
            rounds = rounds_other.then_some(block);
            block
        }
        Op::Dequantize { axis } if weight.has_four_bits => {
            let fits = editor.ty(scale).elements() == 1 || axis == channel_axis;
            fits.then_some(CHANNEL_BLOCK)?
        }
        _ => return None,
    };
    let is_float = matches!(
        stored_type(&editor.graph, scale),
        DType::F32 | DType::F16 | DType::BF16
    );
    let zero = match zero {
        Some(zero) => Some(steps(editor, zero)?),
        None => None,
    };
    let fits = BLOCK_LENS.contains(&block)
        && editor.is_const(scale)
        && is_float
        && stored.len() == 2
        && stored[0] == rows
        && (!weight.has_four_bits || weight.row.is_multiple_of(2));
    let recipe = Recipe::Blocks {
        weight,
        scale,
        zero,
        k,
        n,
        block,
        transposed: channel_axis == 0,
        bias: Affine::default(),
    };
    fits.then_some(BlockWeights { recipe, rounds })
}

/// The matrix of which `value` is the first columns; otherwise `value`.
fn first_columns(editor: &Editor, value: ValueId) -> ValueId {
    let whole = editor.producer(value).and_then(|at| {
        let node = editor.node(at);
        let (Op::Slice { ranges }, Some(x)) = (&node.op, node.input(0)) else {
            return None;
        };
        let shape = &editor.ty(x).shape;
        let begins = ranges
            .iter()
            .all(|range| range.start == 0 && range.step == 1);
        let rows = shape.len() == 2 && ranges.first()?.len == shape[0];
        (begins && rows).then_some(x)
    });
    whole.unwrap_or(value)
}

/// Where integers of 4 or 8 bits are stored, in rows of the last axis; some columns of those may be left out.
fn steps(editor: &Editor, value: ValueId) -> Option<Steps> {
    let whole = first_columns(editor, value);
    let ty = editor.ty(whole);
    let is_signed = match ty.dtype {
        DType::I8 => true,
        DType::U8 => false,
        _ => return None,
    };
    let row = ty.shape.last().copied().unwrap_or(1);
    if editor.is_const(whole) {
        return Some(Steps {
            constant: whole,
            has_four_bits: false,
            is_signed,
            row,
        });
    }
    let node = editor.node(editor.producer(whole)?);
    let constant = node.input(0).filter(|&x| editor.is_const(x))?;
    // A row that ends in the middle of a byte is not looked for.
    let fits =
        matches!(node.op, Op::Nibbles { .. }) && (row.is_multiple_of(2) || ty.shape.len() < 2);
    fits.then_some(Steps {
        constant,
        has_four_bits: true,
        is_signed,
        row,
    })
}

/// A product with weights in blocks, at `at`; `affine` has at most a bias.
pub(crate) fn block_linear(
    editor: &mut Editor,
    at: usize,
    x: ValueId,
    weights: BlockWeights,
    mut affine: Affine,
    reader: &mut dyn ConstReader,
    recipes: &mut Recipes,
) -> Result<(), RewriteError> {
    let BlockWeights { mut recipe, rounds } = weights;
    let Recipe::Blocks { k, n, bias, .. } = &mut recipe else {
        return Ok(());
    };
    let (k, n) = (*k, *n);
    let last = absorb_bias(editor, at, n, 0, &mut affine, reader)?;
    *bias = affine;
    let tail = absorb_epilogue(editor, last);
    let op = Op::PanelLinear(PanelLinear {
        k,
        n,
        epilogue: tail.epilogue,
        rounds,
        in_bf16: false,
    });
    emit(editor, at, x, op, recipe, tail, recipes);
    Ok(())
}

/// Rows of a table in blocks, or in 4 bits, are gathered first and dequantised then.
pub(crate) fn gather_first(editor: &mut Editor, at: usize) -> bool {
    let node = editor.node(at).clone();
    let (Some(table), Some(indices)) = (node.input(0), node.input(1)) else {
        return false;
    };
    let Some(producer) = editor.producer(table) else {
        return false;
    };
    let source = editor.node(producer).clone();
    let (mut parts, op) = match source.op {
        // Each row has its own scales and zero points.
        Op::DequantizeBlocks { axis: 1, block, .. } => (
            source.inputs.clone(),
            Op::DequantizeBlocks {
                axis: editor.ty(indices).shape.len(),
                block,
                rounds_other: false,
            },
        ),
        Op::Dequantize { axis } => {
            let one = source
                .input(1)
                .is_some_and(|scale| editor.ty(scale).elements() == 1);
            if !one && axis != 1 {
                return false;
            }
            let axis = editor.ty(indices).shape.len();
            (vec![source.input(0)], Op::Dequantize { axis })
        }
        _ => return false,
    };
    let is_table = |value: &Option<ValueId>| match *value {
        None => true,
        Some(value) if editor.is_const(value) => {
            matches!(editor.ty(value).shape.len(), 0 | 2)
        }
        Some(value) => editor.ty(value).shape.len() == 2 && nibbles_of(editor, value).is_some(),
    };
    let has_nibbles = source.input(0).is_some_and(|x| !editor.is_const(x));
    let is_plain = matches!(op, Op::Dequantize { .. }) && !has_nibbles;
    if is_plain || !parts.iter().all(is_table) || editor.ty(table).shape.len() != 2 {
        return false;
    }
    let mut before = Vec::new();
    for value in parts.iter_mut().flatten() {
        if !editor.ty(*value).shape.is_empty() {
            *value = gathered(editor, *value, indices, &node, &mut before);
        }
    }
    let mut inputs = source.inputs.clone();
    inputs[..parts.len()].copy_from_slice(&parts);
    let dequantize = Node {
        name: source.name,
        op,
        inputs,
        outputs: node.outputs.clone(),
        panels: None,
    };
    editor.replace(at, dequantize, &[]);
    // Each goes before what is at `at` then.
    for new in before.into_iter().rev() {
        editor.insert(at, new);
    }
    true
}

/// Constant bytes behind four-bit integers whose rows are whole bytes.
fn nibbles_of(editor: &Editor, value: ValueId) -> Option<ValueId> {
    let node = editor.node(editor.producer(value)?);
    let row = editor.ty(value).shape.last().copied()?;
    let bytes = node.input(0).filter(|&x| editor.is_const(x))?;
    (matches!(node.op, Op::Nibbles { .. }) && row.is_multiple_of(2)).then_some(bytes)
}

/// Rows of a table; the nodes that make them are added to `before`.
fn gathered(
    editor: &mut Editor,
    table: ValueId,
    indices: ValueId,
    gather: &Node,
    before: &mut Vec<Node>,
) -> ValueId {
    let mut add =
        |editor: &mut Editor, op: Op, dtype: DType, shape: &[usize], inputs: &[ValueId]| {
            let ty = TensorType::new(dtype, shape);
            let name = format!("{}.rows", gather.name);
            let value = editor.graph.add_value(name, ty);
            before.push(Node {
                name: gather.name.clone(),
                op,
                inputs: inputs.iter().copied().map(Some).collect(),
                outputs: vec![Some(value)],
                panels: None,
            });
            value
        };
    let ty = editor.ty(table).clone();
    let mut shape = editor.ty(indices).shape.clone();
    let lead = shape.len();
    shape.push(ty.shape[1]);
    let Some(bytes) = nibbles_of(editor, table) else {
        return add(
            editor,
            Op::Gather { axis: 0 },
            ty.dtype,
            &shape,
            &[table, indices],
        );
    };
    let rows = TensorType::new(DType::U8, &[ty.shape[0], ty.shape[1] / 2]);
    let data = editor.graph.constant(bytes).cloned();
    let name = editor.graph.value(bytes).name.clone();
    let bytes = match data {
        Some(neap_ir::Const::Inline(literal)) => editor
            .graph
            .add_literal(name, literal.reshaped(&rows.shape)),
        Some(data) => editor.graph.add_const(name, rows, data),
        None => bytes,
    };
    shape[lead] /= 2;
    let gathered = add(
        editor,
        Op::Gather { axis: 0 },
        DType::U8,
        &shape,
        &[bytes, indices],
    );
    shape[lead] *= 2;
    let op = Op::Nibbles {
        shape: shape.clone(),
        signed: ty.dtype == DType::I8,
    };
    add(editor, op, ty.dtype, &shape, &[gathered])
}
