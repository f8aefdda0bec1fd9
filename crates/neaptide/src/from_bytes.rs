//! Models that a caller holds in memory: kept as files, from which they are packed like any other.

use crate::error::{Error, Result};
use crate::model::Cache;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Keeps the bytes of an `.onnx` (or `.neap`) as a file in the cache's folder, named after their digest, and gives its
/// path. The same bytes are the same file, so they are packed once. External data cannot be named by such a model.
///
/// # Errors
/// [`Error::BadInput`] without a home directory, or where the folder cannot be written.
pub fn kept_model(bytes: &[u8], cache: &Cache) -> Result<PathBuf> {
    let folder = cache.folder().ok_or_else(|| {
        Error::BadInput(
            "a model in memory needs a cache folder, and there is no home directory".into(),
        )
    })?;
    let is_packed = bytes.starts_with(&neap_store::MAGIC);
    let extension = if is_packed { "neap" } else { "onnx" };
    let digest = blake3::hash(bytes).to_hex();
    let path = folder.join(format!("bytes-{}.{extension}", &digest[..32]));
    if fs::metadata(&path).is_ok_and(|found| found.len() == bytes.len() as u64) {
        return Ok(path);
    }
    write(&folder, &path, bytes).map_err(|e| {
        Error::BadInput(format!("cannot keep the model as {}: {e}", path.display()))
    })?;
    Ok(path)
}

/// Under another name first: what has the name is whole.
fn write(folder: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let written = fs::File::create(&part).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_data()?;
        fs::rename(&part, path)
    });
    if written.is_err() {
        // The error that is told is the first one.
        let _ = fs::remove_file(&part);
    }
    written
}
