//! Weights where they are stored: behind a transpose, or a DequantizeLinear.

use crate::RewriteError;
use crate::constants::{ConstReader, fetch};
use crate::edit::Editor;
use crate::fuse::operands;
use crate::quantized::cast_of_steps;
use neap_ir::op::{Binary, Op};
use neap_ir::recipe::{Affine, INLINE_LIMIT_BYTES};
use neap_ir::{Const, ConstId, DType, Node, TensorType, ValueId};

/// Weights of a layer where they are stored.
pub(crate) struct StoredWeight {
    pub constant: ValueId,
    /// They are the transpose of the constant.
    pub transposed: bool,
    /// Scales and zero points, for each output channel, of quantised ones.
    pub affine: Affine,
}

/// Small constants in few bits that no layer took are widened once, and not in every run.
pub(crate) fn widen_small(editor: &mut Editor, at: usize) -> bool {
    let node = editor.node(at);
    let (Op::Dequantize { .. }, &[Some(output)]) = (&node.op, &node.outputs[..]) else {
        return false;
    };
    if editor.ty(output).len_bytes() > INLINE_LIMIT_BYTES || editor.is_output(output) {
        return false;
    }
    let inputs: Option<Vec<_>> = (node.inputs.iter())
        .map(|input| match *input {
            Some(value) => editor.graph.literal(value).map(Some),
            None => Some(None),
        })
        .collect();
    let widened = inputs.and_then(|inputs| neap_ops::evaluate(&node.op, &inputs).ok()?.pop());
    let Some(widened) = widened else {
        return false;
    };
    let id = ConstId(editor.graph.consts.len() as u32);
    editor.graph.consts.push(Const::Inline(widened));
    editor.graph.values[output.index()].constant = Some(id);
    editor.kill(at);
    true
}

/// The constant that `value` is, maybe transposed, maybe behind a DequantizeLinear whose scales fit output channels
/// that lie along axis `channels` of `value`.
pub(crate) fn stored_weight(
    editor: &Editor,
    value: ValueId,
    mut channels: usize,
    reader: &mut dyn ConstReader,
) -> Result<Option<StoredWeight>, RewriteError> {
    let count = editor.ty(value).shape[channels];
    let (mut constant, turned) = peel_transpose(editor, value);
    let mut transposed = turned;
    let mut affine = Affine::default();
    if editor.is_const(constant) {
        let is_f32 = editor.ty(constant).dtype == DType::F32;
        return Ok(is_f32.then_some(StoredWeight {
            constant,
            transposed,
            affine,
        }));
    }
    if turned {
        channels = 1 - channels;
    }
    let Some(at) = editor.producer(constant) else {
        return Ok(None);
    };
    let node = editor.node(at);
    let (&Op::Dequantize { axis }, Some(x), Some(scale)) = (&node.op, node.input(0), node.input(1))
    else {
        return Ok(None);
    };
    let zero = node.input(2);
    let fits = editor.ty(scale).elements() == 1 || axis == channels;
    let known = editor.is_const(scale) && zero.is_none_or(|zero| editor.is_const(zero));
    let turned;
    (constant, turned) = peel_transpose(editor, x);
    transposed ^= turned;
    let is_stored =
        editor.is_const(constant) && matches!(editor.ty(constant).dtype, DType::I8 | DType::U8);
    if !fits || !known || !is_stored {
        return Ok(None);
    }
    let for_each = |values: Vec<f32>| match values[..] {
        [one] => vec![one; count],
        _ => values,
    };
    affine.scale = Some(for_each(floats(editor, scale, reader)?));
    affine.zero = Some(match zero {
        Some(zero) => for_each(steps(editor, zero, reader)?),
        None => vec![0.0; count],
    });
    Ok(Some(StoredWeight {
        constant,
        transposed,
        affine,
    }))
}

/// A constant behind a 2-D transpose, and whether there was one; otherwise the value behind it.
pub(crate) fn peel_transpose(editor: &Editor, value: ValueId) -> (ValueId, bool) {
    let source = editor
        .producer(value)
        .and_then(|at| match &editor.node(at).op {
            Op::Transpose { perm } if perm[..] == [1, 0] => editor.node(at).input(0),
            _ => None,
        });
    match source {
        Some(source) => (source, true),
        None => (value, false),
    }
}

/// Zero points.
pub(crate) fn steps(
    editor: &Editor,
    value: ValueId,
    reader: &mut dyn ConstReader,
) -> Result<Vec<f32>, RewriteError> {
    let literal = fetch(&editor.graph, value, reader)?;
    let steps = literal.to_i64_vec().unwrap_or_default();
    Ok(steps.into_iter().map(|step| step as f32).collect())
}

/// A constant of floats.
pub(crate) fn floats(
    editor: &Editor,
    value: ValueId,
    reader: &mut dyn ConstReader,
) -> Result<Vec<f32>, RewriteError> {
    let literal = fetch(&editor.graph, value, reader)?;
    literal
        .as_f32()
        .map(<[f32]>::to_vec)
        .ok_or_else(|| RewriteError::Constant {
            name: editor.graph.value(value).name.clone(),
            reason: format!("expected float32, found {}", literal.dtype()),
        })
}

