//! Reductions: the result's derivative goes back to every element that took part.

use crate::emit::{Emit, Made};
use crate::step::{Derivatives, Step};
use neap_ir::op::{Binary, Reduce, Unary};
use neap_ir::{Gradient, Op, ValueId};

pub(super) fn reduce(kind: Reduce, axes: &[usize], step: &mut Step) -> Derivatives {
    let (x, y, dy) = (step.input(0)?, step.output(0)?, step.dy()?);
    if kind == Reduce::Prod {
        return product(axes, step);
    }
    let emit = &mut *step.emit;
    let shape = emit.shape(x);
    let mut kept = shape.clone();
    axes.iter().for_each(|&axis| kept[axis] = 1);
    let y = emit.reshape(y, &kept)?;
    let dy = emit.reshape(dy, &kept)?;
    let dx = match kind {
        Reduce::Sum => dy,
        Reduce::Mean => {
            let count: usize = axes.iter().map(|&axis| shape[axis]).product();
            emit.scale(dy, 1.0 / count as f64)?
        }
        Reduce::Max | Reduce::Min => extreme(emit, x, y, dy, axes)?,
        Reduce::L1 => {
            let sign = emit.unary(Unary::Sign, x)?;
            emit.mul(sign, dy)?
        }
        Reduce::L2 => {
            // 0 where the norm is: there x is 0, and y need only not divide by 0.
            let divisor = emit.nonzero(y)?;
            let factor = emit.binary(Binary::Div, dy, divisor)?;
            emit.mul(x, factor)?
        }
        Reduce::SumSquare => {
            let twice = emit.scale(dy, 2.0)?;
            emit.mul(x, twice)?
        }
        Reduce::LogSum => {
            let sum = emit.unary(Unary::Exp, y)?;
            emit.binary(Binary::Div, dy, sum)?
        }
        Reduce::LogSumExp => {
            let less = emit.binary(Binary::Sub, x, y)?;
            let share = emit.unary(Unary::Exp, less)?;
            emit.mul(share, dy)?
        }
        Reduce::Prod => return Err(step.fail("its derivative is not known".into())),
    };
    let dx = step.emit.expand(dx, &shape)?;
    step.one(dx)
}

/// Each element's is the product of the others: of rows, which the reduced axes are brought to the end for.
fn product(axes: &[usize], step: &mut Step) -> Derivatives {
    let (x, dy) = (step.input(0)?, step.dy()?);
    let emit = &mut *step.emit;
    let shape = emit.shape(x);
    let mut perm: Vec<usize> = (0..shape.len()).filter(|i| !axes.contains(i)).collect();
    let rows: usize = perm.iter().map(|&axis| shape[axis]).product();
    let columns: usize = axes.iter().map(|&axis| shape[axis]).product();
    perm.extend(axes);
    let mut back = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(i, &p)| back[p] = i);
    let turned = emit.transpose(x, &perm)?;
    let turned_shape = emit.shape(turned);
    let flat = emit.reshape(turned, &[rows, columns])?;
    let dy = emit.reshape(dy, &[rows])?;
    let dx = emit.op(Op::Gradient(Gradient::Product), &[flat, dy])?;
    let dx = emit.reshape(dx, &turned_shape)?;
    let dx = emit.transpose(dx, &back)?;
    step.one(dx)
}

/// Elements equal to the extreme share its derivative.
fn extreme(emit: &mut Emit, x: ValueId, y: ValueId, dy: ValueId, axes: &[usize]) -> Made {
    let is_extreme = emit.binary(Binary::Equal, x, y)?;
    let to = emit.dtype(x);
    let ones = emit.op(Op::Cast { to }, &[is_extreme])?;
    let count = emit.reduce(Reduce::Sum, ones, axes, true)?;
    let share = emit.binary(Binary::Div, dy, count)?;
    emit.mul(ones, share)
}

/// An element takes part in the sums from it on; seen from behind they are sums of the same kind.
pub(super) fn cum_sum(axis: usize, exclusive: bool, reverse: bool, step: &mut Step) -> Derivatives {
    let dy = step.dy()?;
    let op = Op::CumSum {
        axis,
        exclusive,
        reverse: !reverse,
    };
    let dx = step.emit.op(op, &[dy])?;
    step.one(dx)
}
