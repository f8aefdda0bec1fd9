//! Weights in 8 bits: layers take them as they are stored, and are computed in integers.
//!
//! ```text
//!   Dequantize(constant) ─┬─► Conv, MatMul, Gemm       stays, however small: the rewriter makes panels of 8 bits
//!                         └─► everything else          reads the result, which is computed once
//! ```

use super::{At, Builder, FEW_ELEMENTS};
use crate::error::OnnxError;
use neap_ir::{DType, Op, TensorType, ValueId};

/// A node that dequantises constants, and its result, if anybody asked for that.
pub(super) struct Dequantized {
    node: usize,
    result: Option<ValueId>,
}

/// Whether it dequantises what may be weights of a layer.
pub(super) fn dequantizes_weights(op: &Op, types: &[Option<TensorType>]) -> bool {
    let stored = types.first().and_then(Option::as_ref);
    matches!(op, Op::Dequantize { .. })
        && stored.is_some_and(|ty| {
            let is_byte = matches!(ty.dtype, DType::I8 | DType::U8);
            is_byte && ty.shape.len() > 1 && ty.elements() > FEW_ELEMENTS
        })
}

/// Whether it makes a layer with its weights, or hands them on to one.
fn takes_weights(op: &Op) -> bool {
    match op {
        Op::Conv(..) | Op::MatMul | Op::Gemm { .. } => true,
        Op::Transpose { perm } => perm[..] == [1, 0],
        _ => false,
    }
}

impl Builder {
    /// Enters the last node, if it dequantises constants.
    pub(super) fn note_dequantized(&mut self, op: &Op, types: &[Option<TensorType>]) {
        let Some(node) = self.graph.nodes.last() else {
            return;
        };
        let known = |v: ValueId| self.graph.constant(v).is_some();
        if let (true, [Some(output)]) = (dequantizes_weights(op, types), &node.outputs[..])
            && node.present_inputs().all(known)
        {
            let node = self.graph.nodes.len() - 1;
            let entry = Dequantized { node, result: None };
            self.dequantized.insert(*output, entry);
        }
    }

    /// The operands of a node: constants instead of what is dequantised for layers.
    pub(super) fn operands_of(
        &mut self,
        at: At,
        op: &Op,
        inputs: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>, OnnxError> {
        let mut operands = inputs.to_vec();
        if self.dequantized.is_empty() || takes_weights(op) {
            return Ok(operands);
        }
        for operand in operands.iter_mut().flatten() {
            if let Some(constant) = self.widened(at, *operand)? {
                *operand = constant;
            }
        }
        Ok(operands)
    }

    /// What a node that dequantises constants gives, where that is small enough to be kept.
    pub(super) fn widened(&mut self, at: At, value: ValueId) -> Result<Option<ValueId>, OnnxError> {
        let Some(entry) = self.dequantized.get(&value) else {
            return Ok(None);
        };
        if entry.result.is_some() {
            return Ok(entry.result);
        }
        let node = &self.graph.nodes[entry.node];
        let (op, inputs) = (node.op.clone(), node.inputs.clone());
        let types: Vec<_> = (inputs.iter())
            .map(|input| input.map(|v| self.ty(v).clone()))
            .collect();
        let results = [self.ty(value).clone()];
        let values = self.fold(at, &op, &inputs, &types, &results, &[true])?;
        let result = values.and_then(|values| values.into_iter().flatten().next());
        if let Some(entry) = self.dequantized.get_mut(&value) {
            entry.result = result;
        }
        Ok(result)
    }
}
