//! Operators with constant weights become panel operators; what follows them is folded in.
//!
//! ```text
//! Conv -> BatchNorm -> Add(residual) -> Relu     one PanelConv: BatchNorm in the weights,
//!                                                the rest in its epilogue
//! MatMul -> Add(bias) -> Gelu                    one PanelLinear
//! Gather(table, indices)                         GatherRows, which reads only those rows
//! Dequantize(W), Dequantize(R) -> LSTM           LSTM with panels of 8 bits
//! ```

use crate::RewriteError;
use crate::batch_norm::{batch_norm, bn_affine, compose};
use crate::block_weights::{block_linear, block_weights, gather_first};
use crate::constants::{ConstReader, stored_type};
use crate::edit::{Editor, is_const_f32, output};
use crate::integers::{takes_filters, taps};
use crate::recipes::Recipes;
use crate::recurrent::in_panels;
use crate::steps::{absorb_scale, steps_before};
use crate::stored::{
    StoredWeight, dequantize_rows, floats, peel_transpose, scale_rows, stored_weight, widen_small,
};
use crate::tail::{absorb_bias, absorb_epilogue, emit};
use neap_ir::graph::LANES;
use neap_ir::op::{Op, PadMode, Window};
use neap_ir::panel::{ConvForm, PanelConv, PanelDepthwise, PanelLinear};
use neap_ir::recipe::{Affine, Recipe};
use neap_ir::{DType, Node, ValueId};
use neap_kernels::integer::MOST_TAPS;

/// Tables below this are loaded whole rather than row by row.
const ROW_TABLE_MIN_BYTES: usize = 1 << 20;

pub(crate) fn run(
    editor: &mut Editor,
    reader: &mut dyn ConstReader,
) -> Result<Recipes, RewriteError> {
    let mut recipes = Recipes::default();
    let mut failure = None;
    editor.each(|editor, at| {
        if failure.is_some() {
            return false;
        }
        lower_node(editor, at, reader, &mut recipes).unwrap_or_else(|error| {
            failure = Some(error);
            false
        })
    });
    match failure {
        Some(error) => Err(error),
        None => Ok(recipes),
    }
}

fn lower_node(
    editor: &mut Editor,
    at: usize,
    reader: &mut dyn ConstReader,
    recipes: &mut Recipes,
) -> Result<bool, RewriteError> {
    let weights = editor.node(at).present_inputs().skip(1);
    let has_empty = weights
        .into_iter()
        .any(|value| editor.ty(value).elements() == 0);
    match &editor.node(at).op {
        Op::Gather { axis: 0 } => gather_rows(editor, at, recipes),
        // Panels hold something.
        _ if has_empty => Ok(false),
        Op::Conv(window, groups) => {
            let (window, groups) = (window.clone(), *groups);
            let taken = conv(editor, at, window, groups, reader, recipes)?;
            Ok(taken || widen_weights(editor, at))
        }
        Op::MatMul => {
            let taken = matmul(editor, at, reader, recipes)?;
            Ok(taken || widen_weights(editor, at))
        }
        Op::Gemm { .. } => {
            let taken = gemm(editor, at, reader, recipes)?;
            Ok(taken || widen_weights(editor, at))
        }
        Op::BatchNorm { .. } => batch_norm(editor, at, reader),
        Op::Lstm(_) | Op::Gru { .. } | Op::Rnn(_) => in_panels(editor, at, reader, recipes),
        _ => Ok(false),
    }
}

/// Whether the model has a layer's operands and result in bfloat16.
fn is_in_bf16(editor: &Editor, at: usize) -> bool {
    editor.graph.value(output(editor, at)).in_bf16
}

/// Small weights in few bits that make no panels as they are may make panels of floats.
fn widen_weights(editor: &mut Editor, at: usize) -> bool {
    let weights = editor.node(at).input(1);
    let maker = weights.and_then(|value| editor.producer(peel_transpose(editor, value).0));
    maker.is_some_and(|maker| widen_small(editor, maker))
}

