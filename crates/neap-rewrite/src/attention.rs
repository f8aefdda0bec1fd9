//! `softmax(scale * Q Kᵀ + mask) V` and the transposes around it become one node.
//!
//! ```text
//!  [B,S,H,D] -Transpose-> Q --+
//!  [B,S,H,D] -Transpose-> Kt -+- MatMul - scale - mask - Softmax --+
//!  [B,S,H,D] -Transpose-> V -------------------------------- MatMul +- Transpose -> [B,S,H,D]
//! ```
//! A guard between softmax and product that makes rows of NaN zeros becomes a property of the node.
//!
//! The node reads and writes the untransposed tensors, and a packed `[B,S,3*H*D]` projection
//! directly when it was only split and reshaped.

use crate::edit::Editor;
use crate::fuse::{operands, scaled, unrounded};
use neap_ir::op::{AttentionAttrs, Binary, HeadLayout, Op, Softmax, Unary};
use neap_ir::{DType, Literal, Node, ValueId};

pub(crate) fn run(editor: &mut Editor) {
    editor.each(fuse);
    editor.remove_dead();
}

struct Found {
    q: ValueId,
    k_transposed: ValueId,
    v: ValueId,
    scale: f32,
    mask: Option<ValueId>,
    causal: bool,
    nan_is_zero: bool,
}

fn fuse(editor: &mut Editor, at: usize) -> bool {
    let Some(found) = matched(editor, at) else {
        return false;
    };
    let product = editor.node(at).outputs[0].expect("MatMul has an output");
    let q_shape = editor.ty(found.q).shape.clone();
    let heads = q_shape[1];
    let (q, q_layout) = untransposed(editor, found.q, false);
    let (k, k_layout) = untransposed(editor, found.k_transposed, true);
    let (v, v_layout) = untransposed(editor, found.v, false);

    // The node gives `[B, S, H*D]`; what was its transpose only names the heads again.
    let mut output = product;
    let mut out_layout = HeadLayout::HeadMajor;
    if let Some(next) = editor.sole_user(product)
        && matches!(&editor.node(next).op, Op::Transpose { perm } if perm[..] == [0, 2, 1, 3])
    {
        let [b, h, s, d] = q_shape[..] else {
            return false;
        };
        let rows = neap_ir::TensorType::new(DType::F32, &[b, s, h * d]);
        output = editor
            .graph
            .add_value(format!("{}.rows", editor.node(at).name), rows);
        out_layout = HeadLayout::RowMajor;
        let reshape = Node {
            op: Op::Reshape {
                shape: vec![b, s, h, d],
            },
            inputs: vec![Some(output)],
            ..editor.node(next).clone()
        };
        editor.replace(next, reshape, &[]);
    }
    let attrs = AttentionAttrs {
        heads,
        kv_heads: heads,
        scale: found.scale,
        causal: found.causal,
        nan_is_zero: found.nan_is_zero,
        q: q_layout,
        k: k_layout,
        v: v_layout,
        out: out_layout,
    };
    let mut inputs = vec![Some(q), Some(k), Some(v)];
    inputs.extend(found.mask.map(Some));
    let node = Node {
        name: editor.node(at).name.clone(),
        op: Op::Attention(attrs),
        inputs,
        outputs: vec![Some(output)],
        panels: None,
    };
    editor.replace(at, node, &[]);
    true
}

