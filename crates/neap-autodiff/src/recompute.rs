//! Activations that are cheap to compute again need not be kept for the backward pass.
//!
//! ```text
//!   forward    x ──► batch norm ──► relu ──► y ──► convolution …
//!   backward   … dW of the convolution reads y │ backward of batch norm reads x
//!   here       … batch norm' ──► relu' ──► y' ──► dW │ backward of batch norm reads x
//! ```
//! The backward pass reads x anyway, so y need not live from the one pass to the other: about half of what a network with
//! normalised convolutions keeps, and a third of a transformer's. A value is computed again by the very operators that
//! computed it first, so results are the same bits. It is made once, just before the first backward node that reads it. Sums
//! of several activations are not made again: that would want as many others.
//! (Chen et al. 2016, *Training deep nets with sublinear memory cost*, drop cheap results in the same way, section 4.)

use neap_ir::{Graph, Node, Op, ValueId};

/// The same step with cheap activations made again. `loss` is the value that the backward pass begins from.
pub fn recompute_cheap(graph: &Graph, loss: ValueId) -> Graph {
    let makes_loss = |n: &Node| n.present_outputs().any(|v| v == loss);
    let Some(last_forward) = graph.nodes.iter().position(makes_loss) else {
        return graph.clone();
    };
    let uses = Uses::of(graph, last_forward);
    let mut out = Graph {
        nodes: Vec::with_capacity(graph.nodes.len()),
        ..graph.clone()
    };
    let mut again: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        let mut node = node.clone();
        if at > last_forward {
            for input in node.inputs.iter_mut().flatten() {
                if uses.is_made_again(graph, *input) {
                    *input = make_again(graph, &uses, &mut out, &mut again, *input);
                }
            }
        }
        out.nodes.push(node);
    }
    out
}

/// Who makes a value, and who reads it last.
struct Uses {
    /// By value: the forward node that makes it.
    maker: Vec<Option<usize>>,
    /// By value: the first backward node that reads it, and the last.
    backward: Vec<Option<(usize, usize)>>,
    is_output: Vec<bool>,
}

impl Uses {
    fn of(graph: &Graph, last_forward: usize) -> Uses {
        let mut uses = Uses {
            maker: vec![None; graph.values.len()],
            backward: vec![None; graph.values.len()],
            is_output: vec![false; graph.values.len()],
        };
        for (at, node) in graph.nodes.iter().enumerate() {
            if at <= last_forward {
                node.present_outputs()
                    .for_each(|v| uses.maker[v.index()] = Some(at));
                continue;
            }
            for input in node.present_inputs() {
                let (first, _) = uses.backward[input.index()].unwrap_or((at, at));
                uses.backward[input.index()] = Some((first, at));
            }
        }
        let states = graph.states.iter().filter_map(|s| s.next);
        for value in graph.outputs.iter().copied().chain(states) {
            uses.is_output[value.index()] = true;
        }
        uses
    }

    /// Whether the backward pass reads it, cheap operators make it, and what they make it of is read later still.
    fn is_made_again(&self, graph: &Graph, value: ValueId) -> bool {
        let Some((first, _)) = self.backward[value.index()] else {
            return false;
        };
        let Some(maker) = self.maker[value.index()] else {
            return false;
        };
        let is_cheap = self.cheap_input(&graph.nodes[maker], value).is_some();
        let source = self.source(graph, value);
        let stays = self.backward[source.index()].is_some_and(|(_, last)| last >= first);
        is_cheap && stays && !self.is_output[value.index()]
    }

    /// What cheap operators make the value of: the first on the way back that the backward pass reads, or that is not cheap.
    fn source(&self, graph: &Graph, value: ValueId) -> ValueId {
        let mut at = value;
        while let Some(maker) = self.maker[at.index()]
            && let Some((_, input)) = self.cheap_input(&graph.nodes[maker], at)
        {
            at = input;
        }
        at
    }

    /// The activation that a node makes `value` of, and its position, if that is cheap: one pass over it, with parameters at
    /// most.
    fn cheap_input(&self, node: &Node, value: ValueId) -> Option<(usize, ValueId)> {
        let is_first = node.outputs.first() == Some(&Some(value));
        let position = match node.op {
            _ if !is_first => None,
            Op::Unary(_) | Op::Clip { .. } | Op::Reshape { .. } | Op::Dropout { .. } => Some(0),
            Op::BatchNorm { .. } | Op::BatchNormTraining { .. } => Some(0),
            Op::LayerNorm { .. } | Op::RmsNorm { .. } | Op::GroupNorm { .. } => Some(0),
            Op::InstanceNorm { .. } => Some(0),
            Op::Binary(_) => {
                let is_made = |i: &usize| {
                    let operand = node.input(*i);
                    operand.is_some_and(|v| self.maker[v.index()].is_some())
                };
                let mut made = (0..2).filter(is_made);
                made.next().filter(|_| made.next().is_none())
            }
            _ => None,
        };
        position.and_then(|i| Some((i, node.input(i)?)))
    }
}

