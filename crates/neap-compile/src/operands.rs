//! Nodes of a program as the queries of operators take them.

use crate::target::Target;
use neap_ir::{Program, ValueId};
use neap_ops::{KernelFacts, OperandForm};

/// Operands of a node as the operator queries want them.
pub fn operands<'a>(program: &'a Program, ids: &[Option<ValueId>]) -> Vec<OperandForm<'a>> {
    ids.iter()
        .map(|id| {
            id.map(|id| {
                let value = program.graph.value(id);
                (&value.ty, value.layout)
            })
        })
        .collect()
}

/// The kernels that can compute a step, with what they need.
pub(crate) fn step_facts(program: &Program, step: usize, target: Target) -> Vec<KernelFacts> {
    let node = &program.graph.nodes[program.steps[step].index()];
    let (inputs, outputs) = (
        operands(program, &node.inputs),
        operands(program, &node.outputs),
    );
    neap_ops::kernels(&node.op, &inputs, &outputs, target.threads, target.isa)
}
