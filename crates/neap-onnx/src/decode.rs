//! Wire format to `proto` structures; tensor data are skipped over.

use crate::error::OnnxError;
use crate::proto::*;
use crate::source::Source;
use crate::wire::{Field, Message, Span};
use crate::{WEIGHTS_ABSENT, WEIGHTS_KEY};

/// Sub-graphs nest through attributes; deeper than this is no real model.
const MAX_DEPTH: usize = 32;
/// Memory that the structure (names, nodes, attributes; not weights) may take.
const MAX_STRUCTURE_BYTES: u64 = 192 << 20;
/// An entry of the metadata that is kept with the model.
const MAX_ENTRY_BYTES: u64 = 256 << 10;
/// What exporters call a dimension that has no name (Paddle: `?`). Two of them need not be equal.
const ANONYMOUS_DIMS: [&str; 6] = ["", "?", "-1", "None", "unknown", "unk"];

pub(crate) fn model(source: &Source) -> Result<ModelProto, OnnxError> {
    let mut decoder = Decoder::new(source);
    let mut model = ModelProto::default();
    let mut message = Message::whole(source);
    while let Some((number, field)) = message.next()? {
        match (number, field) {
            (7, Field::Bytes(span)) if model.graph.is_none() => {
                model.graph = Some(decoder.graph(span, 0)?);
            }
            (7, _) => return Err(source.malformed(message.position(), "it holds two graphs")),
            (8, Field::Bytes(span)) => model.opsets.push(decoder.opset(span)?),
            (14, Field::Bytes(span)) => {
                let (key, value) = decoder.entry(span)?;
                model.is_bare |= key == WEIGHTS_KEY && value == WEIGHTS_ABSENT;
                if span.len <= MAX_ENTRY_BYTES {
                    model.metadata.push((key, value));
                }
            }
            (25, Field::Bytes(span)) => model.functions.push(decoder.function(span)?),
            _ => {}
        }
    }
    Ok(model)
}

