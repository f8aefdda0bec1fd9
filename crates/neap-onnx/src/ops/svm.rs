//! Support vector machines of `ai.onnx.ml`, as products with the vectors and a kernel over them.

use super::classes::{Labels, Transform, list, numbers_of, rows_of};
use super::distances::squared_distances;
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::op::{Activation, Binary, Unary};
use neap_ir::{DType, Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "SVMRegressor" => one(regressor(c)),
        "SVMClassifier" => classifier(c),
        _ => return None,
    })
}

fn product(
    c: &mut Ctx,
    a: ValueId,
    b: ValueId,
    added: Option<ValueId>,
    trans_b: bool,
) -> Result<ValueId, OnnxError> {
    let op = Op::Gemm {
        alpha: 1.0,
        beta: 1.0,
        trans_a: false,
        trans_b,
    };
    let mut inputs = vec![Some(a), Some(b)];
    inputs.extend(added.map(Some));
    c.emit_optional(op, &inputs)
}

/// `[rows, vectors]`: the kernel of each row and each vector, by its name.
fn kernel(c: &mut Ctx, x: ValueId, vectors: ValueId, name: &str) -> Result<ValueId, OnnxError> {
    let parameters = c.floats("kernel_params")?.unwrap_or_default();
    let parameter = |at: usize| f64::from(parameters.get(at).copied().unwrap_or(0.0));
    let (gamma, coef0, degree) = (parameter(0), parameter(1), parameter(2));
    let by = |c: &mut Ctx, op: Binary, y: ValueId, number: f64| {
        let number = c.scalar(c.dtype(y), number)?;
        c.binary(op, y, number)
    };
    if name == "RBF" {
        let squared = squared_distances(c, x, vectors)?;
        let scaled = by(c, Binary::Mul, squared, -gamma)?;
        let scaled = c.cast(scaled, DType::F32)?;
        return c.unary(Unary::Exp, scaled);
    }
    let dots = product(c, x, vectors, None, true)?;
    if name == "LINEAR" {
        return Ok(dots);
    }
    let scaled = by(c, Binary::Mul, dots, gamma)?;
    let moved = by(c, Binary::Add, scaled, coef0)?;
    match name {
        "POLY" => by(c, Binary::Pow, moved, degree),
        "SIGMOID" => c.unary(Unary::Activation(Activation::Tanh), moved),
        _ => Err(c.bad("attribute 'kernel_type' is unknown")),
    }
}

/// `[rows, features]`, and so many vectors of attributes.
fn operands(c: &mut Ctx, vectors: usize) -> Result<[ValueId; 2], OnnxError> {
    let x = c.input(0)?;
    let x = c.cast(x, DType::F32)?;
    let x = rows_of(c, x)?;
    let features = c.shape(x)[1];
    let numbers = list(c, "support_vectors")?;
    let vectors = numbers_of(c, DType::F32, &[vectors, features], &numbers)?;
    Ok([x, vectors])
}

fn regressor(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let rho = list(c, "rho")?;
    if Transform::of_node(c)? != Transform::None {
        return Err(c.unsupported("a post_transform"));
    }
    let vectors = c.size("n_supports", 0)?;
    let coefficients = list(c, "coefficients")?;
    let rho = numbers_of(c, DType::F32, &[1], &rho[..1])?;
    let y = if vectors == 0 {
        let x = c.input(0)?;
        let x = c.cast(x, DType::F32)?;
        let x = rows_of(c, x)?;
        let features = c.shape(x)[1];
        let weights = numbers_of(c, DType::F32, &[1, features], &coefficients)?;
        product(c, x, weights, Some(rho), true)?
    } else {
        let [x, support] = operands(c, vectors)?;
        let name = c.string("kernel_type", "LINEAR")?;
        let kernels = kernel(c, x, support, name)?;
        let weights = numbers_of(c, DType::F32, &[vectors, 1], &coefficients)?;
        product(c, kernels, weights, Some(rho), false)?
    };
    if !c.flag("one_class", false)? {
        return Ok(y);
    }
    let nothing = c.scalar(DType::F32, 0.0)?;
    let (inside, outside) = (c.scalar(DType::F32, 1.0)?, c.scalar(DType::F32, -1.0)?);
    let is_inside = c.binary(Binary::Greater, y, nothing)?;
    c.emit(Op::Where, &[is_inside, inside, outside])
}

