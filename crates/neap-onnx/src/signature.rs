//! What a model says of itself before anything is bound: its inputs and outputs as declared, and its metadata. Nodes
//! and weights are passed over, so a model that cannot be run still has a signature. Where an output declares no type, its
//! nodes say it.

use crate::decode::Decoder;
use crate::error::OnnxError;
use crate::import::real_inputs;
use crate::inputs::{Inputs, is_one_for_scalar};
use crate::open_file::OpenFile;
use crate::proto::{Dim, GraphProto, ValueInfo, ValueType};
use crate::source::Source;
use crate::wire::{Field, Message, Span};
use crate::{decode, tensor, undeclared};
use neap_ir::DType;
use std::path::Path;
use std::sync::Arc;

/// Inputs, outputs and metadata of a model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signature {
    /// Those that a caller gives: none with an initializer.
    pub inputs: Vec<Declared>,
    pub outputs: Vec<Declared>,
    pub about: About,
}

/// A value as the model declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    pub name: String,
    /// `None` for types that are not supported.
    pub dtype: Option<DType>,
    /// As ONNX's schemas write it: `tensor(float)`.
    pub type_text: String,
    /// `None` when even the rank is open.
    pub dims: Option<Vec<DeclaredDim>>,
}

impl Declared {
    /// Whether a tensor of this shape may be given for it.
    pub fn takes(&self, shape: &[usize]) -> bool {
        let Some(dims) = &self.dims else { return true };
        let fits = |(dim, &size): (&DeclaredDim, &usize)| match dim {
            DeclaredDim::Fixed(fixed) => *fixed == size,
            DeclaredDim::Named(_) | DeclaredDim::Open => true,
        };
        is_one_for_scalar(dims.len(), shape)
            || dims.len() == shape.len() && dims.iter().zip(shape).all(fits)
    }
}

/// One dimension of a declared shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeclaredDim {
    Fixed(usize),
    /// Dimensions of the same name have the same size.
    Named(String),
    Open,
}

/// Who made the model, and what else its maker wrote into it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct About {
    pub producer_name: String,
    pub domain: String,
    pub description: String,
    pub version: i64,
    pub graph_name: String,
    pub graph_description: String,
    /// Keys and values, in the file's order.
    pub metadata: Vec<(String, String)>,
}

/// Reads what the model file declares.
///
/// # Errors
/// The file cannot be read, is malformed, or holds no graph.
pub fn signature(path: &Path) -> Result<Signature, OnnxError> {
    let source = Source::of(Arc::new(OpenFile::open(path, 0)?));
    let mut decoder = Decoder::new(&source);
    let mut about = About::default();
    let mut graph = None;
    let mut message = Message::whole(&source);
    while let Some((number, field)) = message.next()? {
        match (number, field) {
            (2, Field::Bytes(s)) => about.producer_name = decoder.string(s)?,
            (4, Field::Bytes(s)) => about.domain = decoder.string(s)?,
            (5, Field::Varint(v)) => about.version = v as i64,
            (6, Field::Bytes(s)) => about.description = decoder.string(s)?,
            (7, Field::Bytes(s)) => {
                graph = Some(declarations(&source, &mut decoder, s, &mut about)?)
            }
            (14, Field::Bytes(s)) => about.metadata.push(decoder.entry(s)?),
            _ => {}
        }
    }
    let mut graph = graph.ok_or_else(|| OnnxError::Model {
        path: source.name().to_string(),
        reason: "it holds no graph".into(),
    })?;
    // Nodes are read only where outputs say less than they do.
    if graph.outputs.iter().any(undeclared::is_open)
        && let Ok(model) = decode::model(&source)
    {
        undeclared::complete(&model, &mut graph.outputs);
    }
    let inputs = real_inputs(&graph).into_iter().map(declared).collect();
    Ok(Signature {
        inputs,
        outputs: graph.outputs.iter().map(declared).collect(),
        about,
    })
}

/// Inputs of a model that is kept without its files.
pub fn declared_inputs(inputs: &Inputs) -> Vec<Declared> {
    inputs.values().iter().map(declared).collect()
}

/// A graph without its nodes.
fn declarations(
    source: &Source,
    decoder: &mut Decoder,
    span: Span,
    about: &mut About,
) -> Result<GraphProto, OnnxError> {
    let mut graph = GraphProto::default();
    let mut message = Message::new(source, span);
    while let Some((number, field)) = message.next()? {
        let Field::Bytes(inner) = field else { continue };
        match number {
            2 => about.graph_name = decoder.string(inner)?,
            5 => graph.initializers.push(decoder.tensor(inner)?),
            10 => about.graph_description = decoder.string(inner)?,
            11 => graph.inputs.push(decoder.value_info(inner)?),
            12 => graph.outputs.push(decoder.value_info(inner)?),
            15 => graph.sparse_initializers.push(decoder.sparse(inner)?),
            _ => {}
        }
    }
    Ok(graph)
}

/// As ONNX's schemas write the type of a tensor: `tensor(float)`.
pub fn type_text(dtype: DType) -> String {
    let known = (1..=16).find(|&elem_type| tensor::dtype(elem_type) == Ok(dtype));
    format!("tensor({})", element_name(known.unwrap_or_default()))
}

fn declared(value: &ValueInfo) -> Declared {
    let (dtype, type_text, dims) = match &value.ty {
        ValueType::Tensor { elem_type, shape } => {
            let text = format!("tensor({})", element_name(*elem_type));
            (tensor::carrier(*elem_type).ok(), text, shape.as_ref())
        }
        ValueType::Other(kind) => (None, kind.clone(), None),
        ValueType::Unknown => (None, "undefined".into(), None),
    };
    let dim = |dim: &Dim| match dim {
        Dim::Fixed(size) => usize::try_from(*size).map_or(DeclaredDim::Open, DeclaredDim::Fixed),
        Dim::Named(name) => DeclaredDim::Named(name.clone()),
        Dim::Unknown => DeclaredDim::Open,
    };
    Declared {
        name: value.name.clone(),
        dtype,
        type_text,
        dims: dims.map(|dims| dims.iter().map(dim).collect()),
    }
}

/// As ONNX's schemas name element types.
fn element_name(elem_type: i64) -> &'static str {
    match elem_type {
        1 => "float",
        2 => "uint8",
        3 => "int8",
        4 => "uint16",
        5 => "int16",
        6 => "int32",
        7 => "int64",
        8 => "string",
        9 => "bool",
        10 => "float16",
        11 => "double",
        12 => "uint32",
        13 => "uint64",
        14 => "complex64",
        15 => "complex128",
        16 => "bfloat16",
        17 => "float8e4m3fn",
        18 => "float8e4m3fnuz",
        19 => "float8e5m2",
        20 => "float8e5m2fnuz",
        21 => "uint4",
        22 => "int4",
        23 => "float4e2m1",
        24 => "float8e8m0",
        25 => "uint2",
        26 => "int2",
        27 => "float6e2m3",
        28 => "float6e3m2",
        _ => "undefined",
    }
}
