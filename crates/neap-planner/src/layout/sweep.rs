//! Placement in the order of time: each block where memory is free as it begins to live. For blocks that are too many to be
//! compared in pairs, and for allocators, which know no other order.

use super::{Block, Fit, StaticLayout};
use crate::free_ranges::FreeRanges;
use neap_plan::ByteRange;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Blocks in order of their begin; of equal ones in the order given.
pub fn place_by_begin(blocks: &[Block], fit: Fit) -> StaticLayout {
    let used = (0..blocks.len()).filter(|&i| blocks[i].is_used());
    let mut order: Vec<usize> = used.collect();
    order.sort_by_key(|&i| blocks[i].live.begin);
    let mut free = FreeRanges::new();
    let mut ends = BinaryHeap::new();
    let mut layout = StaticLayout {
        offsets: vec![0; blocks.len()],
        high_water_bytes: 0,
    };
    for i in order {
        let block = &blocks[i];
        while let Some(&Reverse((end, other))) = ends.peek()
            && end <= block.live.begin
        {
            let other: usize = other;
            free.give(ByteRange::at(layout.offsets[other], blocks[other].bytes));
            ends.pop();
        }
        let place = match fit {
            Fit::Lowest => free.lowest(block.bytes, block.align),
            Fit::Tightest => free.tightest(block.bytes, block.align),
        };
        let offset = place.unwrap_or(layout.high_water_bytes);
        free.take(ByteRange::at(offset, block.bytes));
        ends.push(Reverse((block.live.end, i)));
        layout.offsets[i] = offset;
        layout.high_water_bytes = layout.high_water_bytes.max(offset + block.bytes);
    }
    layout
}

#[cfg(test)]
mod tests {
    use super::super::{check, greedy, lay_out, lower_bound_bytes};
    use super::*;
    use neap_plan::StepRange;
    use proptest::prelude::*;

    fn block(bytes: u64, begin: u32, end: u32) -> Block {
        Block {
            bytes,
            align: 64,
            live: StepRange::new(begin, end),
        }
    }

    proptest! {
        #[test]
        fn it_is_what_comparing_pairs_finds(
            raw in prop::collection::vec((0u64..5000, 0u32..5, 0u32..30, 0u32..8), 0..60)
        ) {
            let blocks: Vec<Block> = raw
                .iter()
                .map(|&(bytes, align, begin, len)| Block {
                    align: 1 << (2 * align),
                    ..block(bytes, begin, begin + len)
                })
                .collect();
            let mut order: Vec<u32> = (0..blocks.len() as u32).collect();
            order.sort_by_key(|&i| blocks[i as usize].live.begin);
            let conflicts = greedy::Conflicts::new(&blocks);
            let by_pairs = greedy::place_in_order(&blocks, &conflicts, &order, Fit::Lowest);
            prop_assert_eq!(place_by_begin(&blocks, Fit::Lowest), by_pairs);
            let tight = place_by_begin(&blocks, Fit::Tightest);
            prop_assert_eq!(check(&blocks, &tight), Ok(()));
        }
    }

    /// Operands of one sum: each lives from its step to the last.
    #[test]
    fn two_hundred_thousand_blocks_that_live_together_are_placed() {
        let n = 200_000;
        let operands: Vec<Block> = (0..n)
            .map(|i| block(64 * (1 + u64::from(i % 7)), i, n))
            .collect();
        let layout = lay_out(&operands);
        assert_eq!(check(&operands, &layout), Ok(()));
        assert_eq!(layout.high_water_bytes, lower_bound_bytes(&operands));
        // What lives long among what does not.
        let mixed: Vec<Block> = (0..n)
            .map(|i| match i % 3 {
                0 => block(4 * u64::from(i % 90), i, n),
                _ => block(64 * u64::from(1 + i % 11), i, i + 2),
            })
            .collect();
        let layout = lay_out(&mixed);
        assert_eq!(check(&mixed, &layout), Ok(()));
        // Holes that alignment leaves are nobody's.
        let whole = mixed.iter().map(|b| Block {
            bytes: b.bytes.next_multiple_of(64),
            ..*b
        });
        let bound = lower_bound_bytes(&whole.collect::<Vec<_>>());
        let high = layout.high_water_bytes;
        assert!(high <= bound + bound / 50, "{high} bytes, of {bound}");
    }

    /// A chain: each lives with two others.
    #[test]
    fn two_hundred_thousand_blocks_of_a_chain_are_placed() {
        let chain: Vec<Block> = (0..200_000)
            .map(|i| block(64 * (1 + u64::from(i).pow(2) % 31), i, i + 2))
            .collect();
        let layout = lay_out(&chain);
        assert_eq!(check(&chain, &layout), Ok(()));
    }
}
