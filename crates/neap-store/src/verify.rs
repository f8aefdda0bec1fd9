//! Checking loaded blocks against the file's checksum table, each block once while the file stays as it is.

use crate::checksum::crc;
use crate::header::Header;
use crate::reader::read_part;
use crate::{AlignedBuf, BLOCK, BLOCK_U64, DirectFile, Sighting, StoreError, is_whole_blocks};
use std::sync::Arc;

/// The checksum table and one bit per block that tells whether it was checked already.
///
/// ```text
///   check_file ─► verify, verify, … ─► check_file      the same file both times: what was verified stands
/// ```
/// A block that was checked before is passed without looking, for as long as nobody writes to the file. So whoever
/// computes with blocks asks [`check_file`](Verifier::check_file) before he relies on the results.
pub struct Verifier {
    /// File offset of the first block the table covers.
    data_offset: u64,
    blocks: usize,
    /// Little-endian checksums, one per block; released once all blocks are checked.
    table: Option<AlignedBuf>,
    checked: Box<[u64]>,
    unchecked_blocks: usize,
    /// A block was passed without looking since the file was looked at.
    has_skipped: bool,
    /// Of data in memory there is none.
    origin: Option<Origin>,
    /// Of the files behind the first, where several are one.
    others: Vec<Verifier>,
}

/// The packed file that blocks are read from.
pub(crate) struct Origin {
    file: Arc<DirectFile>,
    /// Of a file with checksums.
    header: Option<Header>,
    seen: Sighting,
    has_changed: bool,
}

impl Origin {
    /// # Errors
    /// [`StoreError::File`] when the kernel says nothing of the file.
    pub fn new(file: Arc<DirectFile>, header: Header) -> Result<Origin, StoreError> {
        Ok(Origin {
            seen: look(&file)?,
            file,
            header: Some(header),
            has_changed: false,
        })
    }

    /// The table once more, of a file that may hold something else by now.
    fn read_table(&self) -> Result<AlignedBuf, StoreError> {
        let Some(header) = &self.header else {
            return Err(self.overwritten());
        };
        let table = read_part(
            &self.file,
            "checksum table",
            header.table_offset(),
            header.table_len_bytes(),
            header.table_crc,
        );
        table.map_err(|error| match error {
            StoreError::Corrupt { .. } => self.overwritten(),
            StoreError::Read { ref source, .. }
                if source.kind() == std::io::ErrorKind::UnexpectedEof =>
            {
                self.overwritten()
            }
            error => error,
        })
    }

    fn overwritten(&self) -> StoreError {
        StoreError::Overwritten {
            path: self.file.path().to_path_buf(),
        }
    }
}

fn look(file: &DirectFile) -> Result<Sighting, StoreError> {
    Sighting::of(file.fd()).map_err(|e| StoreError::file("inspect", file.path(), e))
}

impl Verifier {
    /// A verifier of `blocks` blocks whose checksums `table` holds.
    fn new(table: AlignedBuf, blocks: usize) -> Verifier {
        debug_assert!(table.len() >= blocks * 4);
        Verifier {
            data_offset: Header::DATA_OFFSET,
            blocks,
            table: Some(table),
            checked: vec![0; blocks.div_ceil(64)].into_boxed_slice(),
            unchecked_blocks: blocks,
            has_skipped: false,
            origin: None,
            others: Vec::new(),
        }
    }

    /// A verifier of the `blocks` blocks of a packed file.
    pub(crate) fn of_file(table: AlignedBuf, blocks: usize, origin: Origin) -> Verifier {
        Verifier {
            origin: Some(origin),
            ..Verifier::new(table, blocks)
        }
    }

    /// For a file without checksums: it passes every block, and notices when somebody writes to the file. From then on
    /// nothing that was read of it stands.
    ///
    /// # Errors
    /// [`StoreError::File`] when the kernel says nothing of the file.
    pub(crate) fn of_plain_file(file: Arc<DirectFile>) -> Result<Verifier, StoreError> {
        let blocks = (file.len_bytes() / BLOCK_U64) as usize;
        let origin = Origin {
            seen: look(&file)?,
            file,
            header: None,
            has_changed: false,
        };
        Ok(Verifier {
            data_offset: 0,
            blocks,
            table: None,
            checked: Box::default(),
            unchecked_blocks: 0,
            has_skipped: false,
            origin: Some(origin),
            others: Vec::new(),
        })
    }

    /// Of files without checksums that are read as one.
    ///
    /// # Errors
    /// [`StoreError::InvalidUse`] of no files.
    pub(crate) fn joined(mut files: Vec<Verifier>) -> Result<Verifier, StoreError> {
        if files.is_empty() {
            return Err(StoreError::InvalidUse {
                what: "there is no file to read",
            });
        }
        let others = files.split_off(1);
        let blocks = others.iter().map(|file| file.blocks).sum::<usize>();
        let first = files.remove(0);
        Ok(Verifier {
            blocks: first.blocks + blocks,
            others,
            ..first
        })
    }

