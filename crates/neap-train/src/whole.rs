//! Files that are there whole or not at all, whatever happens to the process or the machine.
//!
//! ```text
//! NAME.partial is written ─ its bytes reach the drive ─ it becomes NAME ─ the folder's entry reaches the drive
//! ```

use crate::error::{Result, unwritable};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Lets `fill` write the file at the path it is given, then gives it the name `path`. What was there before stays until
/// then, and where anything fails.
///
/// # Errors
/// What `fill` says, or the file cannot be written.
pub fn write(path: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let partial = partial_of(path);
    let written = fill(&partial).and_then(|()| {
        let failed = |e: io::Error| unwritable(path, &e);
        File::open(&partial)
            .and_then(|f| f.sync_all())
            .map_err(failed)?;
        fs::rename(&partial, path).map_err(failed)?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        File::open(folder)
            .and_then(|f| f.sync_all())
            .map_err(failed)
    });
    if written.is_err() {
        // Nothing more can be done about a file that cannot be removed.
        let _ = fs::remove_file(&partial);
    }
    written
}

/// The name while it is written: always the same, so that what a killed process left is written over.
fn partial_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::bad;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let fill = |text: &'static str| move |p: &Path| fs::write(p, text).map_err(bad);
        write(&path, fill("old")).unwrap();
        let failed = write(&path, |p| {
            fill("new")(p)?;
            Err(bad("no room"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no room");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        write(&path, fill("newer")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "newer");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write(&folder.path().join("no/x"), fill("")).is_err());
    }
}
