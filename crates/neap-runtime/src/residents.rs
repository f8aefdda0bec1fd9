//! Which resident weights are in memory, and where: packed one after the other, in the order of the file.
//!
//! ```text
//!   file        │ w0 │ w1 │ w2 │ w3 │ w4 │ w5 │
//!   memory      │▓w0▓│▓w1▓│▓w3▓│▓w5▓│               dense, so that it can come in huge pages
//!   next plan   │▓w0▓│▒w2▒│▓w3▓│▓w5▓│               ▓ kept, moved where need be   ▒ read
//! ```
//! So a weight that two plans keep is not read again when one follows the other. Only figures here;
//! the bytes are the [`Arena`](crate::arena::Arena)'s.

use crate::ranges::{bytes_of, difference, set_of};
use neap_plan::ByteRange;

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
    pub(crate) fn take_over(&mut self, old: &Residents) -> Vec<Move> {
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
