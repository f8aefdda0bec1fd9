//! The part of a model's files that reading it needs: structure, small constants, and what folding looked at.
//!
//! ```text
//! model.onnx   [ nodes, names | weight 1 ........ | names, bias | weight 2 ........ | outputs ]
//! extract        nodes, names                       names, bias                       outputs
//! ```
//! An extract is read by the code that reads the files themselves, so a model that is bound to other shapes
//! from its extract is the model that would have been read from its files.

use neap_ir::{FileId, FileRange};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Pieces of a model's files, with their places in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extract {
    files: Vec<KeptFile>,
    /// For each piece, by file and offset, where in `bytes` it begins.
    starts: Vec<usize>,
    pieces: Vec<FileRange>,
    bytes: Vec<u8>,
}

/// One of a model's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFile {
    /// Of external data, as the model names it.
    pub location: String,
    pub len_bytes: u64,
}

impl Extract {
    /// Of pieces in order of file and offset, which do not overlap, and their bytes one after another.
    /// `None` when they are anything else.
    pub fn new(files: Vec<KeptFile>, pieces: Vec<FileRange>, bytes: Vec<u8>) -> Option<Extract> {
        let mut starts = Vec::with_capacity(pieces.len());
        let mut start = 0usize;
        let mut before = (FileId(0), 0);
        for piece in &pieces {
            let end = piece.offset.checked_add(piece.bytes)?;
            let file = files.get(piece.file.index())?;
            if (piece.file, piece.offset) < before || piece.bytes == 0 || end > file.len_bytes {
                return None;
            }
            before = (piece.file, end);
            starts.push(start);
            start = start.checked_add(usize::try_from(piece.bytes).ok()?)?;
        }
        (!files.is_empty() && start == bytes.len()).then_some(Extract {
            files,
            starts,
            pieces,
            bytes,
        })
    }

    /// In the order of [`FileId`]; the first is the model itself.
    pub fn files(&self) -> &[KeptFile] {
        &self.files
    }

    /// Where in the files the bytes lie.
    pub fn pieces(&self) -> &[FileRange] {
        &self.pieces
    }

    /// Of all pieces, one after another.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What the extract has of a file from `offset` on, up to the end of the piece; `None` when it does not have
    /// that byte.
    pub(crate) fn from(&self, file: FileId, offset: u64) -> Option<&[u8]> {
        let after = self
            .pieces
            .partition_point(|p| (p.file, p.offset) <= (file, offset));
        let index = after.checked_sub(1)?;
        let piece = self.pieces[index];
        let within = offset - piece.offset;
        if piece.file != file || within >= piece.bytes {
            return None;
        }
        let end = self.starts[index] + piece.bytes as usize;
        self.bytes.get(self.starts[index] + within as usize..end)
    }

    /// Copies a range out; whether the extract has all of it.
    pub fn read(&self, range: FileRange, out: &mut [u8]) -> bool {
        if out.is_empty() {
            return true;
        }
        let found = self.from(range.file, range.offset);
        let Some(bytes) = found.and_then(|bytes| bytes.get(..out.len())) else {
            return false;
        };
        out.copy_from_slice(bytes);
        true
    }
}

/// Bytes that the extract of a model lacks, such as those of weights that are kept elsewhere.
pub trait Elsewhere {
    /// Fills `out` with the bytes from `range.offset` on; whether it has them.
    ///
    /// # Errors
    /// They are there and cannot be read.
    fn read(&mut self, range: FileRange, out: &mut [u8]) -> std::io::Result<bool>;
}

/// Ranges of one file that were read, in order of reading.
#[derive(Debug, Default)]
pub(crate) struct Touched(Vec<Range<u64>>);

impl Touched {
    pub fn add(&mut self, offset: u64, bytes: u64) {
        let end = offset + bytes;
        match self.0.last_mut() {
            Some(last) if (last.start..=last.end).contains(&offset) => last.end = last.end.max(end),
            _ => self.0.push(offset..end),
        }
    }

    pub fn ranges(&self, file: FileId) -> impl Iterator<Item = FileRange> + '_ {
        self.0.iter().map(move |range| FileRange {
            file,
            offset: range.start,
            bytes: range.end - range.start,
        })
    }
}

/// Ranges in order, without gaps of a few bytes and overlaps: such gaps cost less than a piece does.
pub fn merged(ranges: Vec<FileRange>) -> Vec<FileRange> {
    const SMALL_GAP_BYTES: u64 = 16;
    merged_over(ranges, SMALL_GAP_BYTES)
}

/// Ranges in order, without overlaps and gaps of up to `gap_bytes`.
pub(crate) fn merged_over(mut ranges: Vec<FileRange>, gap_bytes: u64) -> Vec<FileRange> {
    ranges.retain(|range| range.bytes > 0);
    ranges.sort_by_key(|range| (range.file, range.offset));
    let mut found: Vec<FileRange> = Vec::new();
    for range in ranges {
        match found.last_mut() {
            Some(last)
                if last.file == range.file
                    && range.offset <= last.offset + last.bytes + gap_bytes =>
            {
                let end = (range.offset + range.bytes).max(last.offset + last.bytes);
                last.bytes = end - last.offset;
            }
            _ => found.push(range),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(file: u32, offset: u64, bytes: u64) -> FileRange {
        FileRange {
            file: FileId(file),
            offset,
            bytes,
        }
    }

    fn files() -> Vec<KeptFile> {
        ["m", "e"]
            .map(|location| KeptFile {
                location: location.into(),
                len_bytes: 100,
            })
            .to_vec()
    }

    #[test]
    fn bytes_are_found_where_the_files_have_them() {
        let pieces = vec![range(0, 2, 3), range(0, 90, 10), range(1, 0, 1)];
        let bytes: Vec<u8> = (0..14).collect();
        let extract = Extract::new(files(), pieces, bytes).expect("well formed");
        assert_eq!(extract.from(FileId(0), 3), Some(&[1, 2][..]));
        assert_eq!(extract.from(FileId(0), 5), None);
        assert_eq!(extract.from(FileId(0), 1), None);
        assert_eq!(extract.from(FileId(1), 0), Some(&[13][..]));
        assert_eq!(extract.from(FileId(1), 1), None);
        let mut out = [0; 2];
        assert!(extract.read(range(0, 98, 2), &mut out));
        assert_eq!(out, [11, 12]);
        assert!(!extract.read(range(0, 4, 2), &mut out));
    }

    #[test]
    fn what_is_no_extract_is_refused() {
        for (pieces, bytes) in [
            (vec![range(0, 0, 2), range(0, 1, 2)], 4),
            (vec![range(0, 4, 2), range(0, 0, 2)], 4),
            (vec![range(0, 99, 2)], 2),
            (vec![range(2, 0, 2)], 2),
            (vec![range(0, u64::MAX, 2)], 2),
            (vec![range(0, 0, 2)], 3),
            (vec![range(0, 0, 0)], 0),
        ] {
            assert_eq!(Extract::new(files(), pieces, vec![0; bytes]), None);
        }
        assert_eq!(Extract::new(vec![], vec![], vec![]), None);
    }

    #[test]
    fn ranges_merge_across_small_gaps() {
        let mut touched = Touched::default();
        touched.add(50, 10);
        touched.add(60, 5);
        touched.add(0, 4);
        touched.add(20, 1);
        let all = merged(touched.ranges(FileId(0)).collect());
        assert_eq!(all, [range(0, 0, 21), range(0, 50, 15)]);
    }
}
