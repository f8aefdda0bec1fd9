//! Proves a layout: shares nothing with the code that finds them.

use std::collections::BTreeMap;

use super::{Block, StaticLayout};
use thiserror::Error;

/// What is wrong with a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    #[error("{offsets} offsets for {blocks} blocks")]
    Count { offsets: usize, blocks: usize },
    #[error("block {block} ends past the last address")]
    Overflow { block: usize },
    #[error("block {block} lies at {offset}, no multiple of {align}")]
    Unaligned {
        block: usize,
        offset: u64,
        align: u64,
    },
    #[error("block {block} ends at {end}, above {high_water_bytes}")]
    TooHigh {
        block: usize,
        end: u64,
        high_water_bytes: u64,
    },
    #[error("blocks {first} and {second} overlap")]
    Overlap { first: usize, second: usize },
}

/// Whether all blocks are aligned, end at or below the high-water mark, and none overlaps another while
/// both are live. A block that is empty, or never live, lies anywhere.
///
/// # Errors
/// The first [`Fault`] found.
pub fn check(blocks: &[Block], layout: &StaticLayout) -> Result<(), Fault> {
    if layout.offsets.len() != blocks.len() {
        return Err(Fault::Count {
            offsets: layout.offsets.len(),
            blocks: blocks.len(),
        });
    }
    // (step, begins, block): ends sort before begins.
    let mut events = Vec::with_capacity(2 * blocks.len());
    for (i, (block, &offset)) in blocks.iter().zip(&layout.offsets).enumerate() {
        if block.bytes == 0 || block.live.begin >= block.live.end {
            continue;
        }
        let end = offset
            .checked_add(block.bytes)
            .ok_or(Fault::Overflow { block: i })?;
        let align = block.align;
        if align > 1 && offset % align != 0 {
            return Err(Fault::Unaligned {
                block: i,
                offset,
                align,
            });
        }
        if end > layout.high_water_bytes {
            return Err(Fault::TooHigh {
                block: i,
                end,
                high_water_bytes: layout.high_water_bytes,
            });
        }
        events.push((block.live.begin, true, i));
        events.push((block.live.end, false, i));
    }
    events.sort_unstable();
    // Live blocks by offset: they do not overlap, so a new one needs to be held against its neighbours only.
    let mut live: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    for (_, begins, i) in events {
        let offset = layout.offsets[i];
        if !begins {
            live.remove(&offset);
            continue;
        }
        let end = offset + blocks[i].bytes;
        if let Some((_, &(_, other))) = live.range(..end).next_back().filter(|(_, o)| o.0 > offset)
        {
            return Err(Fault::Overlap {
                first: other.min(i),
                second: other.max(i),
            });
        }
        live.insert(offset, (end, i));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_plan::StepRange;
    use proptest::prelude::*;

    fn block(bytes: u64, align: u64, begin: u32, end: u32) -> Block {
        Block {
            bytes,
            align,
            live: StepRange::new(begin, end),
        }
    }

    fn verdict(blocks: &[Block], offsets: &[u64], high_water_bytes: u64) -> Result<(), Fault> {
        let offsets = offsets.to_vec();
        check(
            blocks,
            &StaticLayout {
                offsets,
                high_water_bytes,
            },
        )
    }

    #[test]
    fn every_fault_is_found() {
        let blocks = [block(4, 1, 0, 2), block(4, 4, 1, 3), block(9, 1, 2, 4)];
        assert_eq!(verdict(&blocks, &[0, 4, 8], 17), Ok(()));
        assert_eq!(
            verdict(&blocks, &[0, 4], 17),
            Err(Fault::Count {
                offsets: 2,
                blocks: 3
            })
        );
        assert_eq!(
            verdict(&blocks, &[0, 5, 9], 18),
            Err(Fault::Unaligned {
                block: 1,
                offset: 5,
                align: 4
            })
        );
        assert_eq!(
            verdict(&blocks, &[0, 4, 8], 16),
            Err(Fault::TooHigh {
                block: 2,
                end: 17,
                high_water_bytes: 16
            })
        );
        assert_eq!(
            verdict(&blocks, &[0, 4, 7], 17),
            Err(Fault::Overlap {
                first: 1,
                second: 2
            })
        );
        assert_eq!(
            verdict(&blocks, &[u64::MAX - 1, 4, 8], 17),
            Err(Fault::Overflow { block: 0 })
        );
        // The third begins when the first ends: they may share bytes.
        assert_eq!(verdict(&blocks, &[0, 12, 0], 16), Ok(()));
    }

    proptest! {
        /// The sweep says what comparing all pairs says.
        #[test]
        fn agrees_with_all_pairs(
            raw in prop::collection::vec((0u64..4, 0u32..6, 0u32..4, 0u64..10), 0..12)
        ) {
            let blocks: Vec<Block> =
                raw.iter().map(|&(bytes, begin, len, _)| block(bytes, 1, begin, begin + len)).collect();
            let offsets: Vec<u64> = raw.iter().map(|r| r.3).collect();
            let overlap = (0..blocks.len()).any(|i| (0..i).any(|j| {
                let (a, b) = (&blocks[i], &blocks[j]);
                a.live.overlaps(b.live) && a.bytes > 0 && b.bytes > 0
                    && offsets[i] < offsets[j] + b.bytes && offsets[j] < offsets[i] + a.bytes
            }));
            prop_assert_eq!(verdict(&blocks, &offsets, 100).is_err(), overlap);
        }
    }
}
