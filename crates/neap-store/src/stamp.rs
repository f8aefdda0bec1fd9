//! The last block of a packed file: a few bytes of its owner's that may change while everything else stays.
//!
//! It has a block and a checksum of its own, so that a write of it that is cut short harms nothing else.

use crate::checksum::crc;
use crate::{BLOCK, DirectFile, StoreError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// Bytes without a meaning to the store; all zeros until one is set.
pub type Stamp = [u8; 32];

const CRC_AT: usize = BLOCK - 4;

/// Writes the stamp into a zeroed block.
pub(crate) fn encode(stamp: &Stamp, block: &mut [u8]) {
    block[..stamp.len()].copy_from_slice(stamp);
    let sum = crc(&block[..CRC_AT]);
    block[CRC_AT..].copy_from_slice(&sum.to_le_bytes());
}

/// `None` for a block that was not written whole.
pub(crate) fn decode(block: &[u8]) -> Option<Stamp> {
    let (stamp, rest) = block.split_first_chunk()?;
    let sum = crc(&block[..CRC_AT]).to_le_bytes();
    let padded = rest[..CRC_AT - stamp.len()].iter().all(|&b| b == 0);
    (padded && block[CRC_AT..] == sum).then_some(*stamp)
}

/// Writes the stamp at `offset` of `file`, which is open for reading only, if its path still names it.
pub(crate) fn write(file: &DirectFile, offset: u64, stamp: Stamp) -> Result<(), StoreError> {
    let path = file.path();
    let fail = |e: Errno| StoreError::file("write", path, e);
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(fail)?;
    let (there, here) = (rustix::fs::fstat(&fd), rustix::fs::fstat(file.fd()));
    let (there, here) = (there.map_err(fail)?, here.map_err(fail)?);
    if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino) {
        return Err(fail(Errno::STALE));
    }
    let mut block = vec![0; BLOCK];
    encode(&stamp, &mut block);
    write_whole(&fd, &block, offset, path)?;
    rustix::fs::fdatasync(&fd).map_err(fail)
}

fn write_whole(
    fd: &rustix::fd::OwnedFd,
    bytes: &[u8],
    offset: u64,
    path: &Path,
) -> Result<(), StoreError> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(fd, &bytes[done..], offset + done as u64) {
            Ok(0) => return Err(StoreError::file("write", path, Errno::NOSPC)),
            Ok(written) => done += written,
            Err(Errno::INTR) => {}
            Err(e) => return Err(StoreError::file("write", path, e)),
        }
    }
    Ok(())
}
