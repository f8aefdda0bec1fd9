//! Files that appear whole or not at all.

use crate::failure::{Failure, Outcome, bad};
use crate::interrupt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Removes the temporary file unless it was renamed.
struct Partial(Option<PathBuf>);

impl Drop for Partial {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Nothing more can be done about a file that cannot be removed.
            let _ = fs::remove_file(path);
        }
    }
}

/// A file that is written bit by bit under a temporary name, and gets its own at the end. Dropped
/// before, it leaves nothing.
pub struct Growing {
    path: PathBuf,
    temporary: PathBuf,
    partial: Partial,
    writer: BufWriter<File>,
}

impl Growing {
    pub fn create(path: &Path) -> Outcome<Growing> {
        if path.is_dir() {
            return Err(bad(format!("{} is a folder", path.display())));
        }
        let name = path
            .file_name()
            .ok_or_else(|| bad(format!("{} is no file name", path.display())))?;
        let mut temporary = name.to_os_string();
        temporary.push(format!(".{}.partial", std::process::id()));
        let temporary = path.with_file_name(temporary);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary)
            .map_err(|e| cannot_write(path, &e))?;
        Ok(Growing {
            path: path.into(),
            partial: Partial(Some(temporary.clone())),
            temporary,
            writer: BufWriter::with_capacity(16 * 1024, file),
        })
    }

    pub fn write(&mut self, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Outcome {
        fill(&mut self.writer).map_err(|e| cannot_write(&self.path, &e))
    }

    pub fn finish(mut self) -> Outcome {
        self.writer
            .flush()
            .and_then(|()| fs::rename(&self.temporary, &self.path))
            .map_err(|e| cannot_write(&self.path, &e))?;
        self.partial.0 = None;
        Ok(())
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    bad(format!("cannot write {}: {error}", path.display()))
}

/// Lets `fill` write a file under a temporary name beside `path`, then gives it its name. A signal
/// waits until that is done.
pub fn write(path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Outcome {
    let _deferred = interrupt::defer();
    let mut file = Growing::create(path)?;
    file.write(fill)?;
    file.finish()?;
    interrupt::check()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.txt");
        write(&path, |f| f.write_all(b"old")).unwrap();
        let failed = write(&path, |f| {
            f.write_all(b"new")?;
            Err(io::Error::other("disk on fire"))
        });
        assert!(failed.unwrap_err().message().unwrap().contains("on fire"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        assert!(write(folder.path(), |_| Ok(())).is_err());
        assert!(write(Path::new("/"), |_| Ok(())).is_err());
    }
}
