//! Drops what the outputs do not need: nodes, optional results, values and constants.

use neap_ir::late::LateOp;
use neap_ir::{ConstId, Graph, Op, ValueId};

pub(crate) fn run(mut graph: Graph) -> Graph {
    let mut used = vec![false; graph.values.len()];
    for &id in &graph.outputs {
        used[id.index()] = true;
    }
    let mut keeps = vec![false; graph.nodes.len()];
    for (node, keep) in graph.nodes.iter_mut().zip(&mut keeps).rev() {
        if !node.present_outputs().any(|o| used[o.index()]) {
            continue;
        }
        *keep = true;
        for input in node.present_inputs() {
            used[input.index()] = true;
        }
        // The first result is what an operator is run for; others are optional.
        for output in node.outputs.iter_mut().skip(1) {
            *output = output.filter(|o| used[o.index()]);
        }
        if !has_all_outputs(&node.op) {
            while node.outputs.last() == Some(&None) {
                node.outputs.pop();
            }
        }
        for output in node.present_outputs() {
            used[output.index()] = true;
        }
    }
    let mut keeps = keeps.into_iter();
    graph.nodes.retain(|_| keeps.next() == Some(true));
    graph.nodes.shrink_to_fit();
    for &id in &graph.inputs {
        used[id.index()] = true;
    }
    renumber(&mut graph, &used);
    graph
}

/// Whether inference wants to hear of all outputs.
fn has_all_outputs(op: &Op) -> bool {
    match op {
        Op::Split { .. } | Op::TopK { .. } => true,
        Op::Late(late) => match &late.op {
            LateOp::Over(op) => has_all_outputs(op),
            LateOp::TopK { .. } => true,
            _ => false,
        },
        _ => false,
    }
}

fn renumber(graph: &mut Graph, used: &[bool]) {
    let mut new_ids = vec![ValueId(0); used.len()];
    let mut values = Vec::new();
    let mut consts = Vec::new();
    let old_consts = std::mem::take(&mut graph.consts);
    let mut old_consts: Vec<_> = old_consts.into_iter().map(Some).collect();
    let mut new_consts: Vec<Option<ConstId>> = vec![None; old_consts.len()];
    for (i, mut value) in std::mem::take(&mut graph.values).into_iter().enumerate() {
        if !used[i] {
            continue;
        }
        if let Some(old) = value.constant {
            if new_consts[old.index()].is_none() {
                new_consts[old.index()] = Some(ConstId(consts.len() as u32));
                consts.extend(old_consts[old.index()].take());
            }
            value.constant = new_consts[old.index()];
        }
        new_ids[i] = ValueId(values.len() as u32);
        values.push(value);
    }
    graph.values = values;
    graph.consts = consts;
    for node in &mut graph.nodes {
        for id in node.inputs.iter_mut().chain(&mut node.outputs).flatten() {
            *id = new_ids[id.index()];
        }
    }
    for id in graph.inputs.iter_mut().chain(&mut graph.outputs) {
        *id = new_ids[id.index()];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_ir::op::Unary;
    use neap_ir::{DType, Literal, Node, TensorType};

    #[test]
    fn dead_nodes_values_and_constants_go() {
        let mut graph = Graph::default();
        let ty = TensorType::new(DType::F32, &[2]);
        let x = graph.add_value("x", ty.clone());
        let dead_const = graph.add_literal("dead", Literal::from_f32(&[2], &[1.0, 2.0]));
        let dead = graph.add_value("d", ty.clone());
        let y = graph.add_value("y", ty);
        let node = |from, to| Node {
            name: "n".into(),
            op: Op::Unary(Unary::Abs),
            inputs: vec![Some(from)],
            outputs: vec![Some(to)],
            panels: None,
        };
        graph.nodes = vec![node(dead_const, dead), node(x, y)];
        graph.inputs = vec![x];
        graph.outputs = vec![y];
        let graph = run(graph);
        graph.check().expect("well formed");
        assert_eq!(graph.nodes.len(), 1);
        assert_eq!(graph.values.len(), 2);
        assert!(graph.consts.is_empty());
        assert_eq!(graph.value(graph.outputs[0]).name, "y");
    }
}
