//! Rows of an array that lies in a file, read one at a time.

use crate::error::{Result, bad, unreadable};
use half::{bf16, f16};
use neap_ir::DType;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// An array in row-major order; the first axis counts samples.
#[derive(Debug)]
pub struct Array {
    file: File,
    /// Of the file the user knows, with the array's name in it.
    name: String,
    offset: u64,
    dtype: DType,
    big_endian: bool,
    shape: Vec<usize>,
}

impl Array {
    /// # Errors
    /// The file is shorter than the array, or the array has no axis.
    pub fn new(
        file: File,
        name: String,
        offset: u64,
        dtype: DType,
        big_endian: bool,
        shape: Vec<usize>,
    ) -> Result<Array> {
        if shape.is_empty() {
            return Err(bad(format!("{name} holds a single number")));
        }
        let bytes = shape
            .iter()
            .try_fold(dtype.size_bytes(), |n, &d| n.checked_mul(d))
            .and_then(|n| offset.checked_add(n as u64));
        let there = file
            .metadata()
            .map_err(|e| unreadable(Path::new(&name), e))?
            .len();
        if bytes.is_none_or(|bytes| bytes > there) {
            return Err(bad(format!("{name} is shorter than its header says")));
        }
        Ok(Array {
            file,
            name,
            offset,
            dtype,
            big_endian,
            shape,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn count(&self) -> usize {
        self.shape[0]
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Of one row.
    pub fn row_shape(&self) -> &[usize] {
        &self.shape[1..]
    }

    /// The bytes of `count` elements from element `first`, in the file's order.
    fn read(&self, first: usize, count: usize) -> Result<Vec<u8>> {
        let size = self.dtype.size_bytes();
        let mut bytes = vec![0; count * size];
        let at = self.offset + (first * size) as u64;
        self.file
            .read_exact_at(&mut bytes, at)
            .map_err(|e| unreadable(Path::new(&self.name), e))?;
        if self.big_endian {
            bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
        Ok(bytes)
    }

    /// A row of bytes.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn bytes(&self, row: usize) -> Result<Vec<u8>> {
        let count = self.row_shape().iter().product();
        self.read(row * count, count)
    }

    /// A row as float32.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn floats(&self, row: usize) -> Result<Vec<f32>> {
        let bytes = self.bytes(row)?;
        Ok(match self.dtype {
            DType::U8 => bytes.iter().map(|&b| b.into()).collect(),
            DType::I8 => bytes.iter().map(|&b| f32::from(b as i8)).collect(),
            DType::Bool => bytes.iter().map(|&b| f32::from(b != 0)).collect(),
            DType::F32 => each(&bytes, f32::from_le_bytes),
            DType::F64 => each(&bytes, |b| f64::from_le_bytes(b) as f32),
            DType::F16 => each(&bytes, |b| f16::from_le_bytes(b).to_f32()),
            DType::BF16 => each(&bytes, |b| bf16::from_le_bytes(b).to_f32()),
            DType::I16 => each(&bytes, |b| f32::from(i16::from_le_bytes(b))),
            DType::U16 => each(&bytes, |b| f32::from(u16::from_le_bytes(b))),
            DType::I32 => each(&bytes, |b| i32::from_le_bytes(b) as f32),
            DType::U32 => each(&bytes, |b| u32::from_le_bytes(b) as f32),
            DType::I64 => each(&bytes, |b| i64::from_le_bytes(b) as f32),
            DType::U64 => each(&bytes, |b| u64::from_le_bytes(b) as f32),
        })
    }

    /// `count` elements from element `first` of the whole array, as integers.
    ///
    /// # Errors
    /// They cannot be read, or are no integers.
    pub fn integers(&self, first: usize, count: usize) -> Result<Vec<i64>> {
        let bytes = self.read(first, count)?;
        Ok(match self.dtype {
            DType::U8 | DType::Bool => bytes.iter().map(|&b| b.into()).collect(),
            DType::I8 => bytes.iter().map(|&b| i64::from(b as i8)).collect(),
            DType::I16 => each(&bytes, |b| i16::from_le_bytes(b).into()),
            DType::U16 => each(&bytes, |b| u16::from_le_bytes(b).into()),
            DType::I32 => each(&bytes, |b| i32::from_le_bytes(b).into()),
            DType::U32 => each(&bytes, |b| u32::from_le_bytes(b).into()),
            DType::I64 => each(&bytes, i64::from_le_bytes),
            DType::U64 => each(&bytes, |b| {
                i64::try_from(u64::from_le_bytes(b)).unwrap_or(i64::MAX)
            }),
            _ => {
                let (name, dtype) = (&self.name, self.dtype);
                return Err(bad(format!("{name} is {dtype}, integers are wanted")));
            }
        })
    }
}

fn each<T, const N: usize>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&b| from(b)).collect()
}

/// What `source` gives, in a file of its own without a name, beside `path` or in the system's folder for such.
///
/// # Errors
/// It cannot be read, or there is no room.
pub fn unpacked(path: &Path, source: &mut impl std::io::Read) -> Result<File> {
    let folder = path.parent().map(PathBuf::from).unwrap_or_default();
    let mut file = tempfile::tempfile_in(folder)
        .or_else(|_| tempfile::tempfile())
        .map_err(|e| bad(format!("{} cannot be unpacked: {e}", path.display())))?;
    std::io::copy(source, &mut file)
        .map_err(|e| bad(format!("{} cannot be unpacked: {e}", path.display())))?;
    Ok(file)
}
