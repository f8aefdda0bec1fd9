//! One node of the forward pass while its backward nodes are made.

use crate::emit::Emit;
use crate::error::AutodiffError;
use neap_ir::{Node, ValueId};

/// For each input of a node its derivative, where it has one.
pub(crate) type Derivatives = Result<Vec<Option<ValueId>>, AutodiffError>;

pub(crate) struct Step<'a> {
    pub emit: &'a mut Emit,
    pub node: &'a Node,
    /// Derivatives of the loss by the node's results; `None` where the loss does not depend on one.
    pub results: Vec<Option<ValueId>>,
    /// Which inputs' derivatives are asked for.
    pub wanted: Vec<bool>,
}

impl Step<'_> {
    pub fn wants(&self, index: usize) -> bool {
        self.wanted.get(index).copied().unwrap_or(false)
    }

    pub fn input(&self, index: usize) -> Result<ValueId, AutodiffError> {
        let input = self.node.input(index);
        input.ok_or_else(|| self.fail(format!("input {index} is missing")))
    }

    pub fn output(&self, index: usize) -> Result<ValueId, AutodiffError> {
        let output = self.node.outputs.get(index).copied().flatten();
        output.ok_or_else(|| self.fail(format!("output {index} is missing")))
    }

    /// The derivative by result 0.
    pub fn dy(&self) -> Result<ValueId, AutodiffError> {
        let dy = self.results.first().copied().flatten();
        dy.ok_or_else(|| self.fail("the loss depends on a result that is not its first".into()))
    }

    pub fn fail(&self, reason: String) -> AutodiffError {
        AutodiffError::NoDerivative {
            node: self.node.name.clone(),
            op: self.node.op.name(),
            reason,
        }
    }

    /// The only differentiable input's derivative.
    pub fn one(&self, derivative: ValueId) -> Derivatives {
        Ok(vec![Some(derivative)])
    }
}
