//! What classical models share: rows of features, labels of classes, and what becomes of scores.

use super::generate::literal_of;
use crate::error::OnnxError;
use crate::node::Ctx;
use crate::proto::AttributeValue;
use neap_ir::op::{Activation, Binary, Reduce, Softmax, Unary};
use neap_ir::{DType, Literal, Op, ValueId};

/// A constant of a type.
pub(super) fn numbers_of(
    c: &mut Ctx,
    dtype: DType,
    shape: &[usize],
    values: &[f64],
) -> Result<ValueId, OnnxError> {
    if shape.iter().product::<usize>() != values.len() {
        return Err(c.bad(format!("{} numbers do not fit {shape:?}", values.len())));
    }
    Ok(c.constant(literal_of(dtype, shape, values.iter().copied())))
}

/// A list of numbers that must be there.
pub(super) fn list(c: &Ctx, name: &str) -> Result<Vec<f64>, OnnxError> {
    match c.floats(name)? {
        Some(values) if !values.is_empty() => Ok(values.into_iter().map(f64::from).collect()),
        _ => Err(c.bad(format!("attribute '{name}' is missing"))),
    }
}

/// `[rows, features]`; a single list is one row.
pub(super) fn rows_of(c: &mut Ctx, x: ValueId) -> Result<ValueId, OnnxError> {
    match c.shape(x)[..] {
        [features] => c.reshape(x, &[1, features]),
        [_, _] => Ok(x),
        ref shape => Err(c.bad(format!(
            "an operand of shape {shape:?} has no rows of features"
        ))),
    }
}

/// `[rows]` of `[rows, 1]` truths, as 0 and 1.
pub(super) fn flat(c: &mut Ctx, truths: ValueId) -> Result<ValueId, OnnxError> {
    let numbers = c.cast(truths, DType::I64)?;
    let op = Op::Reduce {
        kind: Reduce::Sum,
        axes: vec![1],
        keep_dims: false,
    };
    c.emit(op, &[numbers])
}

/// Names of classes.
pub(super) enum Labels {
    Numbers(Vec<i64>),
    /// So many strings, which no tensor holds here.
    Strings(usize),
}

impl Labels {
    pub(super) fn of_node(c: &Ctx) -> Result<Labels, OnnxError> {
        if let Some(AttributeValue::Strings(names)) = c.attribute("classlabels_strings")
            && !names.is_empty()
        {
            return Ok(Labels::Strings(names.len()));
        }
        // The older operators have different names for one list.
        let numbers = match c.ints("classlabels_int64s")? {
            Some(numbers) => Some(numbers),
            None => c.ints("classlabels_ints")?,
        };
        Ok(Labels::Numbers(numbers.unwrap_or_default()))
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Labels::Numbers(numbers) => numbers.len(),
            Labels::Strings(count) => *count,
        }
    }

    fn numbers(&self, c: &Ctx) -> Result<&[i64], OnnxError> {
        match self {
            Labels::Numbers(numbers) => Ok(numbers),
            Labels::Strings(_) => Err(c.unsupported(
                "labels that are strings (train with numbers, or take the scores only)",
            )),
        }
    }

    /// Of the first largest score of each row.
    pub(super) fn of_largest(&self, c: &mut Ctx, scores: ValueId) -> Result<ValueId, OnnxError> {
        let numbers = self.numbers(c)?.to_vec();
        let op = Op::ArgReduce {
            largest: true,
            axis: 1,
            keep_dims: false,
            select_last: false,
        };
        let place = c.emit(op, &[scores])?;
        if numbers.iter().copied().eq(0..numbers.len() as i64) {
            return Ok(place);
        }
        let table = c.constant(Literal::from_i64(&[numbers.len()], &numbers));
        c.emit(Op::Gather { axis: 0 }, &[table, place])
    }

    /// Of two classes, where it is the second; `[rows, 1]` truths.
    pub(super) fn of_second(&self, c: &mut Ctx, is_second: ValueId) -> Result<ValueId, OnnxError> {
        let &[first, second] = self.numbers(c)? else {
            return Err(c.bad("it has not two labels"));
        };
        let place = flat(c, is_second)?;
        if (first, second) == (0, 1) {
            return Ok(place);
        }
        let table = c.constant(Literal::from_i64(&[2], &[first, second]));
        c.emit(Op::Gather { axis: 0 }, &[table, place])
    }
}

/// What becomes of the scores `[rows, classes]`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Transform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

impl Transform {
    pub(super) fn of_node(c: &Ctx) -> Result<Transform, OnnxError> {
        Ok(match c.string("post_transform", "NONE")? {
            "NONE" => Transform::None,
            "SOFTMAX" => Transform::Softmax,
            "LOGISTIC" => Transform::Logistic,
            "SOFTMAX_ZERO" => Transform::SoftmaxZero,
            "PROBIT" => Transform::Probit,
            _ => return Err(c.bad("attribute 'post_transform' is unknown")),
        })
    }

