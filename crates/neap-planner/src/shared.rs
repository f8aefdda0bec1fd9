//! Shared weights that stay for part of a run: read before the first step that uses them, in memory until the last has.
//!
//! ```text
//!   address                                                streamed     A A A A A A B B B B B B   12 reads
//!     ▲  ┌────── A ──────┐┌────── B ──────┐                resident     A · · · · · B B B B B B    6 reads, A stays
//!     │  │▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒││▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│ one place      part of run  A · · · · · B · · · · ·    2 reads
//!     │  └───────────────┘└───────────────┘
//!     └─────────────────────────────────────► steps
//! ```
//! Steps that share weights, such as those of a recurrent or an unrolled layer, otherwise read them again and again, or
//! keep them for the whole run. Where they lie meanwhile is fixed before anything is sliced, so that everything else is
//! placed around them.

use std::collections::HashMap;

use neap_plan::{BLOCK_BYTES, ByteRange, StepRange, Workload};

use crate::base_layout::{BaseLayout, Fixed};

/// Weights that stay from their first use to their last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// Whole blocks.
    pub file: ByteRange,
    pub live: StepRange,
    pub offset: u64,
}

/// Weights that several steps use: whole blocks, from the first step to the last, and how often.
struct Shared {
    file: ByteRange,
    live: StepRange,
    uses: u32,
}

/// A base layout in which shared weights stay for part of a run, at addresses of `room`, as many as find a place there: those first
/// that save most reading for the memory and the time that they take. `None` if there are none.
pub fn with_stays(w: &Workload, base_layout: &BaseLayout, room: ByteRange) -> Option<BaseLayout> {
    let mut stays: Vec<Stay> = Vec::new();
    for shared in by_worth(w) {
        let taken = base_layout.fixed.iter().copied();
        let taken = taken.chain(stays.iter().map(Stay::rectangle));
        let taken = taken
            .filter(|f| f.live.overlaps(shared.live))
            .map(|f| f.arena);
        if let Some(offset) = highest(taken.collect(), room, shared.file.len()) {
            stays.push(Stay {
                file: shared.file,
                live: shared.live,
                offset,
            });
        }
    }
    (!stays.is_empty()).then(|| base_layout.with_stays(w.steps.len(), stays))
}

impl Stay {
    pub fn rectangle(&self) -> Fixed {
        Fixed {
            arena: ByteRange::at(self.offset, self.file.len()),
            live: self.live,
        }
    }
}

/// Weights that several steps use whole, those first that are read again most often in their time.
fn by_worth(w: &Workload) -> Vec<Shared> {
    let mut shared: HashMap<(u64, u64), Shared> = HashMap::new();
    for (step, spec) in (0..).zip(&w.steps) {
        let panels = spec.panels.map(|p| p.file_range(p.all()));
        let extents = spec.extents.iter().map(|e| e.file_range());
        for file in panels.into_iter().chain(extents).map(ByteRange::to_blocks) {
            let entry = shared.entry((file.begin, file.end)).or_insert(Shared {
                file,
                live: StepRange::new(step, step),
                uses: 0,
            });
            // Weights that lie in the same blocks are one.
            if entry.live.end != step + 1 {
                entry.uses += 1;
                entry.live.end = step + 1;
            }
        }
    }
    let mut shared: Vec<Shared> = shared.into_values().filter(|s| s.uses > 1).collect();
    // Reads saved for each step that they stay, in 1/2³²; where that is the same, the largest, then as they come.
    let worth = |s: &Shared| {
        let steps = u64::from(s.live.end - s.live.begin);
        (u64::from(s.uses - 1) << 32) / steps
    };
    shared.sort_by_key(|s| {
        let order = (s.live.begin, s.file.begin);
        (std::cmp::Reverse((worth(s), s.file.len())), order)
    });
    shared
}

/// The highest offset in `room` at which so many bytes lie on nothing that is taken.
fn highest(mut taken: Vec<ByteRange>, room: ByteRange, bytes: u64) -> Option<u64> {
    taken.sort_unstable_by_key(|range| std::cmp::Reverse(range.end));
    let mut top = room.end / BLOCK_BYTES * BLOCK_BYTES;
    for range in taken {
        if range.end.saturating_add(bytes) <= top {
            break;
        }
        top = top.min(range.begin / BLOCK_BYTES * BLOCK_BYTES);
    }
    let offset = top.checked_sub(bytes)?;
    (offset >= room.begin).then_some(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_free_place_is_found() {
        const B: u64 = BLOCK_BYTES;
        let blocks = |begin: u64, end: u64| ByteRange::new(begin * B, end * B);
        let room = blocks(2, 10);
        assert_eq!(highest(vec![], room, 8 * B), Some(2 * B));
        assert_eq!(highest(vec![], room, 9 * B), None);
        let taken = || vec![blocks(0, 3), blocks(8, 9)];
        assert_eq!(highest(taken(), room, B), Some(9 * B));
        assert_eq!(highest(taken(), room, 2 * B), Some(6 * B));
        assert_eq!(highest(taken(), room, 5 * B), Some(3 * B));
        assert_eq!(highest(taken(), room, 6 * B), None);
        // Those that reach over each other.
        let taken = vec![blocks(0, 9), blocks(5, 6)];
        assert_eq!(highest(taken, room, 2 * B), None);
    }
}
