//! Optimisers of `ai.onnx.preview.training`, spelled out in element-wise operators.

use crate::error::OnnxError;
use crate::node::{Ctx, Outputs};
use neap_ir::op::{Binary, Unary};
use neap_ir::{Op, ValueId};

pub(crate) const DOMAIN: &str = "ai.onnx.preview.training";

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "Adagrad" => each_tensor(c, 1, adagrad),
        "Momentum" => each_tensor(c, 1, momentum),
        "Adam" => each_tensor(c, 2, adam),
        _ => return None,
    })
}

/// One tensor's operands: the tensor, its gradient and what is kept of earlier gradients.
struct Tensors {
    rate: ValueId,
    /// How often the tensor was updated before, int64.
    count: ValueId,
    x: ValueId,
    gradient: ValueId,
    kept: Vec<ValueId>,
}

/// Inputs are R, T, then all tensors, all gradients, all that is kept of one kind, ...; outputs the same without R, T
/// and gradients. `step` gives for one tensor what replaces it and what is kept.
fn each_tensor(
    c: &mut Ctx,
    kinds: usize,
    step: impl Fn(&mut Ctx, &Tensors) -> Result<Vec<ValueId>, OnnxError>,
) -> Outputs {
    let operands = c.variadic()?;
    let tensors = operands.len().saturating_sub(2) / (2 + kinds);
    if tensors == 0 || operands.len() != 2 + tensors * (2 + kinds) {
        return Err(c.bad(format!("it has {} inputs", operands.len())));
    }
    let mut outputs = vec![None; tensors * (1 + kinds)];
    for i in 0..tensors {
        let of_kind = |kind: usize| operands[2 + kind * tensors + i];
        let tensor = Tensors {
            rate: operands[0],
            count: operands[1],
            x: of_kind(0),
            gradient: of_kind(1),
            kept: (0..kinds).map(|k| of_kind(2 + k)).collect(),
        };
        for value in [tensor.gradient].iter().chain(&tensor.kept) {
            if c.ty(*value) != c.ty(tensor.x) {
                return Err(c.bad("a tensor's gradient or state has another type".to_string()));
            }
        }
        for (k, value) in step(c, &tensor)?.into_iter().enumerate() {
            outputs[k * tensors + i] = Some(value);
        }
    }
    Ok(outputs)
}

/// `a * factor`.
fn scaled(c: &mut Ctx, a: ValueId, factor: f32) -> Result<ValueId, OnnxError> {
    let factor = c.scalar(c.dtype(a), factor.into())?;
    c.binary(Binary::Mul, a, factor)
}

/// The gradient with that of the norm: `norm_coefficient * x + g`.
fn regular_gradient(c: &mut Ctx, t: &Tensors, default: f32) -> Result<ValueId, OnnxError> {
    let coefficient = c.float("norm_coefficient", default)?;
    if coefficient == 0.0 {
        return Ok(t.gradient);
    }
    let decay = scaled(c, t.x, coefficient)?;
    c.binary(Binary::Add, decay, t.gradient)
}

/// `sqrt(sum) + epsilon`
fn deviation(c: &mut Ctx, sum: ValueId, epsilon: f32) -> Result<ValueId, OnnxError> {
    let root = c.unary(Unary::Sqrt, sum)?;
    let epsilon = c.scalar(c.dtype(sum), epsilon.into())?;
    c.binary(Binary::Add, root, epsilon)
}

/// Whether the tensor was updated before.
fn is_later(c: &mut Ctx, t: &Tensors) -> Result<ValueId, OnnxError> {
    let zero = c.scalar(c.dtype(t.count), 0.0)?;
    c.binary(Binary::Greater, t.count, zero)
}