    pub(super) fn of(self, c: &mut Ctx, y: ValueId) -> Result<ValueId, OnnxError> {
        match self {
            Transform::None => Ok(y),
            Transform::Softmax => {
                let kind = Softmax::Softmax;
                c.emit(Op::Softmax { axis: 1, kind }, &[y])
            }
            Transform::Logistic => c.unary(Unary::Activation(Activation::Sigmoid), y),
            Transform::SoftmaxZero => softmax_zero(c, y),
            Transform::Probit => probit(c, y),
        }
    }

    /// A single score is transformed by the probit alone, as onnxruntime does.
    pub(super) fn of_targets(
        self,
        c: &mut Ctx,
        y: ValueId,
        targets: usize,
    ) -> Result<ValueId, OnnxError> {
        match targets == 1 && self != Transform::Probit {
            true => Ok(y),
            false => self.of(c, y),
        }
    }

    /// Both scores of two classes from one, `[rows, 1]`.
    pub(super) fn of_one(
        self,
        c: &mut Ctx,
        score: ValueId,
        is_share: bool,
    ) -> Result<ValueId, OnnxError> {
        let first = match self {
            Transform::Probit => return Err(c.unsupported("PROBIT of a single score")),
            _ if is_share && self != Transform::Logistic => {
                let whole = c.scalar(c.dtype(score), 1.0)?;
                c.binary(Binary::Sub, whole, score)?
            }
            _ => c.unary(Unary::Neg, score)?,
        };
        let both = c.emit(Op::Concat { axis: 1 }, &[first, score])?;
        match self {
            Transform::Logistic => self.of(c, both),
            _ => Ok(both),
        }
    }
}

/// A softmax among the scores that are not zero; the others stay zero.
fn softmax_zero(c: &mut Ctx, y: ValueId) -> Result<ValueId, OnnxError> {
    let dtype = c.dtype(y);
    let over_row = |c: &mut Ctx, x: ValueId, kind: Reduce| {
        let op = Op::Reduce {
            kind,
            axes: vec![1],
            keep_dims: true,
        };
        c.emit(op, &[x])
    };
    let most = over_row(c, y, Reduce::Max)?;
    let below = c.binary(Binary::Sub, y, most)?;
    let powers = c.unary(Unary::Exp, below)?;
    let size = c.unary(Unary::Abs, y)?;
    let tiny = c.scalar(dtype, 1e-7)?;
    let counts = c.binary(Binary::Greater, size, tiny)?;
    let nothing = c.scalar(dtype, 0.0)?;
    let counted = c.emit(Op::Where, &[counts, powers, nothing])?;
    let sum = over_row(c, counted, Reduce::Sum)?;
    let negated = c.unary(Unary::Neg, most)?;
    let factor = c.unary(Unary::Exp, negated)?;
    let rest = c.binary(Binary::Mul, y, factor)?;
    let parts = c.emit(Op::Where, &[counts, powers, rest])?;
    c.binary(Binary::Div, parts, sum)
}

/// The inverse of the normal distribution, by the approximation that onnxruntime has.
fn probit(c: &mut Ctx, y: ValueId) -> Result<ValueId, OnnxError> {
    let dtype = c.dtype(y);
    let by = |c: &mut Ctx, op: Binary, x: ValueId, number: f64| {
        let number = c.scalar(dtype, number)?;
        c.binary(op, x, number)
    };
    let doubled = by(c, Binary::Mul, y, 2.0)?;
    let x = by(c, Binary::Sub, doubled, 1.0)?;
    let square = c.binary(Binary::Mul, x, x)?;
    let one = c.scalar(dtype, 1.0)?;
    let rest = c.binary(Binary::Sub, one, square)?;
    let log = c.unary(Unary::Log, rest)?;
    let half = by(c, Binary::Mul, log, 0.5)?;
    let a = by(c, Binary::Add, half, 2.0 / (std::f64::consts::PI * 0.147))?;
    let b = by(c, Binary::Div, log, 0.147)?;
    let squared = c.binary(Binary::Mul, a, a)?;
    let inner = c.binary(Binary::Sub, squared, b)?;
    let inner = c.unary(Unary::Sqrt, inner)?;
    let outer = c.binary(Binary::Sub, inner, a)?;
    let root = c.unary(Unary::Sqrt, outer)?;
    let sign = c.unary(Unary::Sign, x)?;
    let result = c.binary(Binary::Mul, sign, root)?;
    by(c, Binary::Mul, result, std::f64::consts::SQRT_2)
}
