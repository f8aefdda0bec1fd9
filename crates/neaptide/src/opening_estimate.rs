//! What opening a model takes, from the size of its structure and before any of it is in memory.

use crate::model::is_packed;
use neap_store::PackedFile;
use std::path::Path;

/// Reading, lowering and planning of one node, measured with graphs of 1,000 to 100,000 small ones.
const NODE_BYTES: u64 = 1_700;

/// The same of one byte of a packed file's table of contents.
const TOC_FACTOR: u64 = 12;

/// About the memory that [`Model::open`](crate::Model::open) takes for a while, for a process that has little: a
/// model with a great number of nodes takes much more than its file. 0 for what is no model: opening it says why.
pub fn opening_estimate_bytes(path: &Path) -> u64 {
    match is_packed(path) {
        Ok(true) => PackedFile::open(path).map_or(0, |file| file.toc().len() as u64 * TOC_FACTOR),
        Ok(false) => neap_onnx::count_nodes(path).map_or(0, |n| n.saturating_mul(NODE_BYTES)),
        Err(_) => 0,
    }
}
