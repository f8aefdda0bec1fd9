//! What determines a step's time on one machine, as a number: equal layers of different models have
//! equal keys, so that one model's measurements serve another.

use crate::operands::operands;
use neap_ir::{Node, Op, Program};
use neap_ops::Choice;
use neap_plan::{KernelId, Workload};
use neap_sim::CostProfile;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;

/// Measured times of whole steps, without the fixed cost of a compute, by [`step_key`].
#[derive(Debug, Clone, Default)]
pub struct StepTimes(pub Arc<BTreeMap<u64, u64>>);

impl StepTimes {
    /// What a step of a program took with that kernel, if it was measured.
    pub fn of(&self, program: &Program, step: usize, kernel: KernelId) -> Option<u64> {
        let node = &program.graph.nodes[program.steps[step].index()];
        self.0.get(&step_key(program, node, kernel)).copied()
    }

    /// Puts the measured times of a program's steps into `costs`; others stay as they are there.
    pub fn apply(&self, program: &Program, workload: &Workload, costs: &mut CostProfile) {
        if self.0.is_empty() {
            return;
        }
        costs.step_ns.resize(program.steps.len(), 0);
        let steps = program.steps.iter().zip(&workload.steps);
        for (ns, (&node, spec)) in costs.step_ns.iter_mut().zip(steps) {
            let key = step_key(program, &program.graph.nodes[node.index()], spec.kernel);
            if let Some(&measured) = self.0.get(&key) {
                *ns = measured;
            }
        }
    }
}

/// Covers operator, attributes, types, layouts, weights and kernel of a step. Threads and instruction set are
/// the machine's.
pub fn step_key(program: &Program, node: &Node, kernel: KernelId) -> u64 {
    let mut hash = Hash(blake3::Hasher::new());
    // Writing to a hash cannot fail.
    let _ = match &node.op {
        // Which table it is does not matter.
        Op::GatherRows {
            rows,
            row_elements,
            stored,
            ..
        } => write!(hash, "rows {rows} {row_elements} {stored}"),
        op => write!(hash, "{op:?}"),
    };
    for ids in [&node.inputs, &node.outputs] {
        for operand in operands(program, ids) {
            let _ = match operand {
                None => write!(hash, ";-"),
                Some((ty, layout)) => write!(hash, ";{} {:?} {layout:?}", ty.dtype, ty.shape),
            };
        }
        let _ = write!(hash, "|");
    }
    let panels = node.panels.map(|id| &program.packed[id.index()].form);
    let _ = match Choice::try_from(kernel) {
        Ok(choice) => write!(hash, "{panels:?}{choice}"),
        Err(unknown) => write!(hash, "{panels:?}{unknown}"),
    };
    let bytes = hash.0.finalize();
    u64::from_le_bytes(std::array::from_fn(|i| bytes.as_bytes()[i]))
}

/// Hashes text as it is written.
struct Hash(blake3::Hasher);

impl Write for Hash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}
