//! A file of any format as a [`Read`], past the page cache: nothing of it is charged but one buffer.

use crate::{AlignedBuf, BLOCK, BLOCK_U64, DirectFile, StoreError};
use std::io::{self, Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::path::Path;

/// What is read at once.
const BUFFER_BYTES: usize = 64 << 10;

/// Reads and seeks with one buffer.
pub struct BlockReader {
    file: DirectFile,
    buffer: AlignedBuf,
    /// Where the buffer's bytes begin in the file, and how many there are.
    begin: u64,
    filled: usize,
    at: u64,
}

impl BlockReader {
    /// # Errors
    /// [`StoreError`] where the file cannot be opened, or is no regular file.
    pub fn open(path: &Path) -> Result<BlockReader, StoreError> {
        Ok(BlockReader {
            file: DirectFile::open(path)?,
            buffer: AlignedBuf::zeroed(BUFFER_BYTES)?,
            begin: 0,
            filled: 0,
            at: 0,
        })
    }

    /// The file's length when it was opened.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.file.len_bytes()
    }

    fn fill(&mut self) -> io::Result<()> {
        self.begin = self.at / BLOCK_U64 * BLOCK_U64;
        self.filled = 0;
        // SAFETY: bytes that are initialised may be written as ones that need not be.
        let room: &mut [MaybeUninit<u8>] = unsafe {
            std::slice::from_raw_parts_mut(self.buffer.as_mut_ptr().cast(), BUFFER_BYTES)
        };
        loop {
            match self.file.read_at(self.begin, room) {
                Ok(read) => {
                    self.filled = read;
                    return Ok(());
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Read for BlockReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let end = self.begin + self.filled as u64;
        if !(self.begin..end).contains(&self.at) {
            if self.at >= self.file.len_bytes() {
                return Ok(0);
            }
            self.fill()?;
        }
        let skip = (self.at - self.begin) as usize;
        let there = self.filled.saturating_sub(skip);
        let take = out.len().min(there);
        out[..take].copy_from_slice(&self.buffer[skip..skip + take]);
        self.at += take as u64;
        Ok(take)
    }
}

impl Seek for BlockReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (from, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::End(by) => (self.file.len_bytes(), by),
            SeekFrom::Current(by) => (self.at, by),
        };
        let at = from.checked_add_signed(by);
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

const _: () = assert!(BUFFER_BYTES.is_multiple_of(BLOCK));
