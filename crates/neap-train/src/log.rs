//! A training's figures, one JSON object a line.

use crate::error::{Result, bad, unwritable};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A log that grows.
pub struct Log {
    path: PathBuf,
    file: File,
}

impl Log {
    /// Begins with the first `kept_bytes` of what is there: what came after them will be done, and said, again.
    ///
    /// # Errors
    /// It cannot be written, or is shorter than that.
    pub fn open(path: &Path, kept_bytes: u64) -> Result<Log> {
        let failed = |e| unwritable(path, &e);
        let mut options = OpenOptions::new();
        let options = options.create(true).write(true).truncate(false);
        let mut file = options.open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() < kept_bytes {
            return Err(bad(format!(
                "{} is shorter than when the checkpoint was written",
                path.display()
            )));
        }
        file.set_len(kept_bytes).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(Log {
            path: path.into(),
            file,
        })
    }

    /// # Errors
    /// It cannot be written.
    pub fn line(&mut self, what: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_string(what).map_err(bad)?;
        text.push('\n');
        let written = self.file.write_all(text.as_bytes());
        written.map_err(|e| unwritable(&self.path, &e))
    }

    /// Has all of it reach the drive, and gives its length: what a checkpoint says of it must outlast a crash.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn sync(&mut self) -> Result<u64> {
        let at = self
            .file
            .sync_data()
            .and_then(|()| self.file.stream_position());
        at.map_err(|e| unwritable(&self.path, &e))
    }
}
