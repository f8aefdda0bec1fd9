//! Operators of `ai.onnx.ml` on rows of features: what scales, fills, normalises and joins them, and linear models.

use super::classes::{Labels, Transform, list, numbers_of, rows_of};
use super::slicing::part;
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::op::{Binary, Reduce, Unary};
use neap_ir::{DType, Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "ArrayFeatureExtractor" => one(array_feature_extractor(c)),
        "Binarizer" => one(binarizer(c)),
        "FeatureVectorizer" => one(feature_vectorizer(c)),
        "Imputer" => one(imputer(c)),
        "LinearClassifier" => linear_classifier(c),
        "LinearRegressor" => one(linear_regressor(c)),
        "Normalizer" => one(normalizer(c)),
        "Scaler" => one(scaler(c)),
        "ZipMap" => Err(c.unsupported(
            "a list of dictionaries as its result (convert the model with the option zipmap=False); this form",
        )),
        _ => return None,
    })
}

/// Columns of the last axis.
fn array_feature_extractor(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, columns) = (c.input(0)?, c.input(1)?);
    let shape = c.shape_of_rank(x, 1)?;
    let count = c.ty(columns).elements();
    let columns = c.reshape(columns, &[count])?;
    let axis = shape.len() - 1;
    let picked = c.emit(Op::Gather { axis }, &[x, columns])?;
    match axis {
        0 => c.reshape(picked, &[1, count]),
        _ => Ok(picked),
    }
}

fn binarizer(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let dtype = c.dtype(x);
    let threshold = f64::from(c.float("threshold", 0.0)?);
    if !dtype.is_float() && threshold.fract() != 0.0 {
        return Err(c.unsupported("a threshold between integers"));
    }
    let threshold = c.scalar(dtype, threshold)?;
    let above = c.binary(Binary::Greater, x, threshold)?;
    c.cast(above, dtype)
}

/// Parts of rows side by side.
fn feature_vectorizer(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let inputs = c.variadic()?;
    let widths = c.sizes("inputdimensions")?.unwrap_or_default();
    if widths.len() != inputs.len() {
        return Err(c.bad("its inputdimensions do not fit its inputs"));
    }
    let mut parts = Vec::new();
    for (x, width) in inputs.into_iter().zip(widths) {
        let x = rows_of(c, x)?;
        let given = c.shape(x)[1];
        if width > given {
            return Err(c.unsupported("parts that are filled up"));
        }
        let x = match width == given {
            true => x,
            false => part(c, x, 1, 0, width)?,
        };
        parts.push(c.cast(x, DType::F32)?);
    }
    c.emit(Op::Concat { axis: 1 }, &parts)
}

/// Numbers for each feature, or one for all; the axis of features is the last one.
fn for_features(
    c: &mut Ctx,
    x: ValueId,
    dtype: DType,
    values: &[f64],
) -> Result<ValueId, OnnxError> {
    let shape = c.shape_of_rank(x, 1)?;
    let features = shape[shape.len() - 1];
    if shape.len() > 2 || (values.len() != 1 && values.len() != features) {
        return Err(c.bad(format!("{} numbers do not fit {shape:?}", values.len())));
    }
    numbers_of(c, dtype, &[values.len()], values)
}

