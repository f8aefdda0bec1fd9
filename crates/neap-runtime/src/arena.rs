//! The arena: all memory that a session's activations, workspaces and weights live in.

use crate::mapping::{Addresses, HUGE_PAGE_BYTES, Mapping};
use crate::placement::{Placement, RESIDENT_BASE};
use crate::residents::{Move, Residents};
use neap_plan::ByteRange;
use std::io;

/// What each run overwrites, and resident weights:
///
/// ```text
///   offset    0 …                work_bytes      RESIDENT_BASE …
///   memory    │░│▓▓▓▓▓▓▓▓ work ▓▓▓▓▓▓▓▓│         │▓▓▓▓▓▓▓▓▓▓ residents ▓▓▓▓▓▓▓▓▓│░│
///                            2 MiB boundary ^    ^ 2 MiB boundary         ▓ huge pages
/// ```
/// So the small pages that a size brings which is no multiple of 2 MiB lie where loads go less often: at the
/// low offsets, where activations are. Where memory allows they are neighbours in physical memory, too. Work is
/// worthless between runs and mapped anew for each plan; residents begin at the same address under every plan.
///
/// It hands out addresses, not references: parts of it are written by the storage device while
/// others are read and written by kernels. Who holds an address vouches for the access; that the
/// parts in use at one time are disjoint is what [`neap_plan::validate`] proves of a plan.
#[derive(Debug)]
pub(crate) struct Arena {
    work: Mapping,
    weights: Mapping,
    /// What of `weights` is what of the file.
    residents: Residents,
    /// Whether all of `work` may be charged.
    is_dense: bool,
    /// Whether `work` may be written since it was mapped or given back.
    is_ready: bool,
    /// No change of plans was left half done.
    is_whole: bool,
}

/// Tells addresses in an arena, which must live, as it is, for as long as they are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArenaMap {
    work: Addresses,
    weights: Addresses,
}

impl ArenaMap {
    /// Address of `[offset, offset + bytes)`; `None` when that leaves the arena.
    pub(crate) fn at(self, offset: u64, bytes: u64) -> Option<*mut u8> {
        match offset.checked_sub(RESIDENT_BASE) {
            Some(at) => self.weights.at(at, bytes),
            None => self.work.at(offset, bytes),
        }
    }
}

impl Arena {
    /// Nothing is charged yet.
    pub(crate) fn new(placement: Placement) -> io::Result<Arena> {
        Ok(Arena {
            work: work(&placement)?,
            weights: weights(&placement)?,
            is_dense: placement.dense,
            residents: placement.residents,
            is_ready: false,
            is_whole: true,
        })
    }

    /// Whether it is as a plan wants it; if not, its contents mean nothing.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Where it is, for whoever computes addresses while the arena itself is in use.
    pub(crate) fn map(&self) -> ArenaMap {
        ArenaMap {
            work: self.work.addresses(),
            weights: self.weights.addresses(),
        }
    }