/// Rows of a dequantised table are gathered first and dequantised then, where one scale serves all rows.
pub(crate) fn dequantize_rows(editor: &mut Editor, at: usize) -> bool {
    let node = editor.node(at).clone();
    let (Some(table), Some(indices)) = (node.input(0), node.input(1)) else {
        return false;
    };
    let Some(producer) = editor.producer(table) else {
        return false;
    };
    let source = editor.node(producer).clone();
    let (Op::Dequantize { axis }, Some(x), Some(scale)) =
        (&source.op, source.input(0), source.input(1))
    else {
        return false;
    };
    let one = editor.ty(scale).elements() == 1;
    if !editor.is_const(x) || editor.ty(x).shape.len() != 2 || !(one || *axis == 1) {
        return false;
    }
    let mut shape = editor.ty(indices).shape.clone();
    shape.push(editor.ty(x).shape[1]);
    let axis = shape.len() - 1;
    let ty = TensorType::new(editor.ty(x).dtype, &shape);
    let rows = editor.graph.add_value(format!("{}.rows", node.name), ty);
    let mut inputs = source.inputs.clone();
    inputs[0] = Some(rows);
    let dequantize = Node {
        name: source.name,
        op: Op::Dequantize { axis },
        inputs,
        outputs: node.outputs.clone(),
        panels: None,
    };
    editor.replace(at, dequantize, &[]);
    let gather = Node {
        inputs: vec![Some(x), Some(indices)],
        outputs: vec![Some(rows)],
        ..node
    };
    editor.insert(at, gather);
    true
}

/// Of integers whose rows have a scale each, rows and scales are gathered first.
///
/// ```text
///   Gather(Cast(x) * scale, i)          Cast(Gather(x, i)) * Gather(scale, i)       scale [rows, 1]
///   Gather(Dequantize(x, scale), i)     the same                                    scale [rows]
/// ```
pub(crate) fn scale_rows(editor: &mut Editor, at: usize) -> bool {
    let node = editor.node(at).clone();
    let (Some(table), Some(indices)) = (node.input(0), node.input(1)) else {
        return false;
    };
    let Some([x, scale]) = rows_and_scales(editor, table) else {
        return false;
    };
    let places = editor.ty(indices).shape.clone();
    let wide = [&places[..], &[editor.ty(x).shape[1]]].concat();
    let narrow = [&places[..], &[1]].concat();
    let flat = match editor.ty(scale).shape.len() {
        1 => places,
        _ => narrow.clone(),
    };
    let integers = editor.ty(x).dtype;
    let mut value = |what: &str, dtype: DType, shape: &[usize]| {
        let ty = TensorType::new(dtype, shape);
        editor.graph.add_value(format!("{}.{what}", node.name), ty)
    };
    let rows = value("rows", integers, &wide);
    let floats = value("floats", DType::F32, &wide);
    let scales = value("scales", DType::F32, &flat);
    let columns = value("columns", DType::F32, &narrow);
    let step = |op: Op, inputs: &[ValueId], output: ValueId| Node {
        name: node.name.clone(),
        op,
        inputs: inputs.iter().copied().map(Some).collect(),
        outputs: vec![Some(output)],
        panels: None,
    };
    let product = Node {
        outputs: node.outputs.clone(),
        ..step(Op::Binary(Binary::Mul), &[floats, columns], columns)
    };
    editor.replace(at, product, &[]);
    // Each is put before the one that was put there last.
    let reshape = Op::Reshape { shape: narrow };
    editor.insert(at, step(reshape, &[scales], columns));
    editor.insert(at, step(Op::Gather { axis: 0 }, &[scale, indices], scales));
    editor.insert(at, step(Op::Cast { to: DType::F32 }, &[rows], floats));
    editor.insert(at, step(Op::Gather { axis: 0 }, &[x, indices], rows));
    true
}

/// The stored integers and scales whose product a table is, row by row.
fn rows_and_scales(editor: &Editor, table: ValueId) -> Option<[ValueId; 2]> {
    let producer = editor.producer(table)?;
    let source = editor.node(producer);
    let (x, scale) = match source.op {
        Op::Dequantize { axis: 0 } if source.input(2).is_none() => {
            (source.input(0)?, source.input(1)?)
        }
        Op::Binary(Binary::Mul) => {
            let [a, b] = operands(editor, producer, Binary::Mul)?;
            let (value, scale) = if editor.is_const(b) { (a, b) } else { (b, a) };
            (cast_of_steps(editor, value)?, scale)
        }
        _ => return None,
    };
    let &[rows, _] = &editor.ty(x).shape[..] else {
        return None;
    };
    let scales = editor.ty(scale);
    let is_byte = matches!(editor.ty(x).dtype, DType::I8 | DType::U8);
    let by_row = match source.op {
        Op::Dequantize { .. } => scales.shape[..] == [rows],
        _ => scales.shape[..] == [rows, 1],
    };
    let fits = is_byte && by_row && rows > 1 && scales.dtype == DType::F32;
    (fits && editor.is_const(x) && editor.is_const(scale)).then_some([x, scale])
}
