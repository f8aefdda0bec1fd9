//! The arena: the one mapping that a session's activations, workspaces and weights live in.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ptr::NonNull;

const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 * 1024 * 1024;

/// Zeroed anonymous memory, aligned to huge pages, charged page by page as it is touched.
///
/// ```text
///   reserved    |······|═══════════ arena ═══════════|···|
///               unmapped                              unmapped
///                      ^ multiple of 2 MiB           ^ multiple of 4 KiB
///                      |── huge pages allowed ──|────|   never past the last whole one
/// ```
///
/// It hands out addresses, not references: parts of it are written by the storage device while
/// others are read and written by kernels. Who holds an address vouches for the access; that the
/// parts in use at one time are disjoint is what [`neap_plan::validate`] proves of a plan.
#[derive(Debug)]
pub struct Arena {
    start: NonNull<u8>,
    len_bytes: usize,
}

/// Tells addresses in an arena, which must live for as long as they are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArenaMap {
    start: NonNull<u8>,
    len_bytes: usize,
}

impl ArenaMap {
    pub(crate) fn at(self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        if end > self.len_bytes as u64 {
            return None;
        }
        // `offset <= end <= len_bytes`, so the address is inside the mapping or one past it.
        Some(self.start.as_ptr().wrapping_add(offset as usize))
    }
}

// SAFETY: the mapping belongs to this value alone; it is plain memory without thread affinity.
unsafe impl Send for Arena {}

impl Arena {
    /// `len_bytes` rounded up to whole pages; nothing is charged yet.
    pub fn new(len_bytes: u64) -> io::Result<Arena> {
        let out_of_memory = || io::Error::from(io::ErrorKind::OutOfMemory);
        let len_bytes = usize::try_from(len_bytes)
            .ok()
            .and_then(|n| n.checked_next_multiple_of(PAGE_BYTES))
            .filter(|&n| n <= isize::MAX as usize - HUGE_PAGE_BYTES)
            .ok_or_else(out_of_memory)?;
        if len_bytes == 0 {
            // Offset 0 of an empty arena must still be an aligned address.
            let start = NonNull::without_provenance(
                std::num::NonZero::new(HUGE_PAGE_BYTES).ok_or_else(out_of_memory)?,
            );
            return Ok(Arena { start, len_bytes });
        }
        let reserved_bytes = len_bytes + HUGE_PAGE_BYTES;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let reserved = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                reserved_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?
        .cast::<u8>();
        let head_bytes = reserved.align_offset(HUGE_PAGE_BYTES);
        // SAFETY: `align_offset` stays below 2 MiB, which the reservation has to spare.
        let start = unsafe { reserved.add(head_bytes) };
        let tail_bytes = reserved_bytes - head_bytes - len_bytes;
        // SAFETY: both ranges are page-aligned parts of the reservation that nothing refers to.
        unsafe {
            if head_bytes != 0 {
                munmap(reserved.cast(), head_bytes)?;
            }
            if tail_bytes != 0 {
                munmap(start.add(len_bytes).cast(), tail_bytes)?;
            }
        }
        let arena = Arena {
            start: NonNull::new(start).ok_or_else(out_of_memory)?,
            len_bytes,
        };
        arena.allow_huge_pages();
        Ok(arena)
    }

    /// A huge page that reached past the arena would be charged whole, so only whole ones count.
    fn allow_huge_pages(&self) {
        let huge_bytes = self.len_bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        // SAFETY: both ranges lie in the mapping; the advice changes no contents.
        unsafe {
            if huge_bytes != 0 {
                // Advice: a kernel without huge pages refuses it, and small pages do.
                let _ = madvise(
                    self.start.as_ptr().cast(),
                    huge_bytes,
                    Advice::LinuxHugepage,
                );
            }
            if huge_bytes != self.len_bytes {
                let tail = self.start.as_ptr().add(huge_bytes).cast();
                let _ = madvise(tail, self.len_bytes - huge_bytes, Advice::LinuxNoHugepage);
            }
        }
    }

    /// Address of offset 0.
    pub fn base(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes of the mapping: what was asked for, in whole pages.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Address of `[offset, offset + bytes)`; `None` when that leaves the arena.
    pub fn at(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        self.map().at(offset, bytes)
    }

    /// Where it is, for whoever computes addresses while the arena itself is in use.
    pub(crate) fn map(&self) -> ArenaMap {
        ArenaMap {
            start: self.start,
            len_bytes: self.len_bytes,
        }
    }

    /// Gives all pages back to the kernel; the next touch finds zeros.
    ///
    /// # Safety
    /// Nothing may read or write the arena meanwhile, the storage device included.
    pub unsafe fn discard(&mut self) -> io::Result<()> {
        if self.len_bytes != 0 {
            // SAFETY: the range is the mapping, and the caller says that nobody uses it.
            unsafe {
                madvise(
                    self.start.as_ptr().cast(),
                    self.len_bytes,
                    Advice::LinuxDontNeed,
                )
            }?;
        }
        Ok(())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.len_bytes != 0 {
            // SAFETY: the mapping was made by `new` with this length. Whoever handed out its
            // addresses stopped their use first: a session drops its source before its arena.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len_bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_and_bounded() {
        let arena = Arena::new(5 * 1024 * 1024 + 1).unwrap();
        assert_eq!(arena.len_bytes(), 5 * 1024 * 1024 + PAGE_BYTES);
        assert!(arena.base().addr().is_multiple_of(HUGE_PAGE_BYTES));
        let last = arena.at(arena.len_bytes() as u64 - 1, 1).unwrap();
        // SAFETY: the byte lies in the arena, which nobody else uses.
        unsafe {
            assert_eq!(last.read(), 0);
            last.write(7);
            assert_eq!(last.read(), 7);
        }
        assert!(arena.at(arena.len_bytes() as u64, 1).is_none());
        assert!(arena.at(u64::MAX, 2).is_none());
        assert!(arena.at(arena.len_bytes() as u64, 0).is_some());
    }

    #[test]
    fn discarded_pages_read_as_zeros() {
        let mut arena = Arena::new(3 * 1024 * 1024).unwrap();
        let middle = arena.at(1_500_000, 1).unwrap();
        // SAFETY: nobody else uses the arena.
        unsafe {
            middle.write(9);
            arena.discard().unwrap();
            assert_eq!(middle.read(), 0);
        }
    }

    #[test]
    fn untouched_memory_is_not_charged() {
        let resident_bytes = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
            pages * PAGE_BYTES
        };
        let before = resident_bytes();
        let arena = Arena::new(1 << 30).unwrap();
        // SAFETY: the byte lies in the arena.
        unsafe { arena.base().write(1) };
        assert!(resident_bytes() < before + 64 * 1024 * 1024);
    }

    #[test]
    fn empty_and_impossible_sizes() {
        let mut empty = Arena::new(0).unwrap();
        assert!(empty.is_empty());
        assert!(empty.at(0, 0).is_some());
        assert!(empty.at(0, 1).is_none());
        // SAFETY: there is nothing to use.
        unsafe { empty.discard().unwrap() };
        assert!(Arena::new(u64::MAX).is_err());
        assert!(Arena::new(1 << 62).is_err());
    }
}
