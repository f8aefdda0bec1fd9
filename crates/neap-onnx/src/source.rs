//! Positioned reads of a file through a small window, leaving little behind in the page cache; or of what an
//! extract kept of it.
//!
//! The page cache that a process fills is charged to its memory budget, so read-ahead is switched
//! off and what was read is dropped again.

use crate::error::OnnxError;
use crate::extract::{Extract, Touched};
use crate::open_file::OpenFile;
use neap_ir::{FileId, FileRange};
use std::cell::{Cell, RefCell};
#[cfg(test)]
use std::path::Path;
use std::sync::Arc;

/// The window grows from `MIN` (after a jump) to `MAX` (sequential reading).
const MIN_WINDOW_BYTES: usize = 4 << 10;
const MAX_WINDOW_BYTES: usize = 64 << 10;
/// After that many bytes the file's cached pages are dropped.
const DROP_EVERY_BYTES: u64 = 2 << 20;

pub(crate) struct Source {
    backing: Backing,
    name: String,
    len: u64,
    window: RefCell<Window>,
    since_drop: Cell<u64>,
    touched: RefCell<Touched>,
}

enum Backing {
    File(Arc<OpenFile>),
    /// Of the model itself.
    Extract(Arc<Extract>),
}

struct Window {
    start: u64,
    bytes: Vec<u8>,
    /// Bytes to read if the next miss continues this window.
    grow_to: usize,
}

impl Source {
    #[cfg(test)]
    pub(crate) fn open(path: &Path) -> Result<Source, OnnxError> {
        Ok(Source::of(Arc::new(OpenFile::open(path, 0)?)))
    }

    pub(crate) fn of(file: Arc<OpenFile>) -> Source {
        let (name, len) = (file.path().display().to_string(), file.len_bytes());
        Source::new(Backing::File(file), name, len)
    }

    /// The model itself, as far as an extract has it.
    pub(crate) fn of_extract(extract: Arc<Extract>) -> Source {
        let file = &extract.files()[0];
        let (name, len) = (file.location.clone(), file.len_bytes);
        Source::new(Backing::Extract(extract), name, len)
    }

    fn new(backing: Backing, name: String, len: u64) -> Source {
        Source {
            backing,
            name,
            len,
            window: RefCell::new(Window {
                start: 0,
                bytes: Vec::new(),
                grow_to: MIN_WINDOW_BYTES,
            }),
            since_drop: Cell::new(0),
            touched: RefCell::default(),
        }
    }

    /// `None` for an extract.
    pub(crate) fn file(&self) -> Option<&Arc<OpenFile>> {
        match &self.backing {
            Backing::File(file) => Some(file),
            Backing::Extract(_) => None,
        }
    }

    /// What has been read so far.
    pub(crate) fn touched(&self, file: FileId) -> Vec<FileRange> {
        self.touched.borrow().ranges(file).collect()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Reads through the window; for structure, where neighbours are read next.
    pub(crate) fn byte(&self, offset: u64) -> Result<u8, OnnxError> {
        let mut window = self.window.borrow_mut();
        if !window.holds(offset) {
            self.refill(&mut window, offset)?;
        }
        self.touched.borrow_mut().add(offset, 1);
        let index = (offset - window.start) as usize;
        Ok(window.bytes[index])
    }

    /// Reads past the window; for data.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OnnxError> {
        self.touched.borrow_mut().add(offset, out.len() as u64);
        let window = self.window.borrow();
        if let Some(bytes) = window.slice(offset, out.len()) {
            out.copy_from_slice(bytes);
            return Ok(());
        }
        match &self.backing {
            Backing::File(file) => {
                file.read_exact_at(out, offset)
                    .map_err(|source| OnnxError::Read {
                        path: self.name.clone(),
                        source,
                    })?;
                self.count(out.len() as u64);
            }
            Backing::Extract(extract) => {
                let range = FileRange {
                    file: FileId(0),
                    offset,
                    bytes: out.len() as u64,
                };
                if !extract.read(range, out) {
                    return Err(self.not_kept(offset));
                }
            }
        }
        Ok(())
    }

    fn not_kept(&self, offset: u64) -> OnnxError {
        OnnxError::NotKept {
            path: self.name.clone(),
            offset,
        }
    }

    fn refill(&self, window: &mut Window, offset: u64) -> Result<(), OnnxError> {
        let sequential = offset == window.start + window.bytes.len() as u64;
        let want = if sequential {
            window.grow_to
        } else {
            MIN_WINDOW_BYTES
        };
        window.grow_to = (want * 2).min(MAX_WINDOW_BYTES);
        let want = (want as u64).min(self.len().saturating_sub(offset)) as usize;
        if want == 0 {
            return Err(self.malformed(offset, "it ends too early"));
        }
        window.start = offset;
        let file = match &self.backing {
            Backing::File(file) => file,
            Backing::Extract(extract) => {
                let kept = extract.from(FileId(0), offset);
                let kept = kept.ok_or_else(|| self.not_kept(offset))?;
                window.bytes.clear();
                window
                    .bytes
                    .extend_from_slice(&kept[..kept.len().min(want)]);
                return Ok(());
            }
        };
        window.bytes.resize(want, 0);
        let result = file.read_exact_at(&mut window.bytes, offset);
        if let Err(source) = result {
            window.bytes.clear();
            return Err(OnnxError::Read {
                path: self.name.clone(),
                source,
            });
        }
        self.count(want as u64);
        Ok(())
    }

    fn count(&self, bytes: u64) {
        let total = self.since_drop.get() + bytes;
        if total >= DROP_EVERY_BYTES {
            self.drop_cache();
        } else {
            self.since_drop.set(total);
        }
    }

    fn drop_cache(&self) {
        if let Backing::File(file) = &self.backing {
            file.drop_cached(0, 0);
        }
        self.since_drop.set(0);
    }

    pub(crate) fn malformed(&self, offset: u64, reason: impl Into<String>) -> OnnxError {
        OnnxError::Malformed {
            path: self.name.clone(),
            offset,
            reason: reason.into(),
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.drop_cache();
    }
}

impl Window {
    fn holds(&self, offset: u64) -> bool {
        offset >= self.start && offset - self.start < self.bytes.len() as u64
    }

    fn slice(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(start..start.checked_add(len)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn bytes_and_runs_agree_with_the_file() {
        let data: Vec<u8> = (0..300_000u32).map(|i| (i * 7 % 251) as u8).collect();
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        file.write_all(&data).expect("write");
        let source = Source::open(file.path()).expect("open");
        assert_eq!(source.len(), 300_000);
        for offset in [0u64, 1, 4095, 4096, 200_000, 5, 299_999] {
            assert_eq!(source.byte(offset).expect("byte"), data[offset as usize]);
            let len = 1000.min(300_000 - offset as usize);
            let mut run = vec![0; len];
            source.read(offset, &mut run).expect("read");
            assert_eq!(run, data[offset as usize..offset as usize + len]);
        }
        assert!(source.byte(300_000).is_err());
        assert!(source.read(299_999, &mut [0; 2]).is_err());
    }

    #[test]
    fn a_folder_is_no_model() {
        let error = Source::open(Path::new("/")).err().expect("refused");
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}
