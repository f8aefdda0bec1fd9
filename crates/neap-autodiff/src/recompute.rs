//! What the forward pass made need not be kept for the backward pass: it can be computed again.
//!
//! ```text
//!   forward    x ──► batch norm ──► relu ──► y ──► convolution …
//!   backward   … dW of the convolution reads y │ backward of batch norm reads x
//!   here       … batch norm' ──► relu' ──► y' ──► dW │ backward of batch norm reads x
//! ```
//! A value is computed again by the very operators that computed it first, so results are the same bits. It is made
//! once, just before the first backward node that wants it, together with whatever it is made of that was not kept
//! either.
//!
//! [`cheap_values`] are those for which that costs next to nothing. In the example the backward pass reads x anyway, so
//! y need not live from the one pass to the other: about half of what a network with normalised convolutions keeps, and
//! a third of a transformer's. (Chen et al. 2016, *Training deep nets with sublinear memory cost*, drop cheap results in
//! the same way, section 4.)

use neap_ir::{Graph, Node, Op, ValueId};
use std::collections::BTreeSet;

/// The same step, where the backward pass reads `dropped` values of the forward pass from copies made again. `loss` is the
/// value that the backward pass begins from. A value that can no longer be made, because a parameter that it is made of has
/// been updated by then, is kept.
pub fn recompute(graph: &Graph, loss: ValueId, dropped: &[ValueId]) -> Graph {
    let Some(last_forward) = last_forward(graph, loss) else {
        return graph.clone();
    };
    let mut maker = Again::new(graph, last_forward, dropped);
    for (at, node) in graph.nodes.iter().enumerate() {
        let mut node = node.clone();
        if at > last_forward {
            for input in node.inputs.iter_mut().flatten() {
                *input = maker.again(*input);
            }
            maker.note_update(&node);
        }
        maker.out.nodes.push(node);
    }
    maker.out
}

/// [`recompute`] of [`cheap_values`].
pub fn recompute_cheap(graph: &Graph, loss: ValueId) -> Graph {
    recompute(graph, loss, &cheap_values(graph, loss))
}

