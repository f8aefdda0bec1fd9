//! Tensors as files of safetensors, one of them in memory at a time.

use crate::error::{Result, TrainError, bad, unreadable};
use crate::whole;
use neap_ir::{DType, TensorType};
use safetensors::tensor::{Metadata, View, serialize_to_file};
use safetensors::{Dtype, SafeTensorError};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The longest header that is believed.
const MAX_HEADER_BYTES: u64 = 64 << 20;
/// Tensors are read in pieces of so many bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Writes tensors by name, with one entry of metadata; `fetch` gives the bytes of each when it is written.
///
/// # Errors
/// What `fetch` says, or the file cannot be written.
pub fn write(
    path: &Path,
    tensors: &[(String, TensorType)],
    fetch: &mut dyn FnMut(usize) -> Result<Vec<u8>>,
    entry: (&str, String),
) -> Result<()> {
    let source = Source {
        fetch: RefCell::new(fetch),
        failed: RefCell::new(None),
    };
    let views = tensors.iter().enumerate().map(|(index, (name, ty))| {
        let view = Tensor {
            source: &source,
            index,
            ty,
        };
        (name.as_str(), view)
    });
    // One entry only: several would be written in an order that differs from run to run.
    let metadata = HashMap::from([(entry.0.to_string(), entry.1)]);
    whole::write(path, |partial| {
        let written = serialize_to_file(views, Some(metadata), partial);
        if let Some(error) = source.failed.take() {
            return Err(error);
        }
        written.map_err(|e| match e {
            SafeTensorError::IoError(e) => bad(format!("cannot write {}: {e}", path.display())),
            e => TrainError::Defect(format!("{}: {e}", path.display())),
        })
    })
}

struct Source<'a> {
    fetch: RefCell<&'a mut dyn FnMut(usize) -> Result<Vec<u8>>>,
    /// Why a tensor could not be had, which the writer cannot be told.
    failed: RefCell<Option<TrainError>>,
}

struct Tensor<'a, 'b> {
    source: &'a Source<'b>,
    index: usize,
    ty: &'a TensorType,
}

impl View for Tensor<'_, '_> {
    fn dtype(&self) -> Dtype {
        dtype_of(self.ty.dtype)
    }

    fn shape(&self) -> &[usize] {
        &self.ty.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match (self.source.fetch.borrow_mut())(self.index) {
            Ok(bytes) => bytes.into(),
            Err(error) => {
                self.source.failed.borrow_mut().get_or_insert(error);
                vec![0; self.data_len()].into()
            }
        }
    }

    fn data_len(&self) -> usize {
        self.ty.len_bytes()
    }
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
