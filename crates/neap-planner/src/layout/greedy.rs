//! Greedy placement: blocks one by one, each into a gap between those already placed that live with it.

use super::{Block, Fit, StaticLayout};

/// For each block, the blocks that are live together with it. Where those are most of all, as in a step of training, whose
/// activations all live in its middle, they are not listed but looked for: lists would grow with the square.
pub struct Conflicts(Option<Lists>);

struct Lists {
    start: Vec<u32>,
    others: Vec<u32>,
}

/// So many are listed in any case.
const FEW_LISTED: u64 = 1 << 18;
/// More are only listed where they are less than this part of all pairs, and at most so many: 64 MiB.
const DENSE_PART: u64 = 8;
const MOST_LISTED: u64 = 1 << 24;
/// With so many blocks those that are not listed are looked for.
const MOST_LOOKED_FOR: usize = 1 << 13;

impl Conflicts {
    pub fn new(blocks: &[Block]) -> Self {
        Self(are_listed(blocks).then(|| Lists::of_all(blocks)))
    }
}

/// Whether blocks are too many to look for those that live together with each of them, again and again.
pub fn pairs_are_too_many(blocks: &[Block]) -> bool {
    blocks.len() > MOST_LOOKED_FOR && !are_listed(blocks)
}

fn are_listed(blocks: &[Block]) -> bool {
    let listed = 2 * pairs(blocks);
    let all = (blocks.len() as u64).pow(2);
    listed <= FEW_LISTED || listed < all / DENSE_PART && listed <= MOST_LISTED
}

/// How many pairs of blocks are live together.
fn pairs(blocks: &[Block]) -> u64 {
    let used = || blocks.iter().filter(|b| is_used(b));
    let mut begins: Vec<u32> = used().map(|b| b.live.begin).collect();
    let mut ends: Vec<u32> = used().map(|b| b.live.end).collect();
    begins.sort_unstable();
    ends.sort_unstable();
    let mut ended = ends.iter().peekable();
    let (mut pairs, mut live) = (0, 0);
    for begin in begins {
        while ended.next_if(|&&end| end <= begin).is_some() {
            live -= 1;
        }
        pairs += live;
        live += 1;
    }
    pairs
}

impl Lists {
    fn of_all(blocks: &[Block]) -> Self {
        let mut counts = vec![0u32; blocks.len()];
        for_each_pair(blocks, |i, j| {
            counts[i as usize] += 1;
            counts[j as usize] += 1;
        });
        let mut start = vec![0u32; blocks.len() + 1];
        for (i, count) in counts.iter().enumerate() {
            start[i + 1] = start[i] + count;
        }
        let mut next = start.clone();
        let mut others = vec![0; start[blocks.len()] as usize];
        for_each_pair(blocks, |i, j| {
            for (of, other) in [(i, j), (j, i)] {
                others[next[of as usize] as usize] = other;
                next[of as usize] += 1;
            }
        });
        Self { start, others }
    }

    fn of(&self, i: u32) -> &[u32] {
        &self.others[self.start[i as usize] as usize..self.start[i as usize + 1] as usize]
    }
}

fn is_used(block: &Block) -> bool {
    block.bytes > 0 && !block.live.is_empty()
}

/// Pairs of blocks that are live together.
fn for_each_pair(blocks: &[Block], mut visit: impl FnMut(u32, u32)) {
    let all = 0..blocks.len() as u32;
    let mut by_begin: Vec<u32> = all.filter(|&i| is_used(&blocks[i as usize])).collect();
    by_begin.sort_by_key(|&i| blocks[i as usize].live.begin);
    let mut live: Vec<u32> = Vec::new();
    for &i in &by_begin {
        live.retain(|&j| blocks[j as usize].live.end > blocks[i as usize].live.begin);
        live.iter().for_each(|&j| visit(i, j));
        live.push(i);
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
    for (placed, &i) in order.iter().enumerate() {
        let block = &blocks[i as usize];
        if !is_used(block) {
            offsets[i as usize] = 0;
            continue;
        }
        taken.clear();
        let mut take = |j: u32| {
            let at = offsets[j as usize];
            if at != UNPLACED {
                taken.push((at, at + blocks[j as usize].bytes));
            }
        };
        match &conflicts.0 {
            Some(lists) => lists.of(i).iter().for_each(|&j| take(j)),
            None => {
                for &j in &order[..placed] {
                    let other = &blocks[j as usize];
                    let meets =
                        other.live.begin < block.live.end && block.live.begin < other.live.end;
                    if meets && is_used(other) {
                        take(j);
                    }
                }
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

#[cfg(test)]
mod tests {
    use super::*;
    use neap_plan::StepRange;

    #[test]
    fn what_is_looked_for_is_what_would_be_listed() {
        let mut state = 1u64;
        let mut random = |most: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % most
        };
        let blocks: Vec<Block> = (0..1000)
            .map(|_| {
                let begin = random(40) as u32;
                Block {
                    bytes: random(5) * 100,
                    align: 64,
                    live: StepRange::new(begin, begin + random(60) as u32),
                }
            })
            .collect();
        let looked_for = Conflicts::new(&blocks);
        assert!(looked_for.0.is_none(), "they are most of all");
        let lists = Lists::of_all(&blocks);
        assert_eq!(lists.others.len() as u64, 2 * pairs(&blocks));
        let listed = Conflicts(Some(lists));
        let order: Vec<u32> = (0..blocks.len() as u32).rev().collect();
        for fit in [Fit::Lowest, Fit::Tightest] {
            let one = place_in_order(&blocks, &looked_for, &order, fit);
            let other = place_in_order(&blocks, &listed, &order, fit);
            assert_eq!(one.offsets, other.offsets);
        }
    }
}
