//! Opening a packed file: nothing in it is believed before it is checked.

use crate::checksum::crc;
use crate::data_reader::DataReader;
use crate::header::{CRC_BYTES, Header};
use crate::stamp::{self, Stamp};
use crate::verify::Origin;
use crate::{
    AlignedBuf, BLOCK, BLOCK_U64, DirectFile, IoMode, Source, StoreError, Verifier, source,
};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Memory that [`PackedFile::verify_all`] reads through.
const SCAN_BYTES: usize = 1 << 20;

/// An open packed file whose header, table of contents and checksum table are intact.
pub struct PackedFile {
    file: Arc<DirectFile>,
    header: Header,
    toc: AlignedBuf,
    table: Option<AlignedBuf>,
    stamp: Option<Stamp>,
}

impl PackedFile {
    /// Opens and checks `path`. Reads bypass the page cache where the filesystem allows it.
    /// The data region is not read; its blocks are checked as they are loaded.
    ///
    /// # Errors
    /// [`StoreError`] where the file cannot be read, is no packed file, or its header or table of contents is
    /// damaged.
    pub fn open(path: &Path) -> Result<PackedFile, StoreError> {
        let packed = PackedFile::of(DirectFile::open(path)?)?;
        match packed.stamp {
            Some(_) => Ok(packed),
            None => Err(StoreError::Corrupt {
                what: "stamp",
                offset: packed.header.stamp_offset(),
            }),
        }
    }

    /// As [`open`](PackedFile::open), of a file in a cache: only this user or the administrator can have written
    /// it. A damaged stamp counts as none.
    ///
    /// # Errors
    /// [`StoreError::Untrusted`] for a file that others could have written, and those of [`open`](PackedFile::open).
    pub fn open_own(path: &Path) -> Result<PackedFile, StoreError> {
        PackedFile::of(DirectFile::open_own(path)?)
    }

    fn of(file: DirectFile) -> Result<PackedFile, StoreError> {
        let path = file.path();
        if file.len_bytes() < BLOCK_U64 {
            return Err(StoreError::NotPacked {
                path: path.to_path_buf(),
                reason: "it is shorter than a header",
            });
        }
        let mut block = AlignedBuf::zeroed(BLOCK)?;
        file.read_exact_at(0, &mut block)?;
        let header = Header::decode(&block, file.len_bytes(), path)?;
        let toc = read_part(
            &file,
            "table of contents",
            header.toc_offset(),
            header.toc_len_bytes,
            header.toc_crc,
        )?;
        let table = read_part(
            &file,
            "checksum table",
            header.table_offset(),
            header.table_len_bytes(),
            header.table_crc,
        )?;
        file.read_exact_at(header.stamp_offset(), &mut block)?;
        Ok(PackedFile {
            stamp: stamp::decode(&block),
            file: Arc::new(file),
            header,
            toc,
            table: Some(table),
        })
    }

    /// What [`PackWriter::set_stamp`](crate::PackWriter::set_stamp) or the last [`PackedFile::restamp`] wrote; `None`
    /// when a write of it was cut short.
    pub fn stamp(&self) -> Option<Stamp> {
        self.stamp
    }

    /// Writes another stamp into the file, where it lies. Nothing else in the file changes: a write that is cut
    /// short costs the stamp only.
    ///
    /// # Errors
    /// [`StoreError::File`] when the file cannot be written, or its name is another file's by now.
    pub fn restamp(&mut self, stamp: Stamp) -> Result<(), StoreError> {
        stamp::write(&self.file, self.header.stamp_offset(), stamp)?;
        self.stamp = Some(stamp);
        Ok(())
    }

    /// Whether the file's path still names this file.
    pub fn is_at_its_path(&self) -> bool {
        self.file.is_at_its_path()
    }

    /// As [`DirectFile::is_in_memory`].
    pub fn is_in_memory(&self) -> bool {
        self.file.is_in_memory()
    }

    /// The table of contents; empty after [`drop_toc`](PackedFile::drop_toc).
    pub fn toc(&self) -> &[u8] {
        // The buffer holds the padding too, and is empty once dropped.
        &self.toc[..self.toc.len().min(self.header.toc_len_bytes as usize)]
    }

    /// Gives the memory of the table of contents back to the system.
    ///
    /// # Errors
    /// [`StoreError`] where the small buffer that replaces it cannot be had.
    pub fn drop_toc(&mut self) -> Result<(), StoreError> {
        self.toc = AlignedBuf::zeroed(0)?;
        Ok(())
    }

