//! Actual types of late values: each late step writes those of its results, and steps after it read them.
//!
//! Tables are made when a session opens. A run only changes the numbers in them; a program without late values has none.

use neap_ir::{Op, Program, TensorType, ValueId};
use std::collections::HashMap;

#[derive(Default)]
pub(crate) struct LateTypes {
    /// Of each late step, the types of its results.
    results: Vec<Vec<TensorType>>,
    /// Step to its place in `results`.
    steps: HashMap<u32, u32>,
    /// Late value to the late step that makes it, and which result it is.
    values: HashMap<ValueId, (u32, u32)>,
}

impl LateTypes {
    pub(crate) fn of(program: &Program) -> LateTypes {
        let mut types = LateTypes::default();
        for (step, &node) in program.steps.iter().enumerate() {
            let node = &program.graph.nodes[node.index()];
            let Op::Late(late) = &node.op else { continue };
            let at = types.results.len() as u32;
            let results = late.bounds.iter().take(node.outputs.len());
            types
                .results
                .push(results.clone().map(|b| b.ty.clone()).collect());
            types.steps.insert(step as u32, at);
            for (index, (output, bound)) in node.outputs.iter().zip(results).enumerate() {
                if let Some(output) = *output
                    && bound.is_late()
                {
                    types.values.insert(output, (at, index as u32));
                }
            }
        }
        types
    }

    /// Whether a step is late: it reads or makes actual types.
    pub(crate) fn has_step(&self, step: usize) -> bool {
        !self.steps.is_empty() && self.steps.contains_key(&(step as u32))
    }

    /// The actual type of a late value, since the step that makes it last ran.
    pub(crate) fn actual(&self, value: ValueId) -> Option<&TensorType> {
        if self.values.is_empty() {
            return None;
        }
        let &(at, index) = self.values.get(&value)?;
        self.results.get(at as usize)?.get(index as usize)
    }

    /// Lends a late step the types of its results, while the others are read.
    pub(crate) fn lend(&mut self, step: usize) -> Vec<TensorType> {
        match self.steps.get(&(step as u32)) {
            Some(&at) => std::mem::take(&mut self.results[at as usize]),
            None => Vec::new(),
        }
    }

    pub(crate) fn give_back(&mut self, step: usize, types: Vec<TensorType>) {
        if let Some(&at) = self.steps.get(&(step as u32)) {
            self.results[at as usize] = types;
        }
    }
}
