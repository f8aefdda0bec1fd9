//! Nodes whose sizes are known only when running: from values that decide sizes, or on operands that have such sizes.
//!
//! A node is lowered here where what decides its sizes is computed from data; where an input of the model gives them, its
//! value is asked for instead, as a model that knows its sizes beforehand is planned better.

mod find;
mod parts;
mod shapes;

pub(super) use find::unique_in_order;

use crate::error::OnnxError;
use crate::late::{Axis, Range};
use crate::node::Ctx;
use crate::proto::AttributeValue;
use neap_ir::late::LateOp;
use neap_ir::op::Softmax;
use neap_ir::{DType, ValueId};

/// A node's results; `None` where every size is known, or is to be asked for.
type Lowered = Result<Option<Vec<Option<ValueId>>>, OnnxError>;

/// Integers up to this many may be values that decide sizes.
const MOST_SIZES: usize = 1024;
/// And of other numbers, such as a `Range`'s limits or a `Resize`'s scales.
const MOST_NUMBERS: usize = 8;

/// Operators whose lowering looks at the number of axes and not at their sizes, or sees to it that those it looks at are known.
const OVER_ANY_SIZE: [&str; 109] = [
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "And",
    "ArgMax",
    "ArgMin",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "AveragePool",
    "BatchNormalization",
    "BitCast",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "Cast",
    "CastLike",
    "Ceil",
    "Celu",
    "Clip",
    "Concat",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "Cos",
    "Cosh",
    "CumSum",
    "DequantizeLinear",
    "Div",
    "DynamicQuantizeLinear",
    "Einsum",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Floor",
    "GRU",
    "Gather",
    "GatherElements",
    "GatherND",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "Greater",
    "GreaterOrEqual",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsInf",
    "IsNaN",
    "LSTM",
    "LayerNormalization",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "LpNormalization",
    "LpPool",
    "MatMul",
    "MatMulInteger",
    "Max",
    "MaxPool",
    "MaxRoiPool",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "PRelu",
    "Pow",
    "QuantizeLinear",
    "RNN",
    "Reciprocal",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "Relu",
    "Resize",
    "RoiAlign",
    "Round",
    "STFT",
    "ScatterElements",
    "ScatterND",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Softsign",
    "Split",
    "Sqrt",
    "Sub",
    "Sum",
    "Tanh",
    "Xor",
];
/// As these, from some opset on.
const OVER_ANY_SIZE_SINCE: [(&str, i64); 7] = [
    ("Hardmax", 1),
    ("LogSoftmax", 1),
    ("Softmax", 1),
    ("ThresholdedRelu", 1),
    ("Transpose", 1),
    ("Trilu", 14),
    ("Where", 1),
];

pub(super) fn lower(c: &mut Ctx, op: &str) -> Lowered {
    let lowered = match op {
        "NonZero" => find::non_zero(c),
        "Compress" => find::compress(c),
        "Unique" => find::unique(c),
        "NonMaxSuppression" => find::non_max_suppression(c),
        "Shape" => shape(c),
        "Size" => size(c),
        "Reshape" => shapes::reshape(c),
        "Flatten" => shapes::flatten(c),
        "Squeeze" => shapes::squeeze(c),
        "Unsqueeze" => shapes::unsqueeze(c),
        "Expand" => shapes::expand(c),
        "Slice" => parts::slice(c),
        "Range" => parts::range(c),
        "ConstantOfShape" => parts::fill(c),
        "Tile" => shapes::tile(c),
        "Pad" => shapes::pad(c),
        "TopK" => parts::top_k(c),
        "OneHot" => parts::one_hot(c),
        "Softmax" => shapes::flat_softmax(c, Softmax::Softmax),
        "LogSoftmax" => shapes::flat_softmax(c, Softmax::LogSoftmax),
        "Hardmax" => shapes::flat_softmax(c, Softmax::Hardmax),
        _ => Ok(None),
    }?;
    if lowered.is_some() || !reads_late(c) {
        return Ok(lowered);
    }
    let since = OVER_ANY_SIZE_SINCE.iter().find(|(name, _)| *name == op);
    let is_open = OVER_ANY_SIZE.contains(&op) || since.is_some_and(|(_, v)| c.version >= *v);
    let pads_by_size =
        matches!(c.attribute("auto_pad"), Some(AttributeValue::String(pad)) if pad != b"NOTSET");
    if is_open && !pads_by_size {
        return Ok(None);
    }
    Err(c.unsupported("a size that is known only when running"))
}

fn reads_late(c: &Ctx) -> bool {
    c.inputs.iter().flatten().any(|&v| c.builder.is_late(v))
}

/// Whether the elements of a value are known.
fn is_known(c: &mut Ctx, value: ValueId) -> Result<bool, OnnxError> {
    Ok(!c.builder.is_late(value) && c.builder.known(value)?.is_some())
}

