//! What a cache folder holds: packed forms of models, and models that were given as bytes. Any of it may be removed at any
//! time: it is made again when it is asked for. Sessions that have it open go on.

use crate::error::{Error, Result};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A file of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedFile {
    pub path: PathBuf,
    pub bytes: u64,
    /// When it was made, or a model of bytes was opened last.
    pub used: SystemTime,
}

/// How models that were given as bytes are called.
pub(crate) const BYTES: &str = "bytes-";

/// Endings of packed forms that were made for a cache: beside their models, and of models elsewhere.
const BESIDE: &str = ".cached.neap";
const DIGITS: usize = 16;

/// The files of a cache in a folder, by name; none where there is no folder. What a user has packed is not among them.
///
/// # Errors
/// [`Error::BadInput`] when the folder cannot be read.
pub fn cached(folder: &Path) -> Result<Vec<CachedFile>> {
    let unreadable =
        |e: std::io::Error| Error::BadInput(format!("cannot read {}: {e}", folder.display()));
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(unreadable(e)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(unreadable)?;
        let about = match entry.metadata() {
            Ok(about) if about.is_file() && is_of_cache(&entry.file_name()) => about,
            // Another process may have removed it meanwhile.
            _ => continue,
        };
        found.push(CachedFile {
            path: entry.path(),
            bytes: about.len(),
            used: about.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        });
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Removes the files of a cache in a folder, and gives what was removed.
///
/// # Errors
/// [`Error::BadInput`] when the folder cannot be read or a file cannot be removed.
pub fn clear_cached(folder: &Path) -> Result<Vec<CachedFile>> {
    let found = cached(folder)?;
    for file in &found {
        remove(&file.path)
            .map_err(|e| Error::BadInput(format!("cannot remove {}: {e}", file.path.display())))?;
    }
    Ok(found)
}

fn remove(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn is_of_cache(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    let is_hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
    let is_of_bytes = name.strip_prefix(BYTES).is_some_and(|rest| {
        let digest = rest.split('.').next().unwrap_or_default();
        digest.len() == 2 * DIGITS && is_hex(digest)
    });
    let stem = name.strip_suffix(".neap").unwrap_or_default();
    let digits = stem.rsplit_once('.').map(|(_, digits)| digits);
    let is_of_elsewhere = digits.is_some_and(|d| d.len() == DIGITS && is_hex(d));
    is_of_bytes || is_of_elsewhere || name.ends_with(BESIDE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_own_files_are_no_cache() {
        for name in [
            "bytes-0123456789abcdef0123456789abcdef.onnx",
            "bytes-0123456789abcdef0123456789abcdef.onnx.cached.neap",
            "net.onnx.0123456789abcdef.neap",
            "net.onnx.int8.cached.neap",
        ] {
            assert!(is_of_cache(OsStr::new(name)), "{name}");
        }
        for name in [
            "net.neap",
            "net.onnx",
            "bytes-1.onnx",
            "bytes-x.neap",
            "a.b.neap",
        ] {
            assert!(!is_of_cache(OsStr::new(name)), "{name}");
        }
    }
}
