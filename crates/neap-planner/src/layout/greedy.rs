//! Greedy placement: blocks one by one, each into a gap between those already placed that live with it.

use super::{Block, Fit, StaticLayout};

/// For each block, the blocks that are live together with it.
pub struct Conflicts {
    start: Vec<u32>,
    others: Vec<u32>,
}

impl Conflicts {
    pub fn new(blocks: &[Block]) -> Self {
        let used = |i: u32| blocks[i as usize].bytes > 0 && !blocks[i as usize].live.is_empty();
        let mut by_begin: Vec<u32> = (0..blocks.len() as u32).filter(|&i| used(i)).collect();
        by_begin.sort_by_key(|&i| blocks[i as usize].live.begin);
        let mut live: Vec<u32> = Vec::new();
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        for &i in &by_begin {
            live.retain(|&j| blocks[j as usize].live.end > blocks[i as usize].live.begin);
            for &j in &live {
                pairs.extend([(i, j), (j, i)]);
            }
            live.push(i);
        }
        let mut start = vec![0u32; blocks.len() + 1];
        for &(i, _) in &pairs {
            start[i as usize + 1] += 1;
        }
        for i in 0..blocks.len() {
            start[i + 1] += start[i];
        }
        let mut next = start.clone();
        let mut others = vec![0; pairs.len()];
        for &(i, j) in &pairs {
            others[next[i as usize] as usize] = j;
            next[i as usize] += 1;
        }
        Self { start, others }
    }

    fn of(&self, i: u32) -> &[u32] {
        &self.others[self.start[i as usize] as usize..self.start[i as usize + 1] as usize]
    }
}

/// Places every block in the given order.
pub fn place_in_order(
    blocks: &[Block],
    conflicts: &Conflicts,
    order: &[u32],
    fit: Fit,
) -> StaticLayout {
    const UNPLACED: u64 = u64::MAX;
    let mut offsets = vec![UNPLACED; blocks.len()];
    let mut high_water_bytes = 0;
    let mut taken: Vec<(u64, u64)> = Vec::new();
    for &i in order {
        let block = &blocks[i as usize];
        if block.bytes == 0 || block.live.is_empty() {
            offsets[i as usize] = 0;
            continue;
        }
        taken.clear();
        for &j in conflicts.of(i) {
            let at = offsets[j as usize];
            if at != UNPLACED {
                taken.push((at, at + blocks[j as usize].bytes));
            }
        }
        taken.sort_unstable();
        let offset = find_gap(&taken, block.bytes, block.align, fit);
        offsets[i as usize] = offset;
        high_water_bytes = high_water_bytes.max(offset + block.bytes);
    }
    StaticLayout {
        offsets,
        high_water_bytes,
    }
}

/// A gap for `bytes` between the taken ranges (sorted by begin); above them all if there is none.
pub fn find_gap(taken: &[(u64, u64)], bytes: u64, align: u64, fit: Fit) -> u64 {
    let mut free_from = 0u64;
    let mut best: Option<(u64, u64)> = None;
    for &(begin, end) in taken {
        let at = free_from.next_multiple_of(align);
        if begin >= at && begin - at >= bytes {
            if fit == Fit::Lowest {
                return at;
            }
            let slack = begin - free_from - bytes;
            if best.is_none_or(|(s, _)| slack < s) {
                best = Some((slack, at));
            }
        }
        free_from = free_from.max(end);
    }
    best.map_or(free_from.next_multiple_of(align), |(_, at)| at)
}
