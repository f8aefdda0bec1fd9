//! Opsets 1 to 6: operators that read as in opset 7 are taken as they are, and the rest refused by name.
//!
//! What changed is in the standard's changelog (`docs/Changelog.md` of ONNX).

use crate::error::OnnxError;
use crate::node::Ctx;
use neap_ir::ValueId;

/// From this opset of the default domain on, every operator is read by its own version.
const FIRST_WHOLE: i64 = 7;

/// Operators with the opset at which they took the meaning that is read here.
const CHANGED: [(&str, i64); 15] = [
    ("Cast", 6),
    ("Concat", 4),
    ("GRU", 7),
    ("Gemm", 6),
    ("GlobalLpPool", 2),
    ("LSTM", 7),
    ("LpPool", 2),
    ("PRelu", 7),
    ("Pad", 2),
    ("RNN", 7),
    ("Reshape", 5),
    ("Split", 2),
    ("Tile", 6),
    ("Upsample", 7),
    ("Loop", 8),
];

/// Broadcast only when asked to, the second operand's axes from `axis` on.
const ALIGNED: [&str; 11] = [
    "Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor",
];

/// Makes an early operator's operands those of opset 7; refuses one that means something else.
pub(super) fn modernise(c: &mut Ctx, op: &str) -> Result<(), OnnxError> {
    let changed = CHANGED.iter().find(|(name, _)| *name == op);
    if let Some((_, since)) = changed.filter(|(_, since)| c.version < *since) {
        return Err(c.unsupported(format!(
            "its form of opset {}, before opset {since},",
            c.version
        )));
    }
    if c.version >= FIRST_WHOLE {
        return Ok(());
    }
    if matches!(op, "Dropout" | "BatchNormalization") && !c.flag("is_test", false)? {
        return Err(c.unsupported("training mode"));
    }
    if op == "Dropout" {
        c.inputs.truncate(1);
    }
    if ALIGNED.contains(&op) {
        align(c)?;
    }
    Ok(())
}

fn align(c: &mut Ctx) -> Result<(), OnnxError> {
    let (a, b) = (c.input(0)?, c.input(1)?);
    let (shape, second) = (c.shape(a), c.shape(b));
    if !c.flag("broadcast", false)? {
        if shape != second {
            return Err(c.bad(format!("shapes {shape:?} and {second:?} differ")));
        }
        return Ok(());
    }
    let trailing = match c.optional_int("axis")? {
        None => 0,
        Some(axis) => {
            let axis = c.axis(axis, shape.len())?;
            (shape.len() - axis)
                .checked_sub(second.len())
                .ok_or_else(|| c.bad("its second operand reaches past the first"))?
        }
    };
    c.inputs[1] = Some(with_ones(c, b, second, trailing)?);
    Ok(())
}

fn with_ones(
    c: &mut Ctx,
    value: ValueId,
    mut shape: Vec<usize>,
    count: usize,
) -> Result<ValueId, OnnxError> {
    shape.extend(std::iter::repeat_n(1, count));
    c.reshape(value, &shape)
}
