//! The spill file of a session: where it lies, and when there is one.

use crate::error::Result;
use crate::options::RunOptions;
use neap_store::{Spill, ThrottledSource};
use std::path::{Path, PathBuf};

/// The folder that the options name, else that of the packed model, which is on a drive as a rule.
pub(crate) fn folder(options: &RunOptions, packed: &Path) -> PathBuf {
    let beside = || packed.parent().map(Path::to_path_buf);
    let folder = options.spill_dir.clone().or_else(beside);
    folder
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or_else(|| PathBuf::from("."))
}

/// A file with room for what a plan stores; none for a plan that stores nothing.
///
/// # Errors
/// [`Error::BadInput`](crate::Error::BadInput) when the drive has no room for it, or spilling to that
/// folder would take memory.
pub(crate) fn open(
    folder: &Path,
    bytes: u64,
    options: &RunOptions,
) -> Result<Option<Box<dyn Spill>>> {
    if bytes == 0 {
        return Ok(None);
    }
    let spill = neap_store::open_spill(folder, bytes, options.io)?;
    Ok(Some(match options.throttle_bytes_per_second {
        Some(rate) => Box::new(ThrottledSource::new(spill, rate)?),
        None => spill,
    }))
}
