//! Files of other formats, which people give by mistake: named, with what to do.

use crate::error::OnnxError;
use crate::source::Source;

/// Where a file of a format has which bytes, and what it is.
const FORMATS: [(usize, &[u8], &str); 5] = [
    (
        0,
        b"GGUF",
        "a language model in GGUF: neap chat and neap generate run it, neap inspect and neap plan tell of it",
    ),
    (
        0,
        b"PK\x03\x04",
        "a ZIP archive, as PyTorch saves models: export the model with torch.onnx.export",
    ),
    (
        0,
        b"\x89HDF",
        "an HDF5 file, as Keras saves models: export the model to ONNX",
    ),
    (
        0,
        b"\x80\x02",
        "a pickle, as old versions of PyTorch save models: export the model with torch.onnx.export",
    ),
    (4, b"TFL3", "a TensorFlow Lite model: convert it to ONNX"),
];

const BYTES: usize = 8;

/// The error for a file that could not be read as ONNX: the one there was, unless the file is of another format.
pub fn named(source: &Source, error: OnnxError) -> OnnxError {
    let mut bytes = [0; BYTES];
    if source.len() < BYTES as u64 || source.read(0, &mut bytes).is_err() {
        return error;
    }
    let is_it = |&&(at, magic, _): &&(usize, &[u8], &str)| bytes[at..].starts_with(magic);
    match FORMATS.iter().find(is_it) {
        Some((_, _, format)) => OnnxError::OtherFormat {
            path: source.name().to_owned(),
            format,
        },
        None => error,
    }
}
