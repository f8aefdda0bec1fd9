//! Writes small ONNX models for tests, with a protobuf writer of its own.

#![allow(dead_code, reason = "each test binary uses a part")]

use neap_ir::{Graph, Op};
use neap_onnx::{OnnxError, OpenOptions, open};
use std::path::PathBuf;

pub const FLOAT: i32 = 1;
pub const UINT8: i32 = 2;
pub const INT32: i32 = 6;
pub const INT64: i32 = 7;
pub const BOOL: i32 = 9;
pub const FLOAT16: i32 = 10;
pub const BFLOAT16: i32 = 16;

/// Length-delimited and varint fields, appended.
#[derive(Default, Clone)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    pub fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn int(mut self, field: u32, value: i64) -> Bytes {
        self.raw_varint(u64::from(field) << 3);
        self.raw_varint(value as u64);
        self
    }

    pub fn float(mut self, field: u32, value: f32) -> Bytes {
        self.raw_varint(u64::from(field) << 3 | 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn bytes(mut self, field: u32, value: &[u8]) -> Bytes {
        self.raw_varint(u64::from(field) << 3 | 2);
        self.raw_varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    pub fn string(self, field: u32, value: &str) -> Bytes {
        self.bytes(field, value.as_bytes())
    }

    pub fn message(self, field: u32, value: &Bytes) -> Bytes {
        self.bytes(field, &value.0)
    }
}

pub enum Attr<'a> {
    Int(i64),
    Float(f32),
    Str(&'a str),
    Strs(&'a [&'a str]),
    Ints(&'a [i64]),
    Floats(&'a [f32]),
    Tensor(Bytes),
    Graph(Bytes),
    /// Of the function's call.
    Reference(&'a str, i64),
}

pub fn attribute(name: &str, value: &Attr) -> Bytes {
    let a = Bytes::default().string(1, name);
    match value {
        Attr::Float(v) => a.float(2, *v).int(20, 1),
        Attr::Int(v) => a.int(3, *v).int(20, 2),
        Attr::Str(v) => a.string(4, v).int(20, 3),
        Attr::Strs(v) => v.iter().fold(a, |a, x| a.string(9, x)).int(20, 8),
        Attr::Tensor(t) => a.message(5, t).int(20, 4),
        Attr::Graph(g) => a.message(6, g).int(20, 5),
        Attr::Floats(v) => v.iter().fold(a, |a, &x| a.float(7, x)).int(20, 6),
        Attr::Ints(v) => v.iter().fold(a, |a, &x| a.int(8, x)).int(20, 7),
        Attr::Reference(other, kind) => a.string(21, other).int(20, *kind),
    }
}

pub fn node(op: &str, inputs: &[&str], outputs: &[&str], attributes: &[(&str, Attr)]) -> Bytes {
    node_in("", op, inputs, outputs, attributes)
}

pub fn node_in(
    domain: &str,
    op: &str,
    inputs: &[&str],
    outputs: &[&str],
    attributes: &[(&str, Attr)],
) -> Bytes {
    let mut n = Bytes::default();
    for input in inputs {
        n = n.string(1, input);
    }
    for output in outputs {
        n = n.string(2, output);
    }
    n = n.string(3, &format!("the_{op}")).string(4, op);
    for (name, value) in attributes {
        n = n.message(5, &attribute(name, value));
    }
    n.string(7, domain)
}

pub fn tensor(name: &str, dtype: i32, dims: &[i64], raw: &[u8]) -> Bytes {
    tensor_head(name, dtype, dims).bytes(9, raw)
}

pub fn tensor_head(name: &str, dtype: i32, dims: &[i64]) -> Bytes {
    let t = dims.iter().fold(Bytes::default(), |t, &d| t.int(1, d));
    t.int(2, dtype.into()).string(8, name)
}

pub fn i64_tensor(name: &str, dims: &[i64], data: &[i64]) -> Bytes {
    let raw: Vec<u8> = data.iter().flat_map(|v| v.to_le_bytes()).collect();
    tensor(name, INT64, dims, &raw)
}

pub fn f32_tensor(name: &str, dims: &[i64], data: &[f32]) -> Bytes {
    let raw: Vec<u8> = data.iter().flat_map(|v| v.to_le_bytes()).collect();
    tensor(name, FLOAT, dims, &raw)
}

/// `Err` names a dimension, an empty name leaves it open.
pub type Dim<'a> = Result<i64, &'a str>;

pub fn value_info(name: &str, dtype: i32, dims: &[Dim]) -> Bytes {
    let shape = dims.iter().fold(Bytes::default(), |s, dim| {
        let d = match dim {
            Ok(size) => Bytes::default().int(1, *size),
            Err("") => Bytes::default(),
            Err(name) => Bytes::default().string(2, name),
        };
        s.message(1, &d)
    });
    let tensor = Bytes::default().int(1, dtype.into()).message(2, &shape);
    Bytes::default()
        .string(1, name)
        .message(2, &Bytes::default().message(1, &tensor))
}

/// A model under construction; fields are appended in the order of calls.
#[derive(Clone)]
pub struct Model {
    pub graph: Bytes,
    pub rest: Bytes,
}

impl Model {
    pub fn new(opset: i64) -> Model {
        let import = Bytes::default().string(1, "").int(2, opset);
        Model {
            graph: Bytes::default().string(2, "test"),
            rest: Bytes::default().int(1, 8).message(8, &import),
        }
    }

    pub fn input(mut self, name: &str, dtype: i32, dims: &[i64]) -> Model {
        let dims: Vec<Dim> = dims.iter().map(|&d| Ok(d)).collect();
        self.graph = self.graph.message(11, &value_info(name, dtype, &dims));
        self
    }

    pub fn open_input(mut self, name: &str, dtype: i32, dims: &[Dim]) -> Model {
        self.graph = self.graph.message(11, &value_info(name, dtype, dims));
        self
    }

    pub fn constant(mut self, tensor: &Bytes) -> Model {
        self.graph = self.graph.message(5, tensor);
        self
    }

    pub fn ints(self, name: &str, data: &[i64]) -> Model {
        self.constant(&i64_tensor(name, &[data.len() as i64], data))
    }

    pub fn node(
        mut self,
        op: &str,
        inputs: &[&str],
        outputs: &[&str],
        attributes: &[(&str, Attr)],
    ) -> Model {
        self.graph = self
            .graph
            .message(1, &node(op, inputs, outputs, attributes));
        self
    }

    pub fn raw_node(mut self, node: &Bytes) -> Model {
        self.graph = self.graph.message(1, node);
        self
    }

    pub fn output(mut self, name: &str) -> Model {
        let info = Bytes::default().string(1, name);
        self.graph = self.graph.message(12, &info);
        self
    }

    pub fn function(mut self, function: &Bytes) -> Model {
        self.rest = self.rest.message(25, function);
        self
    }

    pub fn metadata(mut self, key: &str, value: &str) -> Model {
        let entry = Bytes::default().string(1, key).string(2, value);
        self.rest = self.rest.message(14, &entry);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.rest.clone().message(7, &self.graph).0
    }

    pub fn open(&self) -> Result<Graph, OnnxError> {
        self.open_with(&OpenOptions::default())
    }

    pub fn open_with(&self, options: &OpenOptions) -> Result<Graph, OnnxError> {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, self.bytes()).expect("written");
        open(&path, options)
    }

    /// The graph of a model that must open.
    pub fn graph(&self) -> Graph {
        let graph = self.open().unwrap_or_else(|e| panic!("{e}"));
        graph.check().expect("well formed");
        graph
    }

    /// The message of a model that must not open; one line.
    pub fn error(&self) -> String {
        let error = self.open().expect_err("refused").to_string();
        assert!(!error.contains('\n') && error.len() < 1000, "{error}");
        error
    }
}

/// Names of the operators, in order.
pub fn operators(graph: &Graph) -> Vec<&'static str> {
    graph.nodes.iter().map(|n| n.op.name()).collect()
}

/// The only node's operator.
pub fn only_op(graph: &Graph) -> &Op {
    assert_eq!(graph.nodes.len(), 1, "{graph}");
    &graph.nodes[0].op
}

/// Shape of the first output.
pub fn output_shape(graph: &Graph) -> &[usize] {
    &graph.ty(graph.outputs[0]).shape
}

/// Trained models, where they are at hand.
pub fn shared_models() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/models");
    if folder.is_dir() {
        return Some(folder);
    }
    neap_testing::absent(format_args!("there is no {}", folder.display()));
    None
}