fn conv(
    editor: &mut Editor,
    at: usize,
    window: Window,
    groups: usize,
    reader: &mut dyn ConstReader,
    recipes: &mut Recipes,
) -> Result<bool, RewriteError> {
    let node = editor.node(at).clone();
    let (Some(x), Some(weight)) = (node.input(0), node.input(1)) else {
        return Ok(false);
    };
    let bias = node.input(2);
    let rank = editor.ty(x).shape.len();
    if bias.is_some_and(|b| !is_const_f32(editor, b)) || !(3..=4).contains(&rank) {
        return Ok(false);
    }
    let shape = editor.ty(weight).shape.clone();
    let (c_out, c_in_per_group) = (shape[0], shape[1]);
    let Some(stored) = stored_weight(editor, weight, 0, reader)?.filter(|w| !w.transposed) else {
        return Ok(false);
    };
    let c_in = c_in_per_group * groups;
    let out_per_group = c_out / groups;
    let depthwise = groups > 1 && c_in_per_group == 1 && out_per_group == 1;
    let form = if depthwise || groups == 1 && (c_in >= LANES || reaches_far(&window, c_in)) {
        ConvForm::Blocked
    } else if groups == 1 {
        ConvForm::FirstLayer
    } else if c_in_per_group.is_multiple_of(LANES) && out_per_group.is_multiple_of(LANES) {
        ConvForm::Blocked
    } else if c_in_per_group == out_per_group && LANES.is_multiple_of(c_in_per_group) {
        ConvForm::NarrowGroups
    } else {
        return Ok(false);
    };
    let (x, window) = absorb_pad(editor, x, window);
    let window = as_2d(window);
    let kernel = [window.kernel[0], window.kernel[1]];

    let mut source = match takes_steps(editor, form, depthwise, &window, groups, &stored) {
        true => steps_before(editor, x, &stored, c_in_per_group * kernel[0] * kernel[1]),
        false => None,
    };
    let (weight, mut affine) = (stored.constant, stored.affine);
    if let Some(bias) = bias {
        affine.bias = Some(floats(editor, bias, reader)?);
    }
    let in_bf16 = is_in_bf16(editor, at);
    let mut last = at;
    if let (Some(source), None) = (&mut source, bias) {
        last = absorb_scale(editor, at, c_out, rank - 2, &mut affine, source, reader)?;
        last = absorb_bias(editor, last, c_out, rank - 2, &mut affine, reader)?;
    }
    while let Some(next) = editor.sole_user(output(editor, last)) {
        let Op::BatchNorm { epsilon } = editor.node(next).op else {
            break;
        };
        let Some((scale, shift)) = bn_affine(editor, next, epsilon, reader)? else {
            break;
        };
        compose(&mut affine, &scale, &shift);
        last = next;
    }
    let mut tail = absorb_epilogue(editor, last);
    tail.of_steps(source);
    let recipe = if depthwise {
        Recipe::Depthwise {
            weight,
            channels: c_out,
            kernel,
            affine,
        }
    } else {
        Recipe::Conv {
            weight,
            form,
            c_out,
            c_in_per_group,
            groups,
            kernel,
            affine,
        }
    };
    let op = if depthwise {
        Op::PanelDepthwise(PanelDepthwise {
            window,
            channels: c_out,
            epilogue: tail.epilogue,
        })
    } else {
        Op::PanelConv(PanelConv {
            form,
            window,
            groups,
            c_in,
            c_out,
            epilogue: tail.epilogue,
            in_bf16,
        })
    };
    emit(editor, at, x, op, recipe, tail, recipes);
    Ok(true)
}

/// Whether a convolution of steps with these weights would be computed in integers.
fn takes_steps(
    editor: &Editor,
    form: ConvForm,
    depthwise: bool,
    window: &Window,
    groups: usize,
    stored: &StoredWeight,
) -> bool {
    let is_unsigned = editor.ty(stored.constant).dtype == DType::U8;
    let zeros = stored.affine.zero.iter().flatten();
    let has_zeros = is_unsigned || zeros.into_iter().any(|&zero| zero != 0.0);
    let fits = match depthwise {
        true => takes_filters(window),
        false => form != ConvForm::NarrowGroups && taps(form, window) <= MOST_TAPS,
    };
    fits && (groups == 1 && !depthwise || !has_zeros)
}

