//! `TensorProto` to a constant: a byte range where the bytes are usable as they stand, a literal
//! where they are few or need decoding.

use crate::error::{OnnxError, shown};
use crate::files::Files;
use crate::narrow::Narrow;
use crate::proto::{Chunk, ChunkData, DataField, SparseTensorProto, TensorProto};
use crate::wire::{Message, Span};
use half::{bf16, f16};
use neap_ir::recipe::INLINE_LIMIT_BYTES;
use neap_ir::{Const, DType, FileId, FileRange, Literal, TensorType};

/// A tensor that must be decoded (not raw little-endian bytes) is held in memory; no more than this.
const MAX_DECODED_BYTES: u64 = 64 << 20;
pub(crate) const MAX_RANK: usize = 32;

/// Numbers of element types.
const UINT8: i64 = 2;

/// The element type, or what is wrong with it.
pub(crate) fn dtype(data_type: i64) -> Result<DType, String> {
    Ok(match data_type {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        4 => DType::U16,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        12 => DType::U32,
        13 => DType::U64,
        16 => DType::BF16,
        0 => return Err("its element type is missing".into()),
        other => {
            let name = match other {
                8 => "string",
                14 => "complex64",
                15 => "complex128",
                17..=20 => "float8",
                21 => "uint4",
                22 => "int4",
                23 => "float4e2m1",
                24 => "float8e8m0",
                25 => "uint2",
                26 => "int2",
                27 => "float6e2m3",
                28 => "float6e3m2",
                _ => return Err(format!("its element type {other} is unknown")),
            };
            return Err(format!("element type {name} is not supported"));
        }
    })
}

/// A shape whose size in bytes is sure not to overflow.
pub(crate) fn shape(dims: &[i64]) -> Result<Vec<usize>, String> {
    if dims.len() > MAX_RANK {
        return Err(format!("it has {} dimensions", dims.len()));
    }
    let shape: Option<Vec<usize>> = dims.iter().map(|&d| usize::try_from(d).ok()).collect();
    let shape = shape.ok_or("it has a negative dimension")?;
    if is_huge(&shape) {
        return Err("it is impossibly large".into());
    }
    Ok(shape)
}

/// More elements than a 47-bit address space could hold; also guards every product of dimensions.
pub(crate) fn is_huge(shape: &[usize]) -> bool {
    shape
        .iter()
        .try_fold(1usize, |n, &d| n.checked_mul(d.max(1)))
        .is_none_or(|n| n > 1 << 44)
}

/// The most bytes that a tensor's data can have, by its type.
pub(crate) fn most_bytes(tensor: &TensorProto) -> u64 {
    let Ok(shape) = shape(&tensor.dims) else {
        return u64::MAX;
    };
    let each = dtype(tensor.data_type).map_or(1, DType::size_bytes);
    (shape.iter().product::<usize>() as u64).saturating_mul(each as u64)
}

/// Half floats are computed as f32 when `widen` is set: the value's type says so, the stored bytes stay.
pub(crate) fn value_dtype(stored: DType, widen: bool) -> DType {
    match stored {
        DType::F16 | DType::BF16 if widen => DType::F32,
        other => other,
    }
}

/// The element type of values in the graph: for types of fewer bits the one that carries them.
pub(crate) fn carrier(data_type: i64) -> Result<DType, String> {
    match Narrow::of(data_type) {
        Some(narrow) => Ok(narrow.carrier()),
        None => dtype(data_type),
    }
}

/// A tensor whose data are given by bytes as those bytes.
pub(crate) fn as_bytes(tensor: &TensorProto) -> TensorProto {
    TensorProto {
        data_type: UINT8,
        ..tensor.clone()
    }
}

/// To say where so many bytes of weights lie takes nearly as many.
const LEAST_WEIGHTS_BYTES: usize = 128;

