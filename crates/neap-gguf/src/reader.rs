//! Reads little-endian values, and never asks for more memory than the file has bytes left.

use crate::{Error, Result};
use std::io::{Read, Seek, SeekFrom};

/// Longest name of a key or tensor. The specification says 64 bytes for tensors and 65,535 for keys.
const MAX_NAME_BYTES: u64 = u16::MAX as u64;

/// Longest text value. Templates of chats have some 10 KB.
const MAX_TEXT_BYTES: u64 = 16 << 20;

pub(crate) struct Reader<R> {
    source: R,
    at: u64,
    len: u64,
}

impl<R: Read + Seek> Reader<R> {
    /// From the beginning of a file of so many bytes.
    pub fn new(mut source: R, len: u64) -> Result<Self> {
        source.seek(SeekFrom::Start(0))?;
        Ok(Reader { source, at: 0, len })
    }

    /// Bytes before what is read next.
    pub fn at(&self) -> u64 {
        self.at
    }

    pub fn left(&self) -> u64 {
        self.len - self.at
    }

    pub fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.has(N as u64)?;
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }

    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    /// A name of a key or tensor.
    pub fn name(&mut self) -> Result<String> {
        self.string(MAX_NAME_BYTES, "a name")
    }

    /// A text value.
    pub fn text(&mut self) -> Result<String> {
        self.string(MAX_TEXT_BYTES, "a text")
    }

    fn string(&mut self, most: u64, what: &str) -> Result<String> {
        let len = self.u64()?;
        self.has(len)?;
        if len > most {
            return Err(Error::damaged(format!("{what} of {len} bytes")));
        }
        let mut bytes = vec![0; len as usize];
        self.source.read_exact(&mut bytes)?;
        self.at += len;
        // A few files have names of other encodings; what is shown of them is not worth a refusal.
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub fn skip(&mut self, bytes: u64) -> Result<()> {
        self.has(bytes)?;
        // Relative seeks keep what a `BufReader` has read already.
        self.source.seek_relative(
            i64::try_from(bytes).map_err(|_| Error::damaged("a length beyond 2^63"))?,
        )?;
        self.at += bytes;
        Ok(())
    }

    fn has(&self, bytes: u64) -> Result<()> {
        if bytes > self.left() {
            return Err(Error::damaged(format!("it ends after {} bytes", self.len)));
        }
        Ok(())
    }
}
