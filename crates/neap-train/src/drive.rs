//! Files written past the page cache. A budget of the process counts that cache, and what is not on the drive yet cannot be dropped
//! from it: a process close to its hard limit is killed when it writes faster than its drive.
//!
//! ```text
//!   bytes ─► buffer ─ full ─► direct write of whole blocks ─ finish ─► last block, padded ─► cut to its length
//! ```
//! Where a file system has no direct I/O, each buffer is waited for until it is on the drive, and dropped from the cache.

use rustix::fs::{Advice, OFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// What direct I/O wants offsets, lengths and addresses to be multiples of.
const BLOCK: usize = 4096;

/// A multiple of [`BLOCK`].
const BUFFER_BYTES: usize = 256 * 1024;

/// What writing tensors of a trainer to a file takes: the buffer, a piece of a tensor that comes from the drive, and the file's header.
pub const WRITING_BYTES: u64 = 3 * BUFFER_BYTES as u64;

/// A new file, which has all that was written once [`DriveWriter::finish`] has ended well.
pub struct DriveWriter {
    file: File,
    is_direct: bool,
    /// The buffer begins at the first address that is a multiple of [`BLOCK`].
    memory: Vec<u8>,
    skipped: usize,
    filled: usize,
    /// In the file.
    written: u64,
}

impl DriveWriter {
    /// Empties the file that is there, if there is one.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn create(path: &Path) -> io::Result<DriveWriter> {
        let direct = OFlags::DIRECT.bits().cast_signed();
        let open = |flags| {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true);
            options.custom_flags(flags).open(path)
        };
        let (file, is_direct) = match open(direct) {
            Err(e) if is_refusal(&e) => (open(0)?, false),
            opened => (opened?, true),
        };
        let memory = vec![0; BUFFER_BYTES + BLOCK];
        Ok(DriveWriter {
            file,
            is_direct,
            skipped: memory.as_ptr().align_offset(BLOCK),
            memory,
            filled: 0,
            written: 0,
        })
    }

    /// Writes what is left. The bytes are on the drive, but the file's length may not be.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn finish(mut self) -> io::Result<()> {
        let length = self.written + self.filled as u64;
        let padded = self.filled.next_multiple_of(BLOCK);
        let (from, to) = (self.skipped + self.filled, self.skipped + padded);
        self.memory[from..to].fill(0);
        self.filled = padded;
        self.send()?;
        self.file.set_len(length)
    }

    /// Writes the buffer, which holds whole blocks.
    fn send(&mut self) -> io::Result<()> {
        let (mut done, first) = (0, self.written);
        while done < self.filled {
            let left = &self.memory[self.skipped..][done..self.filled];
            match self.file.write_at(left, self.written) {
                // What is no whole block is written again.
                Ok(bytes) if bytes >= BLOCK => {
                    done += bytes / BLOCK * BLOCK;
                    self.written = first + done as u64;
                }
                Ok(_) => return Err(io::ErrorKind::StorageFull.into()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Some file systems take the flag and refuse the writes.
                Err(e) if self.is_direct && is_refusal(&e) => {
                    rustix::fs::fcntl_setfl(&self.file, OFlags::empty())?;
                    self.is_direct = false;
                }
                Err(e) => return Err(e),
            }
        }
        self.filled = 0;
        if !self.is_direct {
            self.file.sync_data()?;
            let length = std::num::NonZeroU64::new(self.written - first);
            // Advice: where it is refused, pages stay that can be dropped at any time.
            let _ = rustix::fs::fadvise(&self.file, first, length, Advice::DontNeed);
        }
        Ok(())
    }
}

fn is_refusal(error: &io::Error) -> bool {
    let refusals = [Errno::INVAL, Errno::OPNOTSUPP].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|e| refusals.contains(&e))
}

impl Write for DriveWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.filled == BUFFER_BYTES {
            self.send()?;
        }
        let taken = bytes.len().min(BUFFER_BYTES - self.filled);
        let at = self.skipped + self.filled;
        self.memory[at..at + taken].copy_from_slice(&bytes[..taken]);
        self.filled += taken;
        Ok(taken)
    }

    /// Does nothing: a part of a block cannot be written by itself.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn files_have_the_bytes_that_were_written() {
        // Not in memory, where there is no direct I/O.
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("x");
        let sizes = [0, 1, 4095, 4096, 4097, BUFFER_BYTES - 1, BUFFER_BYTES];
        let larger = [BUFFER_BYTES + 1, 3 * BUFFER_BYTES + 5000];
        for size in sizes.into_iter().chain(larger) {
            for is_direct in [true, false] {
                let bytes: Vec<u8> = (0..size).map(|i| (i * 7 % 251) as u8).collect();
                let mut writer = DriveWriter::create(&path).unwrap();
                if !is_direct {
                    rustix::fs::fcntl_setfl(&writer.file, OFlags::empty()).unwrap();
                    writer.is_direct = false;
                }
                for piece in bytes.chunks(1000) {
                    writer.write_all(piece).unwrap();
                }
                writer.finish().unwrap();
                assert!(fs::read(&path).unwrap() == bytes, "{size}, {is_direct}");
            }
        }
    }

    #[test]
    fn a_drive_without_room_is_an_error() {
        let mut writer = DriveWriter::create(Path::new("/dev/full")).unwrap();
        let written = writer.write_all(&vec![1; 2 * BUFFER_BYTES]);
        assert!(written.and_then(|()| writer.finish()).is_err());
    }
}
