//! One file of safetensors: what its header says, and bytes of tensors, a piece at a time.

use super::bad;
use crate::ZooError;
use crate::graph::DType;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Headers of such models have some hundred kilobytes.
const MAX_HEADER_BYTES: u64 = 64 << 20;

/// Beginnings of other kinds of files, and what to say of them.
const OTHERS: [(&[u8], &str); 4] = [
    (b"PK\x03\x04", PICKLE),
    (b"\x80\x02", PICKLE),
    (
        b"GGUF",
        "is a GGUF file, whose weights are rounded to blocks",
    ),
    (
        b"version https://git-lfs",
        "is a pointer of Git LFS: fetch the file itself",
    ),
];
const PICKLE: &str =
    "is a pickle of PyTorch, which may run code when it is read: save its weights as safetensors";

#[derive(Debug)]
pub(super) struct TensorFile {
    path: PathBuf,
    file: File,
}

/// Where a tensor lies in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// In the file.
    pub at: u64,
    pub bytes: u64,
}

impl Stored {
    /// One of `count` parts, along the first axis.
    pub fn part(&self, index: usize, count: usize) -> Option<Stored> {
        let (rows, rest) = self.shape.split_first()?;
        if rows % count != 0 {
            return None;
        }
        let bytes = self.bytes / count as u64;
        Some(Stored {
            dtype: self.dtype,
            shape: [&[rows / count], rest].concat(),
            at: self.at + index as u64 * bytes,
            bytes,
        })
    }

    /// Of the types that weights can have here.
    pub fn float(&self) -> Option<DType> {
        match self.dtype {
            Dtype::F32 => Some(DType::F32),
            Dtype::F16 => Some(DType::F16),
            Dtype::BF16 => Some(DType::BF16),
            _ => None,
        }
    }
}

impl TensorFile {
    /// Reads the header.
    pub fn open(path: &Path) -> Result<(TensorFile, Vec<(String, Stored)>), ZooError> {
        let shown = path.display();
        let failed = |e: std::io::Error| bad(format!("cannot read {shown}: {e}"));
        let broken = |why: &str| bad(format!("{shown} is no file of safetensors: {why}"));
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let mut begin = [0; 23];
        let read = file.read_at(&mut begin, 0).map_err(failed)?;
        for (magic, what) in OTHERS {
            if begin[..read].starts_with(magic) {
                return Err(bad(format!("{shown} {what}")));
            }
        }
        let header = match begin[..read].first_chunk::<8>() {
            Some(bytes) => u64::from_le_bytes(*bytes),
            None => return Err(broken("it ends in its header")),
        };
        if header > MAX_HEADER_BYTES {
            return Err(broken("its header is impossibly long"));
        }
        if header > length - 8 {
            return Err(broken("it ends in its header"));
        }
        let mut text = vec![0; header as usize];
        file.read_exact_at(&mut text, 8).map_err(failed)?;
        // The crate checks that tensors lie one after the other and have the bytes of their shapes.
        let metadata: Metadata =
            serde_json::from_slice(&text).map_err(|e| broken(&e.to_string()))?;
        let data_at = 8 + header;
        let data = metadata.data_len() as u64;
        if data > length - data_at {
            let missing = data - (length - data_at);
            return Err(bad(format!(
                "{shown} is cut short: {missing} bytes are missing"
            )));
        }
        let tensors = metadata.tensors().into_iter().map(|(name, info)| {
            let (start, end) = info.data_offsets;
            let stored = Stored {
                dtype: info.dtype,
                shape: info.shape.clone(),
                at: data_at + start as u64,
                bytes: (end - start) as u64,
            };
            (name, stored)
        });
        let mut tensors: Vec<_> = tensors.collect();
        tensors.sort_by(|a, b| a.0.cmp(&b.0));
        let path = path.to_path_buf();
        Ok((TensorFile { path, file }, tensors))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), ZooError> {
        let read = self.file.read_exact_at(into, at);
        read.map_err(|e| bad(format!("cannot read {}: {e}", self.path.display())))
    }
}
