//! A file opened for reads that bypass the page cache.
//!
//! Where the filesystem has no direct I/O, reads are buffered and their pages dropped right
//! after, so that page cache is charged to the process for a moment only.

use crate::{AlignedBuf, BLOCK, BLOCK_U64, StoreError, is_whole_blocks};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Advice, AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

/// File systems that keep files in memory (tmpfs, ramfs), by the kernel's magic numbers.
pub(crate) const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// A regular file open for reading, or a spill file, open for both.
#[derive(Debug)]
pub struct DirectFile {
    fd: OwnedFd,
    path: PathBuf,
    len_bytes: u64,
    direct: bool,
    /// What is read stays in the page cache.
    keeps_cached: bool,
    /// Where the file really ends, if it counts as whole blocks.
    end: Option<u64>,
}

impl DirectFile {
    /// Opens `path`, with direct I/O if the filesystem has it for blocks of [`BLOCK`] bytes.
    ///
    /// # Errors
    /// [`StoreError::File`] when it cannot be opened, [`StoreError::NotPacked`] for what is no regular file.
    pub fn open(path: &Path) -> Result<DirectFile, StoreError> {
        DirectFile::open_with(path, OFlags::empty())
    }

    /// As [`open`](DirectFile::open), of a file that only this user and the administrator can have written.
    ///
    /// # Errors
    /// [`StoreError::Untrusted`] for a symbolic link and for a file that others own or may write.
    pub fn open_own(path: &Path) -> Result<DirectFile, StoreError> {
        let untrusted = |reason| StoreError::Untrusted {
            path: path.to_path_buf(),
            reason,
        };
        let file = match DirectFile::open_with(path, OFlags::NOFOLLOW) {
            Err(StoreError::File { source, .. })
                if source.raw_os_error() == Some(Errno::LOOP.raw_os_error()) =>
            {
                return Err(untrusted("it is a symbolic link"));
            }
            opened => opened?,
        };
        let stat = rustix::fs::fstat(&file.fd).map_err(|e| StoreError::file("inspect", path, e))?;
        match untrusted_because(
            stat.st_uid,
            stat.st_mode,
            rustix::process::geteuid().as_raw(),
        ) {
            Some(reason) => Err(untrusted(reason)),
            None => Ok(file),
        }
    }

    fn open_with(path: &Path, more: OFlags) -> Result<DirectFile, StoreError> {
        let open = |flags: OFlags| {
            // Without NONBLOCK, opening a FIFO would wait for its writer.
            let flags = flags | more | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            rustix::fs::open(path, flags, Mode::empty())
        };
        let fail = |e: Errno| StoreError::file("open", path, e);
        let (fd, opened_direct) = match open(OFlags::DIRECT) {
            Ok(fd) => (fd, true),
            Err(Errno::INVAL) => (open(OFlags::empty()).map_err(fail)?, false),
            Err(e) => return Err(fail(e)),
        };
        let file = DirectFile::inspect(fd, path, opened_direct)?;
        if !opened_direct || (file.direct && file.direct_read_works()?) {
            file.become_blocking()?;
            return Ok(file);
        }
        let fd = open(OFlags::empty()).map_err(fail)?;
        let file = DirectFile::inspect(fd, path, false)?;
        file.become_blocking()?;
        Ok(file)
    }

    /// A file of this process's own, open for direct reads and writes.
    pub(crate) fn of_spill(fd: OwnedFd, folder: &Path, len_bytes: u64) -> Result<Self, StoreError> {
        if !block_suits_direct_io(&fd) {
            return Err(StoreError::NoSpill {
                path: folder.to_path_buf(),
                reason: "its drive wants larger blocks",
            });
        }
        Ok(DirectFile {
            fd,
            path: folder.to_path_buf(),
            len_bytes,
            direct: true,
            keeps_cached: false,
            end: None,
        })
    }

