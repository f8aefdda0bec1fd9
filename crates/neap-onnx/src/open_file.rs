//! A file of a model: opened once, and known again by what the kernel says of it.

use crate::error::OnnxError;
use neap_store::{FileIdentity, Sighting};
use rustix::fs::Advice;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Files beyond so many have no descriptor of their own: a model may have one file per tensor.
const KEPT_OPEN: usize = 256;

/// File systems whose change times say nothing of a file's content: images that are mounted as they are (squashfs,
/// erofs, cramfs, romfs, ISO 9660, UDF), and FAT and exFAT.
const WITHOUT_CHANGE_TIMES: [u64; 8] = [
    0x7371_7368,
    0xe0f5_e1e2,
    0x28cd_3d45,
    0x7275,
    0x9660,
    0x1501_3346,
    0x4d44,
    0x2011_bab0,
];

/// A regular file, open for reading. What is read can be trusted to be of one state of the file when
/// [`check_unchanged`](OpenFile::check_unchanged) says so afterwards.
#[derive(Debug)]
pub struct OpenFile {
    path: PathBuf,
    /// `None` for one that is opened anew for each read, if it still is the same.
    file: Option<File>,
    identity: FileIdentity,
    was_fresh: bool,
    has_change_times: bool,
}

impl OpenFile {
    /// Opens `path`, the `index`th file of a model.
    ///
    /// # Errors
    /// [`OnnxError::Open`], also for what is no regular file.
    pub fn open(path: &Path, index: usize) -> Result<OpenFile, OnnxError> {
        let failed = |source| OnnxError::Open {
            path: path.display().to_string(),
            source,
        };
        // Opening a pipe would block until somebody writes to it, so look first.
        let is_file = |metadata: &std::fs::Metadata| match metadata.is_file() {
            true => Ok(()),
            false => Err(io::Error::other("not a regular file")),
        };
        is_file(&std::fs::metadata(path).map_err(failed)?).map_err(failed)?;
        let file = File::open(path).map_err(failed)?;
        is_file(&file.metadata().map_err(failed)?).map_err(failed)?;
        // Advice only: a file system that refuses it still reads correctly.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        let seen = Sighting::of(&file).map_err(failed)?;
        let system = rustix::fs::fstatfs(&file).map_err(|e| failed(e.into()))?;
        Ok(OpenFile {
            path: path.to_path_buf(),
            file: (index < KEPT_OPEN).then_some(file),
            was_fresh: seen.is_fresh,
            has_change_times: !WITHOUT_CHANGE_TIMES.contains(&(system.f_type as u64 & 0xffff_ffff)),
            identity: seen.identity,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn len_bytes(&self) -> u64 {
        self.identity.size_bytes
    }

    /// When the file was opened.
    pub fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Whether the file was written so shortly before it was opened that a write after that may have left no trace.
    /// Opened a moment later it is not.
    pub fn was_fresh(&self) -> bool {
        self.was_fresh
    }

    /// Whether an equal identity means equal content on this file system.
    pub fn has_change_times(&self) -> bool {
        self.has_change_times
    }

    /// Fills `out` from `offset`.
    ///
    /// # Errors
    /// The kernel's, and `UnexpectedEof` past the end.
    pub fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        self.with(|file| file.read_exact_at(out, offset))
    }

    /// Gives back the page cache of a range, which is charged to the budget too; of the whole file for no bytes.
    pub fn drop_cached(&self, offset: u64, bytes: u64) {
        // Advice only: where it is refused the pages stay until they are reclaimed.
        let _ = self.with(|file| {
            let len = NonZeroU64::new(bytes);
            Ok(rustix::fs::fadvise(file, offset, len, Advice::DontNeed)?)
        });
    }

    /// Whether the file is as it was when it was opened.
    ///
    /// # Errors
    /// [`OnnxError::Changed`] where it is not, and [`OnnxError::Read`] when the kernel does not tell.
    pub fn check_unchanged(&self) -> Result<(), OnnxError> {
        let now = match &self.file {
            Some(file) => rustix::fs::fstat(file)
                .map(FileIdentity::from)
                .map_err(io::Error::from),
            None => FileIdentity::of(&self.path),
        };
        let path = self.path.display().to_string();
        match now {
            Ok(now) if now == self.identity => Ok(()),
            Ok(_) => Err(OnnxError::Changed { path }),
            Err(source) => Err(OnnxError::Read { path, source }),
        }
    }

    /// Calls `read` with the open file.
    fn with<T>(&self, read: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        if let Some(file) = &self.file {
            return read(file);
        }
        let file = File::open(&self.path)?;
        if FileIdentity::from(rustix::fs::fstat(&file)?) != self.identity {
            return Err(io::Error::other("it changed while it was read"));
        }
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        read(&file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn settled(path: &Path, index: usize) -> OpenFile {
        let started = Instant::now();
        loop {
            let file = OpenFile::open(path, index).expect("opens");
            if !file.was_fresh() {
                return file;
            }
            assert!(started.elapsed() < Duration::from_secs(5), "still fresh");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn every_change_of_a_settled_file_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("weights");
        let rewrite = |path: &Path, byte: u8| {
            let times = std::fs::metadata(path).and_then(|m| m.modified()).ok();
            std::fs::write(path, [byte; 64]).expect("written");
            // As an archive or a container build would leave it.
            if let Some(time) = times {
                let file = File::options().write(true).open(path).expect("opens");
                file.set_modified(time).expect("set");
            }
        };
        for index in [0, KEPT_OPEN] {
            rewrite(&path, 1);
            let file = settled(&path, index);
            file.check_unchanged().expect("nothing happened");
            file.read_exact_at(&mut [0; 64], 0).expect("reads");

            rewrite(&path, 2);
            let error = file.check_unchanged().expect_err("rewritten");
            assert!(matches!(error, OnnxError::Changed { .. }), "{error}");

            let file = settled(&path, index);
            rewrite(&folder.path().join("other"), 3);
            std::fs::rename(folder.path().join("other"), &path).expect("renamed");
            assert!(file.check_unchanged().is_err());
        }
    }

    #[test]
    fn a_file_just_written_is_fresh() {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        let fresh = (0..50).any(|_| {
            std::fs::write(file.path(), b"x").expect("written");
            OpenFile::open(file.path(), 0).expect("opens").was_fresh()
        });
        assert!(fresh);
    }
}
