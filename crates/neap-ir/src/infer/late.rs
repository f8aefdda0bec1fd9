//! Bounds of operators over late values. They were found when the graph was made, and are part of the operator; each run
//! compares them with its actual types.

use super::{Inferred, Operands, repeat};
use crate::late::{Late, LateOp};
use crate::op::Op;
use crate::{DType, TensorType};

pub(super) fn infer(late: &Late, o: &Operands) -> Inferred<Vec<TensorType>> {
    o.require(
        late.bounds.iter().all(|bound| bound.is_whole()),
        "its bounds are malformed",
    )?;
    o.require(
        o.outputs <= late.bounds.len(),
        "gives fewer outputs than the node has",
    )?;
    let nested = matches!(&late.op, LateOp::Over(Op::Late(_)));
    o.require(!nested, "is late twice")?;
    o.require(
        !late.is_guarded || o.inputs.last().is_some_and(is_flag),
        "has no guard",
    )?;
    if let LateOp::Repeat(of) = &late.op {
        repeat::check(of, &late.bounds, o, late.operands(o.inputs).len())?;
    }
    let bounds = late.bounds.iter().take(o.outputs);
    Ok(bounds.map(|bound| bound.ty.clone()).collect())
}

fn is_flag(operand: &Option<TensorType>) -> bool {
    let ty = operand.as_ref();
    ty.is_some_and(|ty| ty.dtype == DType::Bool && ty.elements() == 1)
}
