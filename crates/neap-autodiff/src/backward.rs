//! The reverse sweep: from a loss to its derivatives by other values.
//!
//! Only values on a way from what is asked for to the loss get a derivative, so a frozen weight costs nothing, and
//! the backward pass ends at the first layer that has a trainable one.

use crate::emit::Emit;
use crate::error::AutodiffError;
use crate::rules;
use crate::step::Step;
use neap_ir::{Graph, ValueId};

/// Appends the backward pass of `loss` to `graph`. Gives for each of `by` its derivative, `None` where the loss does not
/// depend on it.
///
/// `loss` has one element. Operators that are not differentiable somewhere have the derivative there that
/// `docs/training.md` states.
///
/// # Errors
/// [`AutodiffError::NoDerivative`] names the first node (from the loss) whose operator has no rule.
pub fn differentiate(
    graph: Graph,
    loss: ValueId,
    by: &[ValueId],
) -> Result<(Graph, Vec<Option<ValueId>>), AutodiffError> {
    let mut sweep = Sweep::new(graph, loss, by)?;
    while sweep.step()?.is_some() {}
    let found = by.iter().map(|v| sweep.derivatives[v.index()]).collect();
    Ok((sweep.emit.graph, found))
}

/// A backward pass under way, from the last node of the forward pass to the first.
pub(crate) struct Sweep {
    pub emit: Emit,
    /// By value: the sum of what its readers contributed so far.
    pub derivatives: Vec<Option<ValueId>>,
    /// By value of the forward pass: whether its derivative leads to something that was asked for.
    wanted: Vec<bool>,
    /// Nodes of the forward pass that are still to come.
    left: usize,
}

impl Sweep {
    pub fn new(graph: Graph, loss: ValueId, by: &[ValueId]) -> Result<Sweep, AutodiffError> {
        let count = graph.values.len();
        if by.iter().chain([&loss]).any(|v| v.index() >= count) {
            return Err(AutodiffError::Request("no such value".into()));
        }
        let ty = graph.ty(loss).clone();
        if ty.elements() != 1 || !ty.dtype.is_float() {
            return Err(AutodiffError::Request(format!(
                "the loss '{}' is {}{:?}: it must be one floating-point number",
                graph.value(loss).name,
                ty.dtype,
                ty.shape
            )));
        }
        let mut wanted = vec![false; count];
        for &value in by {
            if !graph.ty(value).dtype.is_float() {
                return Err(AutodiffError::Request(format!(
                    "'{}' holds no floating-point numbers",
                    graph.value(value).name
                )));
            }
            wanted[value.index()] = true;
        }
        for node in &graph.nodes {
            let mut inputs = rules::differentiable_inputs(&node.op, &node.inputs);
            if inputs.any(|input| wanted[input.index()]) {
                for output in node.present_outputs() {
                    wanted[output.index()] |= graph.ty(output).dtype.is_float();
                }
            }
        }
        let left = graph.nodes.len();
        let mut emit = Emit {
            graph,
            prefix: "backward".into(),
        };
        let mut derivatives = vec![None; count];
        if wanted[loss.index()] {
            let one = emit.scalar(ty.dtype, 1.0)?;
            derivatives[loss.index()] = Some(emit.reshape(one, &ty.shape)?);
        }
        Ok(Sweep {
            emit,
            derivatives,
            wanted,
            left,
        })
    }

    /// Goes back over one more node of the forward pass, and gives its place; `None` at the start of the graph.
    ///
    /// # Errors
    /// As [`differentiate`].
    pub fn step(&mut self) -> Result<Option<usize>, AutodiffError> {
        let Some(index) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = index;
        let node = self.emit.graph.nodes[index].clone();
        let of = |value: &Option<ValueId>| value.and_then(|v| self.derivatives[v.index()]);
        let results: Vec<Option<ValueId>> = node.outputs.iter().map(of).collect();
        let wanted: Vec<bool> = node
            .inputs
            .iter()
            .map(|i| i.is_some_and(|v| self.wanted[v.index()]))
            .collect();
        if results.iter().all(Option::is_none) || !wanted.contains(&true) {
            return Ok(Some(index));
        }
        self.emit.prefix = format!("backward/{}", node.name);
        let mut step = Step {
            emit: &mut self.emit,
            node: &node,
            results,
            wanted,
        };
        let parts = rules::backward(&mut step)?;
        for (input, part) in node.inputs.iter().zip(parts) {
            if let (&Some(input), Some(part)) = (input, part)
                && self.wanted[input.index()]
            {
                self.contribute(input, part)?;
            }
        }
        Ok(Some(index))
    }

    fn contribute(&mut self, value: ValueId, part: ValueId) -> Result<(), AutodiffError> {
        let (own, other) = (self.emit.ty(value), self.emit.ty(part));
        if own != other {
            return Err(AutodiffError::Request(format!(
                "the derivative by '{}' is {}{:?}, the value {}{:?}",
                self.emit.graph.value(value).name,
                other.dtype,
                other.shape,
                own.dtype,
                own.shape
            )));
        }
        let sum = match self.derivatives[value.index()] {
            Some(sum) => self.emit.add(sum, part)?,
            None => part,
        };
        self.derivatives[value.index()] = Some(sum);
        Ok(())
    }
}