/// Values of the forward pass that cheap operators make of what the backward pass reads later still. Sums of several
/// activations are not among them: making them again would want as many others.
pub fn cheap_values(graph: &Graph, loss: ValueId) -> Vec<ValueId> {
    let Some(last_forward) = last_forward(graph, loss) else {
        return Vec::new();
    };
    let uses = Uses::of(graph, last_forward);
    let all = (0..graph.values.len() as u32).map(ValueId);
    let read: Vec<ValueId> = all.filter(|&v| uses.is_made_again(graph, v)).collect();
    let mut found = read.clone();
    for value in read {
        found.extend(uses.between(graph, value));
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn last_forward(graph: &Graph, loss: ValueId) -> Option<usize> {
    let makes_loss = |n: &Node| n.present_outputs().any(|v| v == loss);
    graph.nodes.iter().position(makes_loss)
}

/// The graph with copies, as it grows.
struct Again<'a> {
    graph: &'a Graph,
    out: Graph,
    /// By value: the forward node that makes it.
    maker: Vec<Option<usize>>,
    is_dropped: Vec<bool>,
    /// By value: whether an update has replaced it.
    is_stale: Vec<bool>,
    copies: Vec<Option<ValueId>>,
}

impl<'a> Again<'a> {
    fn new(graph: &'a Graph, last_forward: usize, dropped: &[ValueId]) -> Again<'a> {
        let count = graph.values.len();
        let mut again = Again {
            graph,
            out: Graph {
                nodes: Vec::with_capacity(graph.nodes.len()),
                ..graph.clone()
            },
            maker: vec![None; count],
            is_dropped: vec![false; count],
            is_stale: vec![false; count],
            copies: vec![None; count],
        };
        for value in dropped {
            if let Some(is_dropped) = again.is_dropped.get_mut(value.index()) {
                *is_dropped = true;
            }
        }
        for (at, node) in graph.nodes.iter().enumerate().take(last_forward + 1) {
            node.present_outputs()
                .for_each(|v| again.maker[v.index()] = Some(at));
        }
        again
    }

    /// The node that makes a dropped value, where it still can.
    fn maker_of(&self, value: ValueId) -> Option<usize> {
        let maker = self.maker[value.index()].filter(|_| self.is_dropped[value.index()])?;
        let mut operands = self.graph.nodes[maker].present_inputs();
        operands.all(|v| !self.is_stale[v.index()]).then_some(maker)
    }

    /// The value, or its copy, which is made here if there is none yet.
    fn again(&mut self, value: ValueId) -> ValueId {
        // Nodes that are to be computed, in their order.
        let mut nodes = BTreeSet::new();
        let mut left = vec![value];
        while let Some(value) = left.pop() {
            if self.copies[value.index()].is_some() {
                continue;
            }
            let Some(maker) = self.maker_of(value) else {
                continue;
            };
            if nodes.insert(maker) {
                left.extend(self.graph.nodes[maker].present_inputs());
            }
        }
        for at in nodes {
            self.copy(at);
        }
        self.copies[value.index()].unwrap_or(value)
    }

    /// Appends a copy of a node. It has all results, also where only some are wanted: not every operator can do without.
    fn copy(&mut self, at: usize) {
        let mut node = self.graph.nodes[at].clone();
        node.name.push_str("/again");
        for input in node.inputs.iter_mut().flatten() {
            *input = self.copies[input.index()].unwrap_or(*input);
        }
        for output in node.outputs.iter_mut().flatten() {
            let name = format!("{}/again", self.graph.value(*output).name);
            let copy = self.out.add_value(name, self.graph.ty(*output).clone());
            if self.is_dropped[output.index()] {
                self.copies[output.index()] = Some(copy);
            }
            *output = copy;
        }
        self.out.nodes.push(node);
    }

    fn note_update(&mut self, node: &Node) {
        if matches!(node.op, Op::Update(_) | Op::UpdatePart { .. })
            && let Some(stale) = node.input(0).and_then(|v| self.is_stale.get_mut(v.index()))
        {
            *stale = true;
        }
    }
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
            && let Some(input) = self.cheap_input(&graph.nodes[maker], at)
        {
            at = input;
        }
        at
    }

    /// What lies between that and the value, and the backward pass does not read by itself.
    fn between(&self, graph: &Graph, value: ValueId) -> Vec<ValueId> {
        let mut found = Vec::new();
        let mut at = value;
        while let Some(maker) = self.maker[at.index()]
            && let Some(input) = self.cheap_input(&graph.nodes[maker], at)
        {
            let is_made = self.maker[input.index()].is_some_and(|m| {
                let node = &graph.nodes[m];
                self.cheap_input(node, input).is_some()
            });
            if !is_made || self.backward[input.index()].is_some() || self.is_output[input.index()] {
                break;
            }
            found.push(input);
            at = input;
        }
        found
    }

    /// The activation that a node makes `value` of, if that is cheap: one pass over it, with parameters at most.
    fn cheap_input(&self, node: &Node, value: ValueId) -> Option<ValueId> {
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
        position.and_then(|i| node.input(i))
    }
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

    /// `a ─► left ─► source ─► exp ─► relu ─► loss`, of which nothing but what cannot be made is kept.
    #[test]
    fn a_value_is_made_again_with_all_that_was_not_kept_either() {
        let (graph, loss) = net(true);
        let by_name = |name: &str| {
            let found = (0..graph.values.len() as u32).map(ValueId);
            let mut found = found.filter(|&v| graph.value(v).name == name);
            found.next().unwrap()
        };
        let dropped = ["left", "source", "exp", "relu"].map(by_name);
        let found = recompute(&graph, loss, &dropped);
        found.check().unwrap();
        found.check_types().unwrap();
        let again: Vec<&str> = names(&found)[6..].to_vec();
        let expected = [
            "left/again",
            "source/again",
            "exp/again",
            "relu/again",
            "first",
            "second",
            "last",
        ];
        assert_eq!(again, expected);
        // `source` is read by the backward pass itself, from the copy; `other` was kept.
        assert_eq!(found.nodes[11].input(1), found.nodes[7].outputs[0]);
        assert_eq!(found.nodes[7].input(1), Some(by_name("other")));
        // What is not dropped is not made again.
        let found = recompute(&graph, loss, &[by_name("relu")]);
        assert_eq!(names(&found)[6], "relu/again");
        assert_eq!(found.nodes[6].input(0), Some(by_name("exp")));
        assert_eq!(names(&recompute(&graph, loss, &[])), names(&graph));
    }

    /// `h = x * w`; the backward pass updates w before `late` reads h.
    #[test]
    fn what_is_made_of_an_updated_parameter_is_kept() {
        let mut net = Net(Graph::default());
        let (x, w) = (net.value("x"), net.value("w"));
        let scalar =
            |net: &mut Net, name: &str, dtype| net.0.add_value(name, TensorType::new(dtype, &[]));
        let rate = scalar(&mut net, "rate", DType::F32);
        let step = scalar(&mut net, "step", DType::I64);
        net.0.inputs = vec![x, w, rate, step];
        let mul = Op::Binary(Binary::Mul);
        let h = net.node("h", mul.clone(), &[x, w]);
        let loss = net.node("loss", RELU, &[h]);
        let early = net.node("early", mul.clone(), &[loss, h]);
        let plain = neap_ir::update::Update::Sgd {
            momentum: 0.0,
            nesterov: false,
            decay: 0.0,
        };
        let updated = net.node("update", Op::Update(plain), &[w, early, rate, step]);
        let late = net.node("late", mul, &[early, h]);
        net.0.outputs = vec![loss, updated, late];
        let found = recompute(&net.0, loss, &[h]);
        let expected = ["h", "loss", "h/again", "early", "update", "late"];
        assert_eq!(names(&found), expected);
        // Made before the update, the copy can be read behind it.
        assert_eq!(found.nodes[5].input(1), found.nodes[2].outputs[0]);
        // Wanted after the update alone, there is no copy.
        net.0.nodes[2].inputs[1] = Some(x);
        let found = recompute(&net.0, loss, &[h]);
        assert_eq!(names(&found), ["h", "loss", "early", "update", "late"]);
        assert_eq!(found.nodes[4].input(1), Some(h));
    }

    /// A node with three results of which the backward pass wants two, one after the other.
    #[test]
    fn a_node_with_several_results_is_made_again_once() {
        let mut net = Net(Graph::default());
        let x = net.0.add_value("x", TensorType::new(DType::F32, &[12]));
        net.0.inputs = vec![x];
        let whole = net.0.add_value("whole", TensorType::new(DType::F32, &[12]));
        let parts = ["a", "b", "c"].map(|name| net.value(name));
        let node = |name: &str, op, input, outputs: &[ValueId]| Node {
            name: name.into(),
            op,
            inputs: vec![Some(input)],
            outputs: outputs.iter().copied().map(Some).collect(),
            panels: None,
        };
        let split = Op::Split {
            axis: 0,
            sizes: vec![4; 3],
        };
        net.0.nodes = vec![
            node("whole", RELU, x, &[whole]),
            node("split", split, whole, &parts),
        ];
        let mul = Op::Binary(Binary::Mul);
        let [a, b, c] = parts;
        let sum = net.node("sum", mul.clone(), &[a, b]);
        let loss = net.node("loss", mul.clone(), &[sum, c]);
        let first = net.node("first", mul.clone(), &[loss, c]);
        let last = net.node("last", mul, &[first, a]);
        net.0.outputs = vec![loss, last];
        let found = recompute(&net.0, loss, &[whole, a, b, c]);
        found.check().unwrap();
        found.check_types().unwrap();
        let again = &names(&found)[4..];
        assert_eq!(again, ["whole/again", "split/again", "first", "last"]);
        assert_eq!(found.nodes[6].input(1), found.nodes[5].outputs[2]);
        assert_eq!(found.nodes[7].input(1), found.nodes[5].outputs[0]);
    }
}
