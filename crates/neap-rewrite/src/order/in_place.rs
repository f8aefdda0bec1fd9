//! Another order of steps that leaves every value where it is, for orders that were chosen with buffers as they are.

use neap_ir::program::Storage;
use neap_ir::{GraphError, Node, NodeId, Program, ValueId};

/// The program with its steps in another order: `order[i]` is the step of `program` that becomes the `i`-th. Two steps of which
/// one writes a buffer that the other uses must stay in their order; then no result changes.
///
/// # Errors
/// [`GraphError`] where a step comes before one that makes what it reads, or is missing.
pub fn with_steps_in_order(program: &Program, order: &[u32]) -> Result<Program, GraphError> {
    let malformed = |what: &str| Err(GraphError::Malformed(what.into()));
    if order.len() != program.steps.len() {
        return malformed("the order does not name each step once");
    }
    let mut sequence = Sequence::of(program);
    let mut made = program.clone();
    made.steps.clear();
    for &step in order {
        let Some(&node) = program.steps.get(step as usize) else {
            return malformed("the order names a step that there is not");
        };
        if sequence.is_taken[node.index()] {
            return malformed("the order names a step twice");
        }
        sequence.views_for(node.index());
        made.steps.push(NodeId(sequence.nodes.len() as u32));
        sequence.take(node.index());
    }
    let rest = 0..program.graph.nodes.len();
    rest.for_each(|node| sequence.take(node));
    let nodes = sequence.nodes.into_iter();
    made.graph.nodes = nodes
        .map(|node| program.graph.nodes[node].clone())
        .collect();
    made.digest.push_str("-in-order");
    find_lives(&mut made);
    made.check()?;
    Ok(made)
}

/// Nodes one after the other, each step with those before it that only name what it reads.
struct Sequence<'a> {
    graph_nodes: &'a [Node],
    is_step: Vec<bool>,
    /// By value: the node that gives it.
    made_by: Vec<Option<usize>>,
    is_taken: Vec<bool>,
    nodes: Vec<usize>,
}

impl Sequence<'_> {
    fn of(program: &Program) -> Sequence<'_> {
        let graph = &program.graph;
        let mut is_step = vec![false; graph.nodes.len()];
        program
            .steps
            .iter()
            .for_each(|step| is_step[step.index()] = true);
        let mut made_by = vec![None; graph.values.len()];
        for (at, node) in graph.nodes.iter().enumerate() {
            node.present_outputs()
                .for_each(|v| made_by[v.index()] = Some(at));
        }
        Sequence {
            graph_nodes: &graph.nodes,
            is_step,
            made_by,
            is_taken: vec![false; graph.nodes.len()],
            nodes: Vec::with_capacity(graph.nodes.len()),
        }
    }

    fn take(&mut self, node: usize) {
        if !std::mem::replace(&mut self.is_taken[node], true) {
            self.nodes.push(node);
        }
    }

    /// Takes the views that a node reads, each behind those that it is a view of.
    fn views_for(&mut self, node: usize) {
        let mut open = vec![node];
        while let Some(&top) = open.last() {
            let is_wanted = |&maker: &usize| !self.is_step[maker] && !self.is_taken[maker];
            let view = self.graph_nodes[top]
                .present_inputs()
                .filter_map(|v| self.made_by[v.index()])
                .find(is_wanted);
            match view {
                Some(view) => open.push(view),
                None => {
                    open.pop();
                    if top != node {
                        self.take(top);
                    }
                }
            }
        }
    }
}

