//! A model written again with other values of its initializers, and with small changes of its graph and metadata.
//!
//! ```text
//!   out       fields of messages, written
//!   graph     nodes as they are changed; who reads what
//!   untie     initial values that an exporter shared, parted
//!   modes     nodes in training mode, in inference mode
//!   classes   a new last layer
//! ```
//! All else is copied byte by byte, also what this reader does not know. Data in other files move into the model.

mod classes;
mod graph;
mod modes;
mod out;
mod untie;

pub use classes::NewLayer;
pub use untie::Untied;

use crate::decode::Decoder;
use crate::error::OnnxError;
use crate::files::Files;
use crate::proto::TensorProto;
use crate::tensor;
use crate::wire::{Field, Message, Span};
use graph::NodePart;
use neap_ir::{Const, DType, TensorType};
use out::{bytes_field, frame, framed_len, varint, varint_len};
use std::io::{self, Write};
use std::path::Path;
use thiserror::Error;

/// Protobuf's own limit of a file.
const MAX_BYTES: u64 = (1 << 31) - 1;
const PIECE_BYTES: usize = 64 << 10;

/// A named tensor of the model's main graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Initializer {
    pub name: String,
    /// As stored: half floats stay half floats.
    pub ty: TensorType,
}

/// Why a model could not be written again.
#[derive(Debug, Error)]
pub enum ReplaceError {
    #[error(transparent)]
    Onnx(#[from] OnnxError),
    #[error(
        "the model would have {bytes} bytes, and one file of ONNX holds less than 2 GiB: its weights can be had as safetensors"
    )]
    TooLarge { bytes: u64 },
    /// A new value that has not the size of the old one.
    #[error("the new value of '{name}' has {given} bytes, the model's has {wanted}")]
    Size {
        name: String,
        given: usize,
        wanted: usize,
    },
    /// Of the file that is written, or of who gives new values.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A model whose initializers may be replaced.
pub struct Replaceable {
    files: Files,
    parts: Vec<Part>,
    tensors: Vec<Tensor>,
    nodes: Vec<NodePart>,
    /// Whether anything but values of initializers is another than in the file.
    is_changed: bool,
}

enum Part {
    /// Fields of the model, copied.
    Copied(Span),
    /// An entry of the metadata, with its key.
    Entry(String, Span),
    /// A field that is not in the file.
    New(Vec<u8>),
    Graph(Vec<GraphPart>),
}

enum GraphPart {
    Copied(Span),
    /// What shapes are said to be between inputs and outputs.
    Shape(Span),
    Output(Span),
    /// A field in place of one that was.
    New(Vec<u8>),
    /// By index.
    Node(usize),
    /// By index.
    Tensor(usize),
}

/// An initializer.
struct Tensor {
    known: Initializer,
    /// Where its data are, unless they are `data`.
    proto: TensorProto,
    /// The field as it stands; `None` where it is not in the file.
    span: Option<Span>,
    data: Option<Vec<u8>>,
}

impl Replaceable {
    /// Finds the initializers of a model's main graph; no weights are read.
    ///
    /// # Errors
    /// The file cannot be read or is malformed.
    pub fn open(path: &Path) -> Result<Replaceable, OnnxError> {
        let files = Files::open(path)?;
        let mut found = Found::default();
        let mut parts = Vec::new();
        let source = files.model();
        let mut decoder = Decoder::new(source);
        let mut message = Message::whole(source);
        let mut start = message.position();
        while let Some((number, field)) = message.next()? {
            let end = message.position();
            let span = between(start, end);
            parts.push(match (number, field) {
                (7, Field::Bytes(inner)) => {
                    Part::Graph(found.graph(Message::new(source, inner), &mut decoder)?)
                }
                (14, Field::Bytes(inner)) => Part::Entry(decoder.entry(inner)?.0, span),
                _ => Part::Copied(span),
            });
            start = end;
        }
        Ok(Replaceable {
            files,
            parts,
            tensors: found.tensors,
            nodes: found.nodes,
            is_changed: false,
        })
    }

    /// In the file's order; those whose type is not known are left out.
    pub fn initializers(&self) -> impl Iterator<Item = &Initializer> {
        self.tensors.iter().map(|tensor| &tensor.known)
    }

    /// Whether anything but values of initializers is another than in the file.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Writes these entries into the model's metadata, in place of those of the same keys; without a value a key goes.
    pub fn set_metadata(&mut self, entries: &[(String, String)]) {
        let is_new = |key: &String| entries.iter().any(|(other, _)| other == key);
        self.parts
            .retain(|part| !matches!(part, Part::Entry(key, _) if is_new(key)));
        for (key, value) in entries.iter().filter(|(_, value)| !value.is_empty()) {
            let entry = [
                bytes_field(1, key.as_bytes()),
                bytes_field(2, value.as_bytes()),
            ];
            let field = bytes_field(14, &entry.concat());
            self.parts.push(Part::New(field));
        }
        self.is_changed |= !entries.is_empty();
    }

