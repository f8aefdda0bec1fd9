//! Heads as operands hold them, and the rotary embedding of opset 23.

use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::op::{Binary, HeadLayout, SliceRange};
use neap_ir::{DType, Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "RotaryEmbedding" => one(rotary(c)),
        _ => return None,
    })
}

/// `[B, H, S, D]`, or `[B, S, H*D]` with the number of heads in an attribute.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) layout: HeadLayout,
    pub(super) heads: usize,
    pub(super) rows: usize,
    pub(super) width: usize,
}

pub(super) fn heads(c: &Ctx, x: ValueId, attribute: &str) -> Result<Heads, OnnxError> {
    match c.shape(x)[..] {
        [_, heads, rows, width] => Ok(Heads {
            layout: HeadLayout::HeadMajor,
            heads,
            rows,
            width,
        }),
        [_, rows, row] => {
            let heads = c.size(attribute, 0)?;
            if heads == 0 || row % heads != 0 {
                return Err(c.bad(format!(
                    "attribute '{attribute}' ({heads}) does not fit rows of {row}"
                )));
            }
            Ok(Heads {
                layout: HeadLayout::RowMajor,
                heads,
                rows,
                width: row / heads,
            })
        }
        ref shape => Err(c.bad(format!("an operand of shape {shape:?} has no heads"))),
    }
}

/// `[B, L, heads * D]` as `[B, heads, L, D]`.
pub(super) fn heads_first(c: &mut Ctx, x: ValueId, heads: usize) -> Result<ValueId, OnnxError> {
    let shape = c.shape(x);
    let &[batch, rows, width] = &shape[..] else {
        return Err(c.bad(format!(
            "an operand of shape {shape:?} has no rows of heads"
        )));
    };
    if heads == 0 || width % heads != 0 {
        return Err(c.bad(format!("rows of {width} do not fit {heads} heads")));
    }
    let apart = c.reshape(x, &[batch, rows, heads, width / heads])?;
    let perm = vec![0, 2, 1, 3];
    c.emit(Op::Transpose { perm }, &[apart])
}

/// Pairs of features turned by position-dependent angles.
fn rotary(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let tables = [c.input(1)?, c.input(2)?];
    let turned_width = c.size("rotary_embedding_dim", 0)?;
    let interleaved = c.flag("interleaved", false)?;
    turned(c, x, tables, c.optional(3), turned_width, interleaved)
}

/// Heads as [`heads`] finds them, turned by the tables of cosines and sines: all of their features, or the first
/// `turned_width`. With `positions` `[B, S]` the tables have a row for each position, else one for each of `[B, S]`.
pub(super) fn turned(
    c: &mut Ctx,
    x: ValueId,
    [mut cos, mut sin]: [ValueId; 2],
    positions: Option<ValueId>,
    turned_width: usize,
    interleaved: bool,
) -> Result<ValueId, OnnxError> {
    let original = c.shape(x);
    let layout = heads(c, x, "num_heads")?;
    let batch = original[0];
    // Work on [B, S, H, D].
    let rows_first = [batch, layout.rows, layout.heads, layout.width];
    let x = if layout.layout == HeadLayout::HeadMajor {
        let perm = vec![0, 2, 1, 3];
        c.emit(Op::Transpose { perm }, &[x])?
    } else {
        c.reshape(x, &rows_first)?
    };
    let turned = match turned_width {
        0 => layout.width,
        width => width,
    };
    if turned > layout.width || turned % 2 != 0 {
        return Err(c.bad(format!("it turns {turned} of {} features", layout.width)));
    }
    let half = turned / 2;
    for table in [&mut cos, &mut sin] {
        if let Some(positions) = positions {
            let positions = c.cast(positions, DType::I64)?;
            *table = c.emit(Op::Gather { axis: 0 }, &[*table, positions])?;
        }
        *table = c.reshape(*table, &[batch, layout.rows, 1, half])?;
    }
    let take = |c: &mut Ctx, start: usize, step: isize, len: usize| {
        let mut ranges: Vec<SliceRange> = rows_first
            .iter()
            .map(|&len| SliceRange {
                start: 0,
                step: 1,
                len,
            })
            .collect();
        ranges[3] = SliceRange { start, step, len };
        c.emit(Op::Slice { ranges }, &[x])
    };
    let (a, b) = if interleaved {
        (take(c, 0, 2, half)?, take(c, 1, 2, half)?)
    } else {
        (take(c, 0, 1, half)?, take(c, half, 1, half)?)
    };
    let turn = |c: &mut Ctx, x: [ValueId; 2], by: [ValueId; 2], op: Binary| {
        let first = c.binary(Binary::Mul, x[0], by[0])?;
        let second = c.binary(Binary::Mul, x[1], by[1])?;
        c.binary(op, first, second)
    };
    let real = turn(c, [a, b], [cos, sin], Binary::Sub)?;
    let imaginary = turn(c, [a, b], [sin, cos], Binary::Add)?;
    let mut parts = if interleaved {
        let pair_shape = [batch, layout.rows, layout.heads, half, 1];
        let pairs = [
            c.reshape(real, &pair_shape)?,
            c.reshape(imaginary, &pair_shape)?,
        ];
        let joined = c.emit(Op::Concat { axis: 4 }, &pairs)?;
        vec![c.reshape(joined, &[batch, layout.rows, layout.heads, turned])?]
    } else {
        vec![real, imaginary]
    };
    if turned < layout.width {
        parts.push(take(c, turned, 1, layout.width - turned)?);
    }
    let result = c.emit(Op::Concat { axis: 3 }, &parts)?;
    if layout.layout == HeadLayout::HeadMajor {
        let perm = vec![0, 2, 1, 3];
        c.emit(Op::Transpose { perm }, &[result])
    } else {
        c.reshape(result, &original)
    }
}
