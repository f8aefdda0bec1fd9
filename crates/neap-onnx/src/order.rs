//! Which nodes of a graph are needed, and in what order they can run.

use crate::proto::{AttributeValue, NodeProto};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

/// Indices of the nodes that `outputs` need, in the file's order when that is valid and sorted
/// otherwise. The error is a reason.
pub(crate) fn live_nodes<'a>(
    nodes: &'a [NodeProto],
    outputs: impl Iterator<Item = &'a str>,
) -> Result<Vec<usize>, String> {
    let mut makers: HashMap<&str, usize> = HashMap::new();
    for (i, node) in nodes.iter().enumerate() {
        for output in node.outputs.iter().filter(|n| !n.is_empty()) {
            if makers.insert(output, i).is_some() {
                let name = crate::error::shown(output);
                return Err(format!("value '{name}' is computed twice"));
            }
        }
    }

    let mut live = vec![false; nodes.len()];
    let mut stack: Vec<usize> = outputs.filter_map(|n| makers.get(n).copied()).collect();
    let mut sources: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    while let Some(i) = stack.pop() {
        if std::mem::replace(&mut live[i], true) {
            continue;
        }
        let mut names = HashSet::new();
        used_names(&nodes[i], &mut names);
        sources[i] = names
            .iter()
            .filter_map(|n| makers.get(n).copied())
            .collect();
        stack.extend(&sources[i]);
    }

    let order: Vec<usize> = (0..nodes.len()).filter(|&i| live[i]).collect();
    if order.iter().all(|&i| sources[i].iter().all(|&s| s < i)) {
        return Ok(order);
    }
    sorted(&order, &sources).ok_or_else(|| "its nodes depend on each other in a circle".into())
}

/// Kahn's algorithm; of the nodes that are ready the first in the file runs first.
fn sorted(live: &[usize], sources: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut readers: HashMap<usize, Vec<usize>> = HashMap::new();
    let mut waiting: HashMap<usize, usize> = HashMap::new();
    let mut ready = BinaryHeap::new();
    for &i in live {
        for &source in &sources[i] {
            readers.entry(source).or_default().push(i);
        }
        if sources[i].is_empty() {
            ready.push(Reverse(i));
        }
        waiting.insert(i, sources[i].len());
    }
    let mut order = Vec::new();
    while let Some(Reverse(i)) = ready.pop() {
        order.push(i);
        for reader in readers.get(&i).into_iter().flatten() {
            if let Some(count) = waiting.get_mut(reader) {
                *count -= 1;
                if *count == 0 {
                    ready.push(Reverse(*reader));
                }
            }
        }
    }
    (order.len() == live.len()).then_some(order)
}

/// Whether the node is the standard's `Gradient`.
pub(crate) fn is_gradient(node: &NodeProto) -> bool {
    node.op_type == "Gradient" && node.domain == crate::ops::TRAINING_DOMAIN
}

/// What a `Gradient` differentiates: it needs the nodes that compute this.
fn differentiated(node: &NodeProto) -> Option<&str> {
    let attributes = node.attributes.iter();
    let mut y = attributes.filter(|a| is_gradient(node) && a.name == "y");
    match y.next().map(|a| &a.value) {
        Some(AttributeValue::String(name)) => std::str::from_utf8(name).ok(),
        _ => None,
    }
}

/// Names that a node reads, those that its sub-graphs capture included.
pub(crate) fn used_names<'a>(node: &'a NodeProto, names: &mut HashSet<&'a str>) {
    names.extend(
        node.inputs
            .iter()
            .map(String::as_str)
            .filter(|n| !n.is_empty()),
    );
    names.extend(differentiated(node));
    for attribute in &node.attributes {
        if let AttributeValue::Graph(graph) = &attribute.value {
            let mut inside = HashSet::new();
            for inner in &graph.nodes {
                used_names(inner, &mut inside);
            }
            inside.extend(graph.outputs.iter().map(|o| o.name.as_str()));
            // Names of its own are not those around it.
            let inputs = graph.inputs.iter().map(|i| i.name.as_str());
            let initializers = graph.initializers.iter().map(|t| t.name.as_str());
            let computed = graph.nodes.iter().flat_map(|n| &n.outputs);
            let own = inputs
                .chain(initializers)
                .chain(computed.map(String::as_str));
            for name in own {
                inside.remove(name);
            }
            names.extend(inside);
        }
    }
}

/// Names that nodes read as weights of a layer and as nothing else: second operands of convolutions and products.
pub(crate) fn weight_names<'a>(
    nodes: impl Iterator<Item = &'a NodeProto>,
    outputs: impl Iterator<Item = &'a str>,
) -> HashSet<&'a str> {
    let mut weights = HashSet::new();
    let mut others: HashSet<&str> = outputs.collect();
    for node in nodes {
        let is_layer = matches!(node.domain.as_str(), "" | "ai.onnx")
            && matches!(node.op_type.as_str(), "Conv" | "MatMul" | "Gemm");
        match &node.inputs[..] {
            [first, second, rest @ ..] if is_layer => {
                weights.insert(second.as_str());
                others.insert(first);
                others.extend(rest.iter().map(String::as_str));
            }
            _ => used_names(node, &mut others),
        }
    }
    weights.retain(|name| !others.contains(name));
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(inputs: &[&str], outputs: &[&str]) -> NodeProto {
        let own = |names: &[&str]| names.iter().map(|n| n.to_string()).collect();
        NodeProto {
            inputs: own(inputs),
            outputs: own(outputs),
            ..NodeProto::default()
        }
    }

    #[test]
    fn file_order_is_kept_and_dead_nodes_are_left_out() {
        let nodes = [
            node(&["x"], &["a"]),
            node(&["x"], &["dead"]),
            node(&["a"], &["y"]),
        ];
        assert_eq!(live_nodes(&nodes, ["y"].into_iter()), Ok(vec![0, 2]));
    }

    #[test]
    fn a_wrong_order_is_sorted() {
        let nodes = [
            node(&["a", "b"], &["y"]),
            node(&["a"], &["b"]),
            node(&["x"], &["a"]),
        ];
        assert_eq!(live_nodes(&nodes, ["y"].into_iter()), Ok(vec![2, 1, 0]));
    }

    #[test]
    fn circles_and_double_definitions_are_errors() {
        let circle = [node(&["b"], &["a"]), node(&["a"], &["b"])];
        assert!(live_nodes(&circle, ["a"].into_iter()).is_err());
        let twice = [node(&["x"], &["a"]), node(&["x"], &["a"])];
        assert!(live_nodes(&twice, ["a"].into_iter()).is_err());
    }

    #[test]
    fn weights_are_what_only_layers_multiply_with() {
        let layer = |op: &str, inputs: &[&str]| NodeProto {
            op_type: op.into(),
            ..node(inputs, &["y"])
        };
        let nodes = [
            layer("Conv", &["x", "a", "b"]),
            layer("MatMul", &["c", "d"]),
            layer("Gemm", &["x", "d"]),
            layer("Gemm", &["x", "e"]),
            layer("Add", &["x", "e"]),
            layer("MatMul", &["x", "f"]),
            NodeProto {
                domain: "other".into(),
                ..layer("Conv", &["x", "g"])
            },
        ];
        let names = weight_names(nodes.iter(), ["f"].into_iter());
        assert_eq!(names, HashSet::from(["a", "d"]));
    }
}