    /// The same file, read by the page cache as files usually are: its pages are charged to who reads first, and stay. None of
    /// them are there to begin with, so that this process reads first. For studies.
    ///
    /// # Errors
    /// [`StoreError::File`] when it cannot be opened, [`StoreError::NotPacked`] where its path names another file.
    pub(crate) fn through_cache(&self) -> Result<DirectFile, StoreError> {
        let path = &self.path;
        let fail = |e: Errno| StoreError::file("open", path, e);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(fail)?;
        if !self.is_at_its_path() {
            return Err(StoreError::NotPacked {
                path: path.clone(),
                reason: "another file took its place",
            });
        }
        // Pages of another process that maps the file stay; then fewer are charged here.
        let _ = rustix::fs::fadvise(&fd, 0, None, Advice::DontNeed);
        Ok(DirectFile {
            fd,
            path: path.clone(),
            len_bytes: self.len_bytes,
            direct: false,
            keeps_cached: true,
            end: None,
        })
    }

    fn inspect(fd: OwnedFd, path: &Path, opened_direct: bool) -> Result<DirectFile, StoreError> {
        let fail = |e: Errno| StoreError::file("inspect", path, e);
        let stat = rustix::fs::fstat(&fd).map_err(fail)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(StoreError::NotPacked {
                path: path.to_path_buf(),
                reason: "it is no regular file",
            });
        }
        let direct = opened_direct && block_suits_direct_io(&fd);
        if !direct {
            // Read-ahead would fill the page cache with pages nobody asked for.
            let _ = rustix::fs::fadvise(&fd, 0, None, Advice::Random);
        }
        Ok(DirectFile {
            fd,
            path: path.to_path_buf(),
            len_bytes: u64::try_from(stat.st_size).unwrap_or(0),
            direct,
            keeps_cached: false,
            end: None,
        })
    }

    /// Some filesystems accept the flag and refuse the reads.
    fn direct_read_works(&self) -> Result<bool, StoreError> {
        if self.len_bytes < BLOCK_U64 {
            return Ok(true);
        }
        let mut block = AlignedBuf::zeroed(BLOCK)?;
        match rustix::io::pread(&self.fd, &mut block[..], 0) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
            // Other errors are reported, with their offset, by the read that meets them.
            _ => Ok(true),
        }
    }

    /// `NONBLOCK` was for the opening; on reads it would make io_uring give up with `EAGAIN`.
    fn become_blocking(&self) -> Result<(), StoreError> {
        let fail = |e: Errno| StoreError::file("open", &self.path, e);
        let flags = rustix::fs::fcntl_getfl(&self.fd).map_err(fail)?;
        rustix::fs::fcntl_setfl(&self.fd, flags - OFlags::NONBLOCK).map_err(fail)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's length when it was opened.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether the path still names this file, and not another that took its place.
    pub fn is_at_its_path(&self) -> bool {
        let here = rustix::fs::fstat(&self.fd);
        let there = rustix::fs::lstat(&self.path);
        matches!((here, there), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    }

    /// Whether the file lies in memory that no process is charged for when it reads. Says no where the kernel does
    /// not tell.
    pub fn is_in_memory(&self) -> bool {
        rustix::fs::fstatfs(&self.fd).is_ok_and(|stat| IN_MEMORY.contains(&(stat.f_type as u64)))
    }

    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Whether reads bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// The same file as whole blocks: reads of the last one end where the file does.
    pub(crate) fn in_whole_blocks(self) -> DirectFile {
        DirectFile {
            len_bytes: self.len_bytes.next_multiple_of(BLOCK_U64),
            end: Some(self.len_bytes),
            ..self
        }
    }

    /// Where reads end.
    pub(crate) fn end(&self) -> u64 {
        self.end.unwrap_or(u64::MAX)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// One read at `offset`, which may be short, of bytes that need not be initialised.
    pub(crate) fn read_at(&self, offset: u64, dst: &mut [MaybeUninit<u8>]) -> Result<usize, Errno> {
        let (read, _) = rustix::io::pread(&self.fd, dst, offset)?;
        let read = read.len();
        self.drop_cached(offset, read);
        Ok(read)
    }

    /// One write at `offset`, which may be short.
    pub(crate) fn write_at(&self, offset: u64, src: &[u8]) -> Result<usize, Errno> {
        rustix::io::pwrite(&self.fd, src, offset)
    }

    /// Gives back the page cache of a range just read, when reads are buffered.
    pub(crate) fn drop_cached(&self, offset: u64, len_bytes: usize) {
        let len = NonZeroU64::new(len_bytes as u64);
        if !self.direct && !self.keeps_cached && len.is_some() {
            // Advice: where it is refused the pages stay until the kernel reclaims them.
            let _ = rustix::fs::fadvise(&self.fd, offset, len, Advice::DontNeed);
        }
    }

    /// Fills `dst` from `offset`, both multiples of [`BLOCK`].
    ///
    /// # Errors
    /// [`StoreError`] where the file is shorter or a read fails.
    pub fn read_exact_at(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
        check_aligned(offset, dst.as_ptr(), dst.len())?;
        let mut filled = 0;
        while filled < dst.len() {
            let at = offset + filled as u64;
            let fail = |source| StoreError::Read {
                tag: None,
                offset: at,
                source,
            };
            let rest = &mut dst[filled..];
            match rustix::io::pread(&self.fd, rest, at) {
                Ok(0) => return Err(fail(std::io::ErrorKind::UnexpectedEof.into())),
                Ok(read) => {
                    self.drop_cached(at, read);
                    // Direct reads must go on from a block; a partial one is read again.
                    let whole = if filled + read == dst.len() {
                        read
                    } else {
                        read - read % BLOCK
                    };
                    if whole == 0 {
                        return Err(fail(std::io::ErrorKind::UnexpectedEof.into()));
                    }
                    filled += whole;
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(fail(e.into())),
            }
        }
        Ok(())
    }
}

/// Checks what direct I/O needs; some kernels accept misaligned reads silently, others fail.
pub(crate) fn check_aligned(
    offset: u64,
    address: *const u8,
    len_bytes: usize,
) -> Result<(), StoreError> {
    for (what, value) in [
        ("file offset", offset),
        ("length", len_bytes as u64),
        ("memory address", address.addr() as u64),
    ] {
        if !is_whole_blocks(value) {
            return Err(StoreError::Misaligned {
                what,
                value,
                multiple: BLOCK_U64,
            });
        }
    }
    Ok(())
}

/// Why a file of this owner and mode may hold what another user put there; `None` where it cannot.
fn untrusted_because(owner: u32, mode: u32, user: u32) -> Option<&'static str> {
    if owner != user && owner != 0 {
        return Some("it belongs to another user");
    }
    (mode & 0o022 != 0).then_some("other users may write it")
}

/// Whether addresses, offsets and lengths in multiples of [`BLOCK`] are fit for direct I/O.
fn block_suits_direct_io(fd: &OwnedFd) -> bool {
    let Ok(stat) = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return true;
    };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        // The kernel or filesystem does not say; 4096 is what devices in use need at most.
        return true;
    }
    let fits = |align: u32| BLOCK.checked_rem(align as usize) == Some(0);
    fits(stat.stx_dio_mem_align) && fits(stat.stx_dio_offset_align)
}

#[cfg(test)]
mod tests {
    use super::untrusted_because;

    #[test]
    fn only_the_user_and_the_administrator_are_trusted() {
        assert_eq!(untrusted_because(1000, 0o100_644, 1000), None);
        assert_eq!(untrusted_because(0, 0o100_644, 1000), None);
        assert!(untrusted_because(1001, 0o100_644, 1000).is_some());
        assert!(untrusted_because(1000, 0o100_644, 0).is_some());
        assert!(untrusted_because(1000, 0o100_664, 1000).is_some());
        assert!(untrusted_because(1000, 0o100_646, 1000).is_some());
    }
}
