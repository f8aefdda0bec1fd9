//! Which resident weights are in memory, and where: in the order of the file, packed one after the other so that
//! they can come in huge pages.
//!
//! ```text
//!   file         │ w0 │ w1 │ w2 │ w3 │ w4 │ w5 │
//!   memory       │▓w0▓│▓w1▓│▓w3▓│▓w5▓│
//!   less stays   │▓w0▓│····│▓w3▓│▓w5▓│               ▓ kept   · the kernel's
//!   then more    │▓w0▓│▒w1▒│▓w3▓│▓w5▓│               ▒ to be read
//!   or others    │▓w0▓│▒w1▒│▒w2▒│▓w3▓│▓w5▓│          no room between: packed anew, kept weights move
//! ```
//! So a weight that two plans keep is not read again when one follows the other; and where much is kept it stays
//! where it is, as long as most of it is in whole huge pages then: to move it would take longer than all else. Only
//! figures here; the bytes are the [`Arena`](crate::arena::Arena)'s.

use crate::mapping::HUGE_PAGE_BYTES;
use crate::ranges::{bytes_of, difference, set_of};
use neap_plan::ByteRange;

/// To move no more than this takes no time worth a gap.
const CHEAP_BYTES: u64 = 32 << 20;

/// Each gap may cost a page of page tables at both of its ends.
const MOST_GAPS: usize = 32;

/// Resident weights of one plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Residents {
    /// File ranges that the plan keeps, as a set.
    wanted: Vec<ByteRange>,
    /// Where each begins.
    offsets: Vec<u64>,
    /// Those that are in memory, read and checked, as a set.
    held: Vec<ByteRange>,
}

/// Bytes that go to another offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Move {
    pub from: u64,
    pub to: u64,
    pub bytes: u64,
}

impl Residents {
    /// None of `files` is in memory.
    pub(crate) fn new(files: Vec<ByteRange>) -> Residents {
        let wanted = set_of(files);
        let mut end = 0;
        let offsets = wanted.iter().map(|file| {
            end += file.len();
            end - file.len()
        });
        Residents {
            offsets: offsets.collect(),
            wanted,
            held: Vec::new(),
        }
    }

    /// None of `files` is in memory, but what `old` has of them is to be taken over: they lie where that costs
    /// least, in `room_bytes` at most.
    pub(crate) fn succeeding(files: Vec<ByteRange>, old: &Residents, room_bytes: u64) -> Residents {
        let packed = Residents::new(files);
        if old.held_bytes() <= CHEAP_BYTES && old.is_packed() {
            return packed;
        }
        let stays = Residents::in_place(&packed.wanted, old, room_bytes);
        let good = stays.filter(|r| {
            r.parts().len() <= MOST_GAPS && r.huge_bytes() >= r.bytes() - r.bytes() / 4
        });
        good.unwrap_or(packed)
    }

    /// What `old` has in memory stays where it is; `None` where something does not fit in between.
    fn in_place(wanted: &[ByteRange], old: &Residents, room_bytes: u64) -> Option<Residents> {
        let fixed: Vec<Option<u64>> = wanted
            .iter()
            .map(|&file| old.place_of(file))
            .collect::<Option<_>>()?;
        let mut offsets = Vec::with_capacity(wanted.len());
        // What is taken so far, and how offsets differed from places in the file there.
        let (mut end, mut shift) = (0u64, 0u64);
        for (i, file) in wanted.iter().enumerate() {
            let offset = match fixed[i] {
                Some(offset) => offset,
                None => {
                    let next = (i..wanted.len()).find_map(|n| Some((n, fixed[n]?)));
                    // As its neighbours, if there is room: so all come together again that once were.
                    let between = next.is_some_and(|(n, at)| {
                        let floating = bytes_of(&wanted[i..n]);
                        at.wrapping_sub(wanted[n].begin) == shift && end + floating <= at
                    });
                    let beside = file.begin.wrapping_add(shift);
                    if between { beside.max(end) } else { end }
                }
            };
            if offset < end || offset.checked_add(file.len())? > room_bytes {
                return None;
            }
            offsets.push(offset);
            end = offset + file.len();
            shift = offset.wrapping_sub(file.begin);
        }
        Some(Residents {
            wanted: wanted.to_vec(),
            offsets,
            held: Vec::new(),
        })
    }

