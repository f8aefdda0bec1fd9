//! Checking loaded blocks against the file's checksum table, each block once per session.

use crate::checksum::crc;
use crate::header::Header;
use crate::{AlignedBuf, BLOCK, BLOCK_U64, StoreError, is_whole_blocks};

/// The checksum table and one bit per block that tells whether it was checked already.
pub struct Verifier {
    /// File offset of the first block the table covers.
    data_offset: u64,
    blocks: usize,
    /// Little-endian checksums, one per block; released once all blocks are checked.
    table: Option<AlignedBuf>,
    checked: Box<[u64]>,
    unchecked_blocks: usize,
}

impl Verifier {
    /// A verifier of `blocks` blocks whose checksums `table` holds.
    pub(crate) fn new(table: AlignedBuf, blocks: usize) -> Verifier {
        debug_assert!(table.len() >= blocks * 4);
        Verifier {
            data_offset: Header::DATA_OFFSET,
            blocks,
            table: Some(table),
            checked: vec![0; blocks.div_ceil(64)].into_boxed_slice(),
            unchecked_blocks: blocks,
        }
    }

    /// A verifier of `data`, whole blocks at `data_offset`, which is taken to be right.
    /// For tests of what is loaded from memory.
    ///
    /// # Errors
    /// [`StoreError`] where `data` is not whole blocks.
    pub fn from_data(data_offset: u64, data: &[u8]) -> Result<Verifier, StoreError> {
        check_range(data_offset, data.len())?;
        let blocks = data.len() / BLOCK;
        let mut table = AlignedBuf::zeroed(blocks * 4)?;
        for (block, entry) in data.chunks_exact(BLOCK).zip(table.chunks_exact_mut(4)) {
            entry.copy_from_slice(&crc(block).to_le_bytes());
        }
        let mut verifier = Verifier::new(table, blocks);
        verifier.data_offset = data_offset;
        Ok(verifier)
    }

    /// Checks those blocks of `bytes`, which were loaded from `file_offset`, that were not
    /// checked before. Whole blocks only. A block that fails stays unchecked.
    ///
    /// # Errors
    /// [`StoreError`] names the first block whose checksum differs.
    pub fn verify(&mut self, file_offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let first = self.first_block(file_offset, bytes.len())?;
        if self.unchecked_blocks == 0 {
            return Ok(());
        }
        for (i, block) in bytes.chunks_exact(BLOCK).enumerate() {
            let index = first + i;
            let (word, bit) = (index / 64, 1 << (index % 64));
            if self.checked[word] & bit != 0 {
                continue;
            }
            if Some(crc(block)) != self.expected(index) {
                return Err(StoreError::Corrupt {
                    what: "data",
                    offset: file_offset + (i * BLOCK) as u64,
                });
            }
            self.checked[word] |= bit;
            self.unchecked_blocks -= 1;
        }
        if self.unchecked_blocks == 0 {
            self.table = None;
        }
        Ok(())
    }

    /// Whether every block of the range was checked already.
    pub fn is_verified(&self, file_offset: u64, len_bytes: usize) -> bool {
        match self.first_block(file_offset, len_bytes) {
            Ok(first) => (first..first + len_bytes / BLOCK)
                .all(|i| self.checked[i / 64] & 1 << (i % 64) != 0),
            Err(_) => false,
        }
    }

    /// Blocks that were never checked.
    pub fn unchecked_blocks(&self) -> usize {
        self.unchecked_blocks
    }

    /// Memory held: the table, which goes when all is checked, and the bits.
    pub fn memory_bytes(&self) -> usize {
        self.table.as_ref().map_or(0, |t| t.len()) + size_of_val(&*self.checked)
    }

    fn expected(&self, index: usize) -> Option<u32> {
        let entry = self.table.as_ref()?.get(index * 4..index * 4 + 4)?;
        Some(u32::from_le_bytes(entry.try_into().ok()?))
    }

    fn first_block(&self, file_offset: u64, len_bytes: usize) -> Result<usize, StoreError> {
        check_range(file_offset, len_bytes)?;
        let limit_bytes = self.blocks as u64 * BLOCK_U64;
        file_offset
            .checked_sub(self.data_offset)
            .filter(|at| {
                at.checked_add(len_bytes as u64)
                    .is_some_and(|end| end <= limit_bytes)
            })
            .map(|at| (at / BLOCK_U64) as usize)
            .ok_or(StoreError::OutOfRange {
                offset: file_offset,
                len_bytes: len_bytes as u64,
                limit_bytes: self.data_offset + limit_bytes,
            })
    }
}

fn check_range(file_offset: u64, len_bytes: usize) -> Result<(), StoreError> {
    for (what, value) in [("file offset", file_offset), ("length", len_bytes as u64)] {
        if !is_whole_blocks(value) {
            return Err(StoreError::Misaligned {
                what,
                value,
                multiple: BLOCK_U64,
            });
        }
    }
    Ok(())
}
