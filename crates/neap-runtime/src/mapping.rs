//! Memory that grows and shrinks in place: a reserved range of addresses, the first part of it in use.
//!
//! It comes in huge pages as far as it can. Not only computing is faster there: a drive that is reached
//! through a list of the pages to fill (as virtual ones are) reads several times faster into few large
//! ones than into many small ones.

use neap_plan::ByteRange;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap,
};
use std::io;
use std::ptr::NonNull;

const PAGE_BYTES: u64 = 4096;
pub(crate) const HUGE_PAGE_BYTES: u64 = 2 * 1024 * 1024;

/// Where memory in use is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub start: NonNull<u8>,
    pub bytes: u64,
}

// SAFETY: it only tells where memory is. Who accesses it vouches for that.
unsafe impl Send for Addresses {}
// SAFETY: as above.
unsafe impl Sync for Addresses {}

impl Addresses {
    /// Address of `[offset, offset + bytes)`; `None` when that is not all here.
    pub(crate) fn at(self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        // So the address is inside or one past the end.
        (end <= self.bytes).then(|| self.start.as_ptr().wrapping_add(offset as usize))
    }

    /// The first `bytes`, or all if there are fewer.
    pub(crate) fn first(self, bytes: u64) -> Addresses {
        Addresses {
            bytes: self.bytes.min(bytes),
            ..self
        }
    }

    /// What there is from `offset` on, which is at most all of it.
    pub(crate) fn from(self, offset: u64) -> Addresses {
        let offset = offset.min(self.bytes);
        Addresses {
            // SAFETY: the result is inside or one past the end.
            start: unsafe { self.start.add(offset as usize) },
            bytes: self.bytes - offset,
        }
    }
}

/// Zeroed anonymous memory, charged page by page as it is touched.
///
/// ```text
///   reserved   │······│═══════════ in use ═════════════│·············│
///                     ^ start                          ^ multiple of 4 KiB
///                     │head│── huge pages allowed ──│──│   whole ones only
/// ```
/// It hands out addresses, not references; who holds one vouches for the access.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// What is mapped, longer than what can be in use.
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    start: NonNull<u8>,
    reserved_bytes: u64,
    len_bytes: u64,
}

