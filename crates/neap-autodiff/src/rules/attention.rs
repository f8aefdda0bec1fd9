//! Attention as one operator.

use crate::step::{Derivatives, Step};
use neap_ir::op::AttentionAttrs;
use neap_ir::{Gradient, Op};

/// Scores are computed again, one query's at a time. Only where a mask is trained all their derivatives exist together.
pub(super) fn attention(attrs: &AttentionAttrs, step: &mut Step) -> Derivatives {
    let mask = step.node.input(3);
    let operands = vec![
        Some(step.input(0)?),
        Some(step.input(1)?),
        Some(step.input(2)?),
        mask,
        Some(step.dy()?),
    ];
    let wanted: Vec<bool> = (0..4).map(|i| step.wants(i)).collect();
    let op = Op::Gradient(Gradient::Attention(attrs.clone()));
    let mut derivatives = step.emit.node(op, operands, &wanted)?;
    if let (Some(mask), Some(scores)) = (mask, derivatives[3]) {
        let shape = step.emit.shape(mask);
        derivatives[3] = Some(step.emit.sum_to(scores, &shape)?);
    }
    Ok(derivatives)
}
