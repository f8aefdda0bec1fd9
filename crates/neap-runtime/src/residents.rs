//! Resident weights: every byte of the file has its own place in one reserved range of addresses.
//!
//! ```text
//!   file        │ w0 │ w1 │ w2 │ w3 │ w4 │ w5 │
//!   addresses   │▓▓▓▓│▓▓▓▓│    │▓▓▓▓│    │▓▓▓▓│      ▓ in memory, the rest reserved and not charged
//!   next plan   │▓▓▓▓│    │▒▒▒▒│▓▓▓▓│    │▓▓▓▓│      ▓ stays where it is   ▒ read
//! ```
//! So a weight that two plans keep is neither read again nor moved when one follows the other,
//! and what a plan gives up is the kernel's at once, wherever it lies.

use crate::mapping::Addresses;
use crate::ranges::{bytes_of, difference, set_of};
use neap_plan::ByteRange;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap,
};
use std::io;
use std::ptr::NonNull;

const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: u64 = 2 * 1024 * 1024;

/// Reserved addresses for the weights of one file, part of them with memory.
#[derive(Debug)]
pub(crate) struct Residents {
    /// What is reserved, a huge page longer than the span.
    reserved: NonNull<u8>,
    reserved_bytes: usize,
    /// Address of the span's first byte: a multiple of 2 MiB.
    start: NonNull<u8>,
    /// Of the file, in whole blocks.
    span: ByteRange,
    /// File ranges that are in memory, read and checked.
    held: Vec<ByteRange>,
}

// SAFETY: the reservation belongs to this value alone; it is plain memory without thread affinity.
unsafe impl Send for Residents {}

impl Residents {
    /// Reserves addresses for a span of the file. Nothing is charged.
    pub(crate) fn new(span: ByteRange) -> io::Result<Residents> {
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let mut residents = Residents {
            reserved: NonNull::dangling(),
            reserved_bytes: 0,
            start: NonNull::dangling(),
            span,
            held: Vec::new(),
        };
        if span.is_empty() {
            return Ok(residents);
        }
        let reserved_bytes = usize::try_from(span.len())
            .ok()
            .and_then(|n| n.checked_add(HUGE_PAGE_BYTES as usize))
            .filter(|&n| n <= isize::MAX as usize)
            .ok_or_else(too_large)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let reserved = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                reserved_bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?
        .cast::<u8>();
        residents.reserved = NonNull::new(reserved).ok_or_else(too_large)?;
        residents.reserved_bytes = reserved_bytes;
        let head_bytes = reserved.align_offset(HUGE_PAGE_BYTES as usize);
        // SAFETY: `align_offset` stays below 2 MiB, which the reservation has to spare.
        residents.start = unsafe { residents.reserved.add(head_bytes) };
        Ok(residents)
    }

    pub(crate) fn span(&self) -> ByteRange {
        self.span
    }

    /// Bytes in memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        bytes_of(&self.held)
    }

    /// By file offset.
    pub(crate) fn addresses(&self) -> Addresses {
        Addresses {
            start: self.start,
            begin: self.span.begin,
            bytes: self.span.len(),
        }
    }

    /// What of the set `wanted` is not in memory.
    pub(crate) fn missing(&self, wanted: &[ByteRange]) -> Vec<ByteRange> {
        difference(wanted, &self.held)
    }

    /// Gives everything back to the kernel but the set `wanted`; says how many bytes that were.
    ///
    /// # Safety
    /// Nothing uses what is given up, the storage device included.
    pub(crate) unsafe fn keep_only(&mut self, wanted: &[ByteRange]) -> io::Result<u64> {
        let dropped = difference(&self.held, wanted);
        self.held = difference(&self.held, &dropped);
        // SAFETY: passed on.
        unsafe { self.give_back(&dropped) }?;
        Ok(bytes_of(&dropped))
    }

    /// Lets ranges of the span be written; memory is charged as they are. What comes of it is told
    /// by [`Residents::hold`] or [`Residents::give_back`].
    pub(crate) fn make_room(&mut self, ranges: &[ByteRange]) -> io::Result<()> {
        for &range in ranges {
            let (start, bytes) = self.place(range)?;
            // SAFETY: the range lies in the reservation, and is not in memory: no contents change.
            unsafe {
                mprotect(
                    start.cast(),
                    bytes,
                    MprotectFlags::READ | MprotectFlags::WRITE,
                )
            }?;
            // A huge page never covers bytes that are not writable, so none is charged that is not
            // wanted. Advice: a kernel without huge pages refuses it.
            // SAFETY: as above.
            let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxHugepage) };
        }
        Ok(())
    }

    /// The ranges have been read and checked.
    pub(crate) fn hold(&mut self, ranges: impl IntoIterator<Item = ByteRange>) {
        let mut held = std::mem::take(&mut self.held);
        held.extend(ranges);
        self.held = set_of(held);
    }

    /// Returns ranges that are not held to the kernel.
    ///
    /// # Safety
    /// Nothing uses them, the storage device included.
    pub(crate) unsafe fn give_back(&mut self, ranges: &[ByteRange]) -> io::Result<()> {
        for &range in ranges {
            let (start, bytes) = self.place(range)?;
            self.split_huge_pages(range);
            // A new mapping in its place takes the page tables away too.
            // SAFETY: the range lies in the reservation, and the caller says that it is unused.
            unsafe {
                mmap_anonymous(
                    start.cast(),
                    bytes,
                    ProtFlags::empty(),
                    MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
                )
            }?;
        }
        Ok(())
    }

    /// A huge page of which a part is unmapped stays charged whole until the kernel is short of
    /// memory. Being told that a part, be it 4 KiB, is free to be taken, it splits the page now.
    fn split_huge_pages(&self, range: ByteRange) {
        let origin = self.span.begin;
        let head_end = origin + (range.begin - origin).next_multiple_of(HUGE_PAGE_BYTES);
        let tail_begin = origin + (range.end - origin) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        let head = ByteRange::new(range.begin, head_end.min(range.end));
        let tail = ByteRange::new(tail_begin.max(head.end), range.end);
        for part in [head, tail] {
            if !part.is_empty()
                && let Ok((start, _)) = self.place(part)
            {
                // SAFETY: the part is whole blocks of a range that the caller is about to unmap.
                let _ = unsafe { madvise(start.cast(), PAGE_BYTES, Advice::LinuxFree) };
            }
        }
    }

    /// Address and length of a file range in the span.
    fn place(&self, range: ByteRange) -> io::Result<(*mut u8, usize)> {
        self.addresses()
            .at(range.begin, range.len())
            .map(|start| (start, range.len() as usize))
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
    }
}