    /// Where all of `file` would lie if what is held of it stays; `Some(None)` if nothing of it is held, `None` if
    /// its parts are not as far apart as in the file.
    fn place_of(&self, file: ByteRange) -> Option<Option<u64>> {
        let mut found = None;
        let first = self.held.partition_point(|h| h.end <= file.begin);
        for held in self.held[first..].iter().take_while(|h| h.begin < file.end) {
            // Neighbours in the file that are not neighbours in memory are two wanted ranges.
            let mut begin = held.begin.max(file.begin);
            while begin < held.end.min(file.end) {
                let skipped = begin - file.begin;
                let offset = self.offset_of(begin)?.checked_sub(skipped)?;
                if found.is_some_and(|other| other != offset) {
                    return None;
                }
                found = Some(offset);
                begin = self.end_of(begin);
            }
        }
        Some(found)
    }

    /// One past the last byte of memory.
    pub(crate) fn span_bytes(&self) -> u64 {
        let last = self.offsets.last().zip(self.wanted.last());
        last.map_or(0, |(offset, file)| offset + file.len())
    }

    /// Whether there are no gaps.
    pub(crate) fn is_packed(&self) -> bool {
        self.span_bytes() == self.bytes()
    }

    /// The memory that is used, as a set.
    pub(crate) fn parts(&self) -> Vec<ByteRange> {
        let places = self.offsets.iter().zip(&self.wanted);
        set_of(
            places
                .map(|(&offset, file)| ByteRange::at(offset, file.len()))
                .collect(),
        )
    }

    /// Bytes that lie in huge pages of which nothing else is.
    fn huge_bytes(&self) -> u64 {
        let pages = self.parts().into_iter().map(|part| {
            let end = part.end / HUGE_PAGE_BYTES;
            end.saturating_sub(part.begin.div_ceil(HUGE_PAGE_BYTES))
        });
        pages.sum::<u64>() * HUGE_PAGE_BYTES
    }

    /// Bytes that the plan keeps.
    pub(crate) fn bytes(&self) -> u64 {
        bytes_of(&self.wanted)
    }

    /// Bytes of those that are in memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        bytes_of(&self.held)
    }

    /// What is not in memory yet.
    pub(crate) fn missing(&self) -> Vec<ByteRange> {
        difference(&self.wanted, &self.held)
    }

    /// The ranges have been read and checked.
    pub(crate) fn hold(&mut self, ranges: impl IntoIterator<Item = ByteRange>) {
        let mut held = std::mem::take(&mut self.held);
        held.extend(ranges);
        self.held = set_of(held);
    }

    /// Where a byte of the file lies, if the plan keeps it.
    pub(crate) fn offset_of(&self, file_offset: u64) -> Option<u64> {
        let after = self.wanted.partition_point(|w| w.begin <= file_offset);
        let i = after.checked_sub(1)?;
        (file_offset < self.wanted[i].end)
            .then(|| self.offsets[i] + (file_offset - self.wanted[i].begin))
    }

    /// Takes over what `old` has in memory and this plan keeps. The moves are in an order in which none
    /// overwrites what another has yet to move, if they are done one by one.
    ///
    /// What would have to be moved through more memory than the larger of both needs is not taken over.
    pub(crate) fn take_over(&mut self, old: &Residents) -> Vec<Move> {
        let span_bytes = old.span_bytes();
        if self.is_packed() && span_bytes > self.bytes().max(old.bytes()) {
            return Vec::new();
        }
        self.held = difference(&old.held, &difference(&old.held, &self.wanted));
        let mut moves = Vec::new();
        for file in &self.held {
            // A range of ours may have been apart in the old plan's memory, and the other way round.
            let mut begin = file.begin;
            while begin < file.end {
                let (Some(from), Some(to)) = (old.offset_of(begin), self.offset_of(begin)) else {
                    break;
                };
                let end = file.end.min(old.end_of(begin)).min(self.end_of(begin));
                moves.push(Move {
                    from,
                    to,
                    bytes: end - begin,
                });
                begin = end;
            }
        }
        in_safe_order(moves)
    }

    /// One past the last byte of the wanted range that holds this byte of the file.
    fn end_of(&self, file_offset: u64) -> u64 {
        let i = self.wanted.partition_point(|w| w.begin <= file_offset);
        self.wanted[i - 1].end
    }
}