/// Few channels whose rows lie far apart: the kernel of first layers would copy all rows between them for each row of its
/// output. With fewer than a quarter of a block, blocks would be mostly padding.
fn reaches_far(window: &Window, c_in: usize) -> bool {
    let is_tall = window.kernel.len() == 2 && window.kernel[0] > 1 && window.dilations[0] > 1;
    is_tall && 4 * c_in >= LANES
}

/// Zero padding before a convolution becomes part of its window.
fn absorb_pad(editor: &Editor, x: ValueId, mut window: Window) -> (ValueId, Window) {
    let unpadded = (|| {
        let node = editor.node(editor.producer(x)?);
        let Op::Pad {
            mode: PadMode::Constant,
            pads,
        } = &node.op
        else {
            return None;
        };
        let zero = match node.input(1) {
            Some(fill) => editor.scalar(fill)? == 0.0,
            None => true,
        };
        let spatial = pads[..2].iter().all(|&p| p == (0, 0));
        if !zero || !spatial || pads.iter().any(|p| p.0 < 0 || p.1 < 0) {
            return None;
        }
        for (axis, pad) in pads[2..].iter().enumerate() {
            window.pads_begin[axis] += pad.0 as usize;
            window.pads_end[axis] += pad.1 as usize;
        }
        node.input(0)
    })();
    (unpadded.unwrap_or(x), window)
}

/// 1-D windows get height 1.
fn as_2d(mut window: Window) -> Window {
    if window.kernel.len() == 1 {
        window.kernel.insert(0, 1);
        window.strides.insert(0, 1);
        window.dilations.insert(0, 1);
        window.pads_begin.insert(0, 0);
        window.pads_end.insert(0, 0);
    }
    window
}

/// `x [.., k] * w [k, n]` with constant `w`, possibly behind a transpose.
fn matmul(
    editor: &mut Editor,
    at: usize,
    reader: &mut dyn ConstReader,
    recipes: &mut Recipes,
) -> Result<bool, RewriteError> {
    let node = editor.node(at).clone();
    let (Some(x), Some(w)) = (node.input(0), node.input(1)) else {
        return Ok(false);
    };
    let x_rank = editor.ty(x).shape.len();
    if editor.is_const(x) || x_rank < 2 || editor.ty(w).shape.len() != 2 {
        return Ok(false);
    }
    if let Some(weights) = block_weights(editor, w, 1) {
        block_linear(editor, at, x, weights, Affine::default(), reader, recipes)?;
        return Ok(true);
    }
    let Some(stored) = stored_weight(editor, w, 1, reader)? else {
        return Ok(false);
    };
    let in_bf16 = is_in_bf16(editor, at);
    let (k, n) = (editor.ty(w).shape[0], editor.ty(w).shape[1]);
    let mut source = steps_before(editor, x, &stored, k);
    let StoredWeight {
        constant: weight,
        transposed,
        mut affine,
    } = stored;
    let mut last = at;
    if let Some(source) = &mut source {
        last = absorb_scale(editor, at, n, 0, &mut affine, source, reader)?;
    }
    let last = absorb_bias(editor, last, n, 0, &mut affine, reader)?;
    let mut tail = absorb_epilogue(editor, last);
    tail.of_steps(source);
    let op = Op::PanelLinear(PanelLinear {
        k,
        n,
        epilogue: tail.epilogue,
        rounds: None,
        in_bf16,
    });
    let recipe = Recipe::Matrix {
        weight,
        k,
        n,
        transposed,
        affine,
    };
    emit(editor, at, x, op, recipe, tail, recipes);
    Ok(true)
}

