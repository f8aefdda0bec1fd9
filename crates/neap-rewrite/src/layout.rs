//! Which values are channel-blocked, and the reorders in between.
//!
//! Convolutions force the blocked layout; operators that can do either follow their input, so a
//! convolutional trunk stays blocked and a transformer stays plain. Graph inputs and outputs are
//! plain.

use crate::edit::Editor;
use neap_ir::graph::LANES;
use neap_ir::op::{Op, Pool, Reduce};
use neap_ir::{DType, Graph, Layout, Node, TensorType, ValueId};
use std::collections::HashMap;

pub(crate) fn run(editor: &mut Editor) {
    let nodes = std::mem::take(&mut editor.graph.nodes);
    let mut pass = Pass {
        graph: &mut editor.graph,
        twins: HashMap::new(),
        nodes: Vec::new(),
    };
    for node in nodes {
        pass.assign(node);
    }
    let nodes = pass.nodes;
    editor.graph.nodes = nodes;
    *editor = Editor::new(std::mem::take(&mut editor.graph));
    editor.remove_dead();
}

struct Pass<'a> {
    graph: &'a mut Graph,
    /// The same tensor in the other layout.
    twins: HashMap<(ValueId, Layout), ValueId>,
    nodes: Vec<Node>,
}

impl Pass<'_> {
    fn assign(&mut self, node: Node) {
        for node in self.as_pooling(node) {
            self.place(node);
        }
    }

    /// One number of all places of each channel of a blocked image is what a global pooling gives.
    fn as_pooling(&mut self, node: Node) -> Vec<Node> {
        let kind = match &node.op {
            Op::Reduce { kind, axes, .. } if axes[..] == [2, 3] => match kind {
                Reduce::Mean => Pool::Average {
                    count_include_pad: false,
                },
                Reduce::Max => Pool::Max {
                    column_major: false,
                },
                _ => return vec![node],
            },
            _ => return vec![node],
        };
        let (Some(x), [Some(y)]) = (node.input(0), &node.outputs[..]) else {
            return vec![node];
        };
        let (value, shape) = (self.graph.value(x), self.graph.ty(*y).shape.clone());
        let &[images, channels, ..] = &value.ty.shape[..] else {
            return vec![node];
        };
        let is_blocked = value.layout == Layout::Blocked && value.ty.dtype == DType::F32;
        if !is_blocked || value.ty.shape.len() != 4 {
            return vec![node];
        }
        let ty = TensorType::new(DType::F32, &[images, channels, 1, 1]);
        let mut pooling = Node {
            op: Op::GlobalPool(kind),
            ..node.clone()
        };
        if shape.len() == 4 {
            return vec![pooling];
        }
        let pooled = self.graph.add_value(format!("{}.pooled", node.name), ty);
        pooling.outputs = vec![Some(pooled)];
        let named = Node {
            op: Op::Reshape { shape },
            inputs: vec![Some(pooled)],
            ..node
        };
        vec![pooling, named]
    }

    fn place(&mut self, mut node: Node) {
        let wanted = self.blocked_form(&node);
        for i in 0..node.inputs.len() {
            let Some(input) = node.inputs[i] else {
                continue;
            };
            let layout = wanted.as_ref().map_or(Layout::Plain, |layouts| layouts[i]);
            let name = node.name.clone();
            node.inputs[i] = Some(self.in_layout(input, layout, &name));
        }
        if wanted.is_none() {
            self.nodes.push(node);
            return;
        }
        let mut back = Vec::new();
        for output in node.outputs.iter_mut().flatten() {
            if self.graph.outputs.contains(output) {
                // The graph's output stays plain; the node writes a blocked twin.
                let value = self.graph.value(*output).clone();
                let twin = self
                    .graph
                    .add_value(format!("{}.blocked", value.name), value.ty);
                self.graph.values[twin.index()].layout = Layout::Blocked;
                self.twins.insert((*output, Layout::Blocked), twin);
                back.push((twin, *output));
                *output = twin;
            } else {
                self.graph.values[output.index()].layout = Layout::Blocked;
            }
        }
        let name = node.name.clone();
        self.nodes.push(node);
        for (twin, output) in back {
            self.reorder(&name, twin, output);
        }
    }

    /// The input layouts when the node should run blocked.
    fn blocked_form(&self, node: &Node) -> Option<Vec<Layout>> {
        let inputs: Vec<Option<&TensorType>> = node
            .inputs
            .iter()
            .map(|v| v.map(|v| self.graph.ty(v)))
            .collect();
        let outputs: Vec<Option<&TensorType>> = node
            .outputs
            .iter()
            .map(|v| v.map(|v| self.graph.ty(v)))
            .collect();
        let single = node.present_outputs().count() == 1 || matches!(node.op, Op::Split { .. });
        if !single || !outputs.iter().flatten().all(|ty| can_block(ty)) {
            return None;
        }
        let layouts = neap_ops::blocked_inputs(&node.op, &inputs, &outputs)?;
        let feasible = node.inputs.iter().zip(&layouts).all(|(input, layout)| {
            *layout == Layout::Plain || input.is_none_or(|v| can_block(self.graph.ty(v)))
        });
        if !feasible {
            return None;
        }
        let forced = matches!(node.op, Op::PanelConv(_) | Op::PanelDepthwise(_));
        let follows = node.inputs.iter().zip(&layouts).any(|(input, layout)| {
            *layout == Layout::Blocked
                && input.is_some_and(|v| self.graph.value(v).layout == Layout::Blocked)
        });
        let pooled = matches!(node.op, Op::Pool { .. } | Op::GlobalPool(_))
            && inputs[0].is_some_and(|ty| ty.shape[1] >= LANES);
        // Only the blocked form is computed strip by strip.
        let normalised = matches!(node.op, Op::InstanceNorm { .. } | Op::GroupNorm { .. })
            && inputs[0].is_some_and(|ty| ty.shape[1] >= LANES);
        (forced || follows || pooled || normalised).then_some(layouts)
    }

    fn in_layout(&mut self, value: ValueId, layout: Layout, reader: &str) -> ValueId {
        if self.graph.value(value).layout == layout {
            return value;
        }
        if let Some(&twin) = self.twins.get(&(value, layout)) {
            return twin;
        }
        let original = self.graph.value(value).clone();
        let suffix = if layout == Layout::Blocked {
            "blocked"
        } else {
            "plain"
        };
        let twin = self
            .graph
            .add_value(format!("{}.{suffix}", original.name), original.ty);
        self.graph.values[twin.index()].layout = layout;
        self.twins.insert((value, layout), twin);
        self.reorder(reader, value, twin);
        twin
    }

    fn reorder(&mut self, near: &str, from: ValueId, to: ValueId) {
        self.nodes.push(Node {
            name: format!("{near}.reorder"),
            op: Op::Reorder,
            inputs: vec![Some(from)],
            outputs: vec![Some(to)],
            panels: None,
        });
    }
}

fn can_block(ty: &TensorType) -> bool {
    matches!(ty.dtype, DType::F32 | DType::U8) && (3..=4).contains(&ty.shape.len())
}
