//! `BaseLayout`: what lies still. Buffers and workspaces at static offsets, and what they leave free in each step.
//!
//! ```text
//!   address
//!     ▲   gap  gap ┌──┐ gap        weights go into the gaps, block-aligned
//!     │ ┌────┐     │w1│ ┌──────┐
//!     │ │ w0 ├─────┴──┤ │  b2  │   reserved (▒, tight base layout only): a place for the
//!     │ ├────┘ b1     ├─┴──┬───┤   smallest slice of each step, so that a plan exists
//!     │ │▒▒▒▒└────────┤▒▒▒▒│▒▒▒│
//!     └─┴─────────────┴────┴───┴─► step
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};

use neap_plan::{BLOCK_BYTES, ByteRange, PanelRange, StepRange, StepSpec, Workload};

use crate::free_ranges::FreeRanges;
use crate::layout::{Block, Layouts, StaticLayout, allocate};
use crate::shared::Stay;

/// What a tight base layout keeps free for weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    Nothing,
    SmallestSlices,
}

/// Where tables go whose rows a step could read from storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// Rows are read where that takes less memory than the table.
    Rows,
    /// Tables are resident.
    Resident,
}

/// Who gives buffers and workspaces their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// All are placed together; weights may lie wherever nothing else does.
    Planned,
    /// An allocator that goes with the run, in memory that weights do not share.
    Allocated,
}

/// A rectangle that every plan on this base layout has, in steps.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    pub arena: ByteRange,
    pub live: StepRange,
}

#[derive(Clone, Debug)]
pub struct BaseLayout {
    pub tables: Tables,
    /// By step: the step reads table rows from storage.
    pub reads_rows: Vec<bool>,
    pub buffers: Vec<u64>,
    pub workspaces: Vec<u64>,
    /// By step: offset of the place kept for its smallest slice, when there is one.
    pub reserved: Option<Vec<u64>>,
    /// Buffers and workspaces, by begin.
    pub fixed: Vec<Fixed>,
    /// Shared weights that stay for part of a run, and so lie still, too.
    pub stays: Vec<Stay>,
    /// Some steps compute with the same panels.
    pub shares_weights: bool,
    /// One past the highest byte of buffers and workspaces.
    pub fixed_bytes: u64,
    /// One past the highest byte of those and the reserved places.
    pub needed_bytes: u64,
    /// By step: block-aligned ranges that no buffer or workspace touches; the last is open-ended.
    gaps: Vec<Vec<ByteRange>>,
}

/// Blocks that a step's weights take when its panels come one at a time.
pub fn smallest_weights_bytes(step: &StepSpec, reads_rows: bool, tables: Tables) -> u64 {
    whole_weights(step, reads_rows, tables)
        .map(|r| r.to_blocks().len())
        .sum::<u64>()
        + largest_panel_bytes(step)
}

/// File ranges that a step needs whole.
pub fn whole_weights(
    step: &StepSpec,
    reads_rows: bool,
    tables: Tables,
) -> impl Iterator<Item = ByteRange> {
    let table = step
        .rows
        .filter(|r| !(reads_rows || tables == Tables::Resident && prefers_rows_of(r)));
    step.extents
        .iter()
        .map(|e| e.file_range())
        .chain(table.map(|t| t.file_range()))
}

fn prefers_rows_of(rows: &neap_plan::RowTable) -> bool {
    rows.rows_workspace_bytes < rows.file_range().to_blocks().len()
}

/// Whether reading rows takes less memory than loading the step's table.
pub fn prefers_rows(step: &StepSpec) -> bool {
    step.rows.as_ref().is_some_and(prefers_rows_of)
}

/// Blocks of the largest single panel: where it straddles a block boundary counts.
fn largest_panel_bytes(step: &StepSpec) -> u64 {
    let Some(p) = step.panels else { return 0 };
    // The pattern of straddling repeats, at the latest, with the block size.
    let distinct = p.panels.min(BLOCK_BYTES as u32);
    let blocks = |i: u32| p.file_range(PanelRange::new(i, i + 1)).to_blocks().len();
    if p.panel_bytes.is_multiple_of(BLOCK_BYTES) {
        blocks(0)
    } else {
        (0..distinct).map(blocks).max().unwrap_or(0)
    }
}