fn gemm(
    editor: &mut Editor,
    at: usize,
    reader: &mut dyn ConstReader,
    recipes: &mut Recipes,
) -> Result<bool, RewriteError> {
    let node = editor.node(at).clone();
    let Op::Gemm {
        alpha,
        beta,
        trans_a: false,
        trans_b,
    } = node.op
    else {
        return Ok(false);
    };
    let (Some(x), Some(w)) = (node.input(0), node.input(1)) else {
        return Ok(false);
    };
    if editor.is_const(x) || editor.ty(x).dtype != DType::F32 {
        return Ok(false);
    }
    if alpha == 1.0
        && node.input(2).is_none()
        && let Some(weights) = block_weights(editor, w, usize::from(!trans_b))
    {
        block_linear(editor, at, x, weights, Affine::default(), reader, recipes)?;
        return Ok(true);
    }
    let Some(stored) = stored_weight(editor, w, usize::from(!trans_b), reader)? else {
        return Ok(false);
    };
    let in_bf16 = is_in_bf16(editor, at);
    let shape = &editor.ty(w).shape;
    let (k, n) = if trans_b {
        (shape[1], shape[0])
    } else {
        (shape[0], shape[1])
    };
    let source = steps_before(editor, x, &stored, k);
    let (weight, mut affine) = (stored.constant, stored.affine);
    if alpha != 1.0 {
        let scale = affine.scale.get_or_insert_with(|| vec![1.0; n]);
        scale.iter_mut().for_each(|s| *s *= alpha);
    }
    if let Some(c) = node.input(2) {
        let row = matches!(editor.ty(c).shape[..], [] | [1] | [1, 1])
            || editor.ty(c).shape.last() == Some(&n) && editor.ty(c).elements() == n;
        if !row || !is_const_f32(editor, c) {
            return Ok(false);
        }
        let mut bias = floats(editor, c, reader)?;
        if bias.len() == 1 {
            bias = vec![bias[0]; n];
        }
        bias.iter_mut().for_each(|b| *b *= beta);
        affine.bias = Some(bias);
    }
    let last = absorb_bias(editor, at, n, 0, &mut affine, reader)?;
    let mut tail = absorb_epilogue(editor, last);
    tail.of_steps(source);
    let op = Op::PanelLinear(PanelLinear {
        k,
        n,
        epilogue: tail.epilogue,
        rounds: None,
        in_bf16,
    });
    let transposed = trans_b != stored.transposed;
    let recipe = Recipe::Matrix {
        weight,
        k,
        n,
        transposed,
        affine,
    };
    emit(editor, at, x, op, recipe, tail, recipes);
    Ok(true)
}

fn gather_rows(
    editor: &mut Editor,
    at: usize,
    recipes: &mut Recipes,
) -> Result<bool, RewriteError> {
    let node = editor.node(at).clone();
    let (Some(table), Some(indices)) = (node.input(0), node.input(1)) else {
        return Ok(false);
    };
    if dequantize_rows(editor, at) || scale_rows(editor, at) || gather_first(editor, at) {
        return Ok(true);
    }
    let ty = editor.ty(table);
    let integers = matches!(editor.ty(indices).dtype, DType::I64 | DType::I32);
    let is_table = matches!(ty.dtype, DType::F32 | DType::I8 | DType::U8);
    if !editor.is_const(table)
        || !is_table
        || editor.is_const(indices)
        || !integers
        || ty.shape.len() != 2
        || ty.len_bytes() < ROW_TABLE_MIN_BYTES
    {
        return Ok(false);
    }
    let (rows, row_elements) = (ty.shape[0], ty.shape[1]);
    let stored = match stored_type(&editor.graph, table) {
        DType::F64 => DType::F32,
        stored => stored,
    };
    let packed = recipes.add(Recipe::Raw {
        constant: table,
        to: stored,
    });
    let op = Op::GatherRows {
        table: packed,
        rows,
        row_elements,
        stored,
    };
    editor.replace(
        at,
        Node {
            op,
            inputs: vec![Some(indices)],
            ..node
        },
        &[],
    );
    Ok(true)
}
