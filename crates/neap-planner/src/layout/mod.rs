//! Static offsets for rectangles with fixed live ranges.
//!
//! ```text
//!   address                                  high-water mark: as low as can be found
//!     ▲        ┌────┐ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─    lower bound: most bytes live in any one step
//!     │  ┌──┐  │ c  ├──────┐
//!     │  │b │  └────┤  d   │
//!     ├──┴──┴───────┼──────┤
//!     │      a      │  e   │
//!     └─────────────┴──────┴─► step
//! ```
//!
//! [`solve`] searches for as long as it is let, and can prove that there is nothing better. [`lay_out`] is for
//! planning, in which a millisecond counts: greedy placement in several orders; then the best is improved by
//! moving what lies at the peak to the front of its order; then, if the lower bound is not met, a short `solve`. Blocks
//! of which too many pairs live together are placed once, in the order of time.

mod check;
pub mod csv;
mod effort;
mod exact;
mod greedy;
mod known;
mod sections;
mod solve;
mod sweep;
mod valley;

pub use check::{Fault, check};
pub use effort::Effort;
pub use known::Layouts;
pub use solve::{Request, Solved, solve};

use greedy::{Conflicts, place_in_order};
use neap_plan::StepRange;
use std::cmp::Reverse;

/// A rectangle to place: `bytes` for the steps in `live`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub bytes: u64,
    /// Power of two.
    pub align: u64,
    pub live: StepRange,
}

impl Block {
    /// Whether it takes a place at all.
    fn is_used(&self) -> bool {
        self.bytes > 0 && !self.live.is_empty()
    }
}

/// Offsets by block, and one past the highest byte used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaticLayout {
    pub offsets: Vec<u64>,
    pub high_water_bytes: u64,
}

/// What a search may take while planning: about half a millisecond.
const PLANNING_WORK: u64 = 500_000;

/// How a greedy order picks among the gaps that a block fits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    Lowest,
    Tightest,
}

/// Most bytes live in any one step: no layout does with fewer.
pub fn lower_bound_bytes(blocks: &[Block]) -> u64 {
    let used = || blocks.iter().filter(|b| b.is_used());
    let mut begins: Vec<(u32, u64)> = used().map(|b| (b.live.begin, b.bytes)).collect();
    let mut ends: Vec<(u32, u64)> = used().map(|b| (b.live.end, b.bytes)).collect();
    begins.sort_unstable();
    ends.sort_unstable();
    let mut ends = ends.into_iter().peekable();
    let (mut live, mut most) = (0u128, 0);
    for (begin, bytes) in begins {
        while let Some((_, bytes)) = ends.next_if(|&(end, _)| end <= begin) {
            live -= u128::from(bytes);
        }
        live += u128::from(bytes);
        most = live.max(most);
    }
    most.try_into().unwrap_or(u64::MAX)
}

/// The lowest layout found. Deterministic.
pub fn lay_out(blocks: &[Block]) -> StaticLayout {
    // Many steps have no workspace, or no weights.
    let used = || blocks.iter().enumerate().filter(|(_, b)| b.is_used());
    let those: Vec<Block> = used().map(|(_, b)| *b).collect();
    // Rounds cost O(blocks · neighbours); large problems get fewer.
    let rounds = (20_000 / blocks.len().max(1)).clamp(8, 64);
    let found = lay_out_used(&those, rounds);
    let mut offsets = vec![0; blocks.len()];
    for ((i, _), offset) in used().zip(found.offsets) {
        offsets[i] = offset;
    }
    StaticLayout {
        offsets,
        high_water_bytes: found.high_water_bytes,
    }
}

/// [`lay_out`] where every block takes a place. `rounds` are of improving.
fn lay_out_used(blocks: &[Block], rounds: usize) -> StaticLayout {
    if greedy::pairs_are_too_many(blocks) {
        return sweep::place_by_begin(blocks, Fit::Tightest);
    }
    let conflicts = Conflicts::new(blocks);
    let bound = lower_bound_bytes(blocks);
    let mut best: Option<(StaticLayout, Vec<u32>, Fit)> = None;
    for order in ORDERS {
        let order = order(blocks);
        for fit in [Fit::Lowest, Fit::Tightest] {
            let layout = place_in_order(blocks, &conflicts, &order, fit);
            if layout.high_water_bytes <= bound {
                return layout;
            }
            if best
                .as_ref()
                .is_none_or(|(b, ..)| layout.high_water_bytes < b.high_water_bytes)
            {
                best = Some((layout, order.clone(), fit));
            }
        }
    }
    let Some((layout, order, fit)) = best else {
        return StaticLayout::default();
    };
    let layout = improve(blocks, &conflicts, bound, layout, order, fit, rounds);
    if layout.high_water_bytes <= bound {
        return layout;
    }
    let mut never = || false;
    let request = Request::minimize(layout.high_water_bytes);
    let searched = solve(blocks, request, &mut Effort::new(PLANNING_WORK, &mut never));
    let lower = searched
        .layout
        .filter(|found| found.high_water_bytes < layout.high_water_bytes);
    lower.unwrap_or(layout)
}

/// What an allocator arrives at that takes the lowest free place for each block as its live range begins.
pub fn allocate(blocks: &[Block]) -> StaticLayout {
    sweep::place_by_begin(blocks, Fit::Lowest)
}

/// Which block is placed when.
type Order = fn(&[Block]) -> Vec<u32>;

