//! Models in several files: `NAME-00001-of-00003.gguf` and so on.

use crate::{Error, Header, Result};
use std::path::{Path, PathBuf};

/// Which part of a model a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shards {
    /// From 0.
    pub index: u64,
    pub count: u64,
}

const MOST: u64 = 99_999;

impl Shards {
    /// Of a header; a file that says nothing is a whole model.
    ///
    /// # Errors
    /// The numbers contradict each other.
    pub fn of(header: &Header) -> Result<Self> {
        let number = |key, default| {
            header
                .get(key)
                .map_or(Some(default), |value| value.as_u64())
        };
        match (number("split.no", 0), number("split.count", 1)) {
            (Some(index), Some(count)) if index < count && count <= MOST => {
                Ok(Shards { index, count })
            }
            // Files that were never split say 0 of 0.
            (Some(0), Some(0)) => Ok(Shards { index: 0, count: 1 }),
            _ => Err(Error::damaged(
                "split.no and split.count contradict each other",
            )),
        }
    }
}

/// The other files of a model of which one is given, in their order, by their names.
///
/// # Errors
/// The file's name does not end as a part's does.
pub fn other_shards(path: &Path, shards: Shards) -> Result<Vec<PathBuf>> {
    if shards.count == 1 {
        return Ok(Vec::new());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ending = |index| format!("-{:05}-of-{:05}.gguf", index + 1, shards.count);
    let Some(stem) = name.strip_suffix(&ending(shards.index)) else {
        return Err(Error::damaged(format!(
            "part {} of {}, whose name does not end in {}",
            shards.index + 1,
            shards.count,
            ending(shards.index)
        )));
    };
    let others = (0..shards.count).filter(|index| *index != shards.index);
    Ok(others
        .map(|index| path.with_file_name(format!("{stem}{}", ending(index))))
        .collect())
}
