//! Tensors in the caller's memory.

use crate::given::{array, is_null};
use neaptide::{DType, Error, Result, Tensor};
use std::ffi::c_void;
use std::slice;

/// The type of a tensor's elements, with ONNX's numbers.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeapType {
    /// Strings, sequences and others that are not tensors of numbers.
    Other = 0,
    F32 = 1,
    U8 = 2,
    I8 = 3,
    U16 = 4,
    I16 = 5,
    I32 = 6,
    I64 = 7,
    /// One byte, 0 or 1.
    Bool = 9,
    F16 = 10,
    F64 = 11,
    U32 = 12,
    U64 = 13,
    Bf16 = 16,
}

const TYPES: [(NeapType, DType); 13] = [
    (NeapType::F32, DType::F32),
    (NeapType::U8, DType::U8),
    (NeapType::I8, DType::I8),
    (NeapType::U16, DType::U16),
    (NeapType::I16, DType::I16),
    (NeapType::I32, DType::I32),
    (NeapType::I64, DType::I64),
    (NeapType::Bool, DType::Bool),
    (NeapType::F16, DType::F16),
    (NeapType::F64, DType::F64),
    (NeapType::U32, DType::U32),
    (NeapType::U64, DType::U64),
    (NeapType::Bf16, DType::BF16),
];

impl NeapType {
    pub(crate) fn of(dtype: Option<DType>) -> NeapType {
        let found = TYPES.iter().find(|(_, known)| Some(*known) == dtype);
        found.map_or(NeapType::Other, |(ty, _)| *ty)
    }

    /// C may give any number where it says that it gives a type.
    fn numbered(number: i32) -> Option<DType> {
        let found = TYPES.iter().find(|(ty, _)| *ty as i32 == number);
        found.map(|(_, dtype)| *dtype)
    }
}

/// An input: row-major, little-endian, aligned to its elements. It is read where it lies, and must not change during a call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct NeapTensor {
    /// A NeapType.
    pub element_type: i32,
    pub rank: usize,
    /// As many as the rank; may be NULL for rank 0.
    pub dims: *const usize,
    pub data: *const c_void,
    /// Bytes at data: elements × bytes of one.
    pub len_bytes: usize,
}

/// Where an output is written to.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct NeapPlace {
    pub data: *mut c_void,
    pub len_bytes: usize,
}

/// # Errors
/// [`Error::BadInput`] names the input that is wrong.
///
/// # Safety
/// Its pointers are valid for what it says, and nobody writes there while what is given lives.
pub(crate) unsafe fn tensor<'a>(index: usize, given: &NeapTensor) -> Result<Tensor<'a>> {
    let wrong = |what: String| Error::BadInput(format!("input {index}: {what}"));
    let dtype = NeapType::numbered(given.element_type)
        .ok_or_else(|| wrong(format!("{} is no type of elements", given.element_type)))?;
    // SAFETY: the caller says so.
    let shape =
        unsafe { array(given.dims, given.rank, "dims") }.map_err(|e| wrong(e.to_string()))?;
    let elements = shape
        .iter()
        .try_fold(1usize, |all, &dim| all.checked_mul(dim));
    let len_bytes = elements.and_then(|all| all.checked_mul(dtype.size_bytes()));
    if len_bytes != Some(given.len_bytes) {
        return Err(wrong(format!(
            "{} bytes are given, its shape and type have {}",
            given.len_bytes,
            len_bytes.map_or("more than there can be".to_string(), |bytes| bytes
                .to_string())
        )));
    }
    if !given.data.addr().is_multiple_of(dtype.size_bytes()) {
        return Err(wrong(format!(
            "its data are not aligned to its {}-byte elements",
            dtype.size_bytes()
        )));
    }
    // SAFETY: the caller says so.
    let bytes = unsafe { array(given.data.cast::<u8>(), given.len_bytes, "data") };
    let bytes = bytes.map_err(|e| wrong(e.to_string()))?;
    Ok(Tensor {
        dtype,
        shape,
        bytes,
    })
}

/// Outputs to write to, which overlap neither with each other nor with an input.
///
/// # Errors
/// [`Error::BadInput`] names the output that is wrong.
///
/// # Safety
/// Each is memory that the caller may write, which nobody else uses while what is given lives.
pub(crate) unsafe fn places<'a>(
    given: &[NeapPlace],
    inputs: &[Tensor],
) -> Result<Vec<&'a mut [u8]>> {
    let mut taken: Vec<(usize, usize)> = inputs.iter().map(|i| span(i.bytes)).collect();
    let mut out = Vec::with_capacity(given.len());
    for (index, place) in given.iter().enumerate() {
        let wrong = |what: &str| Error::BadInput(format!("output {index}: {what}"));
        if place.len_bytes == 0 {
            out.push(&mut [][..]);
            continue;
        }
        if place.data.is_null() {
            return Err(wrong(&is_null("data").to_string()));
        }
        let start = place.data.addr();
        let end = start.checked_add(place.len_bytes);
        let end = end.ok_or_else(|| wrong("it ends behind all memory"))?;
        if taken.iter().any(|&(from, to)| start < to && from < end) {
            return Err(wrong("it overlaps with another tensor of the run"));
        }
        taken.push((start, end));
        // SAFETY: the caller says that it may be written; it overlaps with nothing else that is in use.
        out.push(unsafe { slice::from_raw_parts_mut(place.data.cast::<u8>(), place.len_bytes) });
    }
    Ok(out)
}

fn span(bytes: &[u8]) -> (usize, usize) {
    let start = bytes.as_ptr().addr();
    (start, start + bytes.len())
}
