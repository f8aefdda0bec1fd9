//! Files of any format, as they are: without checksums, and of any length.

use crate::source::open_source_of;
use crate::{DirectFile, IoMode, Source, StoreError, Verifier};
use std::path::Path;
use std::sync::Arc;

/// Opens a file of any format and length, as it is: a source that reads it in whole blocks, the last of which may end
/// early, and a verifier that has no checksums and notices when somebody writes to the file.
///
/// # Errors
/// As [`open_source`].
pub fn open_plain(path: &Path, mode: IoMode) -> Result<(Box<dyn Source>, Verifier), StoreError> {
    let file = Arc::new(DirectFile::open(path)?.in_whole_blocks());
    let verifier = Verifier::of_plain_file(file.clone())?;
    Ok((open_source_of(file, mode)?, verifier))
}