impl BaseLayout {
    pub fn new(
        w: &Workload,
        tables: Tables,
        reserve: Reserve,
        memory: Memory,
        layouts: &Layouts,
    ) -> Self {
        let reads_rows: Vec<bool> = w
            .steps
            .iter()
            .map(|s| tables == Tables::Rows && prefers_rows(s))
            .collect();
        let at = |s: usize| StepRange::new(s as u32, s as u32 + 1);
        let mut blocks: Vec<Block> = Vec::with_capacity(w.buffers.len() + 2 * w.steps.len());
        blocks.extend(w.buffers.iter().map(|b| Block {
            bytes: b.bytes,
            align: b.align,
            live: b.live,
        }));
        blocks.extend(w.steps.iter().enumerate().map(|(s, step)| Block {
            bytes: step.workspace_rect_bytes(reads_rows[s]),
            align: step.workspace_align(reads_rows[s]),
            live: at(s),
        }));
        let fixed_blocks = blocks.len();
        if reserve == Reserve::SmallestSlices {
            blocks.extend(w.steps.iter().enumerate().map(|(s, step)| Block {
                bytes: smallest_weights_bytes(step, reads_rows[s], tables),
                align: BLOCK_BYTES,
                live: at(s),
            }));
        }
        let layout = match memory {
            Memory::Planned => layouts.lay_out(&blocks),
            Memory::Allocated => allocated(&blocks, fixed_blocks),
        };
        let (offsets, spots) = layout.offsets.split_at(fixed_blocks);
        let (buffers, workspaces) = offsets.split_at(w.buffers.len());
        let mut fixed: Vec<Fixed> = blocks[..fixed_blocks]
            .iter()
            .zip(offsets)
            .filter(|(b, _)| b.bytes > 0 && !b.live.is_empty())
            .map(|(b, &offset)| Fixed {
                arena: ByteRange::at(offset, b.bytes),
                live: b.live,
            })
            .collect();
        fixed.sort_by_key(|f| f.live.begin);
        let fixed_bytes = fixed.iter().map(|f| f.arena.end).max().unwrap_or(0);
        if memory == Memory::Allocated && fixed_bytes > 0 {
            let always = StepRange::new(0, w.steps.len() as u32);
            let arena = ByteRange::at(0, fixed_bytes);
            fixed.insert(
                0,
                Fixed {
                    arena,
                    live: always,
                },
            );
        }
        Self {
            tables,
            reads_rows,
            buffers: buffers.to_vec(),
            workspaces: workspaces.to_vec(),
            reserved: (reserve == Reserve::SmallestSlices).then(|| spots.to_vec()),
            stays: Vec::new(),
            shares_weights: shares_weights(w),
            fixed_bytes,
            needed_bytes: layout.high_water_bytes.max(fixed_bytes),
            gaps: gaps(w.steps.len(), &fixed),
            fixed,
        }
    }

    /// The same with weights that stay for part of a run, which overlap nothing on it.
    pub fn with_stays(&self, steps: usize, stays: Vec<Stay>) -> BaseLayout {
        let mut still: Vec<Fixed> = self.fixed.clone();
        still.extend(stays.iter().map(Stay::rectangle));
        still.sort_by_key(|f| f.live.begin);
        BaseLayout {
            gaps: gaps(steps, &still),
            stays,
            // Places for the smallest slices may be taken.
            reserved: None,
            ..self.clone()
        }
    }

    /// Block-aligned free ranges of a step in an arena of `arena_bytes`, by address.
    pub fn gaps(&self, step: usize, arena_bytes: u64) -> impl Iterator<Item = ByteRange> {
        let top = arena_bytes / BLOCK_BYTES * BLOCK_BYTES;
        let cut = move |g: &ByteRange| ByteRange::new(g.begin, g.end.min(top));
        self.gaps[step].iter().map(cut).filter(|g| !g.is_empty())
    }
}

fn shares_weights(w: &Workload) -> bool {
    let mut seen = HashSet::with_capacity(w.steps.len());
    let mut panels = w.steps.iter().filter_map(|s| s.panels);
    !panels.all(|p| seen.insert(p.file_offset))
}

/// The first blocks where an allocator puts them; above all of those the rest, places for weights of
/// which only one is in use at a time.
fn allocated(blocks: &[Block], fixed_blocks: usize) -> StaticLayout {
    let (fixed, spots) = blocks.split_at(fixed_blocks);
    let mut layout = allocate(fixed);
    let above = layout.high_water_bytes.next_multiple_of(BLOCK_BYTES);
    layout.offsets.resize(blocks.len(), above);
    if let Some(most) = spots.iter().map(|b| b.bytes).max() {
        layout.high_water_bytes = above + most;
    }
    layout
}