fn adagrad(c: &mut Ctx, t: &Tensors) -> Result<Vec<ValueId>, OnnxError> {
    let dtype = c.dtype(t.x);
    let epsilon = c.float("epsilon", 1e-6)?;
    let decay = c.float("decay_factor", 0.0)?;
    let count = c.cast(t.count, dtype)?;
    let slower = scaled(c, count, decay)?;
    let one = c.scalar(dtype, 1.0)?;
    let slower = c.binary(Binary::Add, slower, one)?;
    let rate = c.cast(t.rate, dtype)?;
    let rate = c.binary(Binary::Div, rate, slower)?;
    let gradient = regular_gradient(c, t, 0.0)?;
    let square = c.binary(Binary::Mul, gradient, gradient)?;
    let sum = c.binary(Binary::Add, t.kept[0], square)?;
    let deviation = deviation(c, sum, epsilon)?;
    let step = c.binary(Binary::Mul, rate, gradient)?;
    let step = c.binary(Binary::Div, step, deviation)?;
    Ok(vec![c.binary(Binary::Sub, t.x, step)?, sum])
}

fn momentum(c: &mut Ctx, t: &Tensors) -> Result<Vec<ValueId>, OnnxError> {
    let dtype = c.dtype(t.x);
    let (alpha, beta) = (c.float("alpha", 0.0)?, c.float("beta", 0.0)?);
    let nesterov = match c.string("mode", "standard")? {
        "standard" => false,
        "nesterov" => true,
        _ => return Err(c.bad("attribute 'mode' is unknown")),
    };
    let gradient = regular_gradient(c, t, 0.0)?;
    let later = is_later(c, t)?;
    let (beta, one) = (c.scalar(dtype, beta.into())?, c.scalar(dtype, 1.0)?);
    let beta = c.emit(Op::Where, &[later, beta, one])?;
    let kept = scaled(c, t.kept[0], alpha)?;
    let taken = c.binary(Binary::Mul, beta, gradient)?;
    let velocity = c.binary(Binary::Add, kept, taken)?;
    let step = if nesterov {
        let ahead = scaled(c, velocity, alpha)?;
        c.binary(Binary::Add, gradient, ahead)?
    } else {
        velocity
    };
    let rate = c.cast(t.rate, dtype)?;
    let step = c.binary(Binary::Mul, rate, step)?;
    Ok(vec![c.binary(Binary::Sub, t.x, step)?, velocity])
}

fn adam(c: &mut Ctx, t: &Tensors) -> Result<Vec<ValueId>, OnnxError> {
    let dtype = c.dtype(t.x);
    let (alpha, beta) = (c.float("alpha", 0.9)?, c.float("beta", 0.999)?);
    let epsilon = c.float("epsilon", 1e-6)?;
    let gradient = regular_gradient(c, t, 0.0)?;
    let average = |c: &mut Ctx, old: ValueId, new: ValueId, keep: f32| {
        let old = scaled(c, old, keep)?;
        let new = scaled(c, new, 1.0 - keep)?;
        c.binary(Binary::Add, old, new)
    };
    let first = average(c, t.kept[0], gradient, alpha)?;
    let square = c.binary(Binary::Mul, gradient, gradient)?;
    let second = average(c, t.kept[1], square, beta)?;
    let deviation = deviation(c, second, epsilon)?;

    // From the second update on the rate makes good for averages that began at 0.
    let count = c.cast(t.count, dtype)?;
    let one = c.scalar(dtype, 1.0)?;
    let less_power = |c: &mut Ctx, base: f32| {
        let base = c.scalar(dtype, base.into())?;
        let power = c.binary(Binary::Pow, base, count)?;
        c.binary(Binary::Sub, one, power)
    };
    let of_second = less_power(c, beta)?;
    let of_second = c.unary(Unary::Sqrt, of_second)?;
    let of_first = less_power(c, alpha)?;
    let rate = c.cast(t.rate, dtype)?;
    let adjusted = c.binary(Binary::Mul, rate, of_second)?;
    let adjusted = c.binary(Binary::Div, adjusted, of_first)?;
    let later = is_later(c, t)?;
    let rate = c.emit(Op::Where, &[later, adjusted, rate])?;

    let step = c.binary(Binary::Mul, rate, first)?;
    let step = c.binary(Binary::Div, step, deviation)?;
    let mut x = c.binary(Binary::Sub, t.x, step)?;
    let post = c.float("norm_coefficient_post", 0.0)?;
    if post != 0.0 {
        x = scaled(c, x, 1.0 - post)?;
    }
    Ok(vec![x, first, second])
}
