//! Bounds of operators over late values. They were found when the graph was made, and are part of the operator; each run
//! compares them with its actual types.

use super::{Inferred, Operands};
use crate::TensorType;
use crate::late::{Late, LateOp};
use crate::op::Op;

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
    let bounds = late.bounds.iter().take(o.outputs);
    Ok(bounds.map(|bound| bound.ty.clone()).collect())
}
