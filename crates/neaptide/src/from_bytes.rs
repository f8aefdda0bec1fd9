//! Models that a caller holds in memory: kept as files, from which they are packed like any other. The last few are kept,
//! and those that somebody holds.

use crate::cached::{BYTES, cached};
use crate::error::{Error, Result};
use crate::model::Cache;
use rustix::fs::{FlockOperation, flock};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Models that are kept beside those that are held. Most programs have a handful.
const MOST_KEPT: usize = 16;

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
    let path = folder.join(format!("{BYTES}{}.{extension}", &digest[..32]));
    if fs::metadata(&path).is_ok_and(|found| found.len() == bytes.len() as u64) {
        // It was used last now; where it cannot be said it goes earlier.
        let _ = fs::File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
    } else {
        write(&folder, &path, bytes).map_err(|e| {
            Error::BadInput(format!("cannot keep the model as {}: {e}", path.display()))
        })?;
        forget_old(&folder, &path);
    }
    Ok(path)
}

/// Holds a kept model: nobody forgets it while what is given is there. `None` where the file system has no locks.
pub fn held_model(path: &Path) -> Option<fs::File> {
    let file = fs::File::open(path).ok()?;
    flock(&file, FlockOperation::NonBlockingLockShared).ok()?;
    Some(file)
}

/// Removes a kept model and its packed forms, unless somebody holds it.
pub fn forget_model(path: &Path) {
    let name = path.file_name().and_then(|name| name.to_str());
    let (Some(folder), Some(name)) = (path.parent(), name) else {
        return;
    };
    let Ok(file) = fs::File::open(path) else {
        return;
    };
    if !name.starts_with(BYTES) || flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    for cached in cached(folder).unwrap_or_default() {
        let own = cached.path.file_name().and_then(|own| own.to_str());
        if own.is_some_and(|own| own.starts_with(name)) {
            // It is a cache: what cannot be removed stays.
            let _ = fs::remove_file(&cached.path);
        }
    }
}

/// Forgets those that were used longest ago, but not `newest`.
fn forget_old(folder: &Path, newest: &Path) {
    let mut models = cached(folder).unwrap_or_default();
    models.retain(|file| {
        let name = file.path.file_name().and_then(|name| name.to_str());
        let name = name.and_then(|name| name.strip_prefix(BYTES));
        // Packed forms have more in their names.
        let is_model = name.is_some_and(|name| name.split('.').count() == 2);
        is_model && file.path != newest
    });
    models.sort_by_key(|file| std::cmp::Reverse(file.used));
    for old in models.iter().skip(MOST_KEPT - 1) {
        forget_model(&old.path);
    }
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
