//! What orders take in memory: a model that can be followed node by node, many orders at a time.
//!
//! ```text
//!   tensor    values that share memory in every order: views and what they are views of, what is computed in
//!             place of a value that nobody else reads. Its bytes are taken from the first node that touches it
//!             to the last one.
//!   takes     a result in place of a value that others read too: only where this reader is the last
//! ```
//! Placing values decides what shares memory more carefully, and has the last word.

use crate::needs::needed_bytes;
use crate::place::{operands, views};
use neap_ir::{Graph, Program, ValueId};

pub(super) struct Memory {
    pub nodes: Vec<Node>,
    pub tensors: Vec<Tensor>,
}

#[derive(Default)]
pub(super) struct Node {
    /// Nodes that need a result of this one, each once.
    pub after: Vec<usize>,
    /// Nodes of which this one needs a result.
    pub waits: u16,
    /// Tensors that it reads or writes, each once.
    pub touches: Vec<usize>,
    /// A tensor that it reads, and one of the same size that it writes and may write there.
    pub takes: Vec<(usize, usize)>,
    /// Beside tensors.
    pub needed_bytes: u64,
    /// It computes something, and does not only name memory.
    pub is_step: bool,
}

#[derive(Default)]
pub(super) struct Tensor {
    pub bytes: u64,
    /// Nodes that touch it.
    pub touched: u16,
    pub is_output: bool,
}

impl Memory {
    pub fn of(program: &Program) -> Memory {
        let graph = &program.graph;
        let mut nodes: Vec<Node> = graph.nodes.iter().map(|_| Node::default()).collect();
        for step in &program.steps {
            let node = &mut nodes[step.index()];
            node.is_step = true;
            node.needed_bytes = needed_bytes(program, &graph.nodes[step.index()]);
        }
        let is_step: Vec<bool> = nodes.iter().map(|n| n.is_step).collect();
        let (number, taken) = shared(graph, &is_step);
        let mut tensors: Vec<Tensor> = Vec::new();
        for (value, &tensor) in number.iter().enumerate() {
            let Some(tensor) = tensor else { continue };
            tensors.resize_with(tensors.len().max(tensor + 1), Tensor::default);
            let tensor = &mut tensors[tensor];
            tensor.bytes = tensor.bytes.max(graph.values[value].len_bytes() as u64);
            tensor.is_output |= graph.outputs.contains(&ValueId(value as u32));
        }
        let producers = graph.producers();
        for (at, node) in graph.nodes.iter().enumerate() {
            let touched = node.present_inputs().chain(node.present_outputs());
            let touches = sorted(touched.filter_map(|v| number[v.index()]).collect());
            touches.iter().for_each(|&t| tensors[t].touched += 1);
            let made_by = |v: ValueId| producers[v.index()].map(|node| node.index());
            let before = sorted(node.present_inputs().filter_map(made_by).collect());
            before.iter().for_each(|&b| nodes[b].after.push(at));
            nodes[at].waits = before.len() as u16;
            nodes[at].touches = touches;
        }
        for (at, input, output) in taken {
            if let (Some(input), Some(output)) = (number[input.index()], number[output.index()])
                && input != output
                && tensors[input].bytes == tensors[output].bytes
            {
                nodes[at].takes.push((input, output));
            }
        }
        Memory { nodes, tensors }
    }

    /// What some step needs in any order.
    pub fn least_peak_bytes(&self) -> u64 {
        let bytes = |t: usize| self.tensors[t].bytes;
        let own = self.nodes.iter().map(|node| {
            let touched = node.touches.iter().map(|&t| bytes(t));
            let taken = node.takes.iter().map(|&(input, _)| bytes(input)).max();
            let touched_bytes = touched.fold(0, u64::saturating_add);
            (touched_bytes - taken.unwrap_or(0)).saturating_add(node.needed_bytes)
        });
        own.max().unwrap_or(0)
    }
}

/// The tensor of each value that a node makes, and by node the values of which it may take over the memory for
/// its result.
#[allow(clippy::type_complexity)]
fn shared(graph: &Graph, is_step: &[bool]) -> (Vec<Option<usize>>, Vec<(usize, ValueId, ValueId)>) {
    let (uses, producers) = (graph.use_counts(), graph.producers());
    let is_made = |v: ValueId| producers[v.index()].is_some();
    let mut sets = Sets::new(graph.values.len());
    for (node, _) in graph.nodes.iter().zip(is_step).filter(|(_, step)| !**step) {
        for view in views(graph, node).into_iter().flatten() {
            if is_made(view.inner) && is_made(view.outer) {
                sets.join(view.inner.index(), view.outer.index());
                let root = sets.root(view.outer.index());
                sets.is_chain[root] = false;
            }
        }
    }
    let mut taken = Vec::new();
    for (at, node) in graph
        .nodes
        .iter()
        .enumerate()
        .filter(|(at, _)| is_step[*at])
    {
        let Some(output) = node.outputs.first().copied().flatten() else {
            continue;
        };
        let (inputs, outputs) = (
            operands(graph, &node.inputs),
            operands(graph, &node.outputs),
        );
        let over: Vec<ValueId> = neap_ops::may_overwrite(&node.op, &inputs, &outputs)
            .into_iter()
            .filter_map(|input| node.input(input))
            .filter(|&v| is_made(v) && graph.ty(v).len_bytes() == graph.ty(output).len_bytes())
            .collect();
        let mut in_any_order = over.iter().filter(|v| {
            let root = sets.root(v.index());
            uses[v.index()] == 1 && sets.is_chain[root]
        });
        match in_any_order.next() {
            Some(input) => sets.join(input.index(), output.index()),
            None => taken.extend(over.into_iter().map(|input| (at, input, output))),
        }
    }
    let mut numbers = vec![None; graph.values.len()];
    let mut next = 0;
    let number = (0..graph.values.len())
        .map(|v| {
            producers[v]?;
            let root = sets.root(v);
            if numbers[root].is_none() {
                numbers[root] = Some(next);
                next += 1;
            }
            numbers[root]
        })
        .collect();
    (number, taken)
}

/// Sets of values that share memory.
struct Sets {
    parent: Vec<usize>,
    /// By root: each value of the set is computed in place of the one before, and nothing else reads it.
    is_chain: Vec<bool>,
}

impl Sets {
    fn new(count: usize) -> Sets {
        Sets {
            parent: (0..count).collect(),
            is_chain: vec![true; count],
        }
    }

    fn root(&mut self, mut at: usize) -> usize {
        while self.parent[at] != at {
            self.parent[at] = self.parent[self.parent[at]];
            at = self.parent[at];
        }
        at
    }

    /// The second set takes in the first.
    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.parent[a] = b;
    }
}

fn sorted(mut list: Vec<usize>) -> Vec<usize> {
    list.sort_unstable();
    list.dedup();
    list
}