/// A tensor of elements of four bits as the bytes that hold them, and its own shape.
pub(crate) fn nibbles(tensor: &TensorProto) -> Result<(TensorProto, Vec<usize>), OnnxError> {
    let shape = shape(&tensor.dims).map_err(|reason| OnnxError::Initializer {
        name: shown(&tensor.name),
        reason,
    })?;
    let bytes = shape.iter().product::<usize>().div_ceil(2);
    let held = TensorProto {
        dims: vec![bytes as i64],
        ..as_bytes(tensor)
    };
    Ok((held, shape))
}

/// The elements of a tensor of two-bit integers, four in a byte, the first in the lowest bits.
pub(crate) fn pairs_of_bits(
    files: &mut Files,
    tensor: &TensorProto,
    signed: bool,
) -> Result<Literal, OnnxError> {
    let bad = |reason: &str| OnnxError::Initializer {
        name: shown(&tensor.name),
        reason: reason.into(),
    };
    let shape = shape(&tensor.dims).map_err(|reason| bad(&reason))?;
    let elements = shape.iter().product::<usize>();
    let held = TensorProto {
        dims: vec![elements.div_ceil(4) as i64],
        ..as_bytes(tensor)
    };
    let (_, Const::Inline(bytes)) = load(files, &held, false)? else {
        return Err(bad(
            "so large a tensor of two-bit integers is not supported",
        ));
    };
    let element = |i: usize| {
        let bits = bytes.bytes()[i / 4] >> (2 * (i % 4)) & 3;
        // The upper bit is the sign.
        if signed && bits > 1 {
            bits | 0xfc
        } else {
            bits
        }
    };
    let elements: Vec<u8> = (0..elements).map(element).collect();
    let dtype = if signed { DType::I8 } else { DType::U8 };
    Literal::from_bytes(dtype, &shape, &elements).ok_or_else(|| bad("its data do not fit"))
}

/// The constant that `tensor` describes. Its value has the given type.
pub(crate) fn load(
    files: &mut Files,
    tensor: &TensorProto,
    widen: bool,
) -> Result<(TensorType, Const), OnnxError> {
    load_within(files, tensor, widen, INLINE_LIMIT_BYTES)
}

/// The same of the weights of a layer, which no fold and no shape needs: `f32` of more than a few bytes stays in the
/// file.
pub(crate) fn load_weights(
    files: &mut Files,
    tensor: &TensorProto,
    widen: bool,
) -> Result<(TensorType, Const), OnnxError> {
    // Others are widened as they are read, and small ones are then packed as what they became.
    let limit_bytes = match dtype(tensor.data_type) {
        Ok(DType::F32) => LEAST_WEIGHTS_BYTES,
        _ => INLINE_LIMIT_BYTES,
    };
    load_within(files, tensor, widen, limit_bytes)
}

fn load_within(
    files: &mut Files,
    tensor: &TensorProto,
    widen: bool,
    limit_bytes: usize,
) -> Result<(TensorType, Const), OnnxError> {
    let bad = |reason: String| OnnxError::Initializer {
        name: shown(&tensor.name),
        reason,
    };
    let stored_dtype = dtype(tensor.data_type).map_err(bad)?;
    let shape = shape(&tensor.dims).map_err(bad)?;
    let stored = TensorType::new(stored_dtype, &shape);
    let ty = TensorType::new(value_dtype(stored_dtype, widen), &shape);
    let expected = stored.len_bytes() as u64;

    let range = if tensor.is_external {
        Some(files.external(&tensor.name, &tensor.external, expected)?)
    } else {
        in_place(tensor, stored_dtype, expected)
            .map_err(bad)?
            .map(|span| FileRange {
                file: FileId(0),
                offset: span.offset,
                bytes: span.len,
            })
    };
    if let Some(range) = range
        && expected > limit_bytes as u64
    {
        return Ok((
            ty,
            Const::Stored {
                range,
                stored_dtype,
            },
        ));
    }
    let literal = match range {
        Some(range) => read(files, range, stored_dtype, &shape)?,
        None => decode(files, tensor, &stored).map_err(|e| match e {
            DecodeError::Onnx(e) => e,
            DecodeError::Bad(reason) => bad(reason),
        })?,
    };
    Ok((ty.clone(), Const::Inline(converted(literal, ty.dtype))))
}

