//! Casts, also to types of fewer bits than any of ours, and what such types pass through.

use crate::error::OnnxError;
use crate::narrow::Narrow;
use crate::node::{Ctx, Outputs};
use neap_ir::op::{Binary, Unary};
use neap_ir::{DType, Float8, Op, ValueId};

/// Operators that only move elements of their first operand.
const MOVING: [&str; 15] = [
    "Identity",
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "Expand",
    "Tile",
    "Pad",
    "Slice",
    "Split",
    "Concat",
    "Gather",
    "GatherElements",
    "GatherND",
];

/// Results that are elements of a narrow operand are narrow, too.
pub(super) fn pass_on(c: &mut Ctx, op: &str, outputs: &Outputs) {
    let (Some(x), Ok(outputs)) = (c.optional(0), outputs) else {
        return;
    };
    let Some(narrow) = c.builder.narrow(x).filter(|_| MOVING.contains(&op)) else {
        return;
    };
    for &output in outputs.iter().flatten() {
        c.builder.set_narrow(output, narrow);
    }
}

/// ONNX's Cast to an element type, given as its number.
pub(super) fn cast(c: &mut Ctx, x: ValueId, to: i64) -> Result<ValueId, OnnxError> {
    match Narrow::of(to) {
        Some(narrow) => narrowed(c, x, narrow),
        None => {
            let to = c.element_type(to)?;
            widened(c, x, to)
        }
    }
}

/// ONNX's Cast to the element type of another value.
pub(super) fn cast_like(c: &mut Ctx, x: ValueId, like: ValueId) -> Result<ValueId, OnnxError> {
    match c.builder.narrow(like) {
        Some(narrow) => narrowed(c, x, narrow),
        None => widened(c, x, c.dtype(like)),
    }
}

/// A value whose type is that of the graph, also where its carrier was so before.
fn widened(c: &mut Ctx, x: ValueId, to: DType) -> Result<ValueId, OnnxError> {
    let y = c.cast(x, to)?;
    match c.builder.narrow(y) {
        Some(_) => c.unary(Unary::Identity, y),
        None => Ok(y),
    }
}

fn narrowed(c: &mut Ctx, x: ValueId, to: Narrow) -> Result<ValueId, OnnxError> {
    if c.builder.narrow(x) == Some(to) {
        return Ok(x);
    }
    let y = match to {
        Narrow::Float8(kind) => {
            let wide = c.cast(x, DType::F32)?;
            round_to_float8(c, wide, kind)?
        }
        Narrow::Uint4 | Narrow::Int4 => to_four_bits(c, x, to == Narrow::Int4)?,
    };
    c.builder.set_narrow(y, to);
    Ok(y)
}

/// `x`, which is f32, as an 8-bit float holds it; the node says whether it saturates.
pub(super) fn round_to_float8(c: &mut Ctx, x: ValueId, kind: Float8) -> Result<ValueId, OnnxError> {
    let saturate = c.flag("saturate", true)?;
    c.emit(Op::RoundToFloat8 { kind, saturate }, &[x])
}

/// Floats saturate; of integers the lower bits are taken.
fn to_four_bits(c: &mut Ctx, x: ValueId, signed: bool) -> Result<ValueId, OnnxError> {
    let carrier = if signed { DType::I8 } else { DType::U8 };
    if c.dtype(x).is_float() {
        let (low, high) = limits(signed);
        let op = Op::Clip {
            low: Some(low),
            high: Some(high),
        };
        let clipped = c.emit(op, &[x])?;
        return c.emit(Op::Cast { to: carrier }, &[clipped]);
    }
    let x = c.cast(x, DType::I32)?;
    let mask = c.scalar(DType::I32, 15.0)?;
    let bits = c.binary(Binary::BitAnd, x, mask)?;
    if !signed {
        return c.cast(bits, carrier);
    }
    let sign = c.scalar(DType::I32, 8.0)?;
    let turned = c.binary(Binary::BitXor, bits, sign)?;
    let value = c.binary(Binary::Sub, turned, sign)?;
    c.cast(value, carrier)
}

/// Of 4-bit integers.
pub(super) fn limits(signed: bool) -> (f64, f64) {
    if signed { (-8.0, 7.0) } else { (0.0, 15.0) }
}
