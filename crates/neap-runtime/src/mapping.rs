//! Memory that a plan overwrites in each run: activations, workspaces, weights in flight.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ptr::NonNull;

const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 * 1024 * 1024;

/// Where offsets from `begin` on are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub start: NonNull<u8>,
    pub begin: u64,
    pub bytes: u64,
}

impl Addresses {
    /// Address of `[offset, offset + bytes)`; `None` when that is not all here.
    pub(crate) fn at(self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let inside = offset.checked_sub(self.begin)?;
        let end = inside.checked_add(bytes)?;
        // So the address is inside or one past the end.
        (end <= self.bytes).then(|| self.start.as_ptr().wrapping_add(inside as usize))
    }
}

/// Zeroed anonymous memory, aligned to huge pages, charged page by page as it is touched.
///
/// ```text
///   reserved    |······|══════════ mapping ══════════|···|
///               unmapped                              unmapped
///                      ^ multiple of 2 MiB           ^ multiple of 4 KiB
///                      |── huge pages allowed ──|────|   never past the last whole one
/// ```
///
/// It hands out addresses, not references: parts of it are written by the storage device while
/// others are read and written by kernels. Who holds an address vouches for the access; that the
/// parts in use at one time are disjoint is what [`neap_plan::validate`] proves of a plan.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the mapping belongs to this value alone; it is plain memory without thread affinity.
unsafe impl Send for Mapping {}

impl Mapping {
    /// `len_bytes` rounded up to whole pages; nothing is charged yet. `dense` memory is used from end
    /// to end and may come in huge pages.
    pub(crate) fn new(len_bytes: u64, dense: bool) -> io::Result<Mapping> {
        let out_of_memory = || io::Error::from(io::ErrorKind::OutOfMemory);
        let len_bytes = usize::try_from(len_bytes)
            .ok()
            .and_then(|n| n.checked_next_multiple_of(PAGE_BYTES))
            .filter(|&n| n <= isize::MAX as usize - HUGE_PAGE_BYTES)
            .ok_or_else(out_of_memory)?;
        if len_bytes == 0 {
            // Offset 0 of an empty one must still be an aligned address.
            let start = NonNull::without_provenance(
                std::num::NonZero::new(HUGE_PAGE_BYTES).ok_or_else(out_of_memory)?,
            );
            return Ok(Mapping { start, len_bytes });
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
        let mapping = Mapping {
            start: NonNull::new(start).ok_or_else(out_of_memory)?,
            len_bytes,
        };
        if dense {
            mapping.allow_huge_pages();
        }
        Ok(mapping)
    }

    /// A huge page that reached past the end would be charged whole, so only whole ones count.
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

    /// Bytes of the mapping: what was asked for, in whole pages.
    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(crate) fn addresses(&self) -> Addresses {
        Addresses {
            start: self.start,
            begin: 0,
            bytes: self.len_bytes as u64,
        }
    }

    /// Gives all pages back to the kernel; the next touch finds zeros.
    ///
    /// # Safety
    /// Nothing may read or write it meanwhile, the storage device included.
    pub(crate) unsafe fn discard(&mut self) -> io::Result<()> {
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

impl Drop for Mapping {
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
        let mapping = Mapping::new(5 * 1024 * 1024 + 1, true).unwrap();
        assert_eq!(mapping.len_bytes(), 5 * 1024 * 1024 + PAGE_BYTES);
        assert!(
            mapping
                .addresses()
                .at(0, 1)
                .unwrap()
                .addr()
                .is_multiple_of(HUGE_PAGE_BYTES)
        );
        let last = mapping
            .addresses()
            .at(mapping.len_bytes() as u64 - 1, 1)
            .unwrap();
        // SAFETY: the byte lies in the mapping, which nobody else uses.
        unsafe {
            assert_eq!(last.read(), 0);
            last.write(7);
            assert_eq!(last.read(), 7);
        }
        assert!(
            mapping
                .addresses()
                .at(mapping.len_bytes() as u64, 1)
                .is_none()
        );
        assert!(mapping.addresses().at(u64::MAX, 2).is_none());
        assert!(
            mapping
                .addresses()
                .at(mapping.len_bytes() as u64, 0)
                .is_some()
        );
    }

    #[test]
    fn discarded_pages_read_as_zeros() {
        let mut mapping = Mapping::new(3 * 1024 * 1024, true).unwrap();
        let middle = mapping.addresses().at(1_500_000, 1).unwrap();
        // SAFETY: nobody else uses the mapping.
        unsafe {
            middle.write(9);
            mapping.discard().unwrap();
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
        let mapping = Mapping::new(1 << 30, true).unwrap();
        // SAFETY: the byte lies in the mapping.
        unsafe { mapping.addresses().at(0, 1).unwrap().write(1) };
        assert!(resident_bytes() < before + 64 * 1024 * 1024);
    }

    #[test]
    fn empty_and_impossible_sizes() {
        let mut empty = Mapping::new(0, true).unwrap();
        assert_eq!(empty.len_bytes(), 0);
        assert!(empty.addresses().at(0, 0).is_some());
        assert!(empty.addresses().at(0, 1).is_none());
        // SAFETY: there is nothing to use.
        unsafe { empty.discard().unwrap() };
        assert!(Mapping::new(u64::MAX, true).is_err());
        assert!(Mapping::new(1 << 62, true).is_err());
    }
}
