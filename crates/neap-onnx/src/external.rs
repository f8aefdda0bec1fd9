//! Which parts of the files beside it a model uses, whatever it is bound to: of large files that is little at times.

use crate::extract::merged_over;
use crate::files::Files;
use crate::proto::{AttributeValue, GraphProto, ModelProto, NodeProto, TensorProto};
use neap_ir::FileRange;

/// Of the files that were opened, in order; parts near each other are one.
pub(crate) fn used(model: &ModelProto, files: &Files) -> Vec<FileRange> {
    /// What lies between two tensors is read with them.
    const GAP_BYTES: u64 = 64 << 10;
    let mut used = Vec::new();
    let mut add = |tensor: &TensorProto| {
        if tensor.is_external {
            used.extend(files.named(tensor).filter(|range| range.bytes > 0));
        }
    };
    let mut graphs: Vec<&GraphProto> = model.graph.iter().collect();
    let mut lists: Vec<&[NodeProto]> = model.functions.iter().map(|f| &f.nodes[..]).collect();
    loop {
        if let Some(graph) = graphs.pop() {
            graph.initializers.iter().for_each(&mut add);
            for sparse in &graph.sparse_initializers {
                add(&sparse.values);
                add(&sparse.indices);
            }
            lists.push(&graph.nodes);
        }
        let Some(nodes) = lists.pop() else { break };
        for attribute in nodes.iter().flat_map(|node| &node.attributes) {
            match &attribute.value {
                AttributeValue::Tensor(tensor) => add(tensor),
                AttributeValue::SparseTensor(sparse) => {
                    add(&sparse.values);
                    add(&sparse.indices);
                }
                AttributeValue::Graph(graph) => graphs.push(graph),
                _ => {}
            }
        }
    }
    merged_over(used, GAP_BYTES)
}