/// Bytes of a stored constant, in its stored type.
pub(crate) fn read(
    files: &mut Files,
    range: FileRange,
    dtype: DType,
    shape: &[usize],
) -> Result<Literal, OnnxError> {
    let mut literal = Literal::zeros(dtype, shape);
    files.read(range, literal.bytes_mut())?;
    if dtype == DType::Bool {
        // Anything but 0 and 1 would be undefined further on.
        literal
            .bytes_mut()
            .iter_mut()
            .for_each(|b| *b = (*b != 0).into());
    }
    Ok(literal)
}

/// The literal in another float type; only half floats to f32 happen.
pub(crate) fn converted(literal: Literal, to: DType) -> Literal {
    if literal.dtype() == to {
        return literal;
    }
    let widen = |bits: u16| match literal.dtype() {
        DType::BF16 => bf16::from_bits(bits).to_f32(),
        _ => f16::from_bits(bits).to_f32(),
    };
    let data: Vec<f32> = literal
        .bytes()
        .as_chunks::<2>()
        .0
        .iter()
        .map(|&b| widen(u16::from_le_bytes(b)))
        .collect();
    Literal::from_f32(literal.shape(), &data)
}

/// The tensor's bytes as they stand in the model file, if they stand there in one run.
fn in_place(tensor: &TensorProto, dtype: DType, expected: u64) -> Result<Option<Span>, String> {
    let raw = tensor.chunks.iter().find_map(|c| match (c.field, c.data) {
        (DataField::Raw, ChunkData::Span(span)) => Some(span),
        _ => None,
    });
    if let Some(span) = raw {
        if span.len != expected {
            return Err(format!(
                "it holds {} bytes, but its shape needs {expected}",
                span.len
            ));
        }
        return Ok(Some(span));
    }
    Ok(match (&tensor.chunks[..], dtype) {
        (
            [
                Chunk {
                    field: DataField::Float,
                    data: ChunkData::Span(span),
                },
            ],
            DType::F32,
        )
        | (
            [
                Chunk {
                    field: DataField::Double,
                    data: ChunkData::Span(span),
                },
            ],
            DType::F64,
        ) if span.len == expected => Some(*span),
        _ => None,
    })
}

enum DecodeError {
    Onnx(OnnxError),
    Bad(String),
}

impl From<OnnxError> for DecodeError {
    fn from(e: OnnxError) -> DecodeError {
        DecodeError::Onnx(e)
    }
}

/// Elements from the typed repeated fields.
fn decode(
    files: &mut Files,
    tensor: &TensorProto,
    ty: &TensorType,
) -> Result<Literal, DecodeError> {
    let field = match ty.dtype {
        DType::F32 => DataField::Float,
        DType::F64 => DataField::Double,
        DType::I64 => DataField::Int64,
        DType::U32 | DType::U64 => DataField::Uint64,
        _ => DataField::Int32,
    };
    let bytes = ty.len_bytes() as u64;
    // One byte of the file makes at most one element, so the allocation is bounded by the file too.
    let available: u64 = tensor
        .chunks
        .iter()
        .filter(|c| c.field == field)
        .map(|c| match c.data {
            ChunkData::Span(span) => span.len,
            ChunkData::One(_) => 1,
        })
        .sum();
    let count = ty.elements();
    let wrong_count = || DecodeError::Bad(format!("its data do not have {count} elements"));
    if available < count as u64 {
        return Err(wrong_count());
    }
    if bytes > MAX_DECODED_BYTES {
        return Err(DecodeError::Bad(format!(
            "{bytes} bytes of data are not stored as raw_data"
        )));
    }
    let size = ty.dtype.size_bytes();
    let mut literal = Literal::zeros(ty.dtype, &ty.shape);
    let mut at = 0;
    let mut put = |bits: u64| {
        let slot = literal.bytes_mut().get_mut(at * size..(at + 1) * size);
        let slot = slot.ok_or_else(wrong_count)?;
        let bits = match ty.dtype {
            DType::Bool => (bits != 0).into(),
            _ => bits,
        };
        slot.copy_from_slice(&bits.to_le_bytes()[..size]);
        at += 1;
        Ok::<(), DecodeError>(())
    };
    for chunk in tensor.chunks.iter().filter(|c| c.field == field) {
        match chunk.data {
            ChunkData::One(bits) => put(bits)?,
            ChunkData::Span(span) => {
                let mut message = Message::new(files.model(), span);
                match field {
                    DataField::Float | DataField::Double => {
                        let wide = field == DataField::Double;
                        while let Some(value) = message.packed_fixed(wide)? {
                            put(value)?;
                        }
                    }
                    _ => {
                        while let Some(value) = message.packed_varint()? {
                            put(value)?;
                        }
                    }
                }
            }
        }
    }
    if at != count {
        return Err(wrong_count());
    }
    Ok(literal)
}

