//! The part of `onnx.proto` that inference needs, with tensor data left in the file.

use crate::wire::Span;
use serde::{Deserialize, Serialize};

#[derive(Debug, Default)]
pub(crate) struct ModelProto {
    /// Domain and version.
    pub(crate) opsets: Vec<(String, i64)>,
    pub(crate) graph: Option<GraphProto>,
    pub(crate) functions: Vec<FunctionProto>,
    /// Its external data were never written: see [`crate::WEIGHTS_KEY`].
    pub(crate) is_bare: bool,
    /// Keys and values, in the file's order; very long ones are left out.
    pub(crate) metadata: Vec<(String, String)>,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct GraphProto {
    pub(crate) name: String,
    pub(crate) nodes: Vec<NodeProto>,
    pub(crate) initializers: Vec<TensorProto>,
    pub(crate) sparse_initializers: Vec<SparseTensorProto>,
    pub(crate) inputs: Vec<ValueInfo>,
    pub(crate) outputs: Vec<ValueInfo>,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct NodeProto {
    pub(crate) name: String,
    pub(crate) op_type: String,
    pub(crate) domain: String,
    /// An empty name is an input that was left out.
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
    pub(crate) attributes: Vec<AttributeProto>,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct AttributeProto {
    pub(crate) name: String,
    /// In a function's body: the attribute of the call that is meant.
    pub(crate) reference: String,
    pub(crate) value: AttributeValue,
}

#[derive(Debug, Default, Clone)]
pub(crate) enum AttributeValue {
    #[default]
    None,
    Float(f32),
    Int(i64),
    String(Vec<u8>),
    Tensor(TensorProto),
    Graph(Box<GraphProto>),
    SparseTensor(Box<SparseTensorProto>),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    Strings(Vec<Vec<u8>>),
    /// Lists of tensors or graphs, types.
    Other,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct TensorProto {
    pub(crate) name: String,
    pub(crate) dims: Vec<i64>,
    pub(crate) data_type: i64,
    pub(crate) chunks: Vec<Chunk>,
    /// `data_location` is EXTERNAL.
    pub(crate) is_external: bool,
    /// Keys and values that say where external data are.
    pub(crate) external: Vec<(String, String)>,
}

/// Elements of a tensor as they stand in the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunk {
    pub(crate) field: DataField,
    pub(crate) data: ChunkData,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ChunkData {
    /// Raw bytes, or a packed repeated field.
    Span(Span),
    /// One element, not packed: a varint, or the bits of a float.
    One(u64),
}

/// Which of `TensorProto`'s repeated fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataField {
    Float,
    /// Also holds int8, int16, bool and half floats.
    Int32,
    Int64,
    Double,
    Uint64,
    String,
    Raw,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct SparseTensorProto {
    pub(crate) values: TensorProto,
    pub(crate) indices: TensorProto,
    pub(crate) dims: Vec<i64>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ValueInfo {
    pub(crate) name: String,
    pub(crate) ty: ValueType,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ValueType {
    #[default]
    Unknown,
    Tensor {
        elem_type: i64,
        /// `None` when even the rank is open.
        shape: Option<Vec<Dim>>,
    },
    /// Sequences, maps, optionals, sparse tensors.
    Other(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Dim {
    Fixed(i64),
    /// Dimensions of the same name have the same size.
    Named(String),
    Unknown,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct FunctionProto {
    pub(crate) name: String,
    pub(crate) domain: String,
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
    pub(crate) nodes: Vec<NodeProto>,
    pub(crate) opsets: Vec<(String, i64)>,
    /// Attributes with defaults.
    pub(crate) defaults: Vec<AttributeProto>,
}
