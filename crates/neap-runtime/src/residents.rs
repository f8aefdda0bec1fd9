//! Which resident weights are in memory, and where. Many lie as far apart as in the file, so that those that two plans
//! keep never move when one follows the other; what lies between them is not charged. Few are packed one after the other, so
//! that they can come in huge pages.
//!
//! ```text
//!   file         │ w0 │ w1 │ w2 │ w3 │ w4 │ w5 │
//!   at home      │▓w0▓│▓w1▓│····│▓w3▓│▓w4▓│▓w5▓│      ▓ in memory   · the kernel's
//!   less stays   │▓w0▓│····│····│▓w3▓│▓w4▓│▓w5▓│
//!   or others    │▓w0▓│····│▒w2▒│▓w3▓│▓w4▓│····│      ▒ to be read
//!   packed       │▓w0▓│▓w3▓│▓w4▓│                     moved here when so few are left that this takes no time
//! ```
//! Only figures here; the bytes are the [`Arena`](crate::arena::Arena)'s.

use crate::mapping::HUGE_PAGE_BYTES;
use crate::ranges::{bytes_of, difference, set_of};
use neap_plan::ByteRange;

/// To move no more than this takes little time.
const CHEAP_BYTES: u64 = 32 << 20;

/// Page tables that resident weights of so many bytes may take, at most, because they lie apart, beside one for each
/// 2 MiB of them.
pub fn tables_for_gaps(resident_bytes: u64) -> u64 {
    resident_bytes.saturating_sub(CHEAP_BYTES) / HUGE_PAGE_BYTES * 2
}

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
    /// None of `files` is in memory. They lie where they lie in the file, in `room_bytes` at most, or packed.
    pub(crate) fn new(files: Vec<ByteRange>, room_bytes: u64) -> Residents {
        let packed = Residents::packed(files);
        match packed.bytes() > CHEAP_BYTES {
            true => packed.at_home(room_bytes).unwrap_or(packed),
            false => packed,
        }
    }

    fn packed(files: Vec<ByteRange>) -> Residents {
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

    /// The same weights at the offsets that they have in the file; `None` where there is no room for that, or it takes
    /// too many page tables.
    fn at_home(&self, room_bytes: u64) -> Option<Residents> {
        let at_home = Residents {
            wanted: self.wanted.clone(),
            offsets: self.wanted.iter().map(|file| file.begin).collect(),
            held: Vec::new(),
        };
        let fits = at_home.span_bytes() <= room_bytes;
        let few_tables = at_home.tables() <= self.tables() + tables_for_gaps(self.bytes());
        (fits && few_tables).then_some(at_home)
    }

    /// Page tables: one for each part of memory of the size of a huge page of which anything is used.
    fn tables(&self) -> u64 {
        let mut tables = 0;
        let mut end = 0;
        for part in self.parts() {
            let begin = (part.begin / HUGE_PAGE_BYTES).max(end);
            end = part.end.div_ceil(HUGE_PAGE_BYTES);
            tables += end - begin.min(end);
        }
        tables
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
    /// Where both plans' places would take more than `most_bytes` together, nothing is taken over.
    pub(crate) fn take_over(&mut self, old: &Residents, most_bytes: u64) -> Vec<Move> {
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
        let moves = in_safe_order(moves);
        let new_places = moves.iter().map(|m| ByteRange::at(m.to, m.bytes));
        let touched = set_of(old.parts().into_iter().chain(new_places).collect());
        if !moves.is_empty() && bytes_of(&touched) > most_bytes {
            self.held = Vec::new();
            return Vec::new();
        }
        moves
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

    fn residents(files: Vec<ByteRange>, at_home: bool) -> Residents {
        let packed = Residents::packed(files);
        let at_home = at_home.then(|| packed.at_home(128));
        at_home.flatten().unwrap_or(packed)
    }

    proptest! {
        /// Whatever follows what: nothing overlaps, and what both plans keep is found.
        #[test]
        fn weights_of_both_plans_stay(
            plans in prop::collection::vec((some_files(), any::<bool>()), 2..6),
            unread in some_files(),
            most_bytes in 0u64..256,
        ) {
            let mut memory = [0; 128];
            let mut old = Residents::default();
            for (files, at_home) in plans {
                let mut new = residents(files, at_home);
                prop_assert_eq!(bytes_of(&new.parts()), new.bytes());
                let moves = new.take_over(&old, most_bytes);
                let is_all_new = new.held.is_empty();
                for m in &moves {
                    memory.copy_within(m.from as usize..(m.from + m.bytes) as usize, m.to as usize);
                }
                for i in 0..120u64 {
                    let inside = |set: &[ByteRange]| set.iter().any(|r| r.begin <= i && i < r.end);
                    let kept = inside(&old.held) && inside(&new.wanted) && !is_all_new;
                    prop_assert_eq!(inside(&new.held), kept);
                    prop_assert_eq!(inside(&new.missing()), inside(&new.wanted) && !kept);
                    prop_assert_eq!(new.offset_of(i).is_some(), inside(&new.wanted));
                    if kept {
                        prop_assert_eq!(memory[new.offset_of(i).unwrap() as usize], i as u8 + 1);
                    }
                }
                let read = difference(&new.missing(), &set_of(unread.clone()));
                for file in &read {
                    for i in file.begin..file.end {
                        memory[new.offset_of(i).unwrap() as usize] = i as u8 + 1;
                    }
                }
                new.hold(read);
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
    fn held(files: &[(u64, u64)]) -> Residents {
        let mut residents = Residents::new(mib(files), 300 * MIB);
        residents.hold(residents.missing());
        residents
    }

    #[test]
    fn many_never_move() {
        let all = held(&[(10, 110)]);
        assert_eq!((all.bytes(), all.span_bytes()), (100 * MIB, 110 * MIB));
        let mut fewer = Residents::new(mib(&[(10, 40), (44, 110)]), 300 * MIB);
        assert_eq!(fewer.take_over(&all, 100 * MIB), []);
        assert_eq!(fewer.missing(), []);
        assert_eq!(fewer.parts(), mib(&[(10, 40), (44, 110)]));
        // Others between and before, and some go.
        let mut others = Residents::new(mib(&[(0, 5), (20, 42), (44, 110)]), 300 * MIB);
        assert_eq!(others.take_over(&fewer, 100 * MIB), []);
        assert_eq!(others.missing(), mib(&[(0, 5), (40, 42)]));
        assert_eq!(others.offset_of(41 * MIB), Some(41 * MIB));
    }

    #[test]
    fn few_are_packed() {
        let all = held(&[(10, 110)]);
        let mut few = Residents::new(mib(&[(20, 30), (50, 70)]), 300 * MIB);
        assert!(few.is_packed());
        let to_front = Move {
            from: 20 * MIB,
            to: 0,
            bytes: 10 * MIB,
        };
        assert_eq!(few.take_over(&all, 130 * MIB)[0], to_front);
        assert_eq!((few.missing(), few.span_bytes()), (vec![], 30 * MIB));
    }

    #[test]
    fn packed_where_gaps_would_cost_much() {
        let every_other = |count: u64| -> Vec<(u64, u64)> {
            let begins = (0..count).map(|i| i * 300 / count);
            begins.map(|b| (b, b + 1)).collect()
        };
        let packs = |count| Residents::new(mib(&every_other(count)), 301 * MIB).is_packed();
        // One table for each, instead of one for every two; and too few to lie apart.
        assert_eq!([48, 100, 30].map(packs), [true, false, true]);
        // No room.
        assert!(Residents::new(mib(&[(250, 300)]), 299 * MIB).is_packed());
        assert!(!Residents::new(mib(&[(250, 300)]), 300 * MIB).is_packed());
    }

    /// To be moved, weights lie twice in memory for a moment.
    #[test]
    fn what_cannot_be_moved_within_the_budget_is_read_again() {
        let few = held(&[(0, 10), (60, 80)]);
        let more = || Residents::new(mib(&[(0, 10), (60, 90)]), 300 * MIB);
        let (mut read, mut moved) = (more(), more());
        // Ten are where they were; twenty lie at 10 and go to 60.
        assert_eq!(read.take_over(&few, 49 * MIB), []);
        assert_eq!(read.missing(), mib(&[(0, 10), (60, 90)]));
        assert_eq!(moved.take_over(&few, 50 * MIB).len(), 1);
        assert_eq!(moved.missing(), mib(&[(80, 90)]));
    }

    #[test]
    fn packed_in_the_order_of_the_file() {
        let files = [(40, 10), (0, 8), (50, 2)].map(|(b, n)| ByteRange::at(b, n));
        let r = Residents::new(files.to_vec(), 100);
        assert_eq!(r.bytes(), 20);
        assert_eq!(
            [0, 7, 40, 51].map(|b| r.offset_of(b).unwrap()),
            [0, 7, 8, 19]
        );
        assert_eq!([8, 39, 52].map(|b| r.offset_of(b)), [None; 3]);
        assert_eq!(Residents::default().missing(), []);
    }
}
