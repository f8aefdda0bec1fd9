//! What a path that is written to stands for: files get their name when they are whole, all else is written as it is.
//!
//! ```text
//!   nothing there yet, a regular file           a new file takes its name
//!   a symbolic link                             what it leads to, and the link stays
//!   a device, a pipe, /dev/stdout, /dev/fd/63   opened and written to; there is nothing to rename
//! ```

use crate::failure::{Outcome, bad};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;

#[derive(Debug, PartialEq, Eq)]
pub enum Destination {
    /// The name, with all links followed. Nothing but a regular file has it.
    Named(PathBuf),
    /// To be opened by the path that was given.
    Special,
}

impl Destination {
    /// # Errors
    /// A folder, a socket, links that go round, a path without a name.
    pub fn of(path: &Path) -> Outcome<Destination> {
        if path.file_name().is_none() {
            return Err(bad(match path.is_dir() {
                true => format!("{} is a folder", path.display()),
                false => format!("{} is no file name", path.display()),
            }));
        }
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => Err(bad(format!("{} is a folder", path.display()))),
            Ok(found) if found.file_type().is_socket() => {
                Err(bad(format!("{} is a socket", path.display())))
            }
            Ok(found) if is_special(&found) => Ok(Destination::Special),
            _ => followed(path),
        }
    }

    /// The name of a file that cannot be written piece by piece, such as a model.
    ///
    /// # Errors
    /// As [`Destination::of`], and devices and pipes.
    pub fn file(path: &Path) -> Outcome<PathBuf> {
        match Destination::of(path)? {
            Destination::Named(name) => Ok(name),
            Destination::Special => Err(bad(format!(
                "{} is a device or a pipe: give the name of a file",
                path.display()
            ))),
        }
    }
}

fn is_special(found: &Metadata) -> bool {
    let kind = found.file_type();
    kind.is_char_device() || kind.is_block_device() || kind.is_fifo()
}

fn followed(path: &Path) -> Outcome<Destination> {
    let failed = |e: &io::Error| bad(format!("cannot write {}: {e}", path.display()));
    let mut name = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        // An open file of a process: its name may be gone, and its reader has the file, not the name.
        if real_folder(&name).starts_with("/proc") {
            return Ok(Destination::Special);
        }
        if !fs::symlink_metadata(&name).is_ok_and(|found| found.is_symlink()) {
            return Ok(Destination::Named(name));
        }
        let target = fs::read_link(&name).map_err(|e| failed(&e))?;
        name = real_folder(&name).join(target);
    }
    Err(failed(&io::Error::from_raw_os_error(libc::ELOOP)))
}

/// Where a name is, without links where that can be said.
fn real_folder(name: &Path) -> PathBuf {
    let folder = match name.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    folder.canonicalize().unwrap_or_else(|_| folder.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_and_devices_stay() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let at = |name: &str| folder.join(name);
        fs::write(at("file"), "").unwrap();
        symlink("file", at("one")).unwrap();
        symlink(at("one"), at("two")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        symlink("round", at("round")).unwrap();
        symlink("/dev/null", at("nul")).unwrap();
        let of = |name: &str| Destination::of(&at(name));
        assert_eq!(of("new").unwrap(), Destination::Named(at("new")));
        assert_eq!(of("file").unwrap(), Destination::Named(at("file")));
        assert_eq!(of("two").unwrap(), Destination::Named(at("file")));
        assert_eq!(of("dangling").unwrap(), Destination::Named(at("nowhere")));
        assert_eq!(of("nul").unwrap(), Destination::Special);
        assert!(of("round").is_err() && of(".").is_err() && of("..").is_err());
        assert_eq!(
            Destination::of(Path::new("/dev/null")).unwrap(),
            Destination::Special
        );
        assert!(Destination::file(&at("nul")).is_err());
        // Standard output is a file or a pipe here, never one that is given a new name.
        for path in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
            let found = Destination::of(Path::new(path)).unwrap();
            assert_eq!(found, Destination::Special, "{path}");
        }
    }
}
