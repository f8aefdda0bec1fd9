//! Casts, also to types of fewer bits than any of ours, and what such types pass through.

use crate::error::OnnxError;
use crate::narrow::{self, FLOAT4S, Narrow};
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
        Narrow::Float4 => {
            let wide = c.cast(x, DType::F32)?;
            round_to_float4(c, wide)?
        }
        Narrow::Power => {
            let wide = c.cast(x, DType::F32)?;
            round_to_power(c, wide)?
        }
        Narrow::Integer { bits, signed } => to_few_bits(c, x, bits, signed)?,
    };
    c.builder.set_narrow(y, to);
    Ok(y)
}

/// `x`, which is f32, as an 8-bit float holds it; the node says whether it saturates.
pub(super) fn round_to_float8(c: &mut Ctx, x: ValueId, kind: Float8) -> Result<ValueId, OnnxError> {
    let saturate = c.flag("saturate", true)?;
    c.emit(Op::RoundToFloat8 { kind, saturate }, &[x])
}

/// `x`, which is f32, as a 4-bit float holds it: the nearest, of two as near the one with an even mantissa. There is no
/// NaN; the standard's tests have minus zero for it.
pub(super) fn round_to_float4(c: &mut Ctx, x: ValueId) -> Result<ValueId, OnnxError> {
    let most = f64::from(FLOAT4S[7]);
    let op = Op::Clip {
        low: Some(-most),
        high: Some(most),
    };
    let limited = c.emit(op, &[x])?;
    let magnitude = c.unary(Unary::Abs, limited)?;
    // Steps are of a half below 2, of 1 below 4, and of 2 from there on.
    let mut steps_in_one = c.scalar(DType::F32, 0.5)?;
    for (below, steps) in [(4.0, 1.0), (2.0, 2.0)] {
        let below = c.scalar(DType::F32, below)?;
        let is_below = c.binary(Binary::Less, magnitude, below)?;
        let steps = c.scalar(DType::F32, steps)?;
        steps_in_one = c.emit(Op::Where, &[is_below, steps, steps_in_one])?;
    }
    let steps = c.binary(Binary::Mul, limited, steps_in_one)?;
    let steps = c.unary(Unary::Round, steps)?;
    let rounded = c.binary(Binary::Div, steps, steps_in_one)?;
    let is_number = c.binary(Binary::Equal, x, x)?;
    let minus_zero = c.scalar(DType::F32, -0.0)?;
    c.emit(Op::Where, &[is_number, rounded, minus_zero])
}

/// `x`, which is f32, as a power of two; the node says in which direction. What is beyond them becomes the least or the
/// greatest, as what is negative becomes the least, for which the standard has no rule.
fn round_to_power(c: &mut Ctx, x: ValueId) -> Result<ValueId, OnnxError> {
    if !c.flag("saturate", true)? {
        return Err(c.unsupported("a power of two that does not saturate"));
    }
    // From so much of the way to the next power it is taken.
    let way = match c.string("round_mode", "up")? {
        "up" => f32::EPSILON,
        "nearest" => 0.5,
        "down" => 1.0,
        _ => return Err(c.bad("attribute 'round_mode' is neither up, down nor nearest")),
    };
    let op = Op::Clip {
        low: Some(narrow::power(0).into()),
        high: Some(narrow::power(254).into()),
    };
    let mut rest = c.emit(op, &[x])?;
    let one = c.scalar(DType::F32, 1.0)?;
    let two = c.scalar(DType::F32, 2.0)?;
    let mut power = one;
    // The rest comes into 1 .. 2 by factors that are powers themselves, so that nothing is rounded.
    for step in (0..7).rev().map(|bit| 1u8 << bit) {
        let number = f64::from(narrow::power(127 + step));
        let factor = c.scalar(DType::F32, number)?;
        let inverse = c.scalar(DType::F32, 1.0 / number)?;
        // Divided where it is at least the factor, and multiplied where that leaves it below 2.
        let is_above = c.binary(Binary::GreaterOrEqual, rest, factor)?;
        let limit = c.scalar(DType::F32, 2.0 / number)?;
        let is_below = c.binary(Binary::Less, rest, limit)?;
        for (holds, up, down) in [(is_above, factor, inverse), (is_below, inverse, factor)] {
            let taken = c.emit(Op::Where, &[holds, up, one])?;
            power = c.binary(Binary::Mul, power, taken)?;
            let taken = c.emit(Op::Where, &[holds, down, one])?;
            rest = c.binary(Binary::Mul, rest, taken)?;
        }
    }
    let next = c.scalar(DType::F32, f64::from(1.0 + way))?;
    let is_next = c.binary(Binary::GreaterOrEqual, rest, next)?;
    let doubled = c.binary(Binary::Mul, power, two)?;
    let rounded = c.emit(Op::Where, &[is_next, doubled, power])?;
    let is_number = c.binary(Binary::Equal, x, x)?;
    c.emit(Op::Where, &[is_number, rounded, x])
}

/// Of integers the lower bits are taken. What becomes of floats out of range the standard leaves open: by its own tests
/// they saturate in models up to opset 24, and the lower bits are taken of later ones.
fn to_few_bits(c: &mut Ctx, x: ValueId, bits: u32, signed: bool) -> Result<ValueId, OnnxError> {
    let carrier = Narrow::Integer { bits, signed }.carrier();
    if c.dtype(x).is_float() && c.version < 25 {
        let (low, high) = limits(bits, signed);
        let op = Op::Clip {
            low: Some(low),
            high: Some(high),
        };
        let clipped = c.emit(op, &[x])?;
        return c.emit(Op::Cast { to: carrier }, &[clipped]);
    }
    let x = c.cast(x, DType::I32)?;
    let mask = c.scalar(DType::I32, f64::from((1u32 << bits) - 1))?;
    let lower = c.binary(Binary::BitAnd, x, mask)?;
    if !signed {
        return c.cast(lower, carrier);
    }
    let sign = c.scalar(DType::I32, f64::from(1u32 << (bits - 1)))?;
    let turned = c.binary(Binary::BitXor, lower, sign)?;
    let value = c.binary(Binary::Sub, turned, sign)?;
    c.cast(value, carrier)
}

/// The least and the greatest integer of so many bits.
pub(super) fn limits(bits: u32, signed: bool) -> (f64, f64) {
    let half = f64::from(1u32 << (bits - 1));
    match signed {
        true => (-half, half - 1.0),
        false => (0.0, 2.0 * half - 1.0),
    }
}