/// Matches backwards from the second product.
fn matched(editor: &Editor, at: usize) -> Option<Found> {
    let (weights, v) = matmul(editor, at)?;
    let weights = unrounded(editor, weights);
    let guarded = without_nan(editor, weights);
    let nan_is_zero = guarded.is_some();
    let probabilities = guarded.unwrap_or(weights);
    let softmax = editor.producer(probabilities)?;
    let Op::Softmax {
        axis: 3,
        kind: Softmax::Softmax,
    } = editor.node(softmax).op
    else {
        return None;
    };
    if !nan_is_zero {
        editor.sole_user(probabilities)?;
    }
    let mut scores = editor.node(softmax).input(0)?;
    let mut mask = None;
    let mut causal = false;
    if let Some((inner, found_mask)) = added_mask(editor, scores) {
        scores = inner;
        mask = Some(found_mask);
    } else if let Some(inner) = causal_where(editor, scores) {
        scores = inner;
        causal = true;
    }
    let mut scale = 1.0;
    while let Some((inner, factor)) = scaled(editor, scores) {
        editor.sole_user(scores)?;
        scores = inner;
        scale *= factor;
    }
    editor.sole_user(scores)?;
    let (mut q, mut k_transposed) = matmul(editor, editor.producer(scores)?)?;
    // Some exporters scale q and k by the fourth root instead.
    for side in [&mut q, &mut k_transposed] {
        if let Some((inner, factor)) = scaled(editor, *side)
            && editor.sole_user(*side).is_some()
        {
            *side = inner;
            scale *= factor;
        }
    }
    let (qs, ks, vs) = (
        &editor.ty(q).shape,
        &editor.ty(k_transposed).shape,
        &editor.ty(v).shape,
    );
    let fits = qs.len() == 4
        && ks.len() == 4
        && vs.len() == 4
        && qs[..2] == ks[..2]
        && qs[..2] == vs[..2]
        && qs[3] == ks[2]
        && ks[3] == vs[2]
        && qs[3] == vs[3];
    let square = qs[2] == ks[3];
    (fits && (!causal || square)).then_some(Found {
        q,
        k_transposed,
        v,
        scale,
        mask,
        causal,
        nan_is_zero,
    })
}

/// `where(isnan(p), 0, p)`, as exporters keep queries that see no key from being NaN: `p`, which nobody else reads.
fn without_nan(editor: &Editor, value: ValueId) -> Option<ValueId> {
    let at = editor.producer(value)?;
    let (Op::Where, &[Some(condition), Some(zero), Some(p)]) =
        (&editor.node(at).op, &editor.node(at).inputs[..])
    else {
        return None;
    };
    let test = editor.producer(condition)?;
    let tests = editor.node(test);
    let is_nan = tests.op == Op::Unary(Unary::IsNan) && tests.input(0) == Some(p);
    let reads = editor.users(p).len() == 2 && !editor.is_output(p);
    let fits = is_nan && reads && editor.scalar(zero)? == 0.0 && editor.ty(p) == editor.ty(value);
    editor.sole_user(value)?;
    editor.sole_user(condition)?;
    fits.then_some(p)
}

fn matmul(editor: &Editor, at: usize) -> Option<(ValueId, ValueId)> {
    let node = editor.node(at);
    match (&node.op, &node.inputs[..]) {
        (Op::MatMul, [Some(a), Some(b)]) if editor.ty(*a).dtype == DType::F32 => Some((*a, *b)),
        _ => None,
    }
}

/// `scores + mask` where the mask broadcasts into `[B,H,S,S]` without changing it.
fn added_mask(editor: &Editor, value: ValueId) -> Option<(ValueId, ValueId)> {
    let pair = operands(editor, editor.producer(value)?, Binary::Add)?;
    editor.sole_user(value)?;
    let full = &editor.ty(value).shape;
    let is_scores = |v: ValueId| {
        &editor.ty(v).shape == full
            && editor.producer(v).is_some_and(|p| {
                matches!(
                    editor.node(p).op,
                    Op::MatMul | Op::Binary(Binary::Mul | Binary::Div)
                )
            })
    };
    let (scores, mask) = match pair {
        [s, m] if is_scores(s) => (s, m),
        [m, s] if is_scores(s) => (s, m),
        _ => return None,
    };
    editor.sole_user(scores)?;
    let mask_ty = editor.ty(mask);
    (mask_ty.dtype == DType::F32 && mask_ty.shape.len() <= 4).then_some((scores, mask))
}

/// `where(lower triangle, scores, very negative)` with constant condition.
fn causal_where(editor: &Editor, value: ValueId) -> Option<ValueId> {
    let node = editor.node(editor.producer(value)?);
    let (Op::Where, [Some(condition), Some(scores), Some(fill)]) = (&node.op, &node.inputs[..])
    else {
        return None;
    };
    editor.sole_user(value)?;
    // Below this the exponential is zero beside any finite score of a trained network.
    if editor.scalar(*fill)? > -1e9 || editor.ty(*scores) != editor.ty(value) {
        return None;
    }
    is_lower_triangle(editor.graph.literal(*condition)?).then_some(*scores)
}

