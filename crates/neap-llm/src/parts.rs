//! The files of a model as one: mostly a single file, else `NAME-00001-of-00003.gguf` and so on.
//!
//! ```text
//!   files      │ part 1 ┆   │ part 2     ┆ │ part 3 │      each in whole blocks, one behind the other
//!   Header     ranges of tensors count from the beginning of the first
//! ```

use crate::{Error, Result};
use neap_gguf::{Header, Shards, Value, other_shards};
use neap_plan::BLOCK_BYTES;
use neap_store::BlockReader;
use std::collections::HashSet;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A model's files, in their order.
pub(crate) struct Parts {
    pub paths: Vec<PathBuf>,
    /// Where each begins.
    begins: Vec<u64>,
    /// The one that is open, and its index.
    open: (usize, BlockReader),
}

impl Parts {
    /// All files of a model of which one is given, and what they say together.
    ///
    /// # Errors
    /// [`Error`] where a file is missing or damaged, or is a part of something else.
    pub fn open(path: &Path) -> Result<(Parts, Header)> {
        let (mut reader, mut whole) = read(path)?;
        let of_file = |source| Error::Gguf {
            path: path.to_owned(),
            source,
        };
        let shards = Shards::of(&whole).map_err(of_file)?;
        let mut paths = other_shards(path, shards).map_err(of_file)?;
        paths.insert(shards.index as usize, path.to_owned());
        let (mut begins, mut end) = (Vec::with_capacity(paths.len()), 0);
        for (index, path) in (0..).zip(&paths).filter(|_| shards.count > 1) {
            let (part_reader, mut part) = read(path)?;
            let expected = Shards { index, ..shards };
            if Shards::of(&part).ok() != Some(expected) {
                return Err(Error::Model(format!(
                    "{} is not its part {} of {}",
                    path.display(),
                    index + 1,
                    shards.count
                )));
            }
            for tensor in &mut part.tensors {
                tensor.range = tensor.range.start + end..tensor.range.end + end;
            }
            begins.push(end);
            end += part_reader.len_bytes().next_multiple_of(BLOCK_BYTES);
            if index == 0 {
                (reader, whole) = (part_reader, part);
            } else {
                whole.tensors.append(&mut part.tensors);
            }
        }
        begins.resize(paths.len(), 0);
        check_tensors(&whole)?;
        let open = (0, reader);
        Ok((
            Parts {
                paths,
                begins,
                open,
            },
            whole,
        ))
    }

    /// Bytes of a tensor.
    pub fn read(&mut self, range: Range<u64>) -> Result<Vec<u8>> {
        let index = self.begins.partition_point(|begin| *begin <= range.start) - 1;
        let path = &self.paths[index];
        if self.open.0 != index {
            self.open = (index, BlockReader::open(path)?);
        }
        let reader = &mut self.open.1;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let read = reader.seek(SeekFrom::Start(range.start - self.begins[index]));
        let read = read.and_then(|_| reader.read_exact(&mut bytes));
        read.map_err(|source| Error::File {
            path: path.clone(),
            source,
        })?;
        Ok(bytes)
    }
}

fn read(path: &Path) -> Result<(BlockReader, Header)> {
    let mut reader = BlockReader::open(path)?;
    let len = reader.len_bytes();
    let header = Header::read(&mut reader, len).map_err(|source| Error::Gguf {
        path: path.to_owned(),
        source,
    })?;
    Ok((reader, header))
}

/// Each tensor is in one part, and none is missing.
fn check_tensors(whole: &Header) -> Result<()> {
    let mut seen = HashSet::new();
    if let Some(twice) = whole.tensors.iter().find(|t| !seen.insert(&t.name)) {
        return Err(Error::Model(format!(
            "two parts have a tensor '{}'",
            twice.name
        )));
    }
    let count = whole.get("split.tensors.count").and_then(Value::as_u64);
    match count {
        Some(count) if count > 0 && count != whole.tensors.len() as u64 => Err(Error::Model(
            format!("its parts have {} tensors of {count}", whole.tensors.len()),
        )),
        _ => Ok(()),
    }
}
