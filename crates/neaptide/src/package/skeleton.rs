//! The skeleton in a packed file: what of the model's own files binding it needs. It lies in the data region, and is
//! read when another binding is asked for.
//!
//! ```text
//!   files and pieces (postcard, its length before it) | bytes of the pieces, one after another
//! ```

use crate::error::{Error, Result};
use crate::source_weights::SourceFiles;
use neap_ir::FileRange;
use neap_onnx::{Extract, Inputs, KeptFile, Stored};
use neap_store::{BLOCK, DataReader, PackWriter};
use serde::{Deserialize, Serialize};

/// Bytes of the model's files that are copied at once.
const COPY_BYTES: usize = 256 << 10;

/// A skeleton is in memory whole; no real one comes near.
const MAX_BYTES: u64 = 512 << 20;

/// Where the skeleton is, and how its inputs look.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SkeletonAt {
    pub offset: u64,
    pub bytes: u64,
    pub inputs: Inputs,
    /// What the model's maker wrote into it beside the graph, and what was added when it was packed.
    pub metadata: Vec<(String, String)>,
}

/// What a skeleton is made of, as the first binding found it.
pub(crate) struct SkeletonSource {
    pub inputs: Inputs,
    pub metadata: Vec<(String, String)>,
    pub files: Vec<KeptFile>,
    pub read: Vec<FileRange>,
    pub stored: Vec<Stored>,
}

/// Copies the pieces `read` of the model's files into the packed file.
pub(crate) fn write_skeleton(
    source: SkeletonSource,
    read: Vec<FileRange>,
    files: &SourceFiles,
    writer: &mut PackWriter,
) -> Result<SkeletonAt> {
    let head = postcard::to_allocvec(&(&source.files, &read))
        .map_err(|e| Error::Defect(format!("cannot encode the skeleton: {e}")))?;
    let offset = writer.align(BLOCK as u64)?;
    writer.append(&(head.len() as u64).to_le_bytes())?;
    writer.append(&head)?;
    let mut bytes = 8 + head.len() as u64;
    let mut buffer = Vec::new();
    for piece in read {
        let mut at = piece.offset;
        let end = piece.offset + piece.bytes;
        while at < end {
            buffer.resize((end - at).min(COPY_BYTES as u64) as usize, 0);
            files
                .read_range(piece.file, at, &mut buffer)
                .map_err(Error::BadInput)?;
            writer.append(&buffer)?;
            at += buffer.len() as u64;
        }
        bytes += piece.bytes;
    }
    Ok(SkeletonAt {
        offset,
        bytes,
        inputs: source.inputs,
        metadata: source.metadata,
    })
}

/// Reads the skeleton. The error is a reason.
pub(super) fn read(at: &SkeletonAt, data: &DataReader) -> std::result::Result<Extract, String> {
    if at.bytes > MAX_BYTES {
        return Err("its skeleton is impossibly large".into());
    }
    let mut all = vec![0; at.bytes as usize];
    data.read(at.offset, &mut all).map_err(|e| e.to_string())?;
    let damaged = || "its skeleton is not readable".to_string();
    let (len, rest) = all.split_first_chunk::<8>().ok_or_else(damaged)?;
    let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| damaged())?;
    let head = rest.get(..len).ok_or_else(damaged)?;
    let (files, pieces): (Vec<KeptFile>, Vec<FileRange>) =
        postcard::from_bytes(head).map_err(|_| damaged())?;
    all.drain(..8 + len);
    Extract::new(files, pieces, all).ok_or_else(damaged)
}
