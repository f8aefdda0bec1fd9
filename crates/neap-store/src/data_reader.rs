//! Checked reads of the data region outside any run.

use crate::checksum::crc;
use crate::header::{CRC_BYTES, Header};
use crate::{AlignedBuf, BLOCK, BLOCK_U64, DirectFile, StoreError};
use std::sync::Arc;

/// Memory that longer reads go through.
const PIECE_BYTES: usize = 256 << 10;

/// Reads any bytes of a packed file's data region and checks the blocks that hold them. Holds the checksum table.
pub struct DataReader {
    file: Arc<DirectFile>,
    table: AlignedBuf,
    end: u64,
}

impl DataReader {
    pub(crate) fn new(file: Arc<DirectFile>, table: AlignedBuf, end: u64) -> DataReader {
        DataReader { file, table, end }
    }

    /// Fills `out` with the bytes from the file offset `offset` on.
    ///
    /// # Errors
    /// The range is not part of the data region, cannot be read, or is damaged.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        let end = offset.checked_add(out.len() as u64);
        if offset < Header::DATA_OFFSET || end.is_none_or(|end| end > self.end) {
            return Err(StoreError::OutOfRange {
                offset,
                len_bytes: out.len() as u64,
                limit_bytes: self.end,
            });
        }
        let mut from = offset / BLOCK_U64 * BLOCK_U64;
        let mut skip = (offset - from) as usize;
        let mut out = out;
        let blocks = (skip + out.len()).div_ceil(BLOCK) * BLOCK;
        let mut buffer = AlignedBuf::zeroed(blocks.min(PIECE_BYTES))?;
        while !out.is_empty() {
            let wanted = (skip + out.len()).div_ceil(BLOCK) * BLOCK;
            let piece = &mut buffer[..wanted.min(PIECE_BYTES)];
            self.file.read_exact_at(from, piece)?;
            self.check(from, piece)?;
            let take = out.len().min(piece.len() - skip);
            let (now, later) = out.split_at_mut(take);
            now.copy_from_slice(&piece[skip..skip + take]);
            out = later;
            from += piece.len() as u64;
            skip = 0;
        }
        Ok(())
    }

    /// Checks whole blocks from `offset` on.
    fn check(&self, offset: u64, blocks: &[u8]) -> Result<(), StoreError> {
        let first = ((offset - Header::DATA_OFFSET) / BLOCK_U64) as usize;
        let sums = self.table.chunks_exact(CRC_BYTES as usize).skip(first);
        for (index, (block, sum)) in blocks.chunks_exact(BLOCK).zip(sums).enumerate() {
            if crc(block).to_le_bytes()[..] != *sum {
                return Err(StoreError::Corrupt {
                    what: "data",
                    offset: offset + index as u64 * BLOCK_U64,
                });
            }
        }
        Ok(())
    }
}