/// Appends what makes the value again, and gives it.
fn make_again(
    graph: &Graph,
    uses: &Uses,
    out: &mut Graph,
    again: &mut [Option<ValueId>],
    value: ValueId,
) -> ValueId {
    let source = uses.source(graph, value);
    let mut chain = Vec::new();
    let mut at = value;
    while at != source && again[at.index()].is_none() {
        let Some(maker) = uses.maker[at.index()] else {
            break;
        };
        let node = &graph.nodes[maker];
        let Some((position, input)) = uses.cheap_input(node, at) else {
            break;
        };
        chain.push((at, node, position, input));
        at = input;
    }
    for (made, node, position, input) in chain.into_iter().rev() {
        let input = again[input.index()].unwrap_or(input);
        let name = format!("{}/again", graph.value(made).name);
        let copy = out.add_value(name, graph.ty(made).clone());
        let mut node = node.clone();
        node.name.push_str("/again");
        node.inputs[position] = Some(input);
        node.outputs = vec![Some(copy)];
        out.nodes.push(node);
        again[made.index()] = Some(copy);
    }
    again[value.index()].unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_ir::op::{Activation, Binary, Unary};
    use neap_ir::{DType, TensorType};

    const RELU: Op = Op::Unary(Unary::Activation(Activation::Relu));

    struct Net(Graph);

    impl Net {
        fn value(&mut self, name: &str) -> ValueId {
            self.0.add_value(name, TensorType::new(DType::F32, &[4]))
        }

        fn node(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> ValueId {
            let y = self.value(name);
            self.0.nodes.push(Node {
                name: name.into(),
                op,
                inputs: inputs.iter().copied().map(Some).collect(),
                outputs: vec![Some(y)],
                panels: None,
            });
            y
        }
    }

    fn names(graph: &Graph) -> Vec<&str> {
        graph.nodes.iter().map(|n| n.name.as_str()).collect()
    }

    /// `source` is not cheap; its exponential and ReLU are, and the backward pass wants `relu`, and perhaps `source`.
    fn net(reads_source: bool) -> (Graph, ValueId) {
        let mut net = Net(Graph::default());
        let (add, mul) = (Op::Binary(Binary::Add), Op::Binary(Binary::Mul));
        let (a, b) = (net.value("a"), net.value("b"));
        net.0.inputs = vec![a, b];
        let other = net.node("other", RELU, &[b]);
        let left = net.node("left", RELU, &[a]);
        let source = net.node("source", add.clone(), &[left, other]);
        let exp = net.node("exp", Op::Unary(Unary::Exp), &[source]);
        let relu = net.node("relu", RELU, &[exp]);
        let loss = net.node("loss", mul.clone(), &[relu, other]);
        let first = net.node("first", mul.clone(), &[loss, relu]);
        let with = if reads_source { source } else { first };
        let second = net.node("second", mul, &[first, with]);
        let last = net.node("last", add, &[second, relu]);
        net.0.outputs = vec![loss, last];
        (net.0, loss)
    }

    #[test]
    fn a_chain_is_made_again_before_its_first_backward_reader() {
        let (graph, loss) = net(true);
        let found = recompute_cheap(&graph, loss);
        found.check().unwrap();
        found.check_types().unwrap();
        let expected = [
            "other",
            "left",
            "source",
            "exp",
            "relu",
            "loss",
            "exp/again",
            "relu/again",
            "first",
            "second",
            "last",
        ];
        assert_eq!(names(&found), expected);
        // Both backward readers take the copy; the loss takes the first one.
        let relu = |at: usize, operand: usize| found.nodes[at].input(operand);
        assert_eq!(relu(8, 1), found.nodes[7].outputs[0]);
        assert_eq!(relu(10, 1), found.nodes[7].outputs[0]);
        assert_eq!(relu(5, 0), found.nodes[4].outputs[0]);
    }

    #[test]
    fn nothing_is_made_again_of_what_would_have_to_be_kept_for_it() {
        let (graph, loss) = net(false);
        assert_eq!(names(&recompute_cheap(&graph, loss)), names(&graph));
    }
}
