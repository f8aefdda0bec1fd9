//! Time as sections: the fewest intervals in which the same blocks conflict as before.
//!
//! ```text
//!   steps      0   1   2   3   4   5   6          a section ends where a block ends after another began:
//!   a          ████████████                       between, blocks only come, or only go, and the moment
//!   b              ████████████████               when most are live stands for all
//!   c                          ████████
//!   sections   │ 0 {a, b}  │ 1 {b, c} │
//! ```
//!
//! Sections that no block joins are solved apart. So are those that only blocks join which live all through
//! a part: these can always lie at its bottom.

use super::Block;

/// A block in the sections of its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    pub lo: u32,
    pub hi: u32,
    pub bytes: u64,
    pub align: u64,
    /// In steps.
    pub length: u32,
}

/// Blocks whose layout does not depend on others.
#[derive(Clone, Debug)]
pub struct Part {
    pub items: Vec<Item>,
    /// By item: its block.
    pub blocks: Vec<u32>,
    pub sections: usize,
    /// By section: the step of its first beginning; then the last end. An item is no longer than from the
    /// step of its first section to that of the one past its last.
    pub steps: Vec<u32>,
    /// What lies below, at all times.
    pub base_bytes: u64,
}

impl Part {
    /// Most bytes live in any section, over what lies below.
    pub fn bound_bytes(&self) -> u64 {
        self.loads().into_iter().max().unwrap_or(0)
    }

    /// Bytes live by section.
    pub fn loads(&self) -> Vec<u64> {
        let mut change = vec![(0u64, 0u64); self.sections + 1];
        for item in &self.items {
            change[item.lo as usize].0 += item.bytes;
            change[item.hi as usize].1 += item.bytes;
        }
        let mut live = 0;
        let mut loads: Vec<u64> = Vec::with_capacity(self.sections);
        for &(more, less) in &change[..self.sections] {
            live = live + more - less;
            loads.push(live);
        }
        loads
    }
}

/// The independent parts of a problem; offsets of blocks that need no search are written to `offsets`.
pub fn parts(blocks: &[Block], offsets: &mut [u64]) -> Vec<Part> {
    let used = |b: &Block| b.bytes > 0 && !b.live.is_empty();
    let all = (0..blocks.len() as u32).filter(|&i| used(&blocks[i as usize]));
    let mut open = vec![(all.collect::<Vec<u32>>(), 0u64)];
    let mut done = Vec::new();
    while let Some((members, base_bytes)) = open.pop() {
        for mut part in split(blocks, &members, base_bytes) {
            if peel(&mut part, offsets) {
                open.push((part.blocks, part.base_bytes));
            } else {
                done.push(part);
            }
        }
    }
    done
}

/// Takes out blocks that are live in every section and puts them at the bottom. Everything else of a layout
/// can be moved up by their size, so nothing is lost. Whether there were any.
fn peel(part: &mut Part, offsets: &mut [u64]) -> bool {
    let align = part.items.iter().map(|i| i.align).max().unwrap_or(1);
    let sections = part.sections as u32;
    let low = |i: &Item| i.lo == 0 && i.hi == sections && i.bytes.is_multiple_of(align);
    let mut base_bytes = part.base_bytes;
    let mut at = 0;
    part.blocks.retain(|&block| {
        let item = &part.items[at];
        at += 1;
        if low(item) {
            offsets[block as usize] = base_bytes;
            base_bytes += item.bytes;
        }
        !low(item)
    });
    let any = part.base_bytes != base_bytes;
    part.base_bytes = base_bytes;
    any
}

/// Numbers the sections of the given blocks and separates those that no block joins.
fn split(blocks: &[Block], members: &[u32], base_bytes: u64) -> Vec<Part> {
    // Ends come before begins of the same step: live ranges are half-open.
    let mut events: Vec<(u32, bool, u32)> = Vec::with_capacity(2 * members.len());
    for &i in members {
        let live = blocks[i as usize].live;
        events.extend([(live.begin, true, i), (live.end, false, i)]);
    }
    events.sort_unstable();
    let mut begun = vec![0u32; blocks.len()];
    let mut parts = Vec::new();
    let empty = || Part {
        items: Vec::new(),
        blocks: Vec::new(),
        sections: 0,
        steps: Vec::new(),
        base_bytes,
    };
    let mut part = empty();
    let (mut section, mut live, mut grew) = (0u32, 0usize, false);
    for (step, begins, i) in events {
        if begins {
            if !grew {
                part.steps.push(step);
            }
            begun[i as usize] = section;
            live += 1;
            grew = true;
            continue;
        }
        section += u32::from(grew);
        grew = false;
        live -= 1;
        let block = &blocks[i as usize];
        part.items.push(Item {
            lo: begun[i as usize],
            hi: section,
            bytes: block.bytes,
            align: block.align.max(1),
            length: block.live.end - block.live.begin,
        });
        part.blocks.push(i);
        if live == 0 {
            part.sections = section as usize;
            part.steps.push(step);
            parts.push(std::mem::replace(&mut part, empty()));
            section = 0;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_plan::StepRange;

    fn block(bytes: u64, begin: u32, end: u32) -> Block {
        Block {
            bytes,
            align: 1,
            live: StepRange::new(begin, end),
        }
    }

    #[test]
    fn sections_are_few_and_parts_are_separate() {
        let blocks = [
            block(1, 0, 2),
            block(2, 1, 4),
            block(3, 3, 6),
            block(1, 5, 7),
            block(4, 7, 10),
            block(5, 8, 8),
            block(6, 7, 9),
            block(7, 9, 10),
        ];
        let mut offsets = [0; 8];
        let found = parts(&blocks, &mut offsets);
        let of: Vec<&[u32]> = found.iter().map(|p| &p.blocks[..]).collect();
        // Block 4 lies below 6 and 7, which then have nothing to do with each other and need no search.
        assert_eq!(of, [[0, 1, 2, 3]]);
        assert_eq!(found[0].loads(), [3, 5, 4]);
        assert_eq!(found[0].steps, [0, 3, 5, 7]);
        assert_eq!(offsets, [0, 0, 0, 0, 0, 0, 4, 4]);
    }

    #[test]
    fn what_lives_throughout_is_not_peeled_against_alignment() {
        let mut blocks = [block(3, 0, 9), block(8, 0, 4), block(8, 4, 9)];
        blocks[1].align = 8;
        let found = parts(&blocks, &mut [0; 3]);
        assert_eq!((found.len(), found[0].items.len()), (1, 3));
    }
}
