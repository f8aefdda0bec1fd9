//! States of the search that are known to lead nowhere: a table of fixed size, newer entries over older.

/// 2^17 states of 16 bytes.
const BITS: u32 = 17;

pub struct DeadStates {
    table: Vec<u128>,
}

impl DeadStates {
    /// Starts small: most searches are short.
    pub fn new() -> Self {
        Self { table: Vec::new() }
    }

    pub fn contains(&self, key: u128) -> bool {
        !self.table.is_empty() && self.table[slot(key)] == key
    }

    pub fn insert(&mut self, key: u128) {
        if self.table.is_empty() {
            self.table.resize(1 << BITS, 0);
        }
        self.table[slot(key)] = key;
    }
}

fn slot(key: u128) -> usize {
    key as usize & ((1 << BITS) - 1)
}

/// What one item contributes to a state's key: 128 bits, so that two states with one key are not met in
/// practice.
pub fn key_of(item: usize, lowest: u64) -> u128 {
    let high = scramble(lowest ^ scramble(item as u64 + 1));
    let low = scramble(high ^ lowest.rotate_left(32) ^ 0x5851_f42d_4c95_7f2d);
    (u128::from(high) << 64) | u128::from(low)
}

/// A bijection in which every bit of the result depends on every bit of `x`.
pub fn scramble(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
