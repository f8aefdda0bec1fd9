//! Everything before the weights.

use crate::reader::Reader;
use crate::{Error, Kind, Result, Value};
use std::collections::HashSet;
use std::io::{Read, Seek};
use std::ops::Range;

const MAGIC: [u8; 4] = *b"GGUF";
const VERSION: u32 = 3;
const DEFAULT_ALIGNMENT: u64 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";
const MAX_AXES: u32 = 8;

/// A key and the type of its value; the shortest value.
const LEAST_PAIR_BYTES: u64 = 8 + 4 + 1;
/// Name, axes, one size, type and offset of a tensor.
const LEAST_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// What a file says before its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// Key-value pairs in the order of the file.
    pub pairs: Vec<(String, Value)>,
    /// Tensors in the order of the file.
    pub tensors: Vec<Tensor>,
    /// Where offsets of tensors count from, in bytes from the beginning of the file.
    pub weights_begin: u64,
}

/// A tensor, as a part of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    /// Sizes as the file has them: the elements of a row first.
    pub sizes: Vec<u64>,
    pub kind: Kind,
    /// Bytes of the file.
    pub range: Range<u64>,
}

impl Tensor {
    #[must_use]
    pub fn elements(&self) -> u64 {
        // The bytes of all elements were counted when the header was read.
        self.sizes.iter().product()
    }

    /// Elements of a row: what lies together, in whole blocks.
    #[must_use]
    pub fn row_elements(&self) -> u64 {
        self.sizes.first().copied().unwrap_or(1)
    }
}

impl Header {
    /// Reads the header of a file of `len` bytes.
    ///
    /// # Errors
    /// Another format or version, a file that contradicts itself or ends early, unknown types of tensors.
    pub fn read<R: Read + Seek>(source: R, len: u64) -> Result<Self> {
        let mut reader = Reader::new(source, len)?;
        if len < 8 || reader.bytes()? != MAGIC {
            return Err(Error::NotGguf);
        }
        match reader.u32()? {
            VERSION => {}
            other => return Err(Error::Version(other)),
        }
        let tensors = reader.u64()?;
        let pairs = reader.u64()?;
        let pairs = read_pairs(&mut reader, pairs)?;
        let alignment = alignment(&pairs)?;
        let placed = read_tensors(&mut reader, tensors)?;
        let weights_begin = reader
            .at()
            .checked_next_multiple_of(alignment)
            .ok_or_else(|| Error::damaged("weights beyond 2^64"))?;
        let tensors = placed
            .into_iter()
            .map(|tensor| tensor.place(weights_begin, alignment, len))
            .collect::<Result<_>>()?;
        Ok(Header {
            pairs,
            tensors,
            weights_begin,
        })
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        let mut pairs = self.pairs.iter();
        pairs.find(|(name, _)| name == key).map(|(_, value)| value)
    }

    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

fn read_pairs<R: Read + Seek>(reader: &mut Reader<R>, count: u64) -> Result<Vec<(String, Value)>> {
    may_have(reader, count, LEAST_PAIR_BYTES, "key-value pairs")?;
    let mut pairs = Vec::new();
    let mut seen = HashSet::new();
    for _ in 0..count {
        let key = reader.name()?;
        let value = Value::read(reader)?;
        if !seen.insert(key.clone()) {
            return Err(Error::damaged(format!("two values of '{key}'")));
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

fn alignment(pairs: &[(String, Value)]) -> Result<u64> {
    match pairs.iter().find(|(key, _)| key == ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some((_, value)) => value
            .as_u64()
            .filter(|n| n.is_power_of_two())
            .ok_or_else(|| Error::damaged(format!("{ALIGNMENT_KEY} is not a power of two"))),
    }
}

/// A tensor whose offset counts from where weights begin.
struct Unplaced {
    name: String,
    sizes: Vec<u64>,
    kind: Kind,
    offset: u64,
}

fn read_tensors<R: Read + Seek>(reader: &mut Reader<R>, count: u64) -> Result<Vec<Unplaced>> {
    may_have(reader, count, LEAST_TENSOR_BYTES, "tensors")?;
    let mut tensors = Vec::new();
    let mut seen = HashSet::new();
    for _ in 0..count {
        let name = reader.name()?;
        let axes = reader.u32()?;
        if axes > MAX_AXES {
            return Err(Error::damaged(format!("tensor '{name}' has {axes} axes")));
        }
        let sizes = (0..axes).map(|_| reader.u64()).collect::<Result<_>>()?;
        let number = reader.u32()?;
        let offset = reader.u64()?;
        let Some(kind) = Kind::of_number(number) else {
            return Err(Error::UnknownKind { name, number });
        };
        if !seen.insert(name.clone()) {
            return Err(Error::damaged(format!("two tensors are called '{name}'")));
        }
        tensors.push(Unplaced {
            name,
            sizes,
            kind,
            offset,
        });
    }
    Ok(tensors)
}

/// So many things of at least so many bytes fit into what is left.
fn may_have<R: Read + Seek>(reader: &Reader<R>, count: u64, least: u64, what: &str) -> Result<()> {
    match count.checked_mul(least) {
        Some(bytes) if bytes <= reader.left() => Ok(()),
        _ => Err(Error::damaged(format!("{count} {what} in so few bytes"))),
    }
}

impl Unplaced {
    fn place(self, weights_begin: u64, alignment: u64, len: u64) -> Result<Tensor> {
        let Unplaced {
            name,
            sizes,
            kind,
            offset,
        } = self;
        let row = sizes.first().copied().unwrap_or(1);
        let rows = sizes
            .iter()
            .skip(1)
            .try_fold(1u64, |n, &size| n.checked_mul(size));
        let bytes = kind
            .bytes_of(row)
            .zip(rows)
            .and_then(|(row, rows)| row.checked_mul(rows))
            // So that the number of elements is one, too.
            .filter(|_| rows.and_then(|rows| rows.checked_mul(row)).is_some())
            .ok_or_else(|| {
                Error::damaged(format!(
                    "tensor '{name}' has sizes {sizes:?}, which are not rows of {kind}"
                ))
            })?;
        let range = weights_begin
            .checked_add(offset)
            .and_then(|begin| Some(begin..begin.checked_add(bytes)?));
        match range {
            Some(range) if range.end <= len && offset.is_multiple_of(alignment) => Ok(Tensor {
                name,
                sizes,
                kind,
                range,
            }),
            Some(range) if range.end <= len => Err(Error::damaged(format!(
                "tensor '{name}' does not begin at a multiple of {alignment}"
            ))),
            _ => Err(Error::damaged(format!(
                "it ends before tensor '{name}' does"
            ))),
        }
    }
}
