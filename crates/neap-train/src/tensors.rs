//! Tensors as files of safetensors, a piece of them in memory at a time.

use crate::drive::DriveWriter;
use crate::error::{Result, TrainError, bad, unreadable, unwritable};
use crate::whole;
use neap_ir::{DType, TensorType};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The longest header that is believed.
const MAX_HEADER_BYTES: u64 = 64 << 20;
/// Tensors are read in pieces of so many bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Gives the bytes of a tensor, by its number, in order and in pieces.
pub type Fetch<'a> = dyn FnMut(usize, &mut dyn FnMut(&[u8])) -> Result<()> + 'a;

/// Writes tensors by name, with one entry of metadata; `fetch` is asked for each when it is written.
///
/// # Errors
/// What `fetch` says, or the file cannot be written.
pub fn write(
    path: &Path,
    tensors: &[(String, TensorType)],
    fetch: &mut Fetch,
    entry: (&str, String),
) -> Result<()> {
    // The order of the format's own library.
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    let key = |&index: &usize| {
        let (name, ty) = &tensors[index];
        (Reverse(dtype_of(ty.dtype)), name)
    };
    order.sort_by(|a, b| key(a).cmp(&key(b)));
    let head = head(tensors, &order, entry)?;
    whole::write(path, |partial| {
        let failed = |e: io::Error| unwritable(path, &e);
        let mut out = DriveWriter::create(partial).map_err(failed)?;
        out.write_all(&head).map_err(failed)?;
        for &index in &order {
            let (mut left, mut written) = (tensors[index].1.len_bytes(), Ok(()));
            fetch(index, &mut |piece| {
                left = left.wrapping_sub(piece.len());
                if written.is_ok() {
                    written = out.write_all(piece);
                }
            })?;
            written.map_err(failed)?;
            if left != 0 {
                let name = &tensors[index].0;
                return Err(TrainError::Defect(format!("'{name}' has other bytes")));
            }
        }
        out.finish().map_err(failed)
    })
}

/// What comes before the tensors: its length, and what they are, padded to a multiple of 8.
fn head(
    tensors: &[(String, TensorType)],
    order: &[usize],
    entry: (&str, String),
) -> Result<Vec<u8>> {
    let mut offset = 0;
    let infos = order.iter().map(|&index| {
        let (name, ty) = &tensors[index];
        let begin = offset;
        offset += ty.len_bytes();
        let info = TensorInfo {
            dtype: dtype_of(ty.dtype),
            shape: ty.shape.clone(),
            data_offsets: (begin, offset),
        };
        (name.clone(), info)
    });
    // One entry only: several would be written in an order that differs from run to run.
    let entries = HashMap::from([(entry.0.to_string(), entry.1)]);
    let defect = |e: String| TrainError::Defect(format!("a header of tensors: {e}"));
    let metadata =
        Metadata::new(Some(entries), infos.collect()).map_err(|e| defect(e.to_string()))?;
    let text = serde_json::to_string(&metadata).map_err(|e| defect(e.to_string()))?;
    let length = text.len().next_multiple_of(8);
    if length as u64 > MAX_HEADER_BYTES {
        return Err(bad("there are too many tensors for one file"));
    }
    let mut head = (length as u64).to_le_bytes().to_vec();
    head.extend(text.as_bytes());
    head.resize(8 + length, b' ');
    Ok(head)
}

fn dtype_of(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::Bool => Dtype::BOOL,
    }
}

/// A file of safetensors, opened.
pub struct Tensors {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    data_at: u64,
}

impl Tensors {
    /// Reads the header.
    ///
    /// # Errors
    /// It cannot be read, or is no such file.
    pub fn open(path: &Path) -> Result<Tensors> {
        let failed = |e| unreadable(path, e);
        let broken = || bad(format!("{} is no file of safetensors", path.display()));
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let mut head = [0; 8];
        file.read_exact_at(&mut head, 0).map_err(|_| broken())?;
        let head = u64::from_le_bytes(head);
        if head > MAX_HEADER_BYTES.min(length.saturating_sub(8)) {
            return Err(broken());
        }
        let mut text = vec![0; head as usize];
        file.read_exact_at(&mut text, 8).map_err(|_| broken())?;
        let metadata: Metadata = serde_json::from_slice(&text).map_err(|_| broken())?;
        let data_at = 8 + head;
        if metadata.data_len() as u64 != length - data_at {
            return Err(broken());
        }
        Ok(Tensors {
            path: path.into(),
            file,
            metadata,
            data_at,
        })
    }

    /// An entry of the file's metadata.
    pub fn entry(&self, key: &str) -> Option<&str> {
        let entries = self.metadata.metadata().as_ref()?;
        entries.get(key).map(String::as_str)
    }

    /// Hands a tensor's bytes out in pieces, each with its offset.
    ///
    /// # Errors
    /// The file lacks it, or has it with another type; or what `visit` says.
    pub fn read(
        &self,
        name: &str,
        ty: &TensorType,
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let path = self.path.display();
        let Some(found) = self.metadata.info(name) else {
            return Err(bad(format!("{path} holds no '{name}'")));
        };
        if found.dtype != dtype_of(ty.dtype) || found.shape != ty.shape {
            return Err(bad(format!(
                "{path} holds '{name}' as {}{:?}, the model has {}{:?}",
                found.dtype, found.shape, ty.dtype, ty.shape
            )));
        }
        let (start, end) = found.data_offsets;
        let mut piece = vec![0; PIECE_BYTES.min(end - start)];
        for at in (start..end).step_by(PIECE_BYTES) {
            let piece = &mut piece[..PIECE_BYTES.min(end - at)];
            self.file
                .read_exact_at(piece, self.data_at + at as u64)
                .map_err(|e| unreadable(&self.path, e))?;
            visit((at - start) as u64, piece)?;
        }
        Ok(())
    }

    /// All of a tensor's bytes.
    ///
    /// # Errors
    /// As [`Tensors::read`].
    pub fn bytes(&self, name: &str, ty: &TensorType) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(ty.len_bytes());
        self.read(name, ty, &mut |_, piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }
}
