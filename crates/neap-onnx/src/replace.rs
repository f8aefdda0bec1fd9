//! A model written again with other values of its initializers.
//!
//! All else is copied byte by byte, also what this reader does not know. Data in other files move into the model.

use crate::decode::Decoder;
use crate::error::OnnxError;
use crate::files::Files;
use crate::proto::TensorProto;
use crate::tensor;
use crate::wire::{Field, Message, Span};
use neap_ir::{Const, DType, FileId, FileRange, TensorType};
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
    tensors: Vec<(Initializer, TensorProto)>,
}

enum Part {
    /// Fields of the model, copied.
    Copied(Span),
    Graph(Vec<GraphPart>),
}

enum GraphPart {
    Copied(Span),
    /// By index, and the field as it stands.
    Tensor(usize, Span),
}

impl Replaceable {
    /// Finds the initializers of a model's main graph; no weights are read.
    ///
    /// # Errors
    /// The file cannot be read or is malformed.
    pub fn open(path: &Path) -> Result<Replaceable, OnnxError> {
        let files = Files::open(path)?;
        let (mut parts, mut tensors) = (Vec::new(), Vec::new());
        let source = files.model();
        let mut decoder = Decoder::new(source);
        let mut message = Message::whole(source);
        let mut start = message.position();
        while let Some((number, field)) = message.next()? {
            let end = message.position();
            parts.push(match (number, field) {
                (7, Field::Bytes(span)) => Part::Graph(graph(
                    Message::new(source, span),
                    &mut decoder,
                    &mut tensors,
                )?),
                _ => Part::Copied(between(start, end)),
            });
            start = end;
        }
        Ok(Replaceable {
            files,
            parts,
            tensors,
        })
    }

    /// In the file's order; those whose type is not known are left out.
    pub fn initializers(&self) -> impl Iterator<Item = &Initializer> {
        self.tensors.iter().map(|(known, _)| known)
    }

    /// An initializer's bytes as stored, little-endian and row-major; `None` where there is none of this name.
    ///
    /// # Errors
    /// Its data cannot be read or are malformed.
    pub fn data(&mut self, name: &str) -> Result<Option<Vec<u8>>, OnnxError> {
        let Some((_, proto)) = self.tensors.iter().find(|(known, _)| known.name == name) else {
            return Ok(None);
        };
        let (_, data) = tensor::load(&mut self.files, proto, false)?;
        Ok(match data {
            Const::Inline(literal) => Some(literal.bytes().to_vec()),
            Const::Stored { range, .. } => {
                let mut data = vec![0; range.bytes as usize];
                self.files.read(range, &mut data)?;
                Some(data)
            }
            Const::Packed(_) => None,
        })
    }

    /// Size of the file that [`Replaceable::write`] makes.
    ///
    /// # Errors
    /// [`ReplaceError::TooLarge`].
    pub fn len_bytes(&self, replaced: &dyn Fn(&str) -> bool) -> Result<u64, ReplaceError> {
        let of = |part: &Part| match part {
            Part::Copied(span) => span.len,
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
        for part in &self.parts {
            let parts = match part {
                Part::Copied(span) => {
                    copy(&self.files, *span, out)?;
                    continue;
                }
                Part::Graph(parts) => parts,
            };
            frame(out, 7, self.graph_len(parts, replaced))?;
            for part in parts {
                let index = match *part {
                    GraphPart::Copied(span) => {
                        copy(&self.files, span, out)?;
                        continue;
                    }
                    GraphPart::Tensor(index, span) if !self.is_rewritten(index, replaced) => {
                        copy(&self.files, span, out)?;
                        continue;
                    }
                    GraphPart::Tensor(index, _) => index,
                };
                let (known, proto) = &self.tensors[index];
                frame(out, 5, tensor_len(known))?;
                let data = if replaced(&known.name) {
                    value(known)?
                } else {
                    external(&mut self.files, known, proto)?
                };
                write_tensor(known, &data, out)?;
            }
        }
        Ok(())
    }

    /// Whether it differs from what the file holds: it has a new value, or its data come from another file.
    fn is_rewritten(&self, index: usize, replaced: &dyn Fn(&str) -> bool) -> bool {
        let (known, proto) = &self.tensors[index];
        proto.is_external || replaced(&known.name)
    }

    fn graph_len(&self, parts: &[GraphPart], replaced: &dyn Fn(&str) -> bool) -> u64 {
        let of = |part: &GraphPart| match *part {
            GraphPart::Copied(span) => span.len,
            GraphPart::Tensor(index, _) if self.is_rewritten(index, replaced) => {
                framed_len(tensor_len(&self.tensors[index].0))
            }
            GraphPart::Tensor(_, span) => span.len,
        };
        parts.iter().map(of).sum()
    }
}

fn graph(
    mut message: Message,
    decoder: &mut Decoder,
    tensors: &mut Vec<(Initializer, TensorProto)>,
) -> Result<Vec<GraphPart>, OnnxError> {
    let mut parts = Vec::new();
    let mut start = message.position();
    while let Some((number, field)) = message.next()? {
        let end = message.position();
        let span = between(start, end);
        start = end;
        if let (5, Field::Bytes(inner)) = (number, field) {
            let proto = decoder.tensor(inner)?;
            let dtype = tensor::dtype(proto.data_type);
            if let (Ok(dtype), Ok(shape)) = (dtype, tensor::shape(&proto.dims)) {
                let known = Initializer {
                    name: proto.name.clone(),
                    ty: TensorType::new(dtype, &shape),
                };
                parts.push(GraphPart::Tensor(tensors.len(), span));
                tensors.push((known, proto));
                continue;
            }
        }
        parts.push(GraphPart::Copied(span));
    }
    Ok(parts)
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

/// Data of a tensor that lie in a file of their own.
fn external(
    files: &mut Files,
    known: &Initializer,
    proto: &TensorProto,
) -> Result<Vec<u8>, OnnxError> {
    let bytes = known.ty.len_bytes();
    let range: FileRange = files.external(&proto.name, &proto.external, bytes as u64)?;
    debug_assert_ne!(range.file, FileId(0));
    let mut data = vec![0; bytes];
    files.read(range, &mut data)?;
    Ok(data)
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

/// Tag and length of a field that holds `len` bytes; its number is below 16, so the tag is one byte.
fn frame(out: &mut dyn Write, number: u64, len: u64) -> io::Result<()> {
    varint(out, number << 3 | 2)?;
    varint(out, len)
}

fn framed_len(len: u64) -> u64 {
    1 + varint_len(len) + len
}

fn varint(out: &mut dyn Write, mut value: u64) -> io::Result<()> {
    while value >= 0x80 {
        out.write_all(&[value as u8 | 0x80])?;
        value >>= 7;
    }
    out.write_all(&[value as u8])
}

fn varint_len(value: u64) -> u64 {
    u64::from((64 - value.max(1).leading_zeros()).div_ceil(7))
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