    /// The most that is charged: work and resident weights.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.work.len_bytes() + self.residents.bytes()
    }

    pub(crate) fn residents(&self) -> &Residents {
        &self.residents
    }

    /// The ranges of resident weights have been read and checked.
    pub(crate) fn hold(&mut self, ranges: impl IntoIterator<Item = ByteRange>) {
        self.residents.hold(ranges);
    }

    /// The offset at which a resident weight lies, by its place in the file.
    pub(crate) fn offset_of(&self, file_offset: u64) -> Option<u64> {
        let at = self.residents.offset_of(file_offset)?;
        Some(RESIDENT_BASE + at)
    }

    /// Gives what runs overwrite back to the kernel; it comes again, zeroed, when it is touched.
    ///
    /// # Safety
    /// Nothing reads or writes the arena, the storage device included.
    pub(crate) unsafe fn discard_work(&mut self) -> io::Result<()> {
        self.is_ready = false;
        // SAFETY: passed on.
        unsafe { self.work.discard() }
    }

    /// Whether runs may write to it; if not, [`Arena::prepare`] comes first.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Makes work ready to be written, beside resident weights of which `held_bytes` are in memory already.
    ///
    /// # Safety
    /// Nothing reads or writes the arena, the storage device included.
    pub(crate) unsafe fn prepare(&mut self, held_bytes: u64) {
        // A huge page is charged for a moment, of which the plan is to have room.
        if self.is_dense && held_bytes.saturating_add(HUGE_PAGE_BYTES) <= self.len_bytes() {
            // SAFETY: passed on.
            unsafe { self.work.join_head() };
        }
        self.is_ready = true;
    }

    /// Goes over to another plan's needs: resident weights that it keeps stay in memory, moved to
    /// their new offsets; memory that it does not need is the kernel's. Says how many bytes of
    /// resident weights went. After an error it is as it was, or not [`Arena::is_whole`].
    ///
    /// Never takes more than the larger of the two plans.
    ///
    /// # Safety
    /// Nothing reads or writes the arena, the storage device included.
    pub(crate) unsafe fn reshape(&mut self, placement: Placement) -> io::Result<u64> {
        let old_bytes = self.residents.held_bytes();
        let bytes = placement.residents.span_bytes();
        // What may fail comes first; nothing of it is charged yet.
        let work = work(&placement)?;
        if bytes > self.weights.reserved_bytes() {
            *self = Arena {
                work,
                weights: weights(&placement)?,
                is_dense: placement.dense,
                residents: placement.residents,
                is_ready: false,
                is_whole: true,
            };
            return Ok(old_bytes);
        }
        let most_bytes = self.len_bytes().max(placement.bytes());
        let mut residents = placement.residents;
        let moves = residents.take_over(&self.residents, most_bytes);
        let packed = residents.is_packed();
        self.is_whole = false;
        if residents.held_bytes() == 0 {
            // So that it comes in huge pages.
            self.weights.resize(0, true)?;
        }
        // Both plans' weights must lie in it while they are moved.
        let both_bytes = bytes.max(self.weights.len_bytes());
        fit(&mut self.weights, both_bytes, &residents)?;
        self.work = work;
        self.is_dense = placement.dense;
        self.is_ready = false;
        for m in moves {
            // SAFETY: passed on.
            unsafe { self.move_bytes(m)? };
        }
        self.residents = residents;
        fit(&mut self.weights, bytes, &self.residents)?;
        if !packed {
            // SAFETY: passed on.
            unsafe { self.weights.keep_only(&self.residents.parts())? };
        }
        self.is_whole = true;
        Ok(old_bytes - self.residents.held_bytes())
    }

    /// # Safety
    /// Nothing reads or writes the arena.
    unsafe fn move_bytes(&mut self, m: Move) -> io::Result<()> {
        let memory = self.weights.addresses();
        let (Some(from), Some(to)) = (memory.at(m.from, m.bytes), memory.at(m.to, m.bytes)) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // SAFETY: both ranges lie in the mapping, whose bytes are always initialised, and nobody
        // else uses them.
        unsafe { std::ptr::copy(from, to, m.bytes as usize) };
        Ok(())
    }
}

/// Memory for what runs overwrite, its end at a boundary of huge pages.
fn work(placement: &Placement) -> io::Result<Mapping> {
    let mut work = Mapping::reserve(placement.work_bytes, placement.work_bytes)?;
    work.resize(placement.work_bytes, placement.dense)?;
    Ok(work)
}

/// Memory for resident weights.
fn weights(placement: &Placement) -> io::Result<Mapping> {
    let residents = &placement.residents;
    let mut weights = Mapping::reserve(placement.weight_bytes, 0)?;
    fit(&mut weights, residents.span_bytes(), residents)?;
    Ok(weights)
}