/// Orders that do well on one kind of network or another.
const ORDERS: [Order; 5] = [by_size, by_area, by_start, by_length, by_pressure];

fn by_size(blocks: &[Block]) -> Vec<u32> {
    sorted_by(blocks, |b| (Reverse(b.bytes), b.live.begin))
}

fn by_area(blocks: &[Block]) -> Vec<u32> {
    let area = |b: &Block| u128::from(b.bytes) * u128::from(steps(b));
    sorted_by(blocks, |b| (Reverse(area(b)), b.live.begin))
}

fn by_start(blocks: &[Block]) -> Vec<u32> {
    sorted_by(blocks, |b| (b.live.begin, Reverse(b.bytes)))
}

fn by_length(blocks: &[Block]) -> Vec<u32> {
    sorted_by(blocks, |b| (Reverse(steps(b)), Reverse(b.bytes)))
}

fn steps(b: &Block) -> u32 {
    b.live.end.saturating_sub(b.live.begin)
}

fn sorted_by<K: Ord>(blocks: &[Block], key: impl Fn(&Block) -> K) -> Vec<u32> {
    let mut order: Vec<u32> = (0..blocks.len() as u32).collect();
    order.sort_by_cached_key(|&i| key(&blocks[i as usize]));
    order
}

/// The blocks of the fullest step first, large ones before small, then those of the next fullest.
fn by_pressure(blocks: &[Block]) -> Vec<u32> {
    let steps = blocks.iter().map(|b| b.live.end).max().unwrap_or(0) as usize;
    let mut live = vec![0u64; steps];
    for b in blocks {
        for step in b.live.begin..b.live.end {
            live[step as usize] = live[step as usize].saturating_add(b.bytes);
        }
    }
    let pressure = |b: &Block| {
        (b.live.begin..b.live.end)
            .map(|s| live[s as usize])
            .max()
            .unwrap_or(0)
    };
    let mut keyed: Vec<_> = blocks
        .iter()
        .enumerate()
        .map(|(i, b)| (pressure(b), b.bytes, i as u32))
        .collect();
    keyed.sort_by_key(|&(pressure, bytes, i)| (Reverse((pressure, bytes)), i));
    keyed.into_iter().map(|(.., i)| i).collect()
}

/// Moves the blocks that reach the high-water mark to the front of the order and places again, while
/// that helps or at least changes something, for a bounded number of rounds.
fn improve(
    blocks: &[Block],
    conflicts: &Conflicts,
    bound: u64,
    mut best: StaticLayout,
    mut order: Vec<u32>,
    fit: Fit,
    rounds: usize,
) -> StaticLayout {
    let mut current = best.clone();
    for _ in 0..rounds {
        if best.high_water_bytes <= bound {
            break;
        }
        let at_peak = |i: u32| {
            current.offsets[i as usize] + blocks[i as usize].bytes == current.high_water_bytes
        };
        let (mut front, back): (Vec<u32>, Vec<u32>) = order.iter().partition(|&&i| at_peak(i));
        front.extend(back);
        order = front;
        current = place_in_order(blocks, conflicts, &order, fit);
        if current.high_water_bytes < best.high_water_bytes {
            best = current.clone();
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(bytes: u64, begin: u32, end: u32) -> Block {
        Block {
            bytes,
            align: 1,
            live: StepRange::new(begin, end),
        }
    }

    fn check(blocks: &[Block], layout: &StaticLayout) {
        for (i, a) in blocks.iter().enumerate() {
            assert_eq!(layout.offsets[i] % a.align, 0);
            assert!(
                a.bytes == 0
                    || a.live.is_empty()
                    || layout.offsets[i] + a.bytes <= layout.high_water_bytes
            );
            for (j, b) in blocks.iter().enumerate().take(i) {
                let apart = layout.offsets[i] + a.bytes <= layout.offsets[j]
                    || layout.offsets[j] + b.bytes <= layout.offsets[i];
                assert!(
                    apart || !a.live.overlaps(b.live),
                    "{i} {a:?} and {j} {b:?} overlap"
                );
            }
        }
    }

    #[test]
    fn a_chain_meets_its_lower_bound() {
        // Sizes for which first-fit in schedule order fails: 4 | 4+1 | 1+5 | 5+2.
        let chain = [
            block(4, 0, 2),
            block(1, 1, 3),
            block(5, 2, 4),
            block(2, 3, 5),
        ];
        let layout = lay_out(&chain);
        check(&chain, &layout);
        assert_eq!(lower_bound_bytes(&chain), 7);
        assert_eq!(layout.high_water_bytes, 7);
    }

    #[test]
    fn nothing_needs_nothing() {
        assert_eq!(lay_out(&[]).high_water_bytes, 0);
        assert_eq!(
            lay_out(&[block(0, 0, 5), block(9, 3, 3)]).high_water_bytes,
            0
        );
    }

    proptest! {
        #[test]
        fn random_blocks_never_overlap(
            raw in prop::collection::vec((0u64..5000, 0u32..5, 0u32..30, 0u32..8), 0..60)
        ) {
            let blocks: Vec<Block> = raw
                .iter()
                .map(|&(bytes, align, begin, len)| Block {
                    bytes,
                    align: 1 << (2 * align),
                    live: StepRange::new(begin, begin + len),
                })
                .collect();
            let layout = lay_out(&blocks);
            check(&blocks, &layout);
            prop_assert!(layout.high_water_bytes >= lower_bound_bytes(&blocks));
        }
    }
}
