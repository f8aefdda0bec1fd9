//! Writing a packed file: in one pass, with a fixed buffer, and whole or not at all.

use crate::checksum::crc;
use crate::header::{Header, MAX_TOC_BYTES};
use crate::stamp::{self, Stamp};
use crate::temporary::Temporary;
use crate::{AlignedBuf, BLOCK, BLOCK_U64, StoreError, is_whole_blocks};
use rustix::fd::OwnedFd;
use rustix::fs::Advice;
use rustix::io::Errno;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

/// Bytes collected before they are written; a multiple of [`BLOCK`].
const BUFFER_BYTES: usize = 1 << 20;

/// Buffered writes are pushed to the device and dropped from the page cache in such windows.
const FLUSH_WINDOW_BYTES: u64 = 8 << 20;

/// Writes a packed file under a temporary name and renames it when it is complete.
///
/// Dropping the writer before [`finish`](PackWriter::finish) removes the temporary file.
pub struct PackWriter {
    temporary: Temporary,
    final_path: PathBuf,
    fd: OwnedFd,
    direct: bool,
    buffer: AlignedBuf,
    /// Bytes of `buffer` in use.
    filled: usize,
    /// File offset at which `buffer` will be written; a multiple of [`BLOCK`].
    written_to: u64,
    /// Everything before this offset left the page cache (buffered writes only).
    flushed_to: u64,
    /// One checksum per block of the data region, as it will be stored.
    table: Vec<u8>,
    stamp: Stamp,
    /// Whether a write failed, after which the file can only be given up.
    failed: bool,
}

impl PackWriter {
    /// Begins a file that will appear at `final_path` (replacing what is there) when finished.
    ///
    /// # Errors
    /// [`StoreError::File`] where no file can be made beside `final_path`.
    pub fn create(final_path: &Path) -> Result<PackWriter, StoreError> {
        let (temporary, fd, direct) = Temporary::create_beside(final_path)?;
        Ok(PackWriter {
            temporary,
            final_path: final_path.to_path_buf(),
            fd,
            direct,
            buffer: AlignedBuf::zeroed(BUFFER_BYTES)?,
            filled: 0,
            written_to: Header::DATA_OFFSET,
            flushed_to: 0,
            table: Vec::new(),
            stamp: Stamp::default(),
            failed: false,
        })
    }

    /// The file's stamp from the beginning; see [`PackedFile::restamp`](crate::PackedFile::restamp).
    pub fn set_stamp(&mut self, stamp: Stamp) {
        self.stamp = stamp;
    }

    /// File offset at which the next byte will lie.
    pub fn offset(&self) -> u64 {
        self.written_to + self.filled as u64
    }

    /// Appends `bytes` to the data region and returns the file offset at which they begin.
    ///
    /// # Errors
    /// [`StoreError::File`] where writing fails.
    pub fn append(&mut self, bytes: &[u8]) -> Result<u64, StoreError> {
        let offset = self.offset();
        self.put(bytes, true)?;
        Ok(offset)
    }

    /// Pads the data region with zeros to a multiple of `multiple_bytes`, a power of two,
    /// and returns the offset reached.
    ///
    /// # Errors
    /// As [`PackWriter::append`]; [`StoreError::InvalidUse`] for a multiple that is no power of two.
    pub fn align(&mut self, multiple_bytes: u64) -> Result<u64, StoreError> {
        if !multiple_bytes.is_power_of_two() {
            return Err(StoreError::InvalidUse {
                what: "an alignment must be a power of two",
            });
        }
        self.pad_to(multiple_bytes, true)?;
        Ok(self.offset())
    }

    /// Writes the table of contents and the checksums, makes the file durable and gives it
    /// its final name.
    ///
    /// # Errors
    /// [`StoreError::File`] where writing, syncing or renaming fails. Nothing appears under the final name then.
    pub fn finish(mut self, toc: &[u8]) -> Result<(), StoreError> {
        if toc.len() as u64 > MAX_TOC_BYTES {
            return Err(StoreError::InvalidUse {
                what: "the table of contents is longer than the format allows",
            });
        }
        self.pad_to(BLOCK_U64, true)?;
        self.flush(true)?;
        let mut header = Header {
            data_len_bytes: self.written_to - Header::DATA_OFFSET,
            toc_len_bytes: toc.len() as u64,
            toc_crc: 0,
            table_crc: 0,
        };
        header.toc_crc = self.put_part(toc)?;
        let table = std::mem::take(&mut self.table);
        header.table_crc = self.put_part(&table)?;
        let mut block = [0; BLOCK];
        stamp::encode(&self.stamp, &mut block);
        self.put(&block, false)?;
        self.flush(false)?;
        self.buffer[..BLOCK].fill(0);
        header.encode(&mut self.buffer[..BLOCK]);
        self.write_buffer(0, BLOCK)?;
        rustix::fs::fsync(&self.fd).map_err(|e| self.error("write", e))?;
        self.drop_cached(0, header.file_len_bytes())?;
        self.temporary.rename_to(&self.final_path)
    }

