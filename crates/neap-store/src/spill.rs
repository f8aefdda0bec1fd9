//! The spill file: an unlinked temporary on a drive, with all of its space set aside when it is opened.
//!
//! It is written and read with direct I/O only. Buffered writes would be charged to the process as page
//! cache, which is the memory that spilling is to save; so a folder without direct I/O, or one that lies in
//! memory itself, is refused.

use crate::direct::IN_MEMORY;
use crate::{
    AlignedBuf, BLOCK, BLOCK_U64, DirectFile, IoMode, PreadConfig, PreadSource, Spill, StoreError,
    UringConfig, UringSource, round_up_to_block,
};
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;

/// Opens a file of `bytes` bytes (rounded up to whole blocks) in `folder`. It has no name: it is gone with
/// the process, however that ends.
///
/// # Errors
///
/// [`StoreError::File`] when it cannot be created or the drive has no room for it (see
/// [`StoreError::is_disk_full`]), [`StoreError::NoSpill`] for a folder in memory or without direct I/O.
pub fn open_spill(folder: &Path, bytes: u64, mode: IoMode) -> Result<Box<dyn Spill>, StoreError> {
    let file = Arc::new(create(folder, bytes)?);
    let uring = |file| {
        let config = UringConfig {
            depth: 32,
            batch_depth: 4,
            max_loads: 256,
            ..UringConfig::default()
        };
        UringSource::new(file, config)
    };
    let threads = |file| {
        let config = PreadConfig {
            workers: 2,
            max_loads: 256,
            ..PreadConfig::default()
        };
        PreadSource::new(file, config)
    };
    Ok(match mode {
        IoMode::Uring => Box::new(uring(file)?),
        IoMode::Pread | IoMode::Cached => Box::new(threads(file)?),
        IoMode::Auto => match uring(file.clone()) {
            Ok(source) => Box::new(source),
            // Old kernels lack io_uring, and sandboxes forbid it.
            Err(_) => Box::new(threads(file)?),
        },
    })
}

fn create(folder: &Path, bytes: u64) -> Result<DirectFile, StoreError> {
    let fail = |e: Errno| StoreError::file("create a spill file in", folder, e);
    let refuse = |reason| StoreError::NoSpill {
        path: folder.to_path_buf(),
        reason,
    };
    let bytes = round_up_to_block(bytes)
        .filter(|&bytes| bytes < 1 << 62)
        .ok_or_else(|| refuse("no drive is that large"))?;
    let fd = match unnamed(folder) {
        // The file system accepts no direct I/O at all.
        Err(Errno::INVAL) => return Err(refuse("its file system has no direct I/O")),
        opened => opened.map_err(fail)?,
    };
    let kind = rustix::fs::fstatfs(&fd).map_err(fail)?.f_type;
    if IN_MEMORY.contains(&(kind as u64)) {
        return Err(refuse("it lies in memory"));
    }
    match rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes.max(BLOCK_U64)) {
        Ok(()) => {}
        // Then running out of space shows only when it is written.
        Err(Errno::OPNOTSUPP) => rustix::fs::ftruncate(&fd, bytes).map_err(fail)?,
        Err(e) => return Err(StoreError::file("set space aside in", folder, e)),
    }
    // Some file systems accept the flag and refuse the writes.
    let block = AlignedBuf::zeroed(BLOCK)?;
    match rustix::io::pwrite(&fd, &block[..], 0) {
        Err(Errno::INVAL | Errno::OPNOTSUPP) => {
            return Err(refuse("its file system has no direct I/O"));
        }
        written => written.map_err(|e| StoreError::file("write to a spill file in", folder, e))?,
    };
    DirectFile::of_spill(fd, folder, bytes)
}

/// A new file without a name; on file systems that cannot do that, one whose name is gone at once.
fn unnamed(folder: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(folder, flags | OFlags::TMPFILE, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        opened => return opened,
    }
    let flags = flags | OFlags::CREATE | OFlags::EXCL;
    let mut attempt = 0u32;
    loop {
        let name = format!(".neap-spill-{}-{attempt}", std::process::id());
        let path = folder.join(name);
        match rustix::fs::open(&path, flags, mode) {
            Err(Errno::EXIST) if attempt < 1000 => attempt += 1,
            Err(e) => return Err(e),
            Ok(fd) => {
                rustix::fs::unlink(&path)?;
                return Ok(fd);
            }
        }
    }
}