    /// An initializer's bytes as stored, little-endian and row-major; `None` where there is none of this name.
    ///
    /// # Errors
    /// Its data cannot be read or are malformed.
    pub fn data(&mut self, name: &str) -> Result<Option<Vec<u8>>, OnnxError> {
        let found = self.tensors.iter().position(|t| t.known.name == name);
        found.map(|index| self.data_of(index)).transpose()
    }

    fn data_of(&mut self, index: usize) -> Result<Vec<u8>, OnnxError> {
        let tensor = &self.tensors[index];
        if let Some(data) = &tensor.data {
            return Ok(data.clone());
        }
        let (_, data) = tensor::load(&mut self.files, &tensor.proto, false)?;
        match data {
            Const::Inline(literal) => Ok(literal.bytes().to_vec()),
            Const::Stored { range, .. } => {
                let mut data = vec![0; range.bytes as usize];
                self.files.read(range, &mut data)?;
                Ok(data)
            }
            Const::Packed(_) => Err(OnnxError::Initializer {
                name: tensor.known.name.clone(),
                reason: "its data are packed".into(),
            }),
        }
    }

    /// Size of the file that [`Replaceable::write`] makes.
    ///
    /// # Errors
    /// [`ReplaceError::TooLarge`].
    pub fn len_bytes(&self, replaced: &dyn Fn(&str) -> bool) -> Result<u64, ReplaceError> {
        let of = |part: &Part| match part {
            Part::Copied(span) | Part::Entry(_, span) => span.len,
            Part::New(field) => field.len() as u64,
            Part::Graph(parts) => framed_len(self.graph_len(parts, replaced)),
        };
        let bytes = self.parts.iter().map(of).sum();
        if bytes > MAX_BYTES {
            return Err(ReplaceError::TooLarge { bytes });
        }
        Ok(bytes)
    }

    /// Writes the model. `value` gives the bytes (little-endian, row-major, in the stored type) of each initializer whose name
    /// `replaced` picks, one at a time.
    ///
    /// # Errors
    /// [`ReplaceError`]; the model's own file is never changed.
    pub fn write(
        &mut self,
        replaced: &dyn Fn(&str) -> bool,
        value: &mut dyn FnMut(&Initializer) -> io::Result<Vec<u8>>,
        out: &mut dyn Write,
    ) -> Result<(), ReplaceError> {
        self.len_bytes(replaced)?;
        let parts = std::mem::take(&mut self.parts);
        let written = parts.iter().try_for_each(|part| match part {
            Part::Copied(span) | Part::Entry(_, span) => copy(&self.files, *span, out),
            Part::New(field) => Ok(out.write_all(field)?),
            Part::Graph(inner) => {
                frame(out, 7, self.graph_len(inner, replaced))?;
                inner
                    .iter()
                    .try_for_each(|part| self.write_part(part, replaced, value, out))
            }
        });
        self.parts = parts;
        written
    }

    fn write_part(
        &mut self,
        part: &GraphPart,
        replaced: &dyn Fn(&str) -> bool,
        value: &mut dyn FnMut(&Initializer) -> io::Result<Vec<u8>>,
        out: &mut dyn Write,
    ) -> Result<(), ReplaceError> {
        match part {
            GraphPart::Copied(span) | GraphPart::Shape(span) | GraphPart::Output(span) => {
                copy(&self.files, *span, out)
            }
            GraphPart::New(field) => Ok(out.write_all(field)?),
            GraphPart::Node(index) => match &self.nodes[*index].now {
                Some(field) => Ok(out.write_all(field)?),
                None => copy(&self.files, self.nodes[*index].field, out),
            },
            GraphPart::Tensor(index) => {
                let tensor = &self.tensors[*index];
                if let (false, Some(span)) = (self.is_rewritten(tensor, replaced), tensor.span) {
                    return copy(&self.files, span, out);
                }
                let known = tensor.known.clone();
                frame(out, 5, tensor_len(&known))?;
                let data = match replaced(&known.name) {
                    true => value(&known)?,
                    false => self.data_of(*index)?,
                };
                write_tensor(&known, &data, out)
            }
        }
    }

    /// Whether it differs from what the file holds: it has a new value, or its data come from another file.
    fn is_rewritten(&self, tensor: &Tensor, replaced: &dyn Fn(&str) -> bool) -> bool {
        tensor.span.is_none() || tensor.proto.is_external || replaced(&tensor.known.name)
    }

    fn graph_len(&self, parts: &[GraphPart], replaced: &dyn Fn(&str) -> bool) -> u64 {
        let of = |part: &GraphPart| match part {
            GraphPart::Copied(span) | GraphPart::Shape(span) | GraphPart::Output(span) => span.len,
            GraphPart::New(field) => field.len() as u64,
            GraphPart::Node(index) => {
                let node = &self.nodes[*index];
                node.now
                    .as_ref()
                    .map_or(node.field.len, |field| field.len() as u64)
            }
            GraphPart::Tensor(index) => {
                let tensor = &self.tensors[*index];
                match tensor.span {
                    Some(span) if !self.is_rewritten(tensor, replaced) => span.len,
                    _ => framed_len(tensor_len(&tensor.known)),
                }
            }
        };
        parts.iter().map(of).sum()
    }

