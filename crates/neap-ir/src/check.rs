//! Checks of whole graphs. A graph that was read from disk passes here before anything else looks at it.

use crate::graph::{Const, Graph, GraphError};
use crate::infer::output_types;
use crate::{DType, Layout, Op};

impl Graph {
    /// Checks ids, single producers and schedule order.
    ///
    /// # Errors
    /// [`GraphError::Malformed`] says what is wrong.
    pub fn check(&self) -> Result<(), GraphError> {
        let malformed = |what: String| Err(GraphError::Malformed(what));
        let count = self.values.len();
        let mut ready = vec![false; count];
        for (i, value) in self.values.iter().enumerate() {
            if let Some(c) = value.constant {
                if c.index() >= self.consts.len() {
                    return malformed(format!("value '{}' has no constant {}", value.name, c.0));
                }
                ready[i] = true;
            }
            let elements = value
                .ty
                .shape
                .iter()
                .try_fold(1usize, |n, &d| n.checked_mul(d));
            if elements
                .and_then(|n| n.checked_mul(16))
                .is_none_or(|n| n > isize::MAX as usize / 16)
            {
                return malformed(format!("value '{}' is impossibly large", value.name));
            }
            if value.layout == Layout::Blocked
                && (!(3..=4).contains(&value.ty.shape.len())
                    || !matches!(value.ty.dtype, DType::F32 | DType::U8))
            {
                return malformed(format!("value '{}' cannot be channel-blocked", value.name));
            }
        }
        for data in &self.consts {
            if let Const::Inline(literal) = data
                && !literal.is_whole()
            {
                return malformed("a constant has not as much data as its shape says".into());
            }
        }
        for &input in &self.inputs {
            if input.index() >= count {
                return malformed(format!("input {} does not exist", input.0));
            }
            ready[input.index()] = true;
        }
        for state in &self.states {
            match ready.get_mut(state.value.index()) {
                Some(ready) if !*ready => *ready = true,
                _ => return malformed(format!("state {} is something else too", state.value.0)),
            }
        }
        for node in &self.nodes {
            for input in node.present_inputs() {
                if !ready.get(input.index()).copied().unwrap_or(false) {
                    return malformed(format!(
                        "node '{}' reads value {} too early",
                        node.name, input.0
                    ));
                }
            }
            for output in node.present_outputs() {
                match ready.get_mut(output.index()) {
                    Some(r) if !*r => *r = true,
                    _ => {
                        return malformed(format!(
                            "node '{}' redefines value {}",
                            node.name, output.0
                        ));
                    }
                }
            }
        }
        for &output in &self.outputs {
            if !ready.get(output.index()).copied().unwrap_or(false) {
                return malformed(format!("output {} is never computed", output.0));
            }
        }
        self.check_states()
    }

    /// What replaces a state is the result of a node, and of no other state, and has its type.
    fn check_states(&self) -> Result<(), GraphError> {
        let mut computed = vec![false; self.values.len()];
        for node in &self.nodes {
            let results = node.present_outputs();
            results.for_each(|v| computed[v.index()] = true);
        }
        for state in &self.states {
            let Some(next) = state.next else { continue };
            let is_computed = computed.get_mut(next.index()).map(std::mem::take);
            if is_computed != Some(true) || self.value(next).ty != self.value(state.value).ty {
                let name = &self.value(state.value).name;
                return Err(GraphError::Malformed(format!(
                    "state '{name}' is replaced by what cannot replace it"
                )));
            }
        }
        Ok(())
    }

    /// Checks that every value has the type that its operator gives it.
    ///
    /// # Errors
    /// [`GraphError::BadNode`] names the first node that does not.
    pub fn check_types(&self) -> Result<(), GraphError> {
        let late = self.late_values();
        for node in &self.nodes {
            let bad = |reason: String| GraphError::BadNode {
                node: node.name.clone(),
                op: node.op.name(),
                reason,
            };
            let mut inputs = node.present_inputs();
            if !matches!(node.op, Op::Late(_)) && inputs.any(|v| late.contains_key(&v)) {
                return Err(bad("it reads a value whose size is known late".into()));
            }
            let count = node.outputs.len();
            let inferred = output_types(&node.op, &self.input_types(node), count)
                .map_err(|e| bad(e.reason))?;
            for (output, ty) in node.outputs.iter().zip(&inferred) {
                if let Some(output) = *output
                    && self.ty(output) != ty
                {
                    let value = self.value(output);
                    return Err(bad(format!(
                        "'{}' is {}{:?}, its operator gives {}{:?}",
                        value.name, value.ty.dtype, value.ty.shape, ty.dtype, ty.shape
                    )));
                }
            }
        }
        Ok(())
    }
}