    /// Writes a part that comes after the data, padded, and returns its checksum.
    fn put_part(&mut self, bytes: &[u8]) -> Result<u32, StoreError> {
        self.put(bytes, false)?;
        self.pad_to(BLOCK_U64, false)?;
        Ok(crc(bytes))
    }

    fn put(&mut self, mut bytes: &[u8], in_data: bool) -> Result<(), StoreError> {
        if self.failed {
            return Err(StoreError::InvalidUse {
                what: "an earlier write of this file failed",
            });
        }
        while !bytes.is_empty() {
            let take = bytes.len().min(BUFFER_BYTES - self.filled);
            self.buffer[self.filled..self.filled + take].copy_from_slice(&bytes[..take]);
            self.filled += take;
            bytes = &bytes[take..];
            if self.filled == BUFFER_BYTES {
                self.flush(in_data)?;
            }
        }
        Ok(())
    }

    fn pad_to(&mut self, multiple_bytes: u64, in_data: bool) -> Result<(), StoreError> {
        let target = self
            .offset()
            .checked_next_multiple_of(multiple_bytes)
            .ok_or(StoreError::InvalidUse {
                what: "the alignment is larger than any file",
            })?;
        while self.offset() < target {
            let gap = (target - self.offset()).min(BLOCK_U64);
            self.put(&[0; BLOCK][..gap as usize], in_data)?;
        }
        Ok(())
    }

    /// Writes the buffer, which holds whole blocks.
    fn flush(&mut self, in_data: bool) -> Result<(), StoreError> {
        debug_assert!(is_whole_blocks(self.filled as u64));
        if in_data {
            for block in self.buffer[..self.filled].chunks_exact(BLOCK) {
                self.table.extend_from_slice(&crc(block).to_le_bytes());
            }
        }
        self.write_buffer(self.written_to, self.filled)?;
        self.written_to += self.filled as u64;
        self.filled = 0;
        if self.written_to - self.flushed_to >= FLUSH_WINDOW_BYTES {
            self.drop_cached(self.flushed_to, self.written_to - self.flushed_to)?;
            self.flushed_to = self.written_to;
        }
        Ok(())
    }

    fn write_buffer(&mut self, offset: u64, len_bytes: usize) -> Result<(), StoreError> {
        let mut done = 0;
        while done < len_bytes {
            match rustix::io::pwrite(
                &self.fd,
                &self.buffer[done..len_bytes],
                offset + done as u64,
            ) {
                // A partial block is written again, since direct writes are whole blocks.
                Ok(written) if written >= BLOCK => done += written - written % BLOCK,
                Ok(_) => return Err(self.error("write", Errno::NOSPC)),
                Err(Errno::INTR) => {}
                Err(e) => return Err(self.error("write", e)),
            }
        }
        Ok(())
    }

    /// Keeps the page cache, which is charged to the process, from growing with the file.
    fn drop_cached(&mut self, offset: u64, len_bytes: u64) -> Result<(), StoreError> {
        if self.direct {
            return Ok(());
        }
        // Dirty pages cannot be dropped. The kernel tells of a failed write-back once: here, not at the end.
        rustix::fs::fdatasync(&self.fd).map_err(|e| self.error("write", e))?;
        // Advice: where it is refused the pages stay until the kernel reclaims them.
        let _ = rustix::fs::fadvise(
            &self.fd,
            offset,
            NonZeroU64::new(len_bytes),
            Advice::DontNeed,
        );
        Ok(())
    }

    fn error(&mut self, action: &'static str, e: Errno) -> StoreError {
        self.failed = true;
        StoreError::file(action, &self.final_path, e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};

    /// The null device takes every write and refuses to make any durable.
    #[test]
    fn a_write_that_does_not_reach_the_drive_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.neap");
        let mut writer = PackWriter::create(&path).expect("created");
        writer.fd = rustix::fs::open("/dev/null", OFlags::WRONLY, Mode::empty()).expect("open");
        writer.direct = false;
        let piece = vec![1; 1 << 20];
        let written =
            (0..FLUSH_WINDOW_BYTES >> 20).try_for_each(|_| writer.append(&piece).map(drop));
        let error = written.expect_err("told while writing");
        assert!(matches!(error, StoreError::File { .. }), "{error}");
        assert!(writer.finish(b"").is_err());
        assert!(!path.exists());
    }
}
