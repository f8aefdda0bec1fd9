//! Element-wise operators, with numpy's broadcasting undone by sums.

use crate::emit::{Emit, Made};
use crate::step::{Derivatives, Step};
use neap_ir::gradient::Saved;
use neap_ir::op::{Activation, Binary, Unary};
use neap_ir::{Gradient, Op, ValueId};

pub(super) fn unary(unary: Unary, step: &mut Step) -> Derivatives {
    let dy = step.dy()?;
    match unary {
        Unary::Identity | Unary::Activation(Activation::None) => return step.one(dy),
        Unary::Neg => {
            let dx = step.emit.unary(Unary::Neg, dy)?;
            return step.one(dx);
        }
        _ => {}
    }
    let Some(saved) = Saved::of(unary) else {
        return Ok(vec![None]);
    };
    let kept = match saved {
        Saved::Operand => step.input(0)?,
        Saved::Result => step.output(0)?,
    };
    let op = Op::Gradient(Gradient::Unary { unary, saved });
    let dx = step.emit.op(op, &[kept, dy])?;
    step.one(dx)
}

pub(super) fn clip(low: Option<f64>, high: Option<f64>, step: &mut Step) -> Derivatives {
    let (y, dy) = (step.output(0)?, step.dy()?);
    let op = Op::Gradient(Gradient::Clip { low, high });
    let dx = step.emit.op(op, &[y, dy])?;
    step.one(dx)
}

pub(super) fn cast(step: &mut Step) -> Derivatives {
    let (x, dy) = (step.input(0)?, step.dy()?);
    let to = step.emit.dtype(x);
    let dx = step.emit.op(Op::Cast { to }, &[dy])?;
    step.one(dx)
}

pub(super) fn select(step: &mut Step) -> Derivatives {
    let (condition, dy) = (step.input(0)?, step.dy()?);
    let zero = step.emit.scalar(step.emit.dtype(dy), 0.0)?;
    let mut derivatives = vec![None; 3];
    for (index, operands) in [(1, [condition, dy, zero]), (2, [condition, zero, dy])] {
        if step.wants(index) {
            let part = step.emit.op(Op::Where, &operands)?;
            let shape = step.emit.shape(step.input(index)?);
            derivatives[index] = Some(step.emit.sum_to(part, &shape)?);
        }
    }
    Ok(derivatives)
}

pub(super) fn binary(binary: Binary, step: &mut Step) -> Derivatives {
    let (a, b, dy) = (step.input(0)?, step.input(1)?, step.dy()?);
    let y = step.output(0)?;
    let mut derivatives = vec![None; 2];
    for (index, derivative) in derivatives.iter_mut().enumerate() {
        if !step.wants(index) {
            continue;
        }
        let first = index == 0;
        let emit = &mut *step.emit;
        let part = match binary {
            Binary::Add => dy,
            Binary::Sub if first => dy,
            Binary::Sub => emit.unary(Unary::Neg, dy)?,
            Binary::Mul => emit.mul(dy, if first { b } else { a })?,
            Binary::Div if first => emit.binary(Binary::Div, dy, b)?,
            Binary::Div => {
                let part = emit.mul(dy, y)?;
                let part = emit.binary(Binary::Div, part, b)?;
                emit.unary(Unary::Neg, part)?
            }
            Binary::Mod { .. } if first => dy,
            Binary::Mod { .. } => {
                // How often the divisor fits, which the function does not change along.
                let multiple = emit.binary(Binary::Sub, a, y)?;
                let times = emit.binary(Binary::Div, multiple, b)?;
                let times = emit.unary(Unary::Round, times)?;
                let part = emit.mul(dy, times)?;
                emit.unary(Unary::Neg, part)?
            }
            Binary::Pow if first => by_base(emit, a, b, dy)?,
            Binary::Pow => by_exponent(emit, a, b, y, dy)?,
            Binary::Min | Binary::Max => {
                // A tie belongs to the first operand.
                let compare = match (binary, first) {
                    (Binary::Max, true) => Binary::GreaterOrEqual,
                    (Binary::Max, false) => Binary::Less,
                    (_, true) => Binary::LessOrEqual,
                    (_, false) => Binary::Greater,
                };
                let taken = emit.binary(compare, a, b)?;
                where_or_zero(emit, taken, dy)?
            }
            Binary::PRelu => {
                let zero = emit.scalar(emit.dtype(a), 0.0)?;
                let negative = emit.binary(Binary::Less, a, zero)?;
                if first {
                    let sloped = emit.mul(dy, b)?;
                    emit.op(Op::Where, &[negative, sloped, dy])?
                } else {
                    let part = emit.mul(dy, a)?;
                    where_or_zero(emit, negative, part)?
                }
            }
            _ => return Err(step.fail("its derivative is not known".into())),
        };
        let shape = emit.shape(if first { a } else { b });
        *derivative = Some(emit.sum_to(part, &shape)?);
    }
    Ok(derivatives)
}

fn where_or_zero(emit: &mut Emit, condition: ValueId, x: ValueId) -> Made {
    let zero = emit.scalar(emit.dtype(x), 0.0)?;
    emit.op(Op::Where, &[condition, x, zero])
}

/// `dy b a^(b - 1)`; 0 where the exponent is 0.
fn by_base(emit: &mut Emit, a: ValueId, b: ValueId, dy: ValueId) -> Made {
    let dtype = emit.dtype(a);
    let exponent = emit.op(Op::Cast { to: dtype }, &[b])?;
    let one = emit.scalar(dtype, 1.0)?;
    let less = emit.binary(Binary::Sub, exponent, one)?;
    let power = emit.binary(Binary::Pow, a, less)?;
    let slope = emit.mul(power, exponent)?;
    let part = emit.mul(dy, slope)?;
    let zero = emit.scalar(dtype, 0.0)?;
    let constant = emit.binary(Binary::Equal, exponent, zero)?;
    emit.op(Op::Where, &[constant, zero, part])
}

/// `dy y ln(a)`; 0 where `a` is 0.
fn by_exponent(emit: &mut Emit, a: ValueId, b: ValueId, y: ValueId, dy: ValueId) -> Made {
    let log = emit.unary(Unary::Log, a)?;
    let slope = emit.mul(y, log)?;
    let part = emit.mul(dy, slope)?;
    let zero = emit.scalar(emit.dtype(a), 0.0)?;
    let vanishes = emit.binary(Binary::Equal, a, zero)?;
    let part = emit.op(Op::Where, &[vanishes, zero, part])?;
    let to = emit.dtype(b);
    if emit.dtype(part) == to {
        return Ok(part);
    }
    emit.op(Op::Cast { to }, &[part])
}
