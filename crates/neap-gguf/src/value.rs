//! Values of key-value pairs. Arrays stay in the file: a vocabulary has 150,000 texts.

use crate::reader::Reader;
use crate::{Error, Result};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;

/// A value of a key-value pair.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array(Array),
}

/// What an array holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

/// An array, as a part of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    pub element: ElementType,
    pub len: u64,
    /// Bytes of the file, without element type and length.
    pub range: Range<u64>,
}

/// Arrays of arrays of arrays: no file has them.
const MAX_DEPTH: u32 = 4;

impl ElementType {
    fn of_number(number: u32) -> Result<Self> {
        use ElementType::{Array, Bool, F32, F64, I8, I16, I32, I64, Text, U8, U16, U32, U64};
        const ALL: [ElementType; 13] = [
            U8, I8, U16, I16, U32, I32, F32, Bool, Text, Array, U64, I64, F64,
        ];
        ALL.get(number as usize)
            .copied()
            .ok_or_else(|| Error::damaged(format!("a value of type {number}")))
    }

    /// Bytes of an element; `None` where they differ.
    #[must_use]
    pub fn bytes(self) -> Option<u64> {
        match self {
            ElementType::U8 | ElementType::I8 | ElementType::Bool => Some(1),
            ElementType::U16 | ElementType::I16 => Some(2),
            ElementType::U32 | ElementType::I32 | ElementType::F32 => Some(4),
            ElementType::U64 | ElementType::I64 | ElementType::F64 => Some(8),
            ElementType::Text | ElementType::Array => None,
        }
    }
}

impl Value {
    /// With its type before it.
    pub(crate) fn read<R: Read + Seek>(reader: &mut Reader<R>) -> Result<Self> {
        let element = ElementType::of_number(reader.u32()?)?;
        scalar(reader, element)
    }

    /// As a count or size: whole numbers that are not negative, of whatever type.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::Unsigned(n) => Some(n),
            Value::Signed(n) => n.try_into().ok(),
            _ => None,
        }
    }

    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    #[must_use]
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }
}

fn scalar<R: Read + Seek>(reader: &mut Reader<R>, element: ElementType) -> Result<Value> {
    Ok(match element {
        ElementType::U8 => Value::Unsigned(reader.bytes::<1>()?[0].into()),
        ElementType::I8 => Value::Signed(i8::from_le_bytes(reader.bytes()?).into()),
        ElementType::U16 => Value::Unsigned(u16::from_le_bytes(reader.bytes()?).into()),
        ElementType::I16 => Value::Signed(i16::from_le_bytes(reader.bytes()?).into()),
        ElementType::U32 => Value::Unsigned(reader.u32()?.into()),
        ElementType::I32 => Value::Signed(i32::from_le_bytes(reader.bytes()?).into()),
        ElementType::F32 => Value::Float(f32::from_le_bytes(reader.bytes()?).into()),
        ElementType::Bool => Value::Bool(reader.bytes::<1>()?[0] != 0),
        ElementType::Text => Value::Text(reader.text()?),
        ElementType::Array => Value::Array(skip_array(reader, MAX_DEPTH)?),
        ElementType::U64 => Value::Unsigned(reader.u64()?),
        ElementType::I64 => Value::Signed(i64::from_le_bytes(reader.bytes()?)),
        ElementType::F64 => Value::Float(f64::from_le_bytes(reader.bytes()?)),
    })
}

fn skip_array<R: Read + Seek>(reader: &mut Reader<R>, depth: u32) -> Result<Array> {
    let element = ElementType::of_number(reader.u32()?)?;
    let len = reader.u64()?;
    let begin = reader.at();
    match element.bytes() {
        Some(bytes) => {
            let all = len.checked_mul(bytes);
            reader
                .skip(all.ok_or_else(|| Error::damaged(format!("an array of {len} elements")))?)?;
        }
        // Each has a length of 8 bytes or more before it, so this ends with the file.
        None => {
            if depth == 0 {
                return Err(Error::damaged("arrays inside arrays"));
            }
            for _ in 0..len {
                if element == ElementType::Text {
                    let bytes = reader.u64()?;
                    reader.skip(bytes)?;
                } else {
                    skip_array(reader, depth - 1)?;
                }
            }
        }
    }
    Ok(Array {
        element,
        len,
        range: begin..reader.at(),
    })
}

impl Array {
    /// Calls `each` with every text of the array, in order. The texts need not be UTF-8.
    ///
    /// # Errors
    /// The array holds something else, the file cannot be read, or its bytes are no longer those of the header.
    pub fn texts<R: Read + Seek>(&self, source: &mut R, mut each: impl FnMut(&[u8])) -> Result<()> {
        if self.element != ElementType::Text {
            return Err(Error::damaged(format!(
                "an array of {:?} instead of texts",
                self.element
            )));
        }
        source.seek(SeekFrom::Start(self.range.start))?;
        let mut left = self.range.end - self.range.start;
        let mut text = Vec::new();
        for _ in 0..self.len {
            let mut len = [0; 8];
            source.read_exact(&mut len)?;
            let len = u64::from_le_bytes(len);
            let whole = len.checked_add(8).filter(|whole| *whole <= left);
            left -= whole.ok_or_else(|| Error::damaged("an array that changed"))?;
            text.resize(len as usize, 0);
            source.read_exact(&mut text)?;
            each(&text);
        }
        Ok(())
    }

    /// Calls `each` with every number of the array, in order.
    ///
    /// # Errors
    /// As [`Array::texts`].
    pub fn numbers<R: Read + Seek>(&self, source: &mut R, mut each: impl FnMut(f64)) -> Result<()> {
        if self.element.bytes().is_none() {
            return Err(Error::damaged(format!(
                "an array of {:?} instead of numbers",
                self.element
            )));
        }
        let mut reader = Reader::new(&mut *source, self.range.end)?;
        reader.skip(self.range.start)?;
        for _ in 0..self.len {
            each(match scalar(&mut reader, self.element)? {
                Value::Unsigned(n) => n as f64,
                Value::Signed(n) => n as f64,
                Value::Float(x) => x,
                Value::Bool(is) => f64::from(u8::from(is)),
                Value::Text(_) | Value::Array(_) => {
                    unreachable!("such elements have no fixed size")
                }
            });
        }
        Ok(())
    }
}
