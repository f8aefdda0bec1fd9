//! What the kernel says of a file, by which one that was written to, or another in its place, is told from it.

use rustix::fd::AsFd;
use rustix::fs::Stat;
use rustix::time::ClockId;
use std::io;
use std::path::Path;

/// Where change times are whole seconds, or two of them.
const COARSE_NS: i128 = 2 * SECOND_NS;
const SECOND_NS: i128 = 1_000_000_000;

/// What changes whenever a file is written to or another takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    pub size_bytes: u64,
    pub modified_ns: i128,
    /// The kernel sets this one; no program can set it back.
    pub changed_ns: i128,
    pub inode: u64,
    pub device: u64,
}

/// A look at an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    pub identity: FileIdentity,
    /// The file was written so shortly before that a write after the look may leave the identity as it is, because the
    /// clock that times it stands still in between. A look a moment later is not.
    pub is_fresh: bool,
}

impl FileIdentity {
    /// Of the file that `path` names.
    ///
    /// # Errors
    /// The kernel's, such as that there is none.
    pub fn of(path: &Path) -> io::Result<FileIdentity> {
        Ok(FileIdentity::from(rustix::fs::stat(path)?))
    }
}

impl Sighting {
    /// Looks at an open file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of(file: impl AsFd) -> io::Result<Sighting> {
        // The clock first: whatever is written after the look is timed by it or later.
        let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        let identity = FileIdentity::from(rustix::fs::fstat(file)?);
        let age_ns = ns(now.tv_sec, now.tv_nsec) - identity.changed_ns;
        let oldest_ns = if identity.changed_ns % SECOND_NS == 0 {
            COARSE_NS
        } else {
            0
        };
        Ok(Sighting {
            identity,
            // What was written in a far future was written before the clock was set back.
            is_fresh: (-COARSE_NS..=oldest_ns).contains(&age_ns),
        })
    }
}

fn ns(seconds: i64, ns: i64) -> i128 {
    i128::from(seconds) * SECOND_NS + i128::from(ns)
}

impl From<Stat> for FileIdentity {
    fn from(stat: Stat) -> FileIdentity {
        FileIdentity {
            size_bytes: stat.st_size as u64,
            modified_ns: ns(stat.st_mtime, stat.st_mtime_nsec as i64),
            changed_ns: ns(stat.st_ctime, stat.st_ctime_nsec as i64),
            inode: stat.st_ino,
            device: stat.st_dev,
        }
    }
}
