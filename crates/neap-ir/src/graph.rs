//! The graph: values, nodes in schedule order, constants.

use crate::ids::{ConstId, FileId, NodeId, PackedId, ValueId};
use crate::late::{Bound, LateOp};
pub use crate::tensor::LANES;
use crate::tensor::{Layout, TensorType};
use crate::{DType, Literal, Op};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use thiserror::Error;

/// Nodes in a valid schedule (topological order) over values that each have one producer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    pub name: String,
    pub values: Vec<Value>,
    pub nodes: Vec<Node>,
    pub consts: Vec<Const>,
    pub inputs: Vec<ValueId>,
    pub outputs: Vec<ValueId>,
    /// Files that `Const::Stored` ranges point into; `files[0]` is the model itself.
    pub files: Vec<SourceFile>,
    /// Inputs of the model whose values were given when it was opened, as values that decide shapes are: they
    /// are no inputs of this graph.
    pub bound: Vec<BoundInput>,
    /// Tensors that survive runs, such as the parameters of a training step. They are no inputs and no outputs.
    pub states: Vec<State>,
}

/// A tensor that survives runs: a run finds in `value` what the run before left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// There before the first node, as an input is.
    pub value: ValueId,
    /// What replaces it, of the same type; `None` where it stays as it is.
    pub next: Option<ValueId>,
}

/// An input of the model that is a constant here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BoundInput {
    pub name: String,
    pub value: Literal,
}

/// A file with constants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceFile {
    At(String),
    /// Never written: of weights only the shapes are known. Where their values are asked for, they are
    /// zeros.
    Absent,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    pub name: String,
    pub op: Op,
    /// `None` is an optional input that was left out.
    pub inputs: Vec<Option<ValueId>>,
    pub outputs: Vec<Option<ValueId>>,
    /// Panel weights that the operator streams, beside its ordinary inputs.
    pub panels: Option<PackedId>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Value {
    pub name: String,
    pub ty: TensorType,
    pub layout: Layout,
    /// Set when the value is a constant instead of a node's result or a graph input.
    pub constant: Option<ConstId>,
    /// A result of a convolution or product that the model has in bfloat16, as it has all operands.
    pub in_bf16: bool,
}

/// Where a constant's bytes are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Const {
    /// Small, or computed while folding.
    Inline(Literal),
    /// Unread bytes in one of [`Graph::files`], row-major little-endian of `stored_dtype`.
    Stored {
        range: FileRange,
        stored_dtype: DType,
    },
    /// An extent of the packed file, row-major in the value's own dtype.
    Packed(PackedId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileRange {
    pub file: FileId,
    pub offset: u64,
    pub bytes: u64,
}

#[derive(Debug, Error)]
pub enum GraphError {
    #[error("node '{node}' ({op}): {reason}")]
    BadNode {
        node: String,
        op: &'static str,
        reason: String,
    },
    #[error("graph is malformed: {0}")]
    Malformed(String),
}

impl Value {
    pub fn len_bytes(&self) -> usize {
        self.ty.layout_bytes(self.layout)
    }
}

impl Node {
    /// Present inputs, in order.
    pub fn present_inputs(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.inputs.iter().flatten().copied()
    }

    pub fn present_outputs(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.outputs.iter().flatten().copied()
    }

    pub fn input(&self, index: usize) -> Option<ValueId> {
        self.inputs.get(index).copied().flatten()
    }
}

impl Graph {
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    pub fn ty(&self, id: ValueId) -> &TensorType {
        &self.values[id.index()].ty
    }

    pub fn add_value(&mut self, name: impl Into<String>, ty: TensorType) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        self.values.push(Value {
            name: name.into(),
            ty,
            layout: Layout::Plain,
            constant: None,
            in_bf16: false,
        });
        id
    }

    pub fn add_const(&mut self, name: impl Into<String>, ty: TensorType, data: Const) -> ValueId {
        let const_id = ConstId(self.consts.len() as u32);
        self.consts.push(data);
        let id = self.add_value(name, ty);
        self.values[id.index()].constant = Some(const_id);
        id
    }

    pub fn add_literal(&mut self, name: impl Into<String>, literal: Literal) -> ValueId {
        let ty = literal.ty();
        self.add_const(name, ty, Const::Inline(literal))
    }

    pub fn constant(&self, id: ValueId) -> Option<&Const> {
        self.value(id).constant.map(|c| &self.consts[c.index()])
    }

    /// The value's data when it is an inline constant.
    pub fn literal(&self, id: ValueId) -> Option<&Literal> {
        match self.constant(id) {
            Some(Const::Inline(literal)) => Some(literal),
            _ => None,
        }
    }

    /// For every value the node that makes it (`None` for inputs and constants).
    pub fn producers(&self) -> Vec<Option<NodeId>> {
        let mut producers = vec![None; self.values.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            for output in node.present_outputs() {
                producers[output.index()] = Some(NodeId(i as u32));
            }
        }
        producers
    }

    /// For every value how often nodes read it; each graph output counts as one reader.
    pub fn use_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.values.len()];
        for node in &self.nodes {
            for input in node.present_inputs() {
                counts[input.index()] += 1;
            }
        }
        for &output in &self.outputs {
            counts[output.index()] += 1;
        }
        counts
    }

    /// Values with late axes, and their bounds.
    pub fn late_values(&self) -> HashMap<ValueId, &Bound> {
        let mut late = HashMap::new();
        for node in &self.nodes {
            let Op::Late(of) = &node.op else { continue };
            let results = node.outputs.iter().zip(&of.bounds);
            late.extend(results.filter_map(|(output, bound)| {
                let output = (*output)?;
                bound.is_late().then_some((output, bound))
            }));
        }
        late
    }

    /// The graphs inside operators of this one, and those inside them.
    pub fn bodies(&self) -> Vec<&Graph> {
        let mut found: Vec<&Graph> = Vec::new();
        let mut next = vec![self];
        while let Some(graph) = next.pop() {
            let bodies = graph.nodes.iter().filter_map(|node| match &node.op {
                Op::Late(late) => match &late.op {
                    LateOp::Repeat(of) => Some(&of.body),
                    _ => None,
                },
                _ => None,
            });
            let before = found.len();
            found.extend(bodies);
            next.extend(&found[before..]);
        }
        found
    }

    /// Types of a node's inputs, for shape inference and workspace queries.
    pub fn input_types(&self, node: &Node) -> Vec<Option<TensorType>> {
        node.inputs
            .iter()
            .map(|i| i.map(|v| self.ty(v).clone()))
            .collect()
    }
}
