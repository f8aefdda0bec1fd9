//! The model being built: nodes, seeded tensors, inputs and outputs, all of it small.
//!
//! A tensor is a name, a shape and a rule that yields its values; the values themselves exist
//! only while the writer streams them out.

use std::collections::{BTreeMap, HashMap};

use crate::init::Init;
use half::f16;

/// Name of the dynamic batch dimension, as PyTorch users commonly call it.
pub(crate) const BATCH_PARAM: &str = "batch";

/// How many samples one run takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// A static first dimension.
    Fixed(u32),
    /// A first dimension named `batch`, bound when the model is opened.
    Dynamic,
}

/// One dimension of an input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dim {
    Fixed(i64),
    Batch,
    /// Another one that is bound when the model is opened.
    Named(&'static str),
}

/// Element types that appear in the zoo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DType {
    F32,
    F16,
    BF16,
    I64,
    Bool,
}

impl DType {
    /// The code in `TensorProto.DataType`.
    pub(crate) fn onnx_code(self) -> u64 {
        match self {
            DType::F32 => 1,
            DType::I64 => 7,
            DType::F16 => 10,
            DType::BF16 => 16,
            DType::Bool => 9,
        }
    }

    pub(crate) fn size_bytes(self) -> u64 {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::I64 => 8,
            DType::Bool => 1,
        }
    }
}

/// A node attribute.
#[derive(Clone, Debug)]
pub(crate) enum Attr {
    Int(i64),
    Float(f32),
    Str(&'static str),
    Ints(Vec<i64>),
    /// A small tensor, the `value` of a `Constant` node.
    Tensor(Small),
}

/// A constant small enough to sit in a `Constant` node.
#[derive(Clone, Debug)]
pub(crate) enum Small {
    F32Scalar(f32),
    F16Scalar(f16),
    I64Scalar(i64),
    I64s(Vec<i64>),
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub op: &'static str,
    pub name: String,
    pub inputs: Vec<String>,
    pub output_names: Vec<String>,
    pub attrs: Vec<(&'static str, Attr)>,
}

/// An initializer: written, never held.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub name: String,
    pub dims: Vec<usize>,
    pub init: Init,
    pub dtype: DType,
    /// Whether the published parameter count includes it (BatchNorm statistics and shape
    /// constants are not parameters).
    pub is_parameter: bool,
}

impl Tensor {
    pub(crate) fn elements(&self) -> u64 {
        self.dims.iter().map(|&d| d as u64).product()
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.elements() * self.dtype.size_bytes()
    }
}

/// A graph input or output.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub name: String,
    pub dtype: DType,
    pub dims: Vec<Dim>,
}

/// A whole model, ready for the writer.
#[derive(Debug)]
pub(crate) struct Graph {
    pub name: &'static str,
    pub nodes: Vec<Node>,
    pub tensors: Vec<Tensor>,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    batch: Batch,
    /// Image sizes and numbers of tokens are bound when the model is opened.
    pub is_free: bool,
    /// Values and weights are half floats, as PyTorch exports a model that it has turned into one of them.
    pub is_half: bool,
    /// How often each node path was asked for, so that repeated ones get a suffix.
    path_uses: HashMap<String, u32>,
    /// Values to rename when the graph is finished (graph outputs get their public names).
    renames: BTreeMap<String, String>,
}

impl Graph {
    pub(crate) fn new(name: &'static str, batch: Batch) -> Graph {
        Graph {
            name,
            nodes: Vec::new(),
            tensors: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            batch,
            is_free: false,
            is_half: false,
            path_uses: HashMap::new(),
            renames: BTreeMap::new(),
        }
    }

    /// The batch as a constant in a shape, when it is one.
    pub(crate) fn fixed_batch(&self) -> Option<i64> {
        match self.batch {
            Batch::Fixed(n) => Some(i64::from(n)),
            Batch::Dynamic => None,
        }
    }