/// By step: whole blocks that nothing touches. What lies still does not overlap, but for what lies below something that is
/// always there.
fn gaps(steps: usize, still: &[Fixed]) -> Vec<Vec<ByteRange>> {
    let always = StepRange::new(0, steps as u32);
    let is_floor = |f: &&Fixed| f.live == always && f.arena.begin == 0;
    let floor_end = still.iter().filter(is_floor).map(|f| f.arena.end).max();
    let floor = ByteRange::new(0, floor_end.unwrap_or(0));
    let mut free = FreeRanges::new();
    free.take(floor.to_blocks());
    // What is live above the floor: ends by begin, and when.
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    let mut until: BinaryHeap<Reverse<(u32, u64)>> = BinaryHeap::new();
    let mut next = still.iter().filter(|f| !floor.holds(f.arena)).peekable();
    (0..steps as u32)
        .map(|step| {
            while let Some(&Reverse((end, begin))) = until.peek()
                && end <= step
            {
                until.pop();
                if let Some(end) = live.remove(&begin) {
                    free.give(untouched(&live, floor, ByteRange::new(begin, end)));
                }
            }
            while let Some(f) = next.next_if(|f| f.live.begin <= step) {
                free.take(f.arena.to_blocks());
                live.insert(f.arena.begin, f.arena.end);
                until.push(Reverse((f.live.end, f.arena.begin)));
            }
            free.iter().collect()
        })
        .collect()
}

/// The blocks of a range, without those in which others lie, too.
fn untouched(live: &BTreeMap<u64, u64>, floor: ByteRange, range: ByteRange) -> ByteRange {
    let below = live.range(..range.begin).next_back();
    let below_end = below.map_or(floor.end, |(_, &end)| end.max(floor.end));
    let above = live.range(range.end..).next();
    let above_begin = above.map_or(u64::MAX, |(&begin, _)| begin);
    let blocks = range.to_blocks();
    ByteRange::new(
        blocks.begin.max(below_end.next_multiple_of(BLOCK_BYTES)),
        blocks.end.min(above_begin / BLOCK_BYTES * BLOCK_BYTES),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a look at all of them in each step.
        #[test]
        fn gaps_are_what_nothing_touches(
            raw in prop::collection::vec((0u64..2000, 0u32..9, 1u32..5), 0..30),
            floor_bytes in 0u64..9000,
        ) {
            const STEPS: u32 = 12;
            // One above the other, with holes of their own.
            let mut at = 0;
            let mut still: Vec<Fixed> = raw
                .iter()
                .map(|&(bytes, begin, steps)| {
                    let arena = ByteRange::at(at, 1 + bytes * 9);
                    at = arena.end + bytes % 7 * 1500;
                    Fixed { arena, live: StepRange::new(begin, (begin + steps).min(STEPS)) }
                })
                .collect();
            still.retain(|f| f.arena.begin >= floor_bytes || f.arena.end <= floor_bytes);
            still.sort_by_key(|f| f.live.begin);
            if floor_bytes > 0 {
                let live = StepRange::new(0, STEPS);
                still.insert(0, Fixed { arena: ByteRange::at(0, floor_bytes), live });
            }
            let found = gaps(STEPS as usize, &still);
            for step in 0..STEPS {
                let live = still.iter().filter(|f| f.live.contains(step));
                let taken: Vec<ByteRange> = live.map(|f| f.arena.to_blocks()).collect();
                for block in 0..(at + floor_bytes) / BLOCK_BYTES + 2 {
                    let block = ByteRange::at(block * BLOCK_BYTES, BLOCK_BYTES);
                    let is_free = !taken.iter().any(|t| t.overlaps(block));
                    let listed = found[step as usize].iter().any(|gap| gap.holds(block));
                    prop_assert_eq!(listed, is_free, "{:?} in step {}", block, step);
                }
            }
        }
    }

    /// Each value of as many steps as there are values is read by the last.
    #[test]
    fn gaps_above_twenty_thousand_values_are_found() {
        let n = 20_000u32;
        let value = |i: u32| Fixed {
            arena: ByteRange::at(64 * u64::from(i), 4),
            live: StepRange::new(i, n),
        };
        let still: Vec<Fixed> = (0..n).map(value).collect();
        let found = gaps(n as usize, &still);
        assert!(found.iter().all(|gaps| gaps.len() == 1));
        assert_eq!(found[0][0].begin, BLOCK_BYTES);
        let end = 64 * u64::from(n - 1) + 4;
        assert_eq!(
            found[n as usize - 1][0].begin,
            end.next_multiple_of(BLOCK_BYTES)
        );
    }
}
