//! The graph: values, nodes in schedule order, constants.

use crate::{DType, Literal, Op};
use serde::{Deserialize, Serialize};
use thiserror::Error;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id!(
    /// Index into [`Graph::values`].
    ValueId
);
id!(
    /// Index into [`Graph::nodes`]; also the node's place in the schedule.
    NodeId
);
id!(
    /// Index into [`Graph::consts`].
    ConstId
);
id!(
    /// Index into [`Graph::files`].
    FileId
);
id!(
    /// Index into the packed model's weight table (and into the recipes that make it).
    PackedId
);

/// Nodes in a valid schedule (topological order) over values that each have one producer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Graph {
    pub name: String,
    pub values: Vec<Value>,
    pub nodes: Vec<Node>,
    pub consts: Vec<Const>,
    pub inputs: Vec<ValueId>,
    pub outputs: Vec<ValueId>,
    /// Files that `Const::Stored` ranges point into; `files[0]` is the model itself.
    pub files: Vec<SourceFile>,
}

/// A file with constants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceFile {
    At(String),
    /// Never written: of weights only the shapes are known. Where their values are asked for, they are
    /// zeros.
    Absent,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Node {
    pub name: String,
    pub op: Op,
    /// `None` is an optional input that was left out.
    pub inputs: Vec<Option<ValueId>>,
    pub outputs: Vec<Option<ValueId>>,
    /// Panel weights that the operator streams, beside its ordinary inputs.
    pub panels: Option<PackedId>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Value {
    pub name: String,
    pub ty: TensorType,
    pub layout: Layout,
    /// Set when the value is a constant instead of a node's result or a graph input.
    pub constant: Option<ConstId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
    pub dtype: DType,
    pub shape: Vec<usize>,
}

/// How a value's elements lie in memory.
///
/// ```text
/// Plain      [N][C][H][W]                 row-major, any rank, any dtype
/// Blocked    [N][ceil(C/16)][H][W][16]    rank 3 or 4, f32; lanes past C are padding
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Layout {
    Plain,
    Blocked,
}

/// Lanes of a channel block and of a weight panel.
pub const LANES: usize = 16;

/// Where a constant's bytes are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Const {
    /// Small, or computed while folding.
    Inline(Literal),
    /// Unread bytes in one of [`Graph::files`], row-major little-endian of `stored_dtype`.
    Stored {
        range: ByteRange,
        stored_dtype: DType,
    },
    /// An extent of the packed file, row-major in the value's own dtype.
    Packed(PackedId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ByteRange {
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

impl TensorType {
    pub fn new(dtype: DType, shape: &[usize]) -> TensorType {
        TensorType {
            dtype,
            shape: shape.to_vec(),
        }
    }

    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes in plain layout.
    pub fn len_bytes(&self) -> usize {
        self.elements() * self.dtype.size_bytes()
    }

    /// Bytes in the given layout, padding lanes included.
    pub fn layout_bytes(&self, layout: Layout) -> usize {
        match layout {
            Layout::Plain => self.len_bytes(),
            Layout::Blocked => {
                let spatial: usize = self.shape[2..].iter().product();
                self.shape[0] * self.shape[1].div_ceil(LANES) * spatial * LANES * 4
            }
        }
    }
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

    /// Types of a node's inputs, for shape inference and workspace queries.
    pub fn input_types(&self, node: &Node) -> Vec<Option<TensorType>> {
        node.inputs
            .iter()
            .map(|i| i.map(|v| self.ty(v).clone()))
            .collect()
    }

    /// Checks ids, single producers and schedule order. A graph read from disk passes here first.
    pub fn check(&self) -> Result<(), GraphError> {
        let malformed = |what: String| Err(GraphError::Malformed(what));
        let count = self.values.len();
        let mut ready = vec![false; count];
        for (i, value) in self.values.iter().enumerate() {
            if let Some(c) = value.constant {
                if c.index() >= self.consts.len() {
                    return malformed(format!("value '{}' has no constant {}", value.name, c.0));
                }
                ready[i] = true;
            }
            let elements = value
                .ty
                .shape
                .iter()
                .try_fold(1usize, |n, &d| n.checked_mul(d));
            if elements
                .and_then(|n| n.checked_mul(16))
                .is_none_or(|n| n > isize::MAX as usize / 16)
            {
                return malformed(format!("value '{}' is impossibly large", value.name));
            }
            if value.layout == Layout::Blocked
                && (!(3..=4).contains(&value.ty.shape.len()) || value.ty.dtype != DType::F32)
            {
                return malformed(format!("value '{}' cannot be channel-blocked", value.name));
            }
        }
        for data in &self.consts {
            if let Const::Inline(literal) = data
                && !literal.is_whole()
            {
                return malformed("a constant has not as much data as its shape says".into());
            }
        }
        for &input in &self.inputs {
            if input.index() >= count {
                return malformed(format!("input {} does not exist", input.0));
            }
            ready[input.index()] = true;
        }
        for node in &self.nodes {
            for input in node.present_inputs() {
                if !ready.get(input.index()).copied().unwrap_or(false) {
                    return malformed(format!(
                        "node '{}' reads value {} too early",
                        node.name, input.0
                    ));
                }
            }
            for output in node.present_outputs() {
                match ready.get_mut(output.index()) {
                    Some(r) if !*r => *r = true,
                    _ => {
                        return malformed(format!(
                            "node '{}' redefines value {}",
                            node.name, output.0
                        ));
                    }
                }
            }
        }
        for &output in &self.outputs {
            if !ready.get(output.index()).copied().unwrap_or(false) {
                return malformed(format!("output {} is never computed", output.0));
            }
        }
        Ok(())
    }

    /// Checks that every value has the type that its operator gives it.
    pub fn check_types(&self) -> Result<(), GraphError> {
        for node in &self.nodes {
            let bad = |reason: String| GraphError::BadNode {
                node: node.name.clone(),
                op: node.op.name(),
                reason,
            };
            let count = node.outputs.len();
            let inferred = crate::infer::output_types(&node.op, &self.input_types(node), count)
                .map_err(|e| bad(e.reason))?;
            for (output, ty) in node.outputs.iter().zip(&inferred) {
                if let Some(output) = *output
                    && self.ty(output) != ty
                {
                    let value = self.value(output);
                    return Err(bad(format!(
                        "'{}' is {}{:?}, its operator gives {}{:?}",
                        value.name, value.ty.dtype, value.ty.shape, ty.dtype, ty.shape
                    )));
                }
            }
        }
        Ok(())
    }
}
