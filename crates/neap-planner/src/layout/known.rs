//! `Layouts`: layouts that were found before. They do not depend on the budget, and are a large part of what planning
//! for another one would take.
//!
//! ```text
//!   blocks ─► key ─► known? ─► offsets, in units of 64 bytes
//!                      │ no
//!                      └────► search, keep while there is room
//! ```

use super::{Block, StaticLayout, lay_out};
use std::sync::{Mutex, PoisonError};

/// What all of it may take: some networks' choices of kernels, for plain steps and row bands.
const MOST_BYTES: usize = 96 << 10;

/// Offsets are multiples of a cache line, mostly; layouts in which one is not are not kept.
const UNIT_BYTES: u64 = 64;

/// Layouts by the blocks that they are of.
#[derive(Debug, Default)]
pub struct Layouts {
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    layouts: Vec<Known>,
    /// What they take, nearly.
    bytes: usize,
}

#[derive(Debug)]
struct Known {
    key: [u64; 2],
    offsets: Box<[u32]>,
    high_water_bytes: u64,
}

impl Layouts {
    /// What [`lay_out`](super::lay_out) finds, or found before for the same blocks.
    pub fn lay_out(&self, blocks: &[Block]) -> StaticLayout {
        let key = key(blocks);
        let known = self.get(key).filter(|l| l.offsets.len() == blocks.len());
        if let Some(layout) = known {
            return layout;
        }
        let layout = lay_out(blocks);
        self.keep(key, &layout);
        layout
    }

    fn get(&self, key: [u64; 2]) -> Option<StaticLayout> {
        // A layout is kept whole or not at all.
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let known = found.layouts.iter().find(|known| known.key == key)?;
        let offsets = known.offsets.iter();
        Some(StaticLayout {
            offsets: offsets.map(|&o| u64::from(o) * UNIT_BYTES).collect(),
            high_water_bytes: known.high_water_bytes,
        })
    }

    fn keep(&self, key: [u64; 2], layout: &StaticLayout) {
        let units = |&offset: &u64| {
            let whole = offset.is_multiple_of(UNIT_BYTES);
            whole.then(|| u32::try_from(offset / UNIT_BYTES).ok())?
        };
        let bytes = size_of::<Known>() + size_of::<u32>() * layout.offsets.len();
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.bytes + bytes > MOST_BYTES {
            return;
        }
        let Some(offsets) = layout.offsets.iter().map(units).collect() else {
            return;
        };
        found.bytes += bytes;
        found.layouts.push(Known {
            key,
            offsets,
            high_water_bytes: layout.high_water_bytes,
        });
    }
}

/// Two digests, each of all that a layout depends on.
fn key(blocks: &[Block]) -> [u64; 2] {
    let start = [blocks.len() as u64, 0];
    blocks.iter().fold(start, |[a, b], block| {
        let live = u64::from(block.live.begin) << 32 | u64::from(block.live.end);
        [block.bytes, block.align, live]
            .into_iter()
            .fold([a, b], |[a, b], x| {
                let mixed = (a ^ x).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let other = (b.rotate_left(23) ^ x).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
                [mixed ^ mixed >> 29, other ^ other >> 32]
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_plan::StepRange;

    /// A chain.
    fn blocks(align: u64, bytes: &[u64]) -> Vec<Block> {
        let block = |(i, &bytes)| Block {
            bytes,
            align,
            live: StepRange::new(i, i + 2),
        };
        (0..).zip(bytes).map(block).collect()
    }

    #[test]
    fn finds_again_what_was_found() {
        let layouts = Layouts::default();
        let (a, b) = (blocks(64, &[256, 64, 320]), blocks(64, &[256, 64, 384]));
        for _ in 0..2 {
            assert_eq!(layouts.lay_out(&a), lay_out(&a));
            assert_eq!(layouts.lay_out(&b), lay_out(&b));
        }
        assert_eq!(layouts.found.lock().unwrap().layouts.len(), 2);
    }

    #[test]
    fn keeps_nothing_that_it_cannot_tell_exactly() {
        let layouts = Layouts::default();
        let odd = blocks(1, &[33, 7]);
        let found = layouts.lay_out(&odd);
        assert!(found.offsets.iter().any(|o| o % 64 != 0), "{found:?}");
        assert_eq!(layouts.lay_out(&odd), found);
        assert!(layouts.found.lock().unwrap().layouts.is_empty());
    }

    #[test]
    fn is_never_larger_than_it_may_be() {
        let layouts = Layouts::default();
        let many = |bytes: u64| vec![blocks(64, &[bytes])[0]; 1 << 10];
        for bytes in 1..100 {
            layouts.lay_out(&many(64 * bytes));
        }
        let found = layouts.found.lock().unwrap();
        assert!(found.bytes <= MOST_BYTES && found.layouts.len() < 99);
    }
}