impl Drop for Residents {
    fn drop(&mut self) {
        if self.reserved_bytes != 0 {
            // SAFETY: the mapping was made by `new` with this length. Whoever handed out its
            // addresses stopped their use first: a session drops its source before its arena.
            let _ = unsafe { munmap(self.reserved.as_ptr().cast(), self.reserved_bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn resident_bytes() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
        pages * 4096
    }

    fn fill(residents: &mut Residents, ranges: &[ByteRange]) {
        residents.make_room(ranges).unwrap();
        for r in ranges {
            let at = residents.addresses().at(r.begin, r.len());
            // SAFETY: the range has just been made writable, and nobody else uses it.
            unsafe { at.unwrap().write_bytes(r.begin as u8 | 1, r.len() as usize) };
        }
        residents.hold(ranges.iter().copied());
    }

    #[test]
    fn what_two_plans_keep_stays_where_it_is() {
        let mut residents = Residents::new(ByteRange::at(4096, 96 * MIB)).unwrap();
        let before = resident_bytes();
        let all = [ByteRange::at(4096, 96 * MIB)];
        fill(&mut residents, &all);
        assert!(resident_bytes() > before + 90 * MIB);
        // Odd places: in the middle of huge pages.
        let few: Vec<ByteRange> = (0..24)
            .map(|i| ByteRange::at(4096 + i * 4 * MIB + MIB, 12288))
            .collect();
        let address = residents.addresses().at(few[3].begin, 1);
        // SAFETY: nobody uses what goes.
        let released = unsafe { residents.keep_only(&few) }.unwrap();
        assert_eq!(released, 96 * MIB - 24 * 12288);
        assert!(resident_bytes() < before + 40 * MIB);
        assert_eq!(residents.held_bytes(), 24 * 12288);
        assert_eq!(residents.missing(&few), []);
        assert_eq!(residents.addresses().at(few[3].begin, 1), address);
        // SAFETY: the byte is held.
        assert_eq!(unsafe { address.unwrap().read() }, 1);
        let missing = residents.missing(&all);
        assert_eq!(bytes_of(&missing), released);
        fill(&mut residents, &missing);
        assert_eq!(residents.missing(&all), []);
    }

    #[test]
    fn bounds() {
        let residents = Residents::new(ByteRange::at(8192, 8192)).unwrap();
        assert!(residents.addresses().at(8192, 8192).is_some());
        assert!(residents.addresses().at(4096, 1).is_none());
        assert!(residents.addresses().at(12288, 4097).is_none());
        assert!(residents.addresses().at(u64::MAX, 2).is_none());
        let mut residents = Residents::new(ByteRange::at(0, 0)).unwrap();
        assert!(residents.addresses().at(0, 0).is_some());
        assert!(residents.addresses().at(0, 1).is_none());
        assert!(residents.make_room(&[ByteRange::at(0, 4096)]).is_err());
        assert!(Residents::new(ByteRange::at(0, u64::MAX / 2 * 2)).is_err());
    }
}
