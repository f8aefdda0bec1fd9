//! That the workload names every step that uses a buffer which leaves memory: the proof of a plan rests on it.

use crate::RuntimeError;
use neap_ir::program::Storage;
use neap_ir::{Program, ValueId};
use neap_plan::{BufferId, ExecutionPlan, Workload};

/// Checks steps' operands against `reads` and `writes` of the workload, for buffers that the plan stores or loads.
/// A buffer that no step lists is taken to be in use always, so nothing can be missing there.
pub(crate) fn check_uses(
    program: &Program,
    workload: &Workload,
    plan: &ExecutionPlan,
) -> Result<(), RuntimeError> {
    let mut moves = vec![false; workload.buffers.len()];
    for store in &plan.stores {
        moves[store.buffer.index()] = true;
    }
    for back in &plan.returns {
        moves[back.buffer.index()] = true;
    }
    let mut is_listed = vec![false; workload.buffers.len()];
    for buffer in workload
        .steps
        .iter()
        .flat_map(|s| s.reads.iter().chain(&s.writes))
    {
        is_listed[buffer.index()] = true;
    }
    for (step, spec) in program.steps.iter().zip(&workload.steps) {
        let node = &program.graph.nodes[step.index()];
        let check = |value: &Option<ValueId>, lists: [&[BufferId]; 2]| {
            let storage = value.map(|v| program.storage[v.index()]);
            let Some(Storage::Buffer { buffer, .. }) = storage else {
                return Ok(());
            };
            let id = BufferId(buffer);
            if !moves[id.index()]
                || !is_listed[id.index()]
                || lists.iter().any(|list| list.contains(&id))
            {
                return Ok(());
            }
            Err(RuntimeError::Mismatch {
                what: "workload",
                reason: format!(
                    "step '{}' uses buffer {buffer}, which it does not list",
                    node.name
                ),
            })
        };
        for input in &node.inputs {
            check(input, [&spec.reads, &spec.writes])?;
        }
        for output in &node.outputs {
            check(output, [&spec.writes, &[]])?;
        }
    }
    Ok(())
}