/// Puts that much of `weights` in use, in huge pages as far as `residents` will fill them.
fn fit(weights: &mut Mapping, len_bytes: u64, residents: &Residents) -> io::Result<()> {
    let packed = residents.is_packed();
    weights.resize(len_bytes, packed)?;
    if !packed {
        weights.expect_only(&residents.parts());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranges::bytes_of;

    const MIB: u64 = 1 << 20;

    fn placement(work_bytes: u64, files: &[ByteRange]) -> Placement {
        Placement {
            work_bytes,
            dense: true,
            weight_bytes: bytes_of(files).max(100 * MIB),
            residents: Residents::new(files.to_vec(), 100 * MIB),
            uses: Vec::new(),
        }
    }

    fn charged_bytes() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
        pages * 4096
    }

    /// Fills what is missing with the number of its MiB in the file.
    fn fill(arena: &mut Arena) {
        for file in arena.residents().missing() {
            for begin in (file.begin..file.end).step_by(4096) {
                let at = arena.offset_of(begin).unwrap();
                // SAFETY: the range lies in the arena, which nobody else uses.
                unsafe {
                    let start = arena.map().at(at, 4096).unwrap();
                    start.write_bytes((begin / MIB) as u8 + 1, 4096);
                }
            }
            arena.hold([file]);
        }
    }

    fn check(arena: &Arena, files: &[ByteRange]) {
        for file in files {
            for begin in (file.begin..file.end).step_by(4096) {
                let at = arena.offset_of(begin).unwrap();
                // SAFETY: as above.
                let byte = unsafe { arena.map().at(at + 4095, 1).unwrap().read() };
                assert_eq!(byte, (begin / MIB) as u8 + 1);
            }
        }
    }

    #[test]
    fn resident_weights_follow_from_plan_to_plan() {
        let all = [ByteRange::at(4096, 96 * MIB)];
        // Odd places: in the middle of huge pages.
        let few: Vec<ByteRange> = (0..24)
            .map(|i| ByteRange::at(4096 + i * 4 * MIB + MIB, 12288))
            .collect();
        let before = charged_bytes();
        let mut arena = Arena::new(placement(4 * MIB, &all)).unwrap();
        fill(&mut arena);
        check(&arena, &all);
        assert!(charged_bytes() > before + 90 * MIB);
        // SAFETY: nobody uses the arena.
        let released = unsafe {
            arena.discard_work().unwrap();
            arena.reshape(placement(2 * MIB, &few)).unwrap()
        };
        assert_eq!(released, 96 * MIB - 24 * 12288);
        assert_eq!(arena.len_bytes(), 2 * MIB + 24 * 12288);
        assert_eq!(arena.residents().missing(), []);
        check(&arena, &few);
        assert!(charged_bytes() < before + 8 * MIB);
        // SAFETY: nobody uses the arena.
        let released = unsafe { arena.reshape(placement(8 * MIB, &all)).unwrap() };
        assert_eq!(released, 0);
        assert_eq!(arena.residents().held_bytes(), 24 * 12288);
        check(&arena, &few);
        fill(&mut arena);
        check(&arena, &all);
        // More than is reserved: all anew.
        let more = [ByteRange::at(0, 120 * MIB)];
        // SAFETY: nobody uses the arena.
        let released = unsafe { arena.reshape(placement(8 * MIB, &more)).unwrap() };
        assert_eq!(released, 96 * MIB);
        assert_eq!(arena.residents().missing(), more);
        assert!(charged_bytes() < before + 8 * MIB);
    }

    /// Weights that go leave gaps, which are the kernel's; those that come back are put there.
    #[test]
    fn gaps_are_not_charged() {
        let all = [ByteRange::at(4096, 96 * MIB)];
        let some: Vec<ByteRange> = (0..4)
            .map(|i| ByteRange::at(4096 + i * 24 * MIB + 12288, 20 * MIB))
            .collect();
        let few = [some[1]];
        let mut arena = Arena::new(placement(4 * MIB, &all)).unwrap();
        fill(&mut arena);
        let start = arena.offset_of(some[1].begin);
        let full = charged_bytes();
        // SAFETY: nobody uses the arena.
        let reshape = |arena: &mut Arena, files: &[ByteRange]| unsafe {
            arena.reshape(placement(4 * MIB, files)).unwrap()
        };
        assert_eq!(reshape(&mut arena, &some), 16 * MIB);
        assert!(!arena.residents().is_packed() && arena.is_whole());
        assert_eq!(arena.offset_of(some[1].begin), start);
        assert_eq!(arena.len_bytes(), 84 * MIB);
        assert!(charged_bytes() < full - 15 * MIB);
        assert_eq!(arena.residents().missing(), []);
        check(&arena, &some);
        assert_eq!(reshape(&mut arena, &all), 0);
        assert_eq!(arena.residents().held_bytes(), 80 * MIB);
        assert!(charged_bytes() < full - 15 * MIB);
        fill(&mut arena);
        check(&arena, &all);
        // Few are moved together, and go apart again.
        assert_eq!(reshape(&mut arena, &few), 76 * MIB);
        assert!(arena.residents().is_packed() && arena.residents().missing().is_empty());
        assert!(charged_bytes() < full - 75 * MIB);
        check(&arena, &few);
        assert_eq!(reshape(&mut arena, &some), 0);
        assert_eq!(arena.residents().held_bytes(), 20 * MIB);
        // Where they were others will come.
        assert!(charged_bytes() < full - 55 * MIB);
        check(&arena, &few);
        fill(&mut arena);
        check(&arena, &some);
        assert!(charged_bytes() < full - 15 * MIB);
    }

    #[test]
    fn bounds_of_both_parts() {
        let arena = Arena::new(placement(8192, &[ByteRange::at(1 << 20, 4096)])).unwrap();
        let map = arena.map();
        let (start, end) = (RESIDENT_BASE, RESIDENT_BASE + 4096);
        assert!(map.at(start, 4096).is_some() && map.at(start, 4097).is_none());
        assert!(map.at(end, 0).is_some() && map.at(end, 1).is_none());
        assert!(map.at(0, 8192).is_some() && map.at(4096, 4097).is_none());
        assert!(map.at(u64::MAX, 2).is_none() && map.at(start, u64::MAX).is_none());
        assert_eq!(arena.offset_of(1 << 20), Some(RESIDENT_BASE));
        assert_eq!(arena.offset_of(0), None);
    }
}