    /// Whether there is nothing to compare blocks with.
    fn is_plain(&self) -> bool {
        self.origin.as_ref().is_some_and(|o| o.header.is_none())
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

    /// Looks whether somebody wrote to the file since this was asked last. If so, every block is checked again when it
    /// comes. Blocks that were verified since then stand all the same if each was looked at.
    ///
    /// A program that writes through a mapping of the file may go unnoticed until the kernel writes its pages back;
    /// so may one on another computer, for as long as a network file system keeps what it knows of a file.
    ///
    /// # Errors
    /// [`StoreError::Changed`] when what was verified since the last time may not be what its checksums say;
    /// [`StoreError::File`] when the kernel says nothing of the file.
    pub fn check_file(&mut self) -> Result<(), StoreError> {
        for other in &mut self.others {
            other.check_file()?;
        }
        let has_skipped = std::mem::take(&mut self.has_skipped);
        let Some(origin) = &mut self.origin else {
            return Ok(());
        };
        let seen = look(&origin.file)?;
        let before = std::mem::replace(&mut origin.seen, seen);
        if seen == before {
            return Ok(());
        }
        // Also where a write may have been overlooked until now: then nothing was passed without looking.
        self.checked.fill(0);
        self.unchecked_blocks = match self.is_plain() {
            true => 0,
            false => self.blocks,
        };
        let Some(origin) = &mut self.origin else {
            return Ok(());
        };
        let is_same = seen.identity == before.identity;
        origin.has_changed |= !is_same;
        let is_plain = origin.header.is_none();
        if is_same || !has_skipped && !is_plain {
            return Ok(());
        }
        Err(StoreError::Changed {
            path: origin.file.path().to_path_buf(),
        })
    }

    /// Checks those blocks of `bytes`, which were loaded from `file_offset`, that were not
    /// checked before, or all of them where the file was written to just now. Whole blocks only. A block that fails
    /// stays unchecked.
    ///
    /// # Errors
    /// [`StoreError`] names the first block whose checksum differs; [`StoreError::Overwritten`] says that the file was
    /// written to meanwhile.
    pub fn verify(&mut self, file_offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let first = self.first_block(file_offset, bytes.len())?;
        let is_fresh = self.is_fresh();
        if self.is_plain() || self.unchecked_blocks == 0 && !is_fresh {
            self.has_skipped |= !bytes.is_empty();
            return Ok(());
        }
        for (i, block) in bytes.chunks_exact(BLOCK).enumerate() {
            let index = first + i;
            let (word, bit) = (index / 64, 1 << (index % 64));
            let was_checked = self.checked[word] & bit != 0;
            if was_checked && !is_fresh {
                self.has_skipped = true;
                continue;
            }
            if Some(crc(block)) != self.expected(index)? {
                return Err(self.differs(file_offset + (i * BLOCK) as u64));
            }
            if !was_checked {
                self.checked[word] |= bit;
                self.unchecked_blocks -= 1;
            }
        }
        if self.unchecked_blocks == 0 && !is_fresh {
            self.table = None;
        }
        Ok(())
    }

    /// Whether a write since the file was looked at may leave no trace.
    fn is_fresh(&self) -> bool {
        self.origin.as_ref().is_some_and(|o| o.seen.is_fresh)
    }

    fn differs(&self, offset: u64) -> StoreError {
        match &self.origin {
            Some(origin) if origin.has_changed => origin.overwritten(),
            _ => StoreError::Corrupt {
                what: "data",
                offset,
            },
        }
    }

    /// Whether every block of the range was checked already.
    pub fn is_verified(&self, file_offset: u64, len_bytes: usize) -> bool {
        match self.first_block(file_offset, len_bytes) {
            Ok(_) if self.is_plain() => true,
            Ok(first) => (first..first + len_bytes / BLOCK)
                .all(|i| self.checked[i / 64] & 1 << (i % 64) != 0),
            Err(_) => false,
        }
    }

    /// Blocks that were not checked since the file was last written to.
    pub fn unchecked_blocks(&self) -> usize {
        self.unchecked_blocks
    }

    /// Memory held: the table, which goes when all is checked, and the bits.
    pub fn memory_bytes(&self) -> usize {
        self.table.as_ref().map_or(0, |t| t.len()) + size_of_val(&*self.checked)
    }

    fn expected(&mut self, index: usize) -> Result<Option<u32>, StoreError> {
        if let (None, Some(origin)) = (&self.table, &self.origin) {
            self.table = Some(origin.read_table()?);
        }
        let table = self.table.as_ref();
        let entry = table.and_then(|table| table.get(index * 4..index * 4 + 4));
        Ok(entry.and_then(|entry| Some(u32::from_le_bytes(entry.try_into().ok()?))))
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