    /// Declares an input of shape `[batch, dims...]`.
    pub(crate) fn input(&mut self, name: &str, dtype: DType, dims: &[usize]) -> String {
        let port = self.port(name, dtype, dims);
        self.inputs.push(port);
        name.to_string()
    }

    /// As [`Graph::input`]; the last dimensions have names and are bound later where sizes are free.
    pub(crate) fn sized_input(
        &mut self,
        name: &str,
        dtype: DType,
        dims: &[usize],
        free: &[&'static str],
    ) -> String {
        let mut port = self.port(name, dtype, dims);
        self.free_last(&mut port, free);
        self.inputs.push(port);
        name.to_string()
    }

    fn free_last(&self, port: &mut Port, free: &[&'static str]) {
        if self.is_free {
            let fixed = port.dims.len() - free.len();
            port.dims.truncate(fixed);
            port.dims.extend(free.iter().map(|&name| Dim::Named(name)));
        }
    }

    /// Declares `value`, of shape `[batch, dims...]`, as the graph output `name`.
    pub(crate) fn output(&mut self, value: &str, name: &str, dims: &[usize]) {
        let port = self.port(name, self.float(), dims);
        self.outputs.push(port);
        self.renames.insert(value.to_string(), name.to_string());
    }

    /// As [`Graph::output`]; its second dimension has a name where sizes are free.
    pub(crate) fn sized_output(
        &mut self,
        value: &str,
        name: &str,
        dims: &[usize],
        free: &'static str,
    ) {
        self.output(value, name, dims);
        if let Some(port) = self.outputs.last_mut().filter(|_| self.is_free) {
            port.dims[1] = Dim::Named(free);
        }
    }

    /// As [`Graph::output`], of an image; its height and width have names where sizes are free.
    pub(crate) fn image_output(
        &mut self,
        value: &str,
        name: &str,
        dims: &[usize; 3],
        free: [&'static str; 2],
    ) {
        self.output(value, name, dims);
        if let Some(mut port) = self.outputs.pop() {
            self.free_last(&mut port, &free);
            self.outputs.push(port);
        }
    }

    fn port(&self, name: &str, dtype: DType, dims: &[usize]) -> Port {
        let batch = match self.batch {
            Batch::Fixed(n) => Dim::Fixed(i64::from(n)),
            Batch::Dynamic => Dim::Batch,
        };
        let dims = std::iter::once(batch)
            .chain(dims.iter().map(|&d| Dim::Fixed(d as i64)))
            .collect();
        Port {
            name: name.to_string(),
            dtype,
            dims,
        }
    }

    /// Adds a trained parameter and returns its name.
    pub(crate) fn parameter(
        &mut self,
        name: impl Into<String>,
        dims: &[usize],
        init: Init,
    ) -> String {
        self.tensor(name.into(), dims, init, true)
    }

    /// Adds an initializer that is not a trained parameter and returns its name.
    pub(crate) fn buffer(&mut self, name: impl Into<String>, dims: &[usize], init: Init) -> String {
        self.tensor(name.into(), dims, init, false)
    }

    /// As [`Graph::buffer`]; in f32 among half floats, too.
    pub(crate) fn single(&mut self, name: impl Into<String>, dims: &[usize], init: Init) -> String {
        let name = self.buffer(name, dims, init);
        if let Some(tensor) = self.tensors.last_mut() {
            tensor.dtype = DType::F32;
        }
        name
    }

    fn tensor(&mut self, name: String, dims: &[usize], init: Init, is_parameter: bool) -> String {
        let dtype = match init.dtype() {
            DType::F32 => self.float(),
            dtype => dtype,
        };
        self.tensors.push(Tensor {
            name: name.clone(),
            dims: dims.to_vec(),
            init,
            dtype,
            is_parameter,
        });
        name
    }

    /// The type of what is computed.
    pub(crate) fn float(&self) -> DType {
        match self.is_half {
            true => DType::F16,
            false => DType::F32,
        }
    }

    /// Adds a node with one output in the module `scope` (dotted, as PyTorch names modules)
    /// and returns the output's name.
    pub(crate) fn node(
        &mut self,
        scope: &str,
        op: &'static str,
        inputs: &[&str],
        attrs: Vec<(&'static str, Attr)>,
    ) -> String {
        self.node_multi(scope, op, inputs, attrs, 1).remove(0)
    }

    /// Like [`Graph::node`] for operators with several outputs.
    pub(crate) fn node_multi(
        &mut self,
        scope: &str,
        op: &'static str,
        inputs: &[&str],
        attrs: Vec<(&'static str, Attr)>,
        outputs: usize,
    ) -> Vec<String> {
        let mut path = String::new();
        for part in scope.split('.').filter(|p| !p.is_empty()) {
            path.push('/');
            path.push_str(part);
        }
        path.push('/');
        path.push_str(op);
        let uses = self.path_uses.entry(path.clone()).or_insert(0);
        let name = if *uses == 0 {
            path
        } else {
            format!("{path}_{uses}")
        };
        *uses += 1;
        let output_names: Vec<String> =
            (0..outputs).map(|i| format!("{name}_output_{i}")).collect();
        self.nodes.push(Node {
            op,
            name,
            inputs: inputs.iter().map(|s| s.to_string()).collect(),
            output_names: output_names.clone(),
            attrs,
        });
        output_names
    }

    /// A `Constant` node.
    pub(crate) fn constant(&mut self, scope: &str, value: Small) -> String {
        let value = match value {
            Small::F32Scalar(value) if self.is_half => Small::F16Scalar(f16::from_f32(value)),
            value => value,
        };
        self.node(scope, "Constant", &[], vec![("value", Attr::Tensor(value))])
    }

    /// A shape `[batch, rest...]` as an int64 value: one constant when the batch is fixed, else
    /// the Shape → Gather → Unsqueeze → Concat chain on `like` that PyTorch writes.
    pub(crate) fn batch_shape(&mut self, scope: &str, like: &str, rest: &[i64]) -> String {
        if let Some(n) = self.fixed_batch() {
            let dims = std::iter::once(n).chain(rest.iter().copied()).collect();
            return self.constant(scope, Small::I64s(dims));
        }
        let batch = self.batch_of(scope, like);
        let tail = self.constant(scope, Small::I64s(rest.to_vec()));
        self.node(
            scope,
            "Concat",
            &[&batch, &tail],
            vec![("axis", Attr::Int(0))],
        )
    }

    /// The first dimension of `like` as a one-element int64 value, computed in the graph.
    pub(crate) fn batch_of(&mut self, scope: &str, like: &str) -> String {
        let shape = self.node(scope, "Shape", &[like], vec![]);
        let zero = self.constant(scope, Small::I64Scalar(0));
        let batch = self.node(
            scope,
            "Gather",
            &[&shape, &zero],
            vec![("axis", Attr::Int(0))],
        );
        let axes = self.constant(scope, Small::I64s(vec![0]));
        self.node(scope, "Unsqueeze", &[&batch, &axes], vec![])
    }

    /// Applies the output names. Call once, when every node is there.
    pub(crate) fn finish(mut self) -> Graph {
        let renames = std::mem::take(&mut self.renames);
        let apply = |name: &mut String| {
            if let Some(new) = renames.get(name) {
                name.clone_from(new);
            }
        };
        for node in &mut self.nodes {
            node.inputs.iter_mut().for_each(apply);
            node.output_names.iter_mut().for_each(apply);
        }
        self
    }

    /// The number of trained parameters, as the literature counts them.
    pub(crate) fn parameter_count(&self) -> u64 {
        self.tensors
            .iter()
            .filter(|t| t.is_parameter)
            .map(Tensor::elements)
            .sum()
    }

    /// Bytes of all initializers.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.tensors.iter().map(Tensor::size_bytes).sum()
    }
}
