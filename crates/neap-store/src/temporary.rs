//! The temporary name under which a file is written, and what killed writers left.
//!
//! A writer holds a lock on its file for as long as it lives, however it ends. A temporary file that can be locked
//! is therefore nobody's, and the next writer in the folder removes it.

use crate::StoreError;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const SUFFIX: &str = ".part";

/// The temporary name of a file being written, removed when dropped.
pub(crate) struct Temporary {
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    /// A new file in the folder of `final_path`, with direct I/O if that can be had.
    pub fn create_beside(final_path: &Path) -> Result<(Temporary, OwnedFd, bool), StoreError> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let fail = |e: Errno| StoreError::file("create", final_path, e);
        let name = final_path.file_name().ok_or_else(|| fail(Errno::ISDIR))?;
        if final_path.is_dir() {
            return Err(fail(Errno::ISDIR));
        }
        remove_stale(folder_of(final_path));
        // A few names are tried: one may be a file that could not be removed.
        for _ in 0..64 {
            let number = COUNTER.fetch_add(1, Ordering::Relaxed);
            let path = final_path.with_file_name(hidden_name(name, number));
            let create = |flags: OFlags| {
                let flags = flags | OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
                // Nobody else is to write what is trusted later.
                rustix::fs::open(&path, flags, Mode::from_raw_mode(0o644))
            };
            let (fd, direct) = match create(OFlags::EXCL | OFlags::DIRECT) {
                Ok(fd) => (fd, true),
                Err(Errno::EXIST) => continue,
                Err(Errno::INVAL) => {
                    // Without direct I/O the refusal may come after the file was made.
                    let _ = rustix::fs::unlink(&path);
                    (create(OFlags::EXCL).map_err(fail)?, false)
                }
                Err(e) => return Err(fail(e)),
            };
            // Another writer may have taken the file for a stale one before it was locked.
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => continue,
                // Where files cannot be locked, nobody takes one for stale.
                Err(_) => {}
                Ok(()) if rustix::fs::fstat(&fd).is_ok_and(|stat| stat.st_nlink == 0) => continue,
                Ok(()) => {}
            }
            let temporary = Temporary {
                path,
                renamed: false,
            };
            return Ok((temporary, fd, direct));
        }
        Err(fail(Errno::EXIST))
    }

    /// Gives the file its final name, durably.
    pub fn rename_to(&mut self, final_path: &Path) -> Result<(), StoreError> {
        let fail = |e: Errno| StoreError::file("create", final_path, e);
        rustix::fs::rename(&self.path, final_path).map_err(fail)?;
        self.renamed = true;
        // The new name survives a power cut only when the folder is durable too.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(folder) = rustix::fs::open(folder_of(final_path), flags, Mode::empty()) else {
            return Ok(());
        };
        match rustix::fs::fsync(&folder) {
            // Not every filesystem can sync a folder.
            Ok(()) | Err(Errno::INVAL | Errno::NOTSUP | Errno::BADF | Errno::ROFS) => Ok(()),
            Err(e) => Err(fail(e)),
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Of a name, in a temporary one. File systems allow 255 bytes, and the final name may have them all.
const MOST_NAME_BYTES: usize = 200;

/// `.NAME.PID-N.part`, with the end of a long name.
fn hidden_name(name: &OsStr, number: u64) -> OsString {
    let bytes = name.as_bytes();
    let start = bytes.len().saturating_sub(MOST_NAME_BYTES);
    let mut hidden = OsString::from(".");
    hidden.push(OsStr::from_bytes(&bytes[start..]));
    hidden.push(format!(".{}-{number}{SUFFIX}", std::process::id()));
    hidden
}

/// Whether a file of this name is one that [`hidden_name`] named, for a packed model.
fn is_hidden_name(name: &OsStr) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    // The end of a name may begin within a character.
    let name = name.to_string_lossy();
    let parts = || {
        let (name, writer) = name
            .strip_prefix('.')?
            .strip_suffix(SUFFIX)?
            .rsplit_once('.')?;
        let (process, number) = writer.split_once('-')?;
        Some((name, process, number))
    };
    parts().is_some_and(|(name, process, number)| {
        name.ends_with(".neap") && digits(process) && digits(number)
    })
}

/// Removes temporary files whose writers are gone. What cannot be looked at or removed stays.
fn remove_stale(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        if !is_hidden_name(&entry.file_name()) {
            continue;
        }
        let path = entry.path();
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let Ok(fd) = rustix::fs::open(&path, flags, Mode::empty()) else {
            continue;
        };
        if rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = rustix::fs::unlink(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_writers_are_taken_for_theirs() {
        let ours = hidden_name(OsStr::new("m.onnx.0123.neap"), 7);
        assert!(is_hidden_name(&ours), "{ours:?}");
        // As long as a file system allows, with one byte of a character cut off.
        let long = format!("{}.neap", "é".repeat(125));
        let ours = hidden_name(OsStr::new(&long), u64::MAX);
        assert!(is_hidden_name(&ours) && ours.len() <= 255, "{ours:?}");
        for other in [
            "m.neap",
            ".m.neap.part",
            ".m.neap.12-.part",
            ".m.neap.a-1.part",
            ".m.iso.12-1.part",
            "m.neap.12-1.part",
            ".m.neap.12-1.partial",
        ] {
            assert!(!is_hidden_name(OsStr::new(other)), "{other}");
        }
    }

    #[test]
    fn files_of_dead_writers_go_and_those_of_living_ones_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let stale = folder.path().join(".old.neap.1-0.part");
        std::fs::write(&stale, b"half of a file").expect("written");
        let target = folder.path().join("m.neap");
        let (first, _fd, _) = Temporary::create_beside(&target).expect("created");
        assert!(!stale.exists());
        let (second, _fd, _) = Temporary::create_beside(&target).expect("created");
        assert!(first.path.exists() && second.path.exists());
    }
}