// SAFETY: the mapping belongs to this value alone; it is plain memory without thread affinity.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Reserves addresses, of which none is in use. The byte at offset `aligned`, a multiple of 4 KiB,
    /// gets an address that is a multiple of 2 MiB.
    pub(crate) fn reserve(bytes: u64, aligned: u64) -> io::Result<Mapping> {
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let mapped_bytes = bytes
            .checked_next_multiple_of(PAGE_BYTES)
            // To be aligned, and so that all of a huge page lies in it of which a part is the head.
            .and_then(|n| n.checked_add(2 * HUGE_PAGE_BYTES))
            .and_then(|n| usize::try_from(n).ok())
            .filter(|&n| n <= isize::MAX as usize)
            .ok_or_else(too_large)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let mapped = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped_bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let mapped = NonNull::new(mapped.cast::<u8>()).ok_or_else(too_large)?;
        let there = mapped.addr().get() as u64 + aligned % HUGE_PAGE_BYTES;
        let skipped_bytes = there.next_multiple_of(HUGE_PAGE_BYTES) - there + HUGE_PAGE_BYTES;
        Ok(Mapping {
            mapped,
            mapped_bytes,
            // SAFETY: that is less than 4 MiB, which the reservation has to spare.
            start: unsafe { mapped.add(skipped_bytes as usize) },
            reserved_bytes: bytes.next_multiple_of(PAGE_BYTES),
            len_bytes: 0,
        })
    }

    /// Puts the first `len_bytes`, rounded up to whole pages, in use. What was in use before keeps its
    /// contents; nothing else is charged before it is touched, and nothing past the end any more.
    /// `dense` memory is used from end to end and may come in huge pages.
    pub(crate) fn resize(&mut self, len_bytes: u64, dense: bool) -> io::Result<()> {
        let len_bytes = len_bytes
            .checked_next_multiple_of(PAGE_BYTES)
            .filter(|&n| n <= self.reserved_bytes)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        if len_bytes < self.len_bytes {
            self.split_huge_page_at(len_bytes);
            // A new mapping in its place takes the page tables away too.
            // SAFETY: the range lies in the mapping. The caller gives up what is in it.
            unsafe {
                mmap_anonymous(
                    self.start.as_ptr().add(len_bytes as usize).cast(),
                    (self.len_bytes - len_bytes) as usize,
                    ProtFlags::empty(),
                    MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
                )
            }?;
        }
        if len_bytes > self.len_bytes {
            // SAFETY: the range lies in the mapping; no contents change.
            unsafe {
                mprotect(
                    self.start.as_ptr().cast(),
                    len_bytes as usize,
                    MprotectFlags::READ | MprotectFlags::WRITE,
                )
            }?;
        }
        self.len_bytes = len_bytes;
        self.advise_huge_pages(dense);
        Ok(())
    }

    /// Of what is in use only `parts`, a set in whole pages, will be touched: huge pages may come where they hold
    /// nothing else.
    pub(crate) fn expect_only(&mut self, parts: &[ByteRange]) {
        let first = self.start.addr().get() as u64;
        for part in parts {
            let begin = (first + part.begin).next_multiple_of(HUGE_PAGE_BYTES) - first;
            let end = (first + part.end.min(self.len_bytes)) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            let end = end.saturating_sub(first);
            if begin < end {
                let start = self.start.as_ptr().wrapping_add(begin as usize).cast();
                // SAFETY: the range lies in the mapping; the advice changes no contents.
                let _ = unsafe { madvise(start, (end - begin) as usize, Advice::LinuxHugepage) };
            }
        }
    }

    /// Of what is in use only `parts`, a set in whole pages, stays; the rest is the kernel's until it is touched.
    ///
    /// # Safety
    /// Nothing reads or writes the rest meanwhile, the storage device included.
    pub(crate) unsafe fn keep_only(&mut self, parts: &[ByteRange]) -> io::Result<()> {
        let mut end = 0;
        for part in parts {
            // SAFETY: passed on; a part begins at or after the end of the one before.
            unsafe { self.discard_gap(ByteRange::new(end, part.begin.min(self.len_bytes)))? };
            end = part.end;
        }
        // SAFETY: passed on.
        unsafe { self.discard_gap(ByteRange::new(end.min(self.len_bytes), self.len_bytes)) }
    }

    /// # Safety
    /// Nothing reads or writes the range, which lies in what is in use.
    unsafe fn discard_gap(&mut self, gap: ByteRange) -> io::Result<()> {
        if gap.is_empty() {
            return Ok(());
        }
        self.split_huge_page_at(gap.begin);
        if !(self.start.addr().get() as u64 + gap.end).is_multiple_of(HUGE_PAGE_BYTES) {
            self.split_huge_page_at(gap.end - PAGE_BYTES);
        }
        // SAFETY: the range lies in the mapping, and nobody uses it.
        unsafe {
            madvise(
                self.start.as_ptr().add(gap.begin as usize).cast(),
                gap.len() as usize,
                Advice::LinuxDontNeed,
            )
        }?;
        Ok(())
    }

    /// What lies before the first whole huge page.
    fn head_bytes(&self) -> u64 {
        let first = self.start.addr().get() as u64;
        (first.next_multiple_of(HUGE_PAGE_BYTES) - first).min(self.len_bytes)
    }

    /// Puts zeroed pages that lie one after the other in physical memory into the head, whose contents go: a
    /// drive that is reached through a list of pages reads into them nearly as fast as into a huge page, and more
    /// than twice as fast as into pages from here and there.
    ///
    /// ```text
    ///   │····· a huge page of which ·····│▓▓ only the head ▓▓│ stays, in small pages
    ///   ^ 2 MiB boundary                 ^ start             ^ 2 MiB boundary
    /// ```
    /// For a moment all of the huge page is charged. Where the kernel has none to give, nothing is taken but the
    /// head, in pages from anywhere; the same if it refuses anything else.
    ///
    /// # Safety
    /// Nothing reads or writes the head.
    pub(crate) unsafe fn join_head(&mut self) {
        let first = self.start.addr().get() as u64;
        let (head_bytes, before) = (self.head_bytes(), (first % HUGE_PAGE_BYTES) as usize);
        if head_bytes == 0 || before as u64 + head_bytes != HUGE_PAGE_BYTES {
            return;
        }
        let start = self.start.as_ptr();
        // That much is mapped before the start of every mapping.
        let boundary = start.wrapping_sub(before);
        // SAFETY: from the boundary to the end of the head all lies in the mapping, and nobody uses it: the head as
        // the caller says, and what is before it as it is not in use. Each of these may fail without harm.
        unsafe {
            // Anew, as a table of small pages may be left here, which a huge one does not replace.
            let anew = mmap_anonymous(
                boundary.cast(),
                HUGE_PAGE_BYTES as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            );
            if anew.is_err() {
                return;
            }
            let _ = madvise(
                boundary.cast(),
                HUGE_PAGE_BYTES as usize,
                Advice::LinuxHugepage,
            );
            // A page of zeros would not outlive the split: the kernel keeps one for all of them.
            for page in (0..head_bytes).step_by(PAGE_BYTES as usize) {
                start.add(page as usize).write_volatile(1);
            }
            // What is free to be taken is split off at once; only unmapped, it would stay charged.
            let _ = madvise(boundary.cast(), PAGE_BYTES as usize, Advice::LinuxFree);
            for page in (0..head_bytes).step_by(PAGE_BYTES as usize) {
                start.add(page as usize).write_volatile(0);
            }
            let _ = madvise(start.cast(), head_bytes as usize, Advice::LinuxNoHugepage);
            let _ = mmap_anonymous(
                boundary.cast(),
                before,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            );
        }
    }

    /// A huge page that reached past an end would be charged whole, so only whole ones count.
    fn advise_huge_pages(&self, dense: bool) {
        let first = self.start.addr().get() as u64;
        let head_bytes = self.head_bytes();
        let huge_end = ((first + self.len_bytes) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES)
            .saturating_sub(first)
            .max(head_bytes);
        let huge_end = if dense { huge_end } else { head_bytes };
        let parts = [
            (0, head_bytes, Advice::LinuxNoHugepage),
            (head_bytes, huge_end, Advice::LinuxHugepage),
            (huge_end, self.len_bytes, Advice::LinuxNoHugepage),
        ];
        for (begin, end, advice) in parts {
            if begin < end {
                let start = self.start.as_ptr().wrapping_add(begin as usize);
                // Advice: a kernel without huge pages refuses it, and small pages do.
                // SAFETY: the range lies in the mapping; the advice changes no contents.
                let _ = unsafe { madvise(start.cast(), (end - begin) as usize, advice) };
            }
        }
    }

    /// A huge page of which a part is unmapped stays charged whole until the kernel is short of
    /// memory. Being told that a part, be it 4 KiB, is free to be taken, it splits the page now.
    fn split_huge_page_at(&self, offset: u64) {
        let start = self.start.as_ptr().wrapping_add(offset as usize);
        if !start.addr().is_multiple_of(HUGE_PAGE_BYTES as usize) {
            // SAFETY: the page is in use, since an offset in the middle of a page is not the end of
            // the mapping, and the caller is about to discard it.
            let _ = unsafe { madvise(start.cast(), PAGE_BYTES as usize, Advice::LinuxFree) };
        }
    }

    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Of what is in use, what the kernel charges: pages that were touched, and of huge pages the rest, too.
    pub(crate) fn charged_bytes(&self) -> io::Result<u64> {
        const PAGES: usize = 4096;
        let mut is_here = [0u8; PAGES];
        let mut pages = 0u64;
        let mut offset = 0;
        while offset < self.len_bytes {
            let bytes = (self.len_bytes - offset).min(PAGES as u64 * PAGE_BYTES);
            let count = bytes.div_ceil(PAGE_BYTES) as usize;
            let start = self.start.as_ptr().wrapping_add(offset as usize);
            // SAFETY: the range lies in the mapping, at a page's beginning, and there is a byte for each of its pages.
            let told = unsafe { libc::mincore(start.cast(), bytes as usize, is_here.as_mut_ptr()) };
            if told != 0 {
                return Err(io::Error::last_os_error());
            }
            pages += is_here[..count].iter().filter(|&&b| b & 1 == 1).count() as u64;
            offset += bytes;
        }
        Ok(pages * PAGE_BYTES)
    }

    /// What is in use, in whole pages.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    pub(crate) fn addresses(&self) -> Addresses {
        Addresses {
            start: self.start,
            bytes: self.len_bytes,
        }
    }

    /// Gives all pages back to the kernel; the next touch finds zeros.
    ///
    /// # Safety
    /// Nothing may read or write them meanwhile, the storage device included.
    pub(crate) unsafe fn discard(&mut self) -> io::Result<()> {
        if self.len_bytes != 0 {
            // SAFETY: the range is in use, and the caller says that nobody uses it now.
            unsafe {
                madvise(
                    self.start.as_ptr().cast(),
                    self.len_bytes as usize,
                    Advice::LinuxDontNeed,
                )
            }?;
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `reserve` with this length. Whoever handed out its
        // addresses stopped their use first: a session drops its source before its arena.
        let _ = unsafe { munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of the program come and go as its tests touch them: without those.
    fn charged_bytes() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: Vec<u64> = statm.split(' ').flat_map(str::parse).collect();
        let (resident, of_files) = (pages[1], pages[2]);
        (resident - of_files) * PAGE_BYTES
    }

    #[test]
    fn aligned_zeroed_and_bounded() {
        let mut mapping = Mapping::reserve(16 << 20, 0).unwrap();
        assert!(mapping.addresses().at(0, 1).is_none());
        mapping.resize(5 * 1024 * 1024 + 1, true).unwrap();
        let len_bytes = 5 * 1024 * 1024 + PAGE_BYTES;
        assert_eq!(mapping.len_bytes(), len_bytes);
        let memory = mapping.addresses();
        let start = memory.at(0, 1).unwrap();
        assert!(start.addr().is_multiple_of(HUGE_PAGE_BYTES as usize));
        let last = memory.at(len_bytes - 1, 1).unwrap();
        // SAFETY: the byte lies in the mapping, which nobody else uses.
        unsafe {
            assert_eq!(last.read(), 0);
            last.write(7);
            assert_eq!(last.read(), 7);
        }
        assert!(memory.at(len_bytes, 1).is_none());
        assert!(memory.at(u64::MAX, 2).is_none());
        assert!(memory.at(len_bytes, 0).is_some());
    }

    #[test]
    fn contents_stay_below_the_end_and_memory_goes_past_it() {
        let before = charged_bytes();
        let mut mapping = Mapping::reserve(64 << 20, 0).unwrap();
        mapping.resize(64 << 20, true).unwrap();
        let start = mapping.addresses().at(0, 64 << 20).unwrap();
        // SAFETY: nobody else uses the mapping.
        unsafe { start.write_bytes(9, 64 << 20) };
        assert!(charged_bytes() > before + (60 << 20));
        let odd_bytes = (21 << 20) + 3 * PAGE_BYTES;
        mapping.resize(odd_bytes, true).unwrap();
        assert!(charged_bytes() < before + (25 << 20));
        assert!(mapping.addresses().at(odd_bytes, 1).is_none());
        mapping.resize(40 << 20, false).unwrap();
        // SAFETY: as above.
        unsafe {
            assert_eq!(start.add(odd_bytes as usize - 1).read(), 9);
            assert_eq!(start.add(odd_bytes as usize).read(), 0);
            mapping.discard().unwrap();
            assert_eq!(start.add(PAGE_BYTES as usize).read(), 0);
        }
        assert!(charged_bytes() < before + (4 << 20));
    }

    #[test]
    fn any_block_can_be_the_aligned_one() {
        let odd_bytes = (5 << 20) + 3 * PAGE_BYTES;
        let mut mapping = Mapping::reserve(odd_bytes, odd_bytes).unwrap();
        mapping.resize(odd_bytes, true).unwrap();
        let end = mapping.addresses().at(odd_bytes, 0).unwrap();
        assert!(end.addr().is_multiple_of(HUGE_PAGE_BYTES as usize));
        let start = mapping.addresses().at(0, odd_bytes).unwrap();
        // SAFETY: nobody else uses the mapping.
        unsafe {
            start.write_bytes(5, odd_bytes as usize);
            mapping.discard().unwrap();
            assert_eq!(start.read(), 0);
        }
    }

    #[test]
    fn untouched_memory_is_not_charged() {
        let before = charged_bytes();
        let mut mapping = Mapping::reserve(1 << 40, 4096).unwrap();
        mapping.resize(1 << 30, true).unwrap();
        // SAFETY: the byte lies in the mapping.
        unsafe { mapping.addresses().at(0, 1).unwrap().write(1) };
        assert!(charged_bytes() < before + (64 << 20));
    }

    /// Where the kernel tells: the numbers of the physical pages from an address on.
    fn page_frames(start: *const u8, pages: usize) -> Option<Vec<u64>> {
        use std::os::unix::fs::FileExt;
        let pagemap = std::fs::File::open("/proc/self/pagemap").ok()?;
        let mut bytes = vec![0; pages * 8];
        let at = start.addr() as u64 / PAGE_BYTES * 8;
        pagemap.read_exact_at(&mut bytes, at).ok()?;
        let entries = bytes.chunks_exact(8);
        let frames = entries.map(|e| u64::from_le_bytes(e.try_into().unwrap()) & ((1 << 55) - 1));
        let frames: Vec<u64> = frames.collect();
        frames.iter().all(|&f| f != 0).then_some(frames)
    }

    #[test]
    fn the_head_is_zeroed_charged_alone_and_in_one_piece() {
        let (head_bytes, huge) = (5 * PAGE_BYTES, HUGE_PAGE_BYTES);
        for head_bytes in [PAGE_BYTES, head_bytes, huge - PAGE_BYTES, huge / 2] {
            let before = charged_bytes();
            let bytes = huge + head_bytes;
            let mut mapping = Mapping::reserve(bytes, bytes).unwrap();
            mapping.resize(bytes, true).unwrap();
            for _ in 0..2 {
                // SAFETY: nobody else uses the mapping.
                unsafe {
                    mapping.discard().unwrap();
                    mapping.join_head();
                }
                assert!(charged_bytes() < before + head_bytes + (64 << 10));
            }
            let start = mapping.addresses().at(0, bytes).unwrap();
            // SAFETY: as above.
            let memory = unsafe { std::slice::from_raw_parts_mut(start, bytes as usize) };
            assert!(memory.iter().all(|&byte| byte == 0));
            memory.fill(3);
            assert!(charged_bytes() < before + bytes + (64 << 10));
            let frames = |at: u64, len: u64| {
                let start = start.wrapping_add(at as usize);
                page_frames(start, (len / PAGE_BYTES) as usize)
            };
            let in_one_piece = |f: &Vec<u64>| f.windows(2).all(|w| w[1] == w[0] + 1);
            match (frames(0, head_bytes), frames(head_bytes, huge)) {
                (Some(head), Some(rest)) if in_one_piece(&rest) => assert!(in_one_piece(&head)),
                _ => eprintln!("SKIPPED: no huge pages here, or no right to see where pages are"),
            }
        }
    }

    #[test]
    fn a_head_that_ends_before_the_huge_page_does_is_left_alone() {
        for bytes in [0, PAGE_BYTES] {
            let mut mapping = Mapping::reserve(4 * HUGE_PAGE_BYTES, 2 * PAGE_BYTES).unwrap();
            mapping.resize(bytes, true).unwrap();
            let before = charged_bytes();
            // SAFETY: nobody else uses the mapping.
            unsafe { mapping.join_head() };
            assert!(charged_bytes() < before + (64 << 10));
        }
    }

    #[test]
    fn empty_and_impossible_sizes() {
        let mut empty = Mapping::reserve(0, 0).unwrap();
        empty.resize(0, true).unwrap();
        assert_eq!(empty.len_bytes(), 0);
        // Offset 0 of an empty one must still be an aligned address.
        let start = empty.addresses().at(0, 0).unwrap();
        assert!(start.addr().is_multiple_of(HUGE_PAGE_BYTES as usize));
        assert!(empty.addresses().at(0, 1).is_none());
        // SAFETY: there is nothing to use.
        unsafe { empty.discard().unwrap() };
        assert!(empty.resize(PAGE_BYTES, true).is_err());
        assert!(Mapping::reserve(u64::MAX, 0).is_err());
        assert!(Mapping::reserve(1 << 62, 0).is_err());
    }
}
