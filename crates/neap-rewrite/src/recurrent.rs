//! Recurrent layers whose weights are stored in 8 bits take them as panels.
//!
//! ```text
//!   W [directions, gates, k] -Dequantize---------------------------------> LSTM
//!   W [directions, k, gates] -Slice-> Dequantize -Transpose-> Concat -----> LSTM
//!                                                                becomes  panels of each direction -> LSTM
//! ```

use crate::RewriteError;
use crate::constants::ConstReader;
use crate::edit::Editor;
use crate::recipes::Recipes;
use crate::stored::{floats, steps};
use neap_ir::op::{Op, Recurrent};
use neap_ir::recipe::{Affine, Recipe};
use neap_ir::{Const, DType, FileRange, Literal, TensorType, ValueId};
use neap_ops::takes_panels;

pub(crate) fn in_panels(
    editor: &mut Editor,
    at: usize,
    reader: &mut dyn ConstReader,
    recipes: &mut Recipes,
) -> Result<bool, RewriteError> {
    let mut node = editor.node(at).clone();
    let recurrent = match &node.op {
        Op::Lstm(recurrent) | Op::Gru { recurrent, .. } | Op::Rnn(recurrent) => recurrent,
        _ => return Ok(false),
    };
    if recurrent.in_panels || !takes_panels(&node.op) {
        return Ok(false);
    }
    let (Some(w), Some(r)) = (node.input(1), node.input(2)) else {
        return Ok(false);
    };
    let directions = editor.ty(w).shape[0];
    let mut found = Vec::new();
    for direction in 0..directions {
        for value in [w, r] {
            match stored(editor, value, direction, reader)? {
                Some(matrix) => found.push(matrix),
                None => return Ok(false),
            }
        }
    }
    let places = Recurrent::PANELS.as_flattened();
    for (matrix, &place) in found.into_iter().zip(places) {
        if node.inputs.len() <= place {
            node.inputs.resize(place + 1, None);
        }
        let (outputs, k) = (matrix.outputs, matrix.k);
        let Some(ty) = Recurrent::panel_type(outputs, k) else {
            return Ok(false);
        };
        let Some(weight) = matrix.part(editor) else {
            return Ok(false);
        };
        let name = format!("{}.panels", editor.graph.value(weight).name);
        let packed = recipes.add(Recipe::Matrix {
            weight,
            k,
            n: outputs,
            transposed: matrix.is_by_outputs,
            affine: matrix.affine,
        });
        let panels = editor.graph.add_const(name, ty, Const::Packed(packed));
        node.inputs[place] = Some(panels);
    }
    match &mut node.op {
        Op::Lstm(recurrent) | Op::Gru { recurrent, .. } | Op::Rnn(recurrent) => {
            recurrent.in_panels = true;
        }
        _ => return Ok(false),
    }
    editor.replace(at, node, &[]);
    Ok(true)
}

/// Weights of one direction where they are stored.
struct Stored {
    constant: ValueId,
    /// Which of the constant's matrices they are, of how many.
    place: [usize; 2],
    outputs: usize,
    k: usize,
    /// A row has the weights of an output.
    is_by_outputs: bool,
    affine: Affine,
}

