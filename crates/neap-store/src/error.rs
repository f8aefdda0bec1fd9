//! Everything that can go wrong with a packed file, told in one line each.

use crate::LoadTag;
use std::io;
use std::path::{Path, PathBuf};

/// An error of the packed file or of a source that reads it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused an operation on a file.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried, as a verb.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The file is no packed model.
    #[error("{} is not a packed model: {reason}", path.display())]
    NotPacked { path: PathBuf, reason: &'static str },
    /// The file is a packed model of a format version that this build cannot read.
    #[error("{} has format version {found}, this build reads version {supported}", path.display())]
    Version {
        path: PathBuf,
        found: u32,
        supported: u32,
    },
    /// The file's length is not the length that its header states.
    #[error("{} is truncated or overlong: it has {found_bytes} bytes, its header states {stated_bytes}", path.display())]
    Length {
        path: PathBuf,
        found_bytes: u64,
        stated_bytes: u64,
    },
    /// Somebody else could have written the file, or could write it.
    #[error("{} is not trusted: {reason}", path.display())]
    Untrusted { path: PathBuf, reason: &'static str },
    /// The header contradicts itself.
    #[error("{} has an invalid header: {reason}", path.display())]
    Header { path: PathBuf, reason: &'static str },
    /// Bytes do not match their checksum.
    #[error("corrupted {what} at file offset {offset}: the checksum does not match")]
    Corrupt { what: &'static str, offset: u64 },
    /// Somebody wrote to the open file while it was read. What was read may be of either state.
    #[error("{} changed while it was read", path.display())]
    Changed { path: PathBuf },
    /// The open file holds something else than it did, and what is needed of it was never read or is in memory no more.
    #[error("{} was overwritten while it was in use", path.display())]
    Overwritten { path: PathBuf },
    /// Memory for a table or buffer could not be had.
    #[error("cannot allocate {bytes} bytes: {source}")]
    Memory { bytes: usize, source: io::Error },
    /// A load, or one of a batch of reads, failed; its memory is no longer written to.
    #[error("read failed at file offset {offset}: {source}")]
    Read {
        /// The load that failed; `None` for a batch of reads.
        tag: Option<LoadTag>,
        offset: u64,
        source: io::Error,
    },
    /// A store failed; its memory is no longer read.
    #[error("writing to the spill file failed at offset {offset}: {source}")]
    Write {
        tag: LoadTag,
        offset: u64,
        source: io::Error,
    },
    /// Spilling there would take memory instead of giving it back.
    #[error("cannot spill to {}: {reason}", path.display())]
    NoSpill { path: PathBuf, reason: &'static str },
    /// An offset, length or address is no multiple of what direct I/O needs.
    #[error("{what} {value} is not a multiple of {multiple}")]
    Misaligned {
        what: &'static str,
        value: u64,
        multiple: u64,
    },
    /// A range reaches past what the file holds.
    #[error(
        "the range of {len_bytes} bytes at file offset {offset} is outside of {limit_bytes} bytes"
    )]
    OutOfRange {
        offset: u64,
        len_bytes: u64,
        limit_bytes: u64,
    },
    /// More loads were submitted than the source was opened for.
    #[error("{capacity} loads are in flight already, which is all this source was opened for")]
    TooManyLoads { capacity: usize },
    /// A wait would never end because nothing is in flight.
    #[error("waited for a load while none is in flight")]
    NothingInFlight,
    /// The source failed as a whole; destinations must stay valid until it is dropped.
    #[error("the source is unusable: {source}")]
    Broken { source: io::Error },
    /// A part of the file was asked for after it was given away or dropped.
    #[error("the file's {what} was released already")]
    Released { what: &'static str },
    /// An argument or a state that does not allow the operation.
    #[error("invalid use: {what}")]
    InvalidUse { what: &'static str },
}

impl StoreError {
    pub(crate) fn file(
        action: &'static str,
        path: &Path,
        source: impl Into<io::Error>,
    ) -> StoreError {
        StoreError::File {
            action,
            path: path.to_path_buf(),
            source: source.into(),
        }
    }

    /// Whether the bytes of a packed file are not what was written, or cannot be read any more. Writing the file
    /// again helps then.
    pub fn is_damage(&self) -> bool {
        use io::ErrorKind::UnexpectedEof;
        match self {
            StoreError::NotPacked { .. }
            | StoreError::Length { .. }
            | StoreError::Header { .. }
            | StoreError::Corrupt { .. }
            | StoreError::Overwritten { .. } => true,
            StoreError::Read { source, .. } => {
                source.kind() == UnexpectedEof
                    || matches!(source.raw_os_error(), Some(libc::EIO | libc::EBADMSG))
            }
            _ => false,
        }
    }

    /// Whether this is the error of running out of disk space, quota or allowed file size.
    pub fn is_disk_full(&self) -> bool {
        match self {
            StoreError::File { source, .. } | StoreError::Write { source, .. } => matches!(
                source.raw_os_error(),
                Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG)
            ),
            _ => false,
        }
    }
}