/// `moves` keep the order of what they move. First those that go down, from the lowest on, then those
/// that go up, from the highest on.
fn in_safe_order(mut moves: Vec<Move>) -> Vec<Move> {
    moves.retain(|m| m.from != m.to);
    let up: Vec<Move> = moves.iter().copied().filter(|m| m.to > m.from).collect();
    moves.retain(|m| m.to < m.from);
    moves.extend(up.into_iter().rev());
    moves
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some_files() -> impl Strategy<Value = Vec<ByteRange>> {
        let range = (0u64..90, 1u64..12).prop_map(|(b, n)| ByteRange::at(b, n));
        prop::collection::vec(range, 0..10)
    }

    /// The file's byte `i` is `i + 1`; what is not held is 0.
    fn memory_of(r: &Residents) -> Vec<u8> {
        let mut memory = vec![0; 128];
        for file in &r.held {
            for i in file.begin..file.end {
                memory[r.offset_of(i).unwrap() as usize] = i as u8 + 1;
            }
        }
        memory
    }

    proptest! {
        #[test]
        fn weights_of_both_plans_stay(
            first in some_files(), second in some_files(), unread in some_files(),
        ) {
            let mut old = Residents::new(first);
            let read = difference(&old.missing(), &set_of(unread));
            old.hold(read.clone());
            prop_assert_eq!(old.held_bytes(), bytes_of(&read));
            let mut memory = memory_of(&old);
            let mut new = Residents::new(second);
            for m in new.take_over(&old) {
                let bytes = memory[m.from as usize..(m.from + m.bytes) as usize].to_vec();
                memory[m.to as usize..(m.to + m.bytes) as usize].copy_from_slice(&bytes);
            }
            for i in 0..120u64 {
                let inside = |set: &[ByteRange]| set.iter().any(|r| r.begin <= i && i < r.end);
                let kept = inside(&read) && inside(&new.wanted);
                prop_assert_eq!(inside(&new.held), kept);
                prop_assert_eq!(inside(&new.missing()), inside(&new.wanted) && !kept);
                prop_assert_eq!(new.offset_of(i).is_some(), inside(&new.wanted));
                if kept {
                    prop_assert_eq!(memory[new.offset_of(i).unwrap() as usize], i as u8 + 1);
                }
            }
        }
    }

    proptest! {
        /// Whatever follows what: nothing overlaps, nothing that is kept moves, and all of it is found.
        #[test]
        fn what_stays_in_place_stays(plans in prop::collection::vec(some_files(), 2..8)) {
            const ROOM: u64 = 120;
            let mut old = Residents::new(plans[0].clone());
            let mut memory = vec![0; ROOM as usize];
            for files in &plans[1..] {
                for file in old.missing() {
                    for i in file.begin..file.end {
                        memory[old.offset_of(i).unwrap() as usize] = i as u8 + 1;
                    }
                }
                old.hold(old.missing());
                let packed = Residents::new(files.clone());
                let in_place = Residents::in_place(&packed.wanted, &old, ROOM);
                let mut new = in_place.unwrap_or(packed);
                let parts = new.parts();
                prop_assert_eq!(bytes_of(&parts), new.bytes());
                prop_assert!(new.offsets.is_sorted() && new.span_bytes() <= ROOM);
                let in_place = !new.is_packed();
                let moves = new.take_over(&old);
                prop_assert!(moves.is_empty() || !in_place);
                for m in moves {
                    memory.copy_within(m.from as usize..(m.from + m.bytes) as usize, m.to as usize);
                }
                for file in &new.held {
                    for i in file.begin..file.end {
                        prop_assert_eq!(memory[new.offset_of(i).unwrap() as usize], i as u8 + 1);
                    }
                }
                old = new;
            }
        }
    }

    const MIB: u64 = 1 << 20;

    fn mib(ranges: &[(u64, u64)]) -> Vec<ByteRange> {
        let ranges = ranges.iter();
        ranges
            .map(|&(b, e)| ByteRange::new(b * MIB, e * MIB))
            .collect()
    }

    /// Held as the plan wants it.
    fn held(mut residents: Residents) -> Residents {
        residents.hold(residents.missing());
        residents
    }

    #[test]
    fn what_left_comes_back_to_its_place() {
        let all = held(Residents::new(mib(&[(10, 110)])));
        let few = mib(&[(10, 40), (44, 110)]);
        let mut fewer = Residents::succeeding(few.clone(), &all, 200 * MIB);
        assert_eq!(fewer.take_over(&all), []);
        assert_eq!(fewer.missing(), []);
        assert_eq!((fewer.bytes(), fewer.span_bytes()), (96 * MIB, 100 * MIB));
        assert_eq!(fewer.parts(), mib(&[(0, 30), (34, 100)]));
        // Some of it, then all of it.
        let some = mib(&[(10, 40), (41, 42), (44, 110)]);
        let mut some = Residents::succeeding(some, &fewer, 200 * MIB);
        assert_eq!(some.take_over(&fewer), []);
        assert_eq!(some.offset_of(41 * MIB), Some(31 * MIB));
        let some = held(some);
        let mut again = Residents::succeeding(mib(&[(10, 110)]), &some, 200 * MIB);
        assert_eq!(again.take_over(&some), []);
        assert!(again.is_packed());
        assert_eq!(again.missing(), mib(&[(40, 41), (42, 44)]));
    }

    #[test]
    fn packed_anew_where_gaps_would_cost_more() {
        let all = held(Residents::new(mib(&[(0, 200)])));
        // Hardly a whole huge page left.
        let every_other: Vec<(u64, u64)> = (0..100).map(|i| (2 * i + 1, 2 * i + 2)).collect();
        let next = Residents::succeeding(mib(&every_other), &all, 400 * MIB);
        assert!(next.is_packed());
        // What comes in between does not fit.
        let two = held(Residents::new(mib(&[(0, 50), (100, 150)])));
        let mut three =
            Residents::succeeding(mib(&[(0, 50), (60, 70), (100, 150)]), &two, 400 * MIB);
        assert!(three.is_packed());
        assert_eq!(three.take_over(&two).len(), 1);
        assert_eq!(three.missing(), mib(&[(60, 70)]));
    }

    /// To close gaps, weights would have to lie twice in memory where there is no budget for that.
    #[test]
    fn what_cannot_be_moved_within_the_budget_is_read_again() {
        let all = held(Residents::new(mib(&[(0, 100), (150, 200)])));
        let mut few =
            Residents::succeeding(mib(&[(0, 40), (60, 100), (150, 200)]), &all, 300 * MIB);
        few.take_over(&all);
        assert_eq!(few.span_bytes(), 150 * MIB);
        let wanted = mib(&[(0, 40), (60, 100), (110, 115), (150, 200)]);
        let mut next = Residents::succeeding(wanted.clone(), &few, 300 * MIB);
        assert!(next.is_packed());
        next.take_over(&few);
        assert_eq!(next.missing(), set_of(wanted));
        // With more budget there is room to move.
        let wanted = mib(&[(0, 40), (60, 100), (110, 145), (150, 200)]);
        let mut next = Residents::succeeding(wanted, &few, 300 * MIB);
        next.take_over(&few);
        assert_eq!(next.missing(), mib(&[(110, 145)]));
    }

    #[test]
    fn packed_in_the_order_of_the_file() {
        let files = [(40, 10), (0, 8), (50, 2)].map(|(b, n)| ByteRange::at(b, n));
        let r = Residents::new(files.to_vec());
        assert_eq!(r.bytes(), 20);
        assert_eq!(
            [0, 7, 40, 51].map(|b| r.offset_of(b).unwrap()),
            [0, 7, 8, 19]
        );
        assert_eq!([8, 39, 52].map(|b| r.offset_of(b)), [None; 3]);
        assert_eq!(Residents::default().missing(), []);
    }
}