/// Those of one direction of `value`, which is `[directions, outputs, k]`.
fn stored(
    editor: &Editor,
    value: ValueId,
    mut direction: usize,
    reader: &mut dyn ConstReader,
) -> Result<Option<Stored>, RewriteError> {
    let &[_, outputs, k] = &editor.ty(value).shape[..] else {
        return Ok(None);
    };
    let mut value = value;
    if let Some(producer) = editor.producer(value)
        && let Op::Concat { axis: 0 } = editor.node(producer).op
    {
        let parts = &editor.node(producer).inputs;
        match parts.get(direction).copied().flatten() {
            Some(part) if editor.ty(part).shape[0] == 1 => (value, direction) = (part, 0),
            _ => return Ok(None),
        }
    }
    let (value, turned) = untransposed(editor, value);
    let Some(producer) = editor.producer(value) else {
        return Ok(None);
    };
    let node = editor.node(producer);
    let (&Op::Dequantize { axis }, Some(x), Some(scale)) = (&node.op, node.input(0), node.input(1))
    else {
        return Ok(None);
    };
    let zero = node.input(2);
    let channels = if turned { 2 } else { 1 };
    let per_tensor = editor.ty(scale).elements() == 1;
    let known = editor.is_const(scale) && zero.is_none_or(|zero| editor.is_const(zero));
    if !known || !(per_tensor || axis == 0 || axis == channels) {
        return Ok(None);
    }
    let of_outputs = |values: Vec<f32>| match values[..] {
        [one] => Some(vec![one; outputs]),
        _ if axis == 0 => values.get(direction).map(|&one| vec![one; outputs]),
        _ => (values.len() == outputs).then_some(values),
    };
    let (x, turned_before) = untransposed(editor, x);
    let Some((constant, place)) = matrix_of(editor, x, direction) else {
        return Ok(None);
    };
    let scale = of_outputs(floats(editor, scale, reader)?);
    let zero = match zero {
        Some(zero) => of_outputs(steps(editor, zero, reader)?),
        None => Some(vec![0.0; outputs]),
    };
    let (Some(scale), Some(zero)) = (scale, zero) else {
        return Ok(None);
    };
    Ok(Some(Stored {
        constant,
        place,
        outputs,
        k,
        is_by_outputs: turned == turned_before,
        affine: Affine {
            scale: Some(scale),
            bias: None,
            zero: Some(zero),
        },
    }))
}

/// The value behind a transpose of its matrices, and whether there was one.
fn untransposed(editor: &Editor, value: ValueId) -> (ValueId, bool) {
    let source = editor
        .producer(value)
        .and_then(|at| match &editor.node(at).op {
            Op::Transpose { perm } if perm[..] == [0, 2, 1] => editor.node(at).input(0),
            _ => None,
        });
    (source.unwrap_or(value), source.is_some())
}

/// The constant of bytes whose matrices `x` has, or one of them, and the place of the one that is wanted.
fn matrix_of(editor: &Editor, x: ValueId, direction: usize) -> Option<(ValueId, [usize; 2])> {
    let is_stored = |v: ValueId| {
        let dtype = editor.ty(v).dtype;
        editor.is_const(v) && matches!(dtype, DType::I8 | DType::U8)
    };
    let count = |v: ValueId| editor.ty(v).shape[0];
    if is_stored(x) {
        return Some((x, [direction, count(x)]));
    }
    let node = editor.node(editor.producer(x)?);
    let (Op::Slice { ranges }, constant) = (&node.op, node.input(0)?) else {
        return None;
    };
    let whole = ranges[1..].iter().zip(&editor.ty(constant).shape[1..]);
    let mut whole = whole.map(|(r, &len)| r.start == 0 && r.step == 1 && r.len == len);
    let is_one = ranges[0].len == 1 && direction == 0 && whole.all(|is_whole| is_whole);
    (is_one && is_stored(constant)).then(|| (constant, [ranges[0].start, count(constant)]))
}

impl Stored {
    /// The matrix as a constant of its own.
    fn part(&self, editor: &mut Editor) -> Option<ValueId> {
        let [place, count] = self.place;
        let graph = &mut editor.graph;
        let dtype = graph.ty(self.constant).dtype;
        let shape = match self.is_by_outputs {
            true => [self.outputs, self.k],
            false => [self.k, self.outputs],
        };
        let bytes = self.outputs * self.k;
        let data = match graph.constant(self.constant)? {
            Const::Stored {
                range,
                stored_dtype,
            } if range.bytes == (bytes * count) as u64 => Const::Stored {
                range: FileRange {
                    offset: range.offset + (place * bytes) as u64,
                    bytes: bytes as u64,
                    ..*range
                },
                stored_dtype: *stored_dtype,
            },
            Const::Inline(literal) => {
                let own = literal.bytes().get(place * bytes..(place + 1) * bytes)?;
                Const::Inline(Literal::from_bytes(dtype, &shape, own)?)
            }
            _ => return None,
        };
        let name = match count {
            1 => graph.value(self.constant).name.clone(),
            _ => format!("{}.{place}", graph.value(self.constant).name),
        };
        Some(graph.add_const(name, TensorType::new(dtype, &shape), data))
    }
}