/// `(x - offset) * scale`.
fn scaler(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let (offset, scale) = (list(c, "offset")?, list(c, "scale")?);
    let dtype = match c.dtype(x) {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let x = c.cast(x, dtype)?;
    let offset = for_features(c, x, dtype, &offset)?;
    let scale = for_features(c, x, dtype, &scale)?;
    let moved = c.binary(Binary::Sub, x, offset)?;
    let y = c.binary(Binary::Mul, moved, scale)?;
    c.cast(y, DType::F32)
}

/// Other numbers where a number is missing.
fn imputer(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let dtype = c.dtype(x);
    let (values, missing) = if dtype.is_float() {
        let values = list(c, "imputed_value_floats")?;
        let replaced = c.float("replaced_value_float", 0.0)?;
        let missing = match replaced.is_nan() {
            true => c.unary(Unary::IsNan, x)?,
            false => {
                let replaced = c.scalar(dtype, replaced.into())?;
                c.binary(Binary::Equal, x, replaced)?
            }
        };
        (values, missing)
    } else {
        let values = c.ints("imputed_value_int64s")?.unwrap_or_default();
        let values = values.into_iter().map(|v| v as f64).collect();
        let replaced = c.int("replaced_value_int64", 0)?;
        let replaced = c.constant(neap_ir::Literal::from_i64(&[], &[replaced]));
        let replaced = c.cast(replaced, dtype)?;
        (values, c.binary(Binary::Equal, x, replaced)?)
    };
    let values = for_features(c, x, dtype, &values)?;
    c.emit(Op::Where, &[missing, values, x])
}

/// Rows by their largest number, the sum of their sizes or their length; rows of zeros stay.
fn normalizer(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let x = c.cast(x, DType::F32)?;
    let rank = c.shape_of_rank(x, 1)?.len();
    if rank > 2 {
        return Err(c.bad("its input has no rows of features"));
    }
    let kind = match c.string("norm", "MAX")? {
        "MAX" => Reduce::Max,
        "L1" => Reduce::L1,
        "L2" => Reduce::L2,
        _ => return Err(c.bad("attribute 'norm' is unknown")),
    };
    let op = Op::Reduce {
        kind,
        axes: vec![rank - 1],
        keep_dims: true,
    };
    let of_row = c.emit(op, &[x])?;
    let nothing = c.scalar(DType::F32, 0.0)?;
    let is_zero = c.binary(Binary::Equal, of_row, nothing)?;
    let whole = c.scalar(DType::F32, 1.0)?;
    let divisor = c.emit(Op::Where, &[is_zero, whole, of_row])?;
    c.binary(Binary::Div, x, divisor)
}

/// `x [rows, features]` times a matrix `[outputs, features]` of attributes, plus one number for each output.
fn linear(c: &mut Ctx, outputs: usize, added: &[f64]) -> Result<ValueId, OnnxError> {
    let coefficients = list(c, "coefficients")?;
    let x = c.input(0)?;
    let x = c.cast(x, DType::F32)?;
    let x = rows_of(c, x)?;
    let features = c.shape(x)[1];
    let weights = numbers_of(c, DType::F32, &[outputs, features], &coefficients)?;
    let mut inputs = vec![x, weights];
    if !added.is_empty() {
        inputs.push(numbers_of(c, DType::F32, &[outputs], added)?);
    }
    let op = Op::Gemm {
        alpha: 1.0,
        beta: 1.0,
        trans_a: false,
        trans_b: true,
    };
    c.emit(op, &inputs)
}

fn linear_regressor(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let targets = c.size("targets", 1)?;
    let intercepts = c.floats("intercepts")?.unwrap_or_default();
    let intercepts: Vec<f64> = intercepts.into_iter().map(f64::from).collect();
    let y = linear(c, targets, &intercepts)?;
    Transform::of_node(c)?.of_targets(c, y, targets)
}

/// With one score for two classes, the second class is where it is above zero.
fn linear_classifier(c: &mut Ctx) -> Outputs {
    let labels = Labels::of_node(c)?;
    let intercepts = list(c, "intercepts")?;
    let outputs = intercepts.len();
    let scores = linear(c, outputs, &intercepts)?;
    let transform = Transform::of_node(c)?;
    let wants_label = c.wants(0);
    if outputs > 1 {
        if labels.len() != outputs {
            return Err(c.bad("its labels do not fit its scores"));
        }
        let label = match wants_label {
            true => Some(labels.of_largest(c, scores)?),
            false => None,
        };
        return Ok(vec![label, Some(transform.of(c, scores)?)]);
    }
    if labels.len() != 2 {
        return Err(c.unsupported("a single class"));
    }
    let label = match wants_label {
        true => {
            let nothing = c.scalar(DType::F32, 0.0)?;
            let is_second = c.binary(Binary::Greater, scores, nothing)?;
            Some(labels.of_second(c, is_second)?)
        }
        false => None,
    };
    Ok(vec![label, Some(transform.of_one(c, scores, true)?)])
}