fn is_lower_triangle(mask: &Literal) -> bool {
    let shape = mask.shape();
    let [outer @ .., rows, columns] = shape else {
        return false;
    };
    if mask.dtype() != DType::Bool || rows != columns || outer.iter().any(|&d| d != 1) {
        return false;
    }
    mask.bytes()
        .iter()
        .enumerate()
        .all(|(i, &keep)| (keep != 0) == (i % columns <= i / columns))
}

/// The tensor before the head transpose, if there is one, and how its heads lie.
fn untransposed(editor: &Editor, value: ValueId, is_key: bool) -> (ValueId, HeadLayout) {
    let as_is = if is_key {
        HeadLayout::HeadMajorTransposed
    } else {
        HeadLayout::HeadMajor
    };
    if !is_key && let Some(found) = gathered_projection(editor, value) {
        return found;
    }
    let Some(at) = editor.producer(value) else {
        return (value, as_is);
    };
    let Op::Transpose { perm } = &editor.node(at).op else {
        return (value, as_is);
    };
    let Some(source) = editor.node(at).input(0) else {
        return (value, as_is);
    };
    match (&perm[..], is_key) {
        ([0, 2, 1, 3], false) | ([0, 2, 3, 1], true) => {
            packed_projection(editor, source).unwrap_or((source, HeadLayout::RowMajor))
        }
        ([0, 1, 3, 2], true) => {
            gathered_projection(editor, source).unwrap_or((source, HeadLayout::HeadMajor))
        }
        _ => (value, as_is),
    }
}

/// `[B,H,S,D]` picked out of a packed projection: `[B,S,3*H*D]` reshaped to `[B,S,3,H,D]`,
/// transposed to `[3,B,H,S,D]`, and one of the three taken.
fn gathered_projection(editor: &Editor, value: ValueId) -> Option<(ValueId, HeadLayout)> {
    let gather = editor.node(editor.producer(value)?);
    let Op::Gather { axis: 0 } = gather.op else {
        return None;
    };
    let index = editor.graph.literal(gather.input(1)?)?;
    let [which] = index.to_i64_vec()?[..] else {
        return None;
    };
    let transpose = editor.node(editor.producer(gather.input(0)?)?);
    if !matches!(&transpose.op, Op::Transpose { perm } if perm[..] == [2, 0, 3, 1, 4]) {
        return None;
    }
    let split = transpose.input(0)?;
    let reshape = editor.node(editor.producer(split)?);
    let (Op::Reshape { .. }, [b, s, parts, h, d]) = (&reshape.op, &editor.ty(split).shape[..])
    else {
        return None;
    };
    let whole = reshape.input(0)?;
    if editor.ty(whole).shape[..] != [*b, *s, parts * h * d] || editor.ty(value).shape.len() != 4 {
        return None;
    }
    let which = if which < 0 {
        which + *parts as i64
    } else {
        which
    };
    let offset = usize::try_from(which).ok()? * h * d;
    Some((
        whole,
        HeadLayout::Packed {
            row: parts * h * d,
            offset,
        },
    ))
}

/// `[B,S,H,D]` that is a reshaped piece of `[B,S,R]` split along its last axis.
fn packed_projection(editor: &Editor, value: ValueId) -> Option<(ValueId, HeadLayout)> {
    let reshape = editor.producer(value)?;
    let Op::Reshape { .. } = editor.node(reshape).op else {
        return None;
    };
    let piece = editor.node(reshape).input(0)?;
    let (heads, piece_shape) = (&editor.ty(value).shape, &editor.ty(piece).shape);
    if piece_shape.len() != 3
        || piece_shape[..2] != heads[..2]
        || piece_shape[2] != heads[2] * heads[3]
    {
        return None;
    }
    let split = editor.producer(piece)?;
    let whole = editor.node(split).input(0)?;
    let row = *editor.ty(whole).shape.get(2)?;
    let offset = match &editor.node(split).op {
        Op::Split { axis: 2, sizes } => {
            let place = editor
                .node(split)
                .outputs
                .iter()
                .position(|o| *o == Some(piece))?;
            sizes[..place].iter().sum()
        }
        Op::Slice { ranges } => {
            let shape = &editor.ty(whole).shape;
            let rest = ranges[..2]
                .iter()
                .zip(shape)
                .all(|(r, &d)| r.len == d && r.start == 0 && r.step == 1);
            if !rest || ranges[2].step != 1 {
                return None;
            }
            ranges[2].start
        }
        _ => return None,
    };
    Some((whole, HeadLayout::Packed { row, offset }))
}
