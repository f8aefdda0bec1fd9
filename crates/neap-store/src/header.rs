//! The first block of a packed file: where its parts lie, and their checksums.

use crate::checksum::crc;
use crate::{BLOCK, BLOCK_U64, StoreError, round_up_to_block};
use std::path::Path;

/// Version of the layout of the file. A reader accepts exactly its own.
pub const FORMAT_VERSION: u32 = 3;

/// First bytes of every packed file. The first is no text and the line ends are both kinds, so that a copy which went
/// through a text conversion is recognised.
pub const MAGIC: [u8; 8] = *b"\x8fNEAP\r\n\x1a";

/// Larger tables of contents are refused: no network has one, and it is held in memory.
pub(crate) const MAX_TOC_BYTES: u64 = 256 << 20;

/// Bytes of one entry of the checksum table.
pub(crate) const CRC_BYTES: u64 = 4;

/// Where the checksum of the header lies in it.
const HEADER_CRC_AT: usize = BLOCK - 4;

/// The parts of the file. Everything else about them follows from these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Length of the data region, a multiple of [`BLOCK`]. It starts after the header.
    pub data_len_bytes: u64,
    /// Exact length of the table of contents; zeros pad it to a block.
    pub toc_len_bytes: u64,
    /// Checksum of the table of contents.
    pub toc_crc: u32,
    /// Checksum of the checksum table.
    pub table_crc: u32,
}

impl Header {
    pub const DATA_OFFSET: u64 = BLOCK_U64;

    pub fn toc_offset(&self) -> u64 {
        Self::DATA_OFFSET + self.data_len_bytes
    }

    pub fn toc_padded_bytes(&self) -> u64 {
        self.toc_len_bytes.next_multiple_of(BLOCK_U64)
    }

    pub fn table_offset(&self) -> u64 {
        self.toc_offset() + self.toc_padded_bytes()
    }

    pub fn table_len_bytes(&self) -> u64 {
        self.data_len_bytes / BLOCK_U64 * CRC_BYTES
    }

    pub fn table_padded_bytes(&self) -> u64 {
        self.table_len_bytes().next_multiple_of(BLOCK_U64)
    }

    /// Where the stamp lies, the file's last block.
    pub fn stamp_offset(&self) -> u64 {
        self.table_offset() + self.table_padded_bytes()
    }

    pub fn file_len_bytes(&self) -> u64 {
        self.stamp_offset() + BLOCK_U64
    }

    /// Writes the header into a zeroed block.
    pub fn encode(&self, block: &mut [u8]) {
        block[..8].copy_from_slice(&MAGIC);
        block[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        block[12..16].copy_from_slice(&(BLOCK as u32).to_le_bytes());
        let fields = [
            self.file_len_bytes(),
            Self::DATA_OFFSET,
            self.data_len_bytes,
            self.toc_offset(),
            self.toc_len_bytes,
            self.table_offset(),
            self.table_len_bytes(),
        ];
        for (field, place) in fields.iter().zip(block[16..72].chunks_exact_mut(8)) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        block[72..76].copy_from_slice(&self.toc_crc.to_le_bytes());
        block[76..80].copy_from_slice(&self.table_crc.to_le_bytes());
        let sum = crc(&block[..HEADER_CRC_AT]);
        block[HEADER_CRC_AT..].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads and checks a header. Its numbers are consistent with each other and with the
    /// file's real length afterwards, so sums of them cannot overflow.
    ///
    /// # Errors
    /// [`StoreError`] says what is wrong with the header.
    pub fn decode(block: &[u8], real_len_bytes: u64, path: &Path) -> Result<Header, StoreError> {
        let invalid = |reason| StoreError::Header {
            path: path.to_path_buf(),
            reason,
        };
        let u32_at = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| block[at + i]));
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if block.len() != BLOCK || block[..8] != MAGIC {
            return Err(StoreError::NotPacked {
                path: path.to_path_buf(),
                reason: "it does not begin with the format's magic bytes",
            });
        }
        // The version comes before the checksum, which another version may have elsewhere.
        let version = u32_at(8);
        if version != FORMAT_VERSION {
            return Err(StoreError::Version {
                path: path.to_path_buf(),
                found: version,
                supported: FORMAT_VERSION,
            });
        }
        if u32_at(HEADER_CRC_AT) != crc(&block[..HEADER_CRC_AT]) {
            return Err(StoreError::Corrupt {
                what: "header",
                offset: 0,
            });
        }
        if u32_at(12) as usize != BLOCK {
            return Err(invalid("its block size is not 4096"));
        }
        let stated_len = u64_at(16);
        if stated_len != real_len_bytes {
            return Err(StoreError::Length {
                path: path.to_path_buf(),
                found_bytes: real_len_bytes,
                stated_bytes: stated_len,
            });
        }
        let [
            data_offset,
            data_len,
            toc_offset,
            toc_len,
            table_offset,
            table_len,
        ] = [24, 32, 40, 48, 56, 64].map(u64_at);
        if data_offset != Self::DATA_OFFSET || data_len % BLOCK_U64 != 0 {
            return Err(invalid("its data region is not made of blocks"));
        }
        if toc_len > MAX_TOC_BYTES {
            return Err(invalid("its table of contents is too long"));
        }
        // Each part begins where the one before it ends, and the last ends with the file.
        let after = |offset: u64, len: u64| {
            round_up_to_block(len).and_then(|padded| offset.checked_add(padded))
        };
        if after(data_offset, data_len) != Some(toc_offset)
            || after(toc_offset, toc_len) != Some(table_offset)
            || table_len != data_len / BLOCK_U64 * CRC_BYTES
            || after(table_offset, table_len).and_then(|end| end.checked_add(BLOCK_U64))
                != Some(real_len_bytes)
        {
            return Err(invalid("its parts do not fill the file"));
        }
        if block[80..HEADER_CRC_AT].iter().any(|&b| b != 0) {
            return Err(invalid("its reserved bytes are not zero"));
        }
        Ok(Header {
            data_len_bytes: data_len,
            toc_len_bytes: toc_len,
            toc_crc: u32_at(72),
            table_crc: u32_at(76),
        })
    }
}