/// A sparse tensor written out.
pub(crate) fn load_sparse(
    files: &mut Files,
    sparse: &SparseTensorProto,
    widen: bool,
) -> Result<(TensorType, Const), OnnxError> {
    let bad = |reason: String| OnnxError::Initializer {
        name: shown(&sparse.values.name),
        reason,
    };
    let dims = shape(&sparse.dims).map_err(bad)?;
    let (value_ty, values) = load(files, &sparse.values, widen)?;
    let (index_ty, indices) = load(files, &sparse.indices, widen)?;
    let ty = TensorType::new(value_ty.dtype, &dims);
    let (Const::Inline(values), Const::Inline(indices)) = (values, indices) else {
        return Err(bad("a sparse tensor of this size is not supported".into()));
    };
    if ty.len_bytes() as u64 > MAX_DECODED_BYTES / 16 {
        return Err(bad("a sparse tensor of this size is not supported".into()));
    }
    let coordinates = indices
        .to_i64_vec()
        .ok_or_else(|| bad("its indices are not integers".into()))?;
    let count = value_ty.elements();
    let mut flat = Vec::new();
    if index_ty.shape == [count] {
        flat.extend(coordinates);
    } else if index_ty.shape == [count, dims.len()] && !dims.is_empty() {
        for row in coordinates.chunks_exact(dims.len()) {
            let inside = row
                .iter()
                .zip(&dims)
                .all(|(&i, &d)| (0..d as i64).contains(&i));
            let index = row
                .iter()
                .zip(&dims)
                .fold(0i64, |n, (&i, &d)| n.wrapping_mul(d as i64).wrapping_add(i));
            flat.push(if inside { index } else { -1 });
        }
    } else {
        return Err(bad("its indices have the wrong shape".into()));
    }
    let mut dense = Literal::zeros(ty.dtype, &dims);
    let size = ty.dtype.size_bytes();
    for (&index, value) in flat.iter().zip(values.bytes().chunks_exact(size)) {
        let slot = usize::try_from(index)
            .ok()
            .filter(|&i| i < ty.elements())
            .and_then(|i| dense.bytes_mut().get_mut(i * size..(i + 1) * size))
            .ok_or_else(|| bad("it has an index out of range".into()))?;
        slot.copy_from_slice(value);
    }
    Ok((ty, Const::Inline(dense)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_floats_widen_exactly() {
        let bits: Vec<u8> = [0x3c00u16, 0xc000, 0x7c00]
            .iter()
            .flat_map(|b| b.to_le_bytes())
            .collect();
        let half = Literal::from_bytes(DType::F16, &[3], &bits).expect("fits");
        let wide = converted(half, DType::F32);
        assert_eq!(wide.as_f32(), Some(&[1.0, -2.0, f32::INFINITY][..]));
    }

    #[test]
    fn hostile_shapes_are_refused() {
        assert!(shape(&[2, -1]).is_err());
        assert!(shape(&[i64::MAX, i64::MAX]).is_err());
        assert!(shape(&[i64::MAX, 0]).is_err());
        assert!(shape(&[1; 40]).is_err());
        assert_eq!(shape(&[0, 3]), Ok(vec![0, 3]));
    }
}