    /// File offsets of the data region.
    pub fn data_range(&self) -> Range<u64> {
        Header::DATA_OFFSET..self.header.toc_offset()
    }

    pub fn file_len_bytes(&self) -> u64 {
        self.header.file_len_bytes()
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The open file, for sources that outlive this value.
    pub fn file(&self) -> &Arc<DirectFile> {
        &self.file
    }

    /// A number that changes with any byte of the data or table of contents: the checksums
    /// of both. Good for telling files apart, not against someone who forges one.
    pub fn content_tag(&self) -> u64 {
        u64::from(self.header.toc_crc) << 32 | u64::from(self.header.table_crc)
    }

    /// A source over this very file, even if the path names another one by now.
    ///
    /// # Errors
    /// [`StoreError`] where no source of this mode can be had.
    pub fn open_source(&self, mode: IoMode) -> Result<Box<dyn Source>, StoreError> {
        source::open_source_of(self.file.clone(), mode)
    }

    /// The checksum table as a verifier. It can be taken once.
    ///
    /// # Errors
    /// [`StoreError::Released`] when it was taken before, [`StoreError::File`] when the kernel says nothing of the file.
    pub fn take_verifier(&mut self) -> Result<Verifier, StoreError> {
        let table = self.table.take().ok_or(StoreError::Released {
            what: "checksum table",
        })?;
        let origin = Origin::new(self.file.clone(), self.header)?;
        Ok(Verifier::of_file(table, self.data_blocks(), origin))
    }

    /// The table of contents, read and checked anew.
    ///
    /// # Errors
    /// It cannot be read or is damaged.
    pub fn read_toc(&self) -> Result<Vec<u8>, StoreError> {
        let header = &self.header;
        let part = read_part(
            &self.file,
            "table of contents",
            header.toc_offset(),
            header.toc_len_bytes,
            header.toc_crc,
        )?;
        Ok(part[..header.toc_len_bytes as usize].to_vec())
    }

    /// For reads of the data region outside runs; reads the checksum table anew.
    ///
    /// # Errors
    /// The checksum table cannot be read or is damaged.
    pub fn data_reader(&self) -> Result<DataReader, StoreError> {
        let header = &self.header;
        let table = read_part(
            &self.file,
            "checksum table",
            header.table_offset(),
            header.table_len_bytes(),
            header.table_crc,
        )?;
        Ok(DataReader::new(
            self.file.clone(),
            table,
            header.toc_offset(),
        ))
    }

    /// Reads the whole data region through a small buffer and checks every block.
    ///
    /// # Errors
    /// [`StoreError`] names the first block that is damaged or cannot be read.
    pub fn verify_all(&self) -> Result<(), StoreError> {
        let table = self.table.as_ref().ok_or(StoreError::Released {
            what: "checksum table",
        })?;
        let mut buffer = AlignedBuf::zeroed(SCAN_BYTES)?;
        let mut offset = Header::DATA_OFFSET;
        let end = self.header.toc_offset();
        let mut entries = table.chunks_exact(CRC_BYTES as usize);
        while offset < end {
            let len = (end - offset).min(SCAN_BYTES as u64) as usize;
            self.file.read_exact_at(offset, &mut buffer[..len])?;
            for block in buffer[..len].chunks_exact(BLOCK) {
                if entries.next() != Some(&crc(block).to_le_bytes()[..]) {
                    return Err(StoreError::Corrupt {
                        what: "data",
                        offset,
                    });
                }
                offset += BLOCK_U64;
            }
        }
        Ok(())
    }

    fn data_blocks(&self) -> usize {
        (self.header.data_len_bytes / BLOCK_U64) as usize
    }
}

/// Reads a part that lies within the file, and checks it and the zeros that pad it.
pub(crate) fn read_part(
    file: &DirectFile,
    what: &'static str,
    offset: u64,
    len_bytes: u64,
    expected_crc: u32,
) -> Result<AlignedBuf, StoreError> {
    let too_large = || StoreError::OutOfRange {
        offset,
        len_bytes,
        limit_bytes: usize::MAX as u64,
    };
    let len = usize::try_from(len_bytes).map_err(|_| too_large())?;
    let padded = len.checked_next_multiple_of(BLOCK).ok_or_else(too_large)?;
    let mut part = AlignedBuf::zeroed(padded)?;
    file.read_exact_at(offset, &mut part)?;
    let (bytes, padding) = part.split_at(len);
    if crc(bytes) != expected_crc || padding.iter().any(|&b| b != 0) {
        return Err(StoreError::Corrupt { what, offset });
    }
    Ok(part)
}
