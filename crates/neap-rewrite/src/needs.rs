//! What steps need in memory at the least.

use crate::place::operands;
use neap_ir::recipe::PackedForm;
use neap_ir::{Const, Node, PackedId, Program};
use neap_kernels::simd::Isa;

/// Threads for which workspaces are sized here.
const WORKERS: usize = 2;

/// What each step needs: activations that are live then, its workspace, and the fewest weights.
pub fn step_bytes(program: &Program) -> Vec<u64> {
    let mut bytes = live_bytes(program);
    for (step, bytes) in program.steps.iter().zip(&mut bytes) {
        let needed = needed_bytes(program, &program.graph.nodes[step.index()]);
        *bytes = bytes.saturating_add(needed);
    }
    bytes
}

/// Activations that live in each step: no plan can do with less.
pub fn live_bytes(program: &Program) -> Vec<u64> {
    // What begins and what ends with each step.
    let mut changes = vec![(0u128, 0u128); program.steps.len() + 1];
    for buffer in &program.buffers {
        let (begin, end) = (buffer.live.start as usize, buffer.live.end as usize);
        if begin < end && end < changes.len() {
            changes[begin].0 += u128::from(buffer.bytes);
            changes[end].1 += u128::from(buffer.bytes);
        }
    }
    changes.pop();
    let mut live = 0;
    let after = changes.into_iter().map(|(more, less)| {
        live = live + more - less;
        u64::try_from(live).unwrap_or(u64::MAX)
    });
    after.collect()
}

/// Workspace, and the fewest weights that a step can compute with.
pub(crate) fn needed_bytes(program: &Program, node: &Node) -> u64 {
    let graph = &program.graph;
    let (inputs, outputs) = (
        operands(graph, &node.inputs),
        operands(graph, &node.outputs),
    );
    let isa = Isa::by_name("portable").unwrap_or_else(Isa::detect);
    let workspace = neap_ops::workspace_bytes(&node.op, &inputs, &outputs, WORKERS, isa) as u64;
    let packed = |id: PackedId| program.packed.get(id.index());
    let panel = match node.panels.and_then(packed).map(|p| &p.form) {
        Some(PackedForm::Panels { panel_bytes, .. }) => *panel_bytes,
        _ => 0,
    };
    let extents = node
        .present_inputs()
        .filter_map(|v| match graph.constant(v) {
            Some(Const::Packed(id)) => packed(*id).map(|p| p.bytes),
            _ => None,
        });
    extents.fold(workspace.saturating_add(panel), u64::saturating_add)
}
