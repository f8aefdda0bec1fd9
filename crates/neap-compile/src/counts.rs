//! What computes a workload, in numbers for reports.

use crate::chains;
use neap_ir::{Node, Program};
use neap_ops::{Choice, Kernel};
use neap_plan::Workload;
use std::collections::BTreeMap;

/// How many layers with panel weights each kernel computes, by its name; each layer of a chain in row bands
/// counts.
pub fn kernel_counts(program: &Program, workload: &Workload) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    let mut count = |kernel: Kernel| *counts.entry(kernel.label()).or_insert(0) += 1;
    for (&node, step) in program.steps.iter().zip(&workload.steps) {
        let kernel = Choice::try_from(step.kernel).unwrap_or_default().kernel;
        let node = &program.graph.nodes[node.index()];
        if chains::of(&node.op).is_some() {
            layer_kernels(program, node, kernel).for_each(&mut count);
        } else if step.panels.is_some() {
            count(kernel);
        }
    }
    counts
}

/// The kernels of a chain's layers that have weights.
fn layer_kernels(program: &Program, node: &Node, kernel: Kernel) -> impl Iterator<Item = Kernel> {
    let x = (node.input(0)).map_or(&[][..], |x| &program.graph.ty(x).shape);
    let chain = chains::of(&node.op);
    let found = chain.and_then(|chain| {
        let (kernels, _) = neap_ops::layer_kernels(chain, x, kernel)?;
        Some(kernels.into_iter().zip(&chain.layers))
    });
    let layers = found.into_iter().flatten();
    layers.filter_map(|(kernel, layer)| layer.has_weights().then_some(kernel))
}