/// Lives of buffers, by the steps that use them.
fn find_lives(program: &mut Program) {
    let Program {
        graph,
        steps,
        storage,
        buffers,
        ..
    } = program;
    let end = steps.len() as u32;
    let buffer_of = |v: ValueId| match storage[v.index()] {
        Storage::Buffer { buffer, .. } => Some(buffer as usize),
        _ => None,
    };
    let mut lives = vec![None; buffers.len()];
    for (at, step) in (0..).zip(steps.iter()) {
        let node = &graph.nodes[step.index()];
        let values = node.present_inputs().chain(node.present_outputs());
        for buffer in values.filter_map(buffer_of) {
            let live = lives[buffer].get_or_insert(at..at + 1);
            live.end = at + 1;
        }
    }
    for output in graph.outputs.iter().copied().filter_map(buffer_of) {
        let live = lives[output].get_or_insert(0..end);
        live.end = end;
    }
    for state in graph.states.iter().filter_map(|s| buffer_of(s.value)) {
        lives[state] = Some(0..end);
    }
    for (buffer, live) in buffers.iter_mut().zip(lives) {
        // What no step uses lives at the beginning.
        buffer.live = live.unwrap_or(0..1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower_plainly;
    use neap_ir::op::{Binary, Unary};
    use neap_ir::{DType, Graph, Op, State, TensorType};

    fn push(graph: &mut Graph, op: Op, inputs: &[ValueId], shape: &[usize]) -> ValueId {
        let name = format!("n{}", graph.nodes.len());
        let y = graph.add_value(name.clone(), TensorType::new(DType::F32, shape));
        graph.nodes.push(Node {
            name,
            op,
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![Some(y)],
            panels: None,
        });
        y
    }

    /// Two branches of a state and an input, one of them through a view, and the state's successor.
    fn program() -> Program {
        let mut graph = Graph::default();
        let x = graph.add_value("x", TensorType::new(DType::F32, &[2, 2]));
        let state = graph.add_value("state", TensorType::new(DType::F32, &[4]));
        graph.inputs = vec![x];
        let left = push(&mut graph, Op::Unary(Unary::Exp), &[x], &[2, 2]);
        let flat = push(&mut graph, Op::Reshape { shape: vec![4] }, &[left], &[4]);
        let right = push(&mut graph, Op::Unary(Unary::Exp), &[state], &[4]);
        let sum = push(&mut graph, Op::Binary(Binary::Add), &[flat, right], &[4]);
        let next = push(&mut graph, Op::Binary(Binary::Add), &[state, sum], &[4]);
        graph.outputs = vec![sum];
        graph.states = vec![State {
            value: state,
            next: Some(next),
        }];
        lower_plainly(graph, "d".into()).unwrap()
    }

    fn names(program: &Program) -> Vec<&str> {
        let nodes = program.graph.nodes.iter();
        nodes.map(|n| n.name.as_str()).collect()
    }

    #[test]
    fn steps_take_their_views_along_and_values_stay() {
        let program = program();
        // Exp of the input, exp of the state, their sum, the successor; the reshape is a view.
        assert_eq!(program.steps.len(), 4);
        let made = with_steps_in_order(&program, &[1, 0, 2, 3]).unwrap();
        assert_eq!(names(&made), ["n2", "n0", "n1", "n3", "n4"]);
        assert_eq!(made.steps, [0, 1, 3, 4].map(NodeId));
        assert_eq!(made.storage, program.storage);
        let live = |name: &str| {
            let value = made.graph.values.iter().position(|v| v.name == name);
            match made.storage[value.unwrap()] {
                Storage::Buffer { buffer, .. } => made.buffers[buffer as usize].live.clone(),
                other => panic!("{other:?}"),
            }
        };
        // The sum is an output.
        assert_eq!(live("n3").end, 4);
        assert_eq!(live("state"), 0..4);
        // A view comes before the step that reads it first.
        let again = with_steps_in_order(&program, &[0, 1, 2, 3]).unwrap();
        assert_eq!(names(&again), ["n0", "n2", "n1", "n3", "n4"]);
        assert_eq!(again.storage, program.storage);
        for (a, b) in again.buffers.iter().zip(&program.buffers) {
            assert_eq!((&a.live, a.bytes), (&b.live, b.bytes));
        }
    }

    #[test]
    fn what_is_no_order_is_refused() {
        let program = program();
        for order in [&[0, 1, 2][..], &[0, 0, 2, 3], &[0, 1, 2, 4], &[2, 0, 1, 3]] {
            assert!(with_steps_in_order(&program, order).is_err(), "{order:?}");
        }
    }
}