pub(crate) struct Decoder<'a> {
    source: &'a Source,
    used: u64,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(source: &'a Source) -> Decoder<'a> {
        Decoder { source, used: 0 }
    }

    fn message(&self, span: Span) -> Message<'a> {
        Message::new(self.source, span)
    }

    /// Counts memory that is about to be taken, so that a hostile file cannot take much.
    fn charge(&mut self, bytes: u64, at: u64) -> Result<(), OnnxError> {
        self.used = self.used.saturating_add(bytes);
        if self.used > MAX_STRUCTURE_BYTES {
            return Err(self
                .source
                .malformed(at, "its structure (without weights) is too large"));
        }
        Ok(())
    }

    fn bytes(&mut self, span: Span) -> Result<Vec<u8>, OnnxError> {
        self.charge(span.len + 32, span.offset)?;
        let mut bytes = vec![0; span.len as usize];
        self.source.read(span.offset, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn string(&mut self, span: Span) -> Result<String, OnnxError> {
        String::from_utf8(self.bytes(span)?)
            .map_err(|_| self.source.malformed(span.offset, "a name is not UTF-8"))
    }

    /// A key and its value.
    pub(crate) fn entry(&mut self, span: Span) -> Result<(String, String), OnnxError> {
        let (mut key, mut value) = (String::new(), String::new());
        let mut entry = self.message(span);
        while let Some((number, field)) = entry.next()? {
            match (number, field) {
                (1, Field::Bytes(s)) => key = self.string(s)?,
                (2, Field::Bytes(s)) => value = self.string(s)?,
                _ => {}
            }
        }
        Ok((key, value))
    }

    fn graph(&mut self, span: Span, depth: usize) -> Result<GraphProto, OnnxError> {
        if depth > MAX_DEPTH {
            return Err(self
                .source
                .malformed(span.offset, "graphs are nested too deeply"));
        }
        let mut graph = GraphProto::default();
        let mut message = self.message(span);
        while let Some((number, field)) = message.next()? {
            let Field::Bytes(inner) = field else { continue };
            match number {
                1 => graph.nodes.push(self.node(inner, depth)?),
                2 => graph.name = self.string(inner)?,
                5 => graph.initializers.push(self.tensor(inner)?),
                11 => graph.inputs.push(self.value_info(inner)?),
                12 => graph.outputs.push(self.value_info(inner)?),
                15 => graph.sparse_initializers.push(self.sparse(inner)?),
                _ => {}
            }
        }
        Ok(graph)
    }

    fn node(&mut self, span: Span, depth: usize) -> Result<NodeProto, OnnxError> {
        self.charge(size_of::<NodeProto>() as u64, span.offset)?;
        let mut node = NodeProto::default();
        let mut message = self.message(span);
        while let Some((number, field)) = message.next()? {
            let Field::Bytes(inner) = field else { continue };
            match number {
                1 => node.inputs.push(self.string(inner)?),
                2 => node.outputs.push(self.string(inner)?),
                3 => node.name = self.string(inner)?,
                4 => node.op_type = self.string(inner)?,
                5 => node.attributes.push(self.attribute(inner, depth)?),
                7 => node.domain = self.string(inner)?,
                _ => {}
            }
        }
        Ok(node)
    }

    fn attribute(&mut self, span: Span, depth: usize) -> Result<AttributeProto, OnnxError> {
        self.charge(size_of::<AttributeProto>() as u64, span.offset)?;
        let mut attribute = AttributeProto::default();
        // Which of the fields counts is said by `type`; files of the first IR version lack it, and
        // then the one that is present counts.
        let mut kind = None;
        let (mut float, mut int, mut string) = (None, None, None);
        let (mut tensor, mut graph, mut sparse) = (None, None, None);
        let (mut floats, mut ints, mut strings) = (Vec::new(), Vec::new(), Vec::new());
        let mut other = false;
        let mut message = self.message(span);
        while let Some((number, field)) = message.next()? {
            match (number, field) {
                (1, Field::Bytes(s)) => attribute.name = self.string(s)?,
                (2, Field::Fixed32(bits)) => float = Some(f32::from_bits(bits)),
                (3, Field::Varint(v)) => int = Some(v as i64),
                (4, Field::Bytes(s)) => string = Some(self.bytes(s)?),
                (5, Field::Bytes(s)) => tensor = Some(self.tensor(s)?),
                (6, Field::Bytes(s)) => graph = Some(Box::new(self.graph(s, depth + 1)?)),
                (7, Field::Fixed32(bits)) => {
                    self.charge(4, span.offset)?;
                    floats.push(f32::from_bits(bits));
                }
                (7, Field::Bytes(s)) => {
                    let bytes = self.bytes(s)?;
                    floats.extend(
                        bytes
                            .as_chunks::<4>()
                            .0
                            .iter()
                            .map(|&b| f32::from_le_bytes(b)),
                    );
                }
                (8, Field::Varint(v)) => {
                    self.charge(8, span.offset)?;
                    ints.push(v as i64);
                }
                (8, Field::Bytes(s)) => self.packed_i64(s, &mut ints)?,
                (9, Field::Bytes(s)) => strings.push(self.bytes(s)?),
                (20, Field::Varint(v)) => kind = Some(v),
                (21, Field::Bytes(s)) => attribute.reference = self.string(s)?,
                (22, Field::Bytes(s)) => sparse = Some(Box::new(self.sparse(s)?)),
                (10 | 11 | 14 | 15 | 23, _) => other = true,
                _ => {}
            }
        }
        use AttributeValue as V;
        attribute.value = match kind {
            Some(1) => V::Float(float.unwrap_or(0.0)),
            Some(2) => V::Int(int.unwrap_or(0)),
            Some(3) => V::String(string.unwrap_or_default()),
            Some(4) => tensor.map_or(V::None, V::Tensor),
            Some(5) => graph.map_or(V::None, V::Graph),
            Some(6) => V::Floats(floats),
            Some(7) => V::Ints(ints),
            Some(8) => V::Strings(strings),
            Some(11) => sparse.map_or(V::None, V::SparseTensor),
            None | Some(0) => {
                let one = float
                    .map(V::Float)
                    .or(int.map(V::Int))
                    .or(string.map(V::String));
                let one = one.or(tensor.map(V::Tensor)).or(graph.map(V::Graph));
                match one.or(sparse.map(V::SparseTensor)) {
                    Some(value) => value,
                    None if !floats.is_empty() => V::Floats(floats),
                    None if !strings.is_empty() => V::Strings(strings),
                    None if !ints.is_empty() => V::Ints(ints),
                    None if other => V::Other,
                    None => V::None,
                }
            }
            Some(_) => V::Other,
        };
        Ok(attribute)
    }

    fn packed_i64(&mut self, span: Span, out: &mut Vec<i64>) -> Result<(), OnnxError> {
        let mut message = self.message(span);
        while let Some(value) = message.packed_varint()? {
            self.charge(8, span.offset)?;
            out.push(value as i64);
        }
        Ok(())
    }

    pub(crate) fn tensor(&mut self, span: Span) -> Result<TensorProto, OnnxError> {
        self.charge(size_of::<TensorProto>() as u64, span.offset)?;
        let mut tensor = TensorProto::default();
        let mut message = self.message(span);
        while let Some((number, field)) = message.next()? {
            let data = match number {
                4 => DataField::Float,
                5 => DataField::Int32,
                6 => DataField::String,
                7 => DataField::Int64,
                9 => DataField::Raw,
                10 => DataField::Double,
                11 => DataField::Uint64,
                _ => {
                    self.tensor_field(&mut tensor, number, field)?;
                    continue;
                }
            };
            self.charge(size_of::<Chunk>() as u64, span.offset)?;
            tensor.chunks.push(Chunk {
                field: data,
                data: match field {
                    Field::Bytes(span) => ChunkData::Span(span),
                    Field::Varint(v) | Field::Fixed64(v) => ChunkData::One(v),
                    Field::Fixed32(v) => ChunkData::One(v.into()),
                },
            });
        }
        Ok(tensor)
    }

    fn tensor_field(
        &mut self,
        tensor: &mut TensorProto,
        number: u32,
        field: Field,
    ) -> Result<(), OnnxError> {
        match (number, field) {
            (1, Field::Varint(v)) => {
                self.charge(8, 0)?;
                tensor.dims.push(v as i64);
            }
            (1, Field::Bytes(s)) => self.packed_i64(s, &mut tensor.dims)?,
            (2, Field::Varint(v)) => tensor.data_type = v as i64,
            (8, Field::Bytes(s)) => tensor.name = self.string(s)?,
            (13, Field::Bytes(s)) => {
                let entry = self.entry(s)?;
                tensor.external.push(entry);
            }
            (14, Field::Varint(v)) => tensor.is_external = v == 1,
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn sparse(&mut self, span: Span) -> Result<SparseTensorProto, OnnxError> {
        let mut sparse = SparseTensorProto::default();
        let mut message = self.message(span);
        while let Some((number, field)) = message.next()? {
            match (number, field) {
                (1, Field::Bytes(s)) => sparse.values = self.tensor(s)?,
                (2, Field::Bytes(s)) => sparse.indices = self.tensor(s)?,
                (3, Field::Varint(v)) => {
                    self.charge(8, span.offset)?;
                    sparse.dims.push(v as i64);
                }
                (3, Field::Bytes(s)) => self.packed_i64(s, &mut sparse.dims)?,
                _ => {}
            }
        }
        Ok(sparse)
    }

    pub(crate) fn value_info(&mut self, span: Span) -> Result<ValueInfo, OnnxError> {
        self.charge(size_of::<ValueInfo>() as u64, span.offset)?;
        let mut info = ValueInfo::default();
        let mut message = self.message(span);
        while let Some((number, field)) = message.next()? {
            match (number, field) {
                (1, Field::Bytes(s)) => info.name = self.string(s)?,
                (2, Field::Bytes(s)) => info.ty = self.value_type(s)?,
                _ => {}
            }
        }
        Ok(info)
    }

    fn value_type(&mut self, span: Span) -> Result<ValueType, OnnxError> {
        let mut ty = ValueType::Unknown;
        let mut message = self.message(span);
        while let Some((number, field)) = message.next()? {
            match (number, field) {
                (1, Field::Bytes(s)) => ty = self.tensor_type(s)?,
                (4, Field::Bytes(_)) => ty = ValueType::Other("a sequence".into()),
                (5, Field::Bytes(_)) => ty = ValueType::Other("a map".into()),
                (8, Field::Bytes(_)) => ty = ValueType::Other("a sparse tensor".into()),
                (9, Field::Bytes(_)) => ty = ValueType::Other("an optional value".into()),
                _ => {}
            }
        }
        Ok(ty)
    }

    fn tensor_type(&mut self, span: Span) -> Result<ValueType, OnnxError> {
        let mut elem_type = 0;
        let mut shape = None;
        let mut message = self.message(span);
        while let Some((number, field)) = message.next()? {
            match (number, field) {
                (1, Field::Varint(v)) => elem_type = v as i64,
                (2, Field::Bytes(s)) => {
                    let dims = shape.get_or_insert_with(Vec::new);
                    let mut inner = self.message(s);
                    while let Some((number, field)) = inner.next()? {
                        if let (1, Field::Bytes(s)) = (number, field) {
                            self.charge(size_of::<Dim>() as u64, s.offset)?;
                            dims.push(self.dim(s)?);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(ValueType::Tensor { elem_type, shape })
    }

    fn dim(&mut self, span: Span) -> Result<Dim, OnnxError> {
        let mut dim = Dim::Unknown;
        let mut message = self.message(span);
        while let Some((number, field)) = message.next()? {
            match (number, field) {
                (1, Field::Varint(v)) => dim = Dim::Fixed(v as i64),
                (2, Field::Bytes(s)) => {
                    let name = self.string(s)?;
                    dim = if ANONYMOUS_DIMS.contains(&name.as_str()) {
                        Dim::Unknown
                    } else {
                        Dim::Named(name)
                    };
                }
                _ => {}
            }
        }
        Ok(dim)
    }

    fn opset(&mut self, span: Span) -> Result<(String, i64), OnnxError> {
        let (mut domain, mut version) = (String::new(), 0);
        let mut message = self.message(span);
        while let Some((number, field)) = message.next()? {
            match (number, field) {
                (1, Field::Bytes(s)) => domain = self.string(s)?,
                (2, Field::Varint(v)) => version = v as i64,
                _ => {}
            }
        }
        self.charge(64, span.offset)?;
        Ok((domain, version))
    }

    fn function(&mut self, span: Span) -> Result<FunctionProto, OnnxError> {
        self.charge(size_of::<FunctionProto>() as u64, span.offset)?;
        let mut function = FunctionProto::default();
        let mut message = self.message(span);
        while let Some((number, field)) = message.next()? {
            let Field::Bytes(inner) = field else { continue };
            match number {
                1 => function.name = self.string(inner)?,
                4 => function.inputs.push(self.string(inner)?),
                5 => function.outputs.push(self.string(inner)?),
                7 => function.nodes.push(self.node(inner, 0)?),
                9 => function.opsets.push(self.opset(inner)?),
                10 => function.domain = self.string(inner)?,
                11 => function.defaults.push(self.attribute(inner, 0)?),
                _ => {}
            }
        }
        Ok(function)
    }
}
