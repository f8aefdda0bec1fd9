//! What the executor needs of storage: submit loads, do something else, ask what arrived.

use crate::direct::check_aligned;
use crate::{
    DirectFile, LoadTag, PreadConfig, PreadSource, RangeRead, StoreError, UringConfig, UringSource,
};
use std::path::Path;
use std::sync::Arc;

/// Asynchronous reads into memory of the caller's choice. Used by one thread at a time.
///
/// A source allocates when it is made and never after. Loads complete in any order.
pub trait Source: Send {
    /// Queues a read of `len_bytes` bytes at `file_offset` to `dst`, without waiting for it. It begins at
    /// the latest with the next [`flush`](Source::flush) or [`poll`](Source::poll).
    ///
    /// # Errors
    ///
    /// A range that is misaligned or outside of the file, or more loads than the source was
    /// opened for. Nothing is queued then. A failing read is told by [`poll`](Source::poll).
    ///
    /// # Safety
    ///
    /// `dst..dst + len_bytes` is valid for writes, and nothing else reads or writes it, until
    /// `poll` has reported the load (done or failed) or the source has been dropped.
    unsafe fn submit(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<(), StoreError>;

    /// Begins what was submitted: all of it in one go, which takes the kernel, and a virtual drive, much less
    /// than one by one.
    fn flush(&mut self) {}

    /// Passes the tags of the loads that completed since the last call to `done`. With `wait`,
    /// blocks until there is at least one.
    ///
    /// # Errors
    ///
    /// [`StoreError::Read`] with the tag of a load that failed, which counts as reported; the
    /// others go on and can be polled. [`StoreError::NothingInFlight`] if a wait would never
    /// end. After [`StoreError::Broken`], destinations stay in use until the source is dropped.
    fn poll(&mut self, wait: bool, done: &mut dyn FnMut(LoadTag)) -> Result<(), StoreError>;

    /// Loads submitted and not yet reported.
    fn in_flight(&self) -> usize;

    /// Performs a batch of reads, many at a time, and returns when all are complete. Loads in
    /// flight go on, and stay to be reported by [`poll`](Source::poll).
    ///
    /// # Errors
    ///
    /// The first read that failed; none of the batch is in flight any more, except after
    /// [`StoreError::Broken`].
    ///
    /// # Safety
    ///
    /// As for [`submit`](Source::submit), for every read, until this returns; after
    /// [`StoreError::Broken`], until the source is dropped.
    unsafe fn read_ranges(&mut self, reads: &[RangeRead]) -> Result<(), StoreError>;

    /// Waits until nothing is in flight, forgetting results and errors of loads.
    ///
    /// # Errors
    ///
    /// [`StoreError::Broken`]: loads may still be in flight.
    fn drain(&mut self) -> Result<(), StoreError> {
        while self.in_flight() > 0 {
            match self.poll(true, &mut |_| {}) {
                Ok(()) | Err(StoreError::Read { .. } | StoreError::Write { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// A word for reports: `uring`, `pread` or `memory`.
    fn name(&self) -> &'static str;
}

/// A file of the session's own that is written and read back.
///
/// Stores are named, counted in flight, reported by [`poll`](Source::poll) and waited for like loads;
/// one that fails is reported as [`StoreError::Write`].
pub trait Spill: Source {
    /// Queues a write of `len_bytes` bytes from `src` to `file_offset`, without waiting for it; it begins as
    /// loads do.
    ///
    /// # Errors
    ///
    /// As for [`submit`](Source::submit).
    ///
    /// # Safety
    ///
    /// `src..src + len_bytes` is valid for reads, and nothing writes it, until `poll` has reported the
    /// store (done or failed) or the source has been dropped.
    unsafe fn submit_write(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        src: *const u8,
        len_bytes: usize,
    ) -> Result<(), StoreError>;

    /// Size of the file.
    fn len_bytes(&self) -> u64;
}

/// Which source to open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoMode {
    /// io_uring where the kernel allows it and the file has direct I/O, else threads.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// Threads that call `pread`.
    Pread,
    /// As programs usually read: by the page cache, which is charged beside where the bytes go and keeps them. For studies
    /// alone: no user can name it.
    Cached,
}

impl std::str::FromStr for IoMode {
    type Err = StoreError;
    fn from_str(text: &str) -> Result<IoMode, StoreError> {
        match text {
            "auto" => Ok(IoMode::Auto),
            "uring" => Ok(IoMode::Uring),
            "pread" => Ok(IoMode::Pread),
            _ => Err(StoreError::InvalidUse {
                what: "the I/O mode is none of auto, uring and pread",
            }),
        }
    }
}

/// Opens a source over the file at `path` with the usual settings.
///
/// # Errors
/// [`StoreError`] where the file cannot be opened or no source of this mode can be had.
pub fn open_source(path: &Path, mode: IoMode) -> Result<Box<dyn Source>, StoreError> {
    open_source_of(Arc::new(DirectFile::open(path)?), mode)
}

pub(crate) fn open_source_of(
    file: Arc<DirectFile>,
    mode: IoMode,
) -> Result<Box<dyn Source>, StoreError> {
    let uring = |file| UringSource::new(file, UringConfig::default());
    let pread = |file| PreadSource::new(file, PreadConfig::default());
    Ok(match mode {
        IoMode::Uring => Box::new(uring(file)?),
        IoMode::Pread => Box::new(pread(file)?),
        IoMode::Cached => Box::new(pread(Arc::new(file.through_cache()?))?),
        IoMode::Auto if file.is_direct() => match uring(file.clone()) {
            Ok(source) => Box::new(source),
            // Old kernels lack io_uring, and sandboxes forbid it.
            Err(_) => Box::new(pread(file)?),
        },
        IoMode::Auto => Box::new(pread(file)?),
    })
}

/// Checks a read against the file and against what direct I/O needs.
pub(crate) fn check_read(read: &RangeRead, file_len_bytes: u64) -> Result<(), StoreError> {
    check_aligned(read.file_offset, read.dst, read.len_bytes)?;
    match read.file_offset.checked_add(read.len_bytes as u64) {
        Some(end) if end <= file_len_bytes => Ok(()),
        _ => Err(StoreError::OutOfRange {
            offset: read.file_offset,
            len_bytes: read.len_bytes as u64,
            limit_bytes: file_len_bytes,
        }),
    }
}
