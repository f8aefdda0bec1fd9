//! Files that appear whole or not at all.

use crate::destination::Destination;
use crate::failure::{Failure, Outcome, bad};
use crate::interrupt;
use crate::names::{self, MOST_FILE_BYTES};
use crate::progress::detail;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Removes the temporary file unless it was renamed.
struct Partial {
    temporary: PathBuf,
    target: PathBuf,
    renamed: bool,
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.renamed {
            // Nothing more can be done about a file that cannot be removed.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// A file that is written bit by bit under a temporary name, and gets its own at the end. Dropped
/// before, it leaves nothing. A device or a pipe is written to as it is.
pub struct Growing {
    /// As it was given.
    path: PathBuf,
    partial: Option<Partial>,
    writer: BufWriter<File>,
}

impl Growing {
    pub fn create(path: &Path) -> Outcome<Growing> {
        Growing::at(path, Destination::of(path)?)
    }

    fn at(path: &Path, destination: Destination) -> Outcome<Growing> {
        let (file, partial) = match destination {
            Destination::Special => (OpenOptions::new().append(true).open(path), None),
            Destination::Named(target) => {
                let temporary = target.with_file_name(partial_name(&target));
                let file = OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .open(&temporary);
                let partial = file.is_ok().then_some(Partial {
                    temporary,
                    target,
                    renamed: false,
                });
                (file, partial)
            }
        };
        let file = file.map_err(|e| cannot_write(path, &e))?;
        // Who may read the file that was there may read the one that takes its place, and nobody else.
        if let Some(before) = partial.as_ref().and_then(|p| fs::metadata(&p.target).ok()) {
            file.set_permissions(before.permissions())
                .map_err(|e| cannot_write(path, &e))?;
        }
        Ok(Growing {
            path: path.into(),
            partial,
            writer: BufWriter::with_capacity(16 * 1024, file),
        })
    }

    pub fn write(&mut self, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Outcome {
        fill(&mut self.writer).map_err(|e| cannot_write(&self.path, &e))
    }

    pub fn finish(mut self) -> Outcome {
        detail(|| format!("writing {}", self.path.display()));
        let named = |partial: &mut Option<Partial>| match partial {
            None => Ok(()),
            Some(partial) => fs::rename(&partial.temporary, &partial.target).map(|()| {
                partial.renamed = true;
            }),
        };
        self.writer
            .flush()
            .and_then(|()| named(&mut self.partial))
            .map_err(|e| cannot_write(&self.path, &e))
    }
}

/// File systems allow 255 bytes, and the file's own name may have them all.
fn partial_name(target: &Path) -> OsString {
    let name = target.file_name().unwrap_or_default();
    let mut partial = match name.len() > MOST_FILE_BYTES {
        true => names::for_file(&name.to_string_lossy()).into(),
        false => name.to_os_string(),
    };
    partial.push(format!(".{}.partial", std::process::id()));
    partial
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    bad(format!("cannot write {}: {error}", path.display()))
}

/// Lets `fill` write a file under a temporary name beside `path`, then gives it its name. A signal
/// waits until that is done, but not until somebody reads a pipe.
pub fn write(path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Outcome {
    let destination = Destination::of(path)?;
    if destination == Destination::Special {
        let mut file = Growing::at(path, destination)?;
        file.write(fill)?;
        return file.finish();
    }
    // One that came before is obeyed by whoever waits with it: what is written now tells of what it ended.
    let was_noted = interrupt::noted().is_some();
    let _deferred = interrupt::defer();
    let mut file = Growing::at(path, destination)?;
    file.write(fill)?;
    file.finish()?;
    match was_noted {
        true => Ok(()),
        false => interrupt::check(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};

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
    fn a_name_may_be_as_long_as_the_file_system_allows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("é".repeat(127));
        write(&path, |f| f.write_all(b"long")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"long");
    }

    #[test]
    fn links_and_modes_stay_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        write(&link, |f| f.write_all(b"new")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_pipe_is_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe.json");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        write(&pipe, |f| f.write_all(b"told")).unwrap();
        assert_eq!(reader.join().unwrap(), b"told");
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    }

    #[test]
    fn a_folder_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        assert!(write(folder.path(), |_| Ok(())).is_err());
        assert!(write(Path::new("/"), |_| Ok(())).is_err());
    }
}