/// Each pair of classes has a score, and a vote for one of them.
fn classifier(c: &mut Ctx) -> Outputs {
    let labels = Labels::of_node(c)?;
    let classes = labels.len();
    let counts = c.sizes("vectors_per_class")?.unwrap_or_default();
    let vectors: usize = counts.iter().sum();
    if c.floats("prob_a")?.is_some_and(|list| !list.is_empty()) {
        return Err(c.unsupported("probabilities (train without them, and take the scores)"));
    }
    if vectors == 0 || classes < 2 || counts.len() != classes || vectors > 1 << 24 {
        return Err(c.unsupported("a form without support vectors of each class"));
    }
    let (coefficients, rho) = (list(c, "coefficients")?, list(c, "rho")?);
    let pairs: Vec<(usize, usize)> = (0..classes)
        .flat_map(|i| (i + 1..classes).map(move |j| (i, j)))
        .collect();
    if coefficients.len() != (classes - 1) * vectors || rho.len() < pairs.len() {
        return Err(c.bad("its coefficients do not fit its vectors"));
    }
    let class_of = |vector: usize| {
        let ends = counts.iter().scan(0, |end, count| {
            *end += count;
            Some(*end)
        });
        ends.take_while(|&end| end <= vector).count()
    };
    // A vector of one class has coefficients against each of the others.
    let weight = |vector: usize, (i, j): (usize, usize)| match class_of(vector) {
        class if class == i => coefficients[(j - 1) * vectors + vector],
        class if class == j => coefficients[i * vectors + vector],
        _ => 0.0,
    };
    let weights = (0..vectors).flat_map(|v| pairs.iter().map(move |&pair| (v, pair)));
    let weights: Vec<f64> = weights.map(|(v, pair)| weight(v, pair)).collect();
    let [x, support] = operands(c, vectors)?;
    let name = c.string("kernel_type", "LINEAR")?;
    let kernels = kernel(c, x, support, name)?;
    let weights = numbers_of(c, DType::F32, &[vectors, pairs.len()], &weights)?;
    let rho = numbers_of(c, DType::F32, &[pairs.len()], &rho[..pairs.len()])?;
    let scores = product(c, kernels, weights, Some(rho), false)?;
    let label = match c.wants(0) {
        true => Some(most_voted(c, scores, &pairs, &labels)?),
        false => None,
    };
    let transform = Transform::of_node(c)?;
    let scores = match classes {
        2 => transform.of_one(c, scores, transform != Transform::None)?,
        _ => transform.of(c, scores)?,
    };
    Ok(vec![label, Some(scores)])
}

fn most_voted(
    c: &mut Ctx,
    scores: ValueId,
    pairs: &[(usize, usize)],
    labels: &Labels,
) -> Result<ValueId, OnnxError> {
    let classes = labels.len();
    let nothing = c.scalar(DType::F32, 0.0)?;
    let is_first = c.binary(Binary::Greater, scores, nothing)?;
    let is_first = c.cast(is_first, DType::F32)?;
    // A pair's vote is its second class's, and is moved to the first where that is ahead.
    let moves = pairs.iter().flat_map(|&(i, j)| {
        (0..classes)
            .map(move |class| f64::from(u8::from(class == i)) - f64::from(u8::from(class == j)))
    });
    let moves: Vec<f64> = moves.collect();
    let seconds = |class: usize| pairs.iter().filter(|pair| pair.1 == class).count() as f64;
    let seconds: Vec<f64> = (0..classes).map(seconds).collect();
    let moves = numbers_of(c, DType::F32, &[pairs.len(), classes], &moves)?;
    let seconds = numbers_of(c, DType::F32, &[classes], &seconds)?;
    let votes = product(c, is_first, moves, Some(seconds), false)?;
    labels.of_largest(c, votes)
}