    /// Adds an initializer that is not in the file: a copy of another, or `data`.
    fn add_tensor(&mut self, known: Initializer, proto: TensorProto, data: Option<Vec<u8>>) {
        self.is_changed = true;
        let index = self.tensors.len();
        self.tensors.push(Tensor {
            known,
            proto,
            span: None,
            data,
        });
        let graphs = self.parts.iter_mut().filter_map(|part| match part {
            Part::Graph(parts) => Some(parts),
            _ => None,
        });
        for parts in graphs {
            parts.push(GraphPart::Tensor(index));
        }
    }
}

/// What is found in a file.
#[derive(Default)]
struct Found {
    tensors: Vec<Tensor>,
    nodes: Vec<NodePart>,
}

impl Found {
    fn graph(
        &mut self,
        mut message: Message,
        decoder: &mut Decoder,
    ) -> Result<Vec<GraphPart>, OnnxError> {
        let mut parts = Vec::new();
        let mut start = message.position();
        while let Some((number, field)) = message.next()? {
            let span = between(start, message.position());
            start = message.position();
            parts.push(match (number, field) {
                (1, Field::Bytes(inner)) => {
                    self.nodes.push(NodePart::new(span, inner));
                    GraphPart::Node(self.nodes.len() - 1)
                }
                (5, Field::Bytes(inner)) => self.tensor(decoder.tensor(inner)?, span),
                (12, _) => GraphPart::Output(span),
                (13, _) => GraphPart::Shape(span),
                _ => GraphPart::Copied(span),
            });
        }
        Ok(parts)
    }

    fn tensor(&mut self, proto: TensorProto, span: Span) -> GraphPart {
        let dtype = tensor::dtype(proto.data_type);
        let (Ok(dtype), Ok(shape)) = (dtype, tensor::shape(&proto.dims)) else {
            return GraphPart::Copied(span);
        };
        self.tensors.push(Tensor {
            known: Initializer {
                name: proto.name.clone(),
                ty: TensorType::new(dtype, &shape),
            },
            proto,
            span: Some(span),
            data: None,
        });
        GraphPart::Tensor(self.tensors.len() - 1)
    }
}

fn between(start: u64, end: u64) -> Span {
    Span {
        offset: start,
        len: end - start,
    }
}

fn copy(files: &Files, span: Span, out: &mut dyn Write) -> Result<(), ReplaceError> {
    let mut piece = [0; PIECE_BYTES];
    let (mut at, end) = (span.offset, span.offset + span.len);
    while at < end {
        let len = PIECE_BYTES.min((end - at) as usize);
        files.model().read(at, &mut piece[..len])?;
        out.write_all(&piece[..len])?;
        at += len as u64;
    }
    Ok(())
}

/// `TensorProto`: dims 1, data_type 2, name 8, raw_data 9.
fn write_tensor(known: &Initializer, data: &[u8], out: &mut dyn Write) -> Result<(), ReplaceError> {
    let wanted = known.ty.len_bytes();
    if data.len() != wanted {
        return Err(ReplaceError::Size {
            name: known.name.clone(),
            given: data.len(),
            wanted,
        });
    }
    for &dim in &known.ty.shape {
        varint(out, 1 << 3)?;
        varint(out, dim as u64)?;
    }
    varint(out, 2 << 3)?;
    varint(out, data_type(known.ty.dtype))?;
    frame(out, 8, known.name.len() as u64)?;
    out.write_all(known.name.as_bytes())?;
    frame(out, 9, wanted as u64)?;
    out.write_all(data)?;
    Ok(())
}

fn tensor_len(known: &Initializer) -> u64 {
    let dims: u64 = (known.ty.shape.iter())
        .map(|&dim| 1 + varint_len(dim as u64))
        .sum();
    dims + 1
        + varint_len(data_type(known.ty.dtype))
        + framed_len(known.name.len() as u64)
        + framed_len(known.ty.len_bytes() as u64)
}

/// ONNX's number of an element type.
fn data_type(dtype: DType) -> u64 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::U16 => 4,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::U32 => 12,
        DType::U64 => 13,
        DType::BF16 => 16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_what_is_written() {
        for value in [
            0,
            1,
            127,
            128,
            16_383,
            16_384,
            u64::from(u32::MAX),
            u64::MAX,
        ] {
            let mut bytes = Vec::new();
            varint(&mut bytes, value).unwrap();
            assert_eq!(bytes.len() as u64, varint_len(value), "{value}");
        }
        for shape in [&[][..], &[3], &[200, 5, 1]] {
            let known = Initializer {
                name: "weight".into(),
                ty: TensorType::new(DType::F16, shape),
            };
            let mut bytes = Vec::new();
            write_tensor(&known, &vec![1; known.ty.len_bytes()], &mut bytes).unwrap();
            assert_eq!(bytes.len() as u64, tensor_len(&known), "{shape:?}");
        }
    }
}
