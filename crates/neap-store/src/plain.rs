//! Files of any format, as they are: without checksums, and of any length.

use crate::joined::Joined;
use crate::source::open_source_of;
use crate::{DirectFile, IoMode, Source, StoreError, Verifier};
use std::path::Path;
use std::sync::Arc;

/// Opens a file of any format and length, as it is: a source that reads it in whole blocks, the last of which may end
/// early, and a verifier that has no checksums and notices when somebody writes to the file.
///
/// # Errors
/// As [`open_source`](crate::open_source).
pub fn open_plain(path: &Path, mode: IoMode) -> Result<(Box<dyn Source>, Verifier), StoreError> {
    open_joined(&[path], mode)
}

/// Opens several files as one: each in whole blocks as [`open_plain`] has it, one behind the other. A read is of one file.
///
/// # Errors
/// As [`open_plain`]; [`StoreError::InvalidUse`] of no files.
pub fn open_joined(
    paths: &[impl AsRef<Path>],
    mode: IoMode,
) -> Result<(Box<dyn Source>, Verifier), StoreError> {
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        files.push(Arc::new(DirectFile::open(path.as_ref())?.in_whole_blocks()));
    }
    let verifiers = files.iter().cloned().map(Verifier::of_plain_file);
    let verifier = Verifier::joined(verifiers.collect::<Result<_, _>>()?)?;
    let mut parts = Vec::with_capacity(files.len());
    for file in files {
        parts.push((file.len_bytes(), open_source_of(file, mode)?));
    }
    if parts.len() == 1
        && let Some((_, source)) = parts.pop()
    {
        return Ok((source, verifier));
    }
    Ok((Box::new(Joined::new(parts)), verifier))
}