/// Whether sizes come from data: from late sizes, from what passes of a loop carry, or from inputs that hold more than a few
/// integers. Else the model's inputs give them, and their values are asked for.
pub(crate) fn is_of_data(c: &mut Ctx, value: ValueId) -> Result<bool, OnnxError> {
    if c.builder.is_late(value) {
        return Ok(true);
    }
    Ok(c.builder.is_of(value, |ty| {
        ty.elements()
            > if ty.dtype.is_float() {
                MOST_NUMBERS
            } else {
                MOST_SIZES
            }
    }))
}

/// Emits a late operator with one result.
pub(super) fn one(
    c: &mut Ctx,
    op: LateOp,
    inputs: &[ValueId],
    dtype: DType,
    axes: Vec<Axis>,
) -> Lowered {
    let inputs: Vec<Option<ValueId>> = inputs.iter().copied().map(Some).collect();
    let at = c.at();
    c.builder
        .emit_late(at, op, &inputs, vec![(dtype, axes)], &[true])
        .map(Some)
}

/// What a value that gives sizes can be. Elements that nothing bounds are bounded by the user's word, which may be less
/// than the model's, too; `None` where the value is to be asked for.
fn target(c: &mut Ctx, value: ValueId) -> Result<Option<Range>, OnnxError> {
    let name = c.node.outputs.first().map(String::as_str).unwrap_or("");
    let most = c.builder.late.bounds.get(name).map(|&most| most as i64);
    let count = c.ty(value).elements();
    let mut range = match c.builder.range(value)? {
        Some(range) => range,
        None => Range {
            low: vec![0; count],
            high: vec![i64::MAX; count],
            symbols: vec![None; count],
        },
    };
    for index in 0..range.len() {
        let is_bounded = range.is_bounded(index);
        match most {
            _ if range.known(index).is_some() => {}
            Some(most) if !is_bounded || range.symbols[index].is_none() => {
                range.high[index] = range.high[index].min(most);
            }
            None if !is_bounded && is_of_data(c, value)? => return Err(c.unbounded(name, value)),
            None if !is_bounded => return Ok(None),
            _ => {}
        }
    }
    Ok(Some(range))
}

/// The axis that an element of a target gives.
fn axis_of(c: &mut Ctx, range: &Range, index: usize) -> Result<Axis, OnnxError> {
    let most = c.checked_size("a size", range.high[index].max(0))?;
    Ok(match (range.known(index), range.symbols[index]) {
        (Some(_), _) => Axis::known(most),
        (None, symbol @ Some(_)) => Axis { most, symbol },
        (None, None) => c.builder.late.fresh(most),
    })
}

fn elements(axes: &[Axis]) -> Option<usize> {
    axes.iter().try_fold(1usize, |n, a| n.checked_mul(a.most))
}

fn bounded(c: &Ctx, axes: &[Axis]) -> Result<usize, OnnxError> {
    elements(axes).ok_or_else(|| c.bad("it may be impossibly large"))
}

fn shape(c: &mut Ctx) -> Lowered {
    let x = c.input(0)?;
    if !c.builder.is_late(x) {
        return Ok(None);
    }
    let axes = c.builder.axes(x);
    let rank = axes.len() as i64;
    let clamp = |p: i64| {
        let p = if p < 0 { p.saturating_add(rank) } else { p };
        p.clamp(0, rank) as usize
    };
    let start = clamp(c.int("start", 0)?);
    let end = clamp(c.int("end", rank)?).max(start);
    shape_of(c, x, start..end)
}

/// The sizes of some axes of a late value, with what they can be.
fn shape_of(c: &mut Ctx, x: ValueId, of: std::ops::Range<usize>) -> Lowered {
    let axes = c.builder.axes(x);
    let (start, end) = (of.start, of.end);
    let part = &axes[of];
    let low = |a: &Axis| if a.symbol.is_some() { 0 } else { a.most as i64 };
    let range = Range {
        low: part.iter().map(low).collect(),
        high: part.iter().map(|a| a.most as i64).collect(),
        symbols: part.iter().map(|a| a.symbol).collect(),
    };
    if range.low == range.high && part.iter().all(|a| a.symbol.is_none()) {
        let literal = neap_ir::Literal::from_i64(&[range.len()], &range.high);
        return Ok(Some(vec![Some(c.constant(literal))]));
    }
    let axes = vec![Axis::known(range.len())];
    let given = one(c, LateOp::Shape { start, end }, &[x], DType::I64, axes)?;
    note(c, &given, range);
    Ok(given)
}

fn size(c: &mut Ctx) -> Lowered {
    let x = c.input(0)?;
    if !c.builder.is_late(x) {
        return Ok(None);
    }
    let range = Range {
        low: vec![0],
        high: vec![bounded(c, &c.builder.axes(x))? as i64],
        symbols: vec![None],
    };
    let given = one(c, LateOp::Size, &[x], DType::I64, Vec::new())?;
    note(c, &given, range);
    Ok(given)
}

fn note(c: &mut Ctx, given: &Option<Vec<Option<ValueId>>>, range: Range) {
    if let Some([Some(value)]) = given.as_deref() {
        c.builder.note_range(*value, range);
    }
}
