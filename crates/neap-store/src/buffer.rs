//! Memory straight from the kernel: aligned for direct I/O and given back when dropped.
//!
//! The heap would keep freed tables for itself, and its pages would stay charged to the
//! process; a mapping leaves with its owner.

use crate::{BLOCK, StoreError, is_whole_blocks};
#[cfg(target_os = "linux")]
use rustix::mm::{Advice, madvise};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A zeroed, private, page-aligned mapping. Untouched pages cost nothing.
pub struct AlignedBuf {
    start: NonNull<u8>,
    len_bytes: usize,
}

impl AlignedBuf {
    /// `len_bytes` of zeros, aligned to at least [`BLOCK`].
    ///
    /// # Errors
    /// [`StoreError`] where memory is short.
    pub fn zeroed(len_bytes: usize) -> Result<AlignedBuf, StoreError> {
        let memory_error = |source: io::Error| StoreError::Memory {
            bytes: len_bytes,
            source,
        };
        let not_null = |address: *mut u8| {
            NonNull::new(address).ok_or_else(|| memory_error(io::ErrorKind::OutOfMemory.into()))
        };
        if len_bytes == 0 {
            // An empty slice needs an aligned address and nothing behind it.
            let start = not_null(std::ptr::without_provenance_mut(BLOCK))?;
            return Ok(AlignedBuf { start, len_bytes });
        }
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps
        // nothing that exists.
        let address = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|e| memory_error(e.into()))?;
        let start = not_null(address.cast())?;
        debug_assert!(is_whole_blocks(start.as_ptr().addr() as u64));
        Ok(AlignedBuf { start, len_bytes })
    }

    /// Asks for large pages, which then become resident as a whole. Storage reads into them several
    /// times faster where each piece of physical memory that a request names has its cost. Call it
    /// before the memory is touched.
    pub fn prefer_large_pages(&mut self) {
        #[cfg(target_os = "linux")]
        if self.len_bytes > 0 {
            // SAFETY: the range is this mapping; the advice changes no contents. Where the kernel does
            // not take it, pages are small.
            let _ = unsafe {
                madvise(
                    self.start.as_ptr().cast(),
                    self.len_bytes,
                    Advice::LinuxHugepage,
                )
            };
        }
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is `len_bytes` long, initialised by the kernel, and lives as
        // long as `self`, which is borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.len_bytes != 0 {
            // SAFETY: the mapping was made by `zeroed` with this length, and nothing borrows
            // it any more. Unmapping it can only fail for arguments that never were mapped.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len_bytes) };
        }
    }
}

// SAFETY: the mapping is owned by this value alone and is plain bytes.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuf {}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len_bytes)
    }
}
