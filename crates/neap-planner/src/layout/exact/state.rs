//! What a node of the search knows, what follows from placing an item or ruling its lowest offset out, and
//! the way back.

use super::Item;
use super::dead::key_of;

/// The node is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict;

/// Nothing is left to place in the section.
const NO_FLOOR: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Section {
    floor: u64,
    /// Unplaced items whose lowest offset is the floor.
    candidates: u32,
    /// Whether some bytes may stay free.
    has_slack: bool,
}

enum Change {
    Lowest { item: u32, was: u64 },
    Section { section: u32, was: Section },
    Placed { item: u32 },
}

pub struct State {
    items: Vec<Item>,
    capacity_bytes: u64,
    /// Words of a set of items.
    words: usize,
    /// By section: the set of its items.
    members: Vec<u64>,
    /// By item: the set of those that are live together with it.
    conflicts: Vec<u64>,
    /// By item: a number that equal items share.
    class: Vec<u32>,
    unplaced: Vec<u64>,
    /// By item: its offset once it is placed; until then the lowest that it can have.
    lowest: Vec<u64>,
    floors: Vec<Section>,
    /// By section: unplaced items that are live both there and in the section before.
    crossing: Vec<u32>,
    /// By section: how often a node died there, plus one.
    weight: Vec<u32>,
    trail: Vec<Change>,
    dirty: Vec<u32>,
    is_dirty: Vec<bool>,
    /// Scratch: lowest offsets and sizes of a section's items.
    releases: Vec<(u64, u64)>,
    work: u64,
}

impl State {
    pub fn new(items: &[Item], sections: usize, capacity_bytes: u64) -> Self {
        let words = items.len().div_ceil(64);
        let mut members = vec![0u64; sections * words];
        let mut crossing = vec![0u32; sections + 1];
        for (i, item) in items.iter().enumerate() {
            for s in item.lo as usize..item.hi as usize {
                members[s * words + i / 64] |= 1 << (i % 64);
                crossing[s] += u32::from(s > item.lo as usize);
            }
        }
        let mut conflicts = vec![0u64; items.len() * words];
        for (i, item) in items.iter().enumerate() {
            let own = &mut conflicts[i * words..(i + 1) * words];
            for s in item.lo as usize..item.hi as usize {
                for (to, from) in own.iter_mut().zip(&members[s * words..]) {
                    *to |= from;
                }
            }
            own[i / 64] &= !(1 << (i % 64));
        }
        let mut unplaced = vec![0u64; words];
        for i in 0..items.len() {
            unplaced[i / 64] |= 1 << (i % 64);
        }
        let unknown = Section {
            floor: 0,
            candidates: 0,
            has_slack: false,
        };
        Self {
            class: classes(items),
            items: items.to_vec(),
            capacity_bytes,
            words,
            members,
            conflicts,
            unplaced,
            lowest: vec![0; items.len()],
            floors: vec![unknown; sections],
            crossing,
            weight: vec![1; sections],
            trail: Vec::new(),
            dirty: Vec::new(),
            is_dirty: vec![false; sections],
            releases: Vec::new(),
            work: 0,
        }
    }

    /// What is known at the root.
    pub fn start(&mut self) -> Result<(), Conflict> {
        for section in 0..self.floors.len() {
            self.touch(section);
        }
        let result = self.settle();
        self.trail.clear();
        result
    }

    pub fn items(&self) -> &[Item] {
        &self.items
    }

    pub fn sections(&self) -> usize {
        self.floors.len()
    }

    /// Of a solved state.
    pub fn offsets(&self) -> Vec<u64> {
        self.lowest.clone()
    }

    /// Bytes of all items by section.
    pub fn loads(&self) -> Vec<u64> {
        let mut loads = vec![0; self.floors.len()];
        for item in &self.items {
            for load in &mut loads[item.lo as usize..item.hi as usize] {
                *load += item.bytes;
            }
        }
        loads
    }

    /// Work done since it was last asked for.
    pub fn take_work(&mut self) -> u64 {
        std::mem::take(&mut self.work)
    }

    pub fn mark(&self) -> usize {
        self.trail.len()
    }

    pub fn undo(&mut self, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop() {
                Some(Change::Lowest { item, was }) => self.lowest[item as usize] = was,
                Some(Change::Section { section, was }) => self.floors[section as usize] = was,
                Some(Change::Placed { item }) => {
                    self.unplaced[item as usize / 64] |= 1 << (item % 64);
                    let item = &self.items[item as usize];
                    for s in item.lo as usize + 1..item.hi as usize {
                        self.crossing[s] += 1;
                    }
                }
                None => {}
            }
        }
    }

    /// The first sections in `from..end` that unplaced items join with each other.
    pub fn next_part(&self, from: usize, end: usize) -> Option<(usize, usize)> {
        let lo = (from..end).find(|&s| self.floors[s].floor != NO_FLOOR)?;
        let hi = (lo + 1..end).find(|&s| self.crossing[s] == 0);
        Some((lo, hi.unwrap_or(end)))
    }

    /// Stands for the unplaced items of a part and their lowest offsets.
    pub fn key(&self, lo: usize, hi: usize) -> u128 {
        let inside = |i: &usize| {
            let item = &self.items[*i];
            lo <= item.lo as usize && item.hi as usize <= hi
        };
        bits(&self.unplaced, &self.unplaced)
            .filter(inside)
            .fold(0, |key, i| key ^ key_of(i, self.lowest[i]))
    }

    /// The item to decide next in a part, and whether placing it takes nothing from others. `None` when the
    /// part is solved.
    pub fn choose(&self, lo: usize, hi: usize, rank: &[u32]) -> Option<(usize, bool)> {
        let section = self.fewest_choices(lo, hi)?;
        let floor = self.floors[section].floor;
        let mut first: Option<usize> = None;
        for i in bits(self.members_of(section), &self.unplaced) {
            if self.lowest[i] != floor {
                continue;
            }
            let top = floor + self.items[i].bytes;
            if bits(self.conflicts_of(i), &self.unplaced).all(|other| self.lowest[other] >= top) {
                return Some((i, true));
            }
            if first.is_none_or(|f| rank[i] < rank[f]) {
                first = Some(i);
            }
        }
        first.map(|i| (i, false))
    }

    /// The section of any valley with the fewest ways to go on, where nodes died often.
    fn fewest_choices(&self, lo: usize, hi: usize) -> Option<usize> {
        let mut best: Option<(f64, usize)> = None;
        let mut before = NO_FLOOR;
        let mut s = lo;
        while s < hi {
            let floor = self.floors[s].floor;
            let end = (s + 1..hi)
                .find(|&t| self.floors[t].floor != floor)
                .unwrap_or(hi);
            let after = if end < hi {
                self.floors[end].floor
            } else {
                NO_FLOOR
            };
            if floor != NO_FLOOR && floor < before && floor < after {
                for t in s..end {
                    let section = &self.floors[t];
                    // A single choice is best; free bytes are half of one more.
                    let free = if section.has_slack { 0.6 } else { 0.1 };
                    let choices = f64::from(section.candidates) - 1.0 + free;
                    let score = choices / f64::from(self.weight[t]);
                    if best.is_none_or(|(least, _)| score < least) {
                        best = Some((score, t));
                    }
                }
            }
            before = floor;
            s = end;
        }
        best.map(|(_, t)| t)
    }

    /// Puts an item at its lowest offset.
    pub fn place(&mut self, i: usize) -> Result<(), Conflict> {
        let item = self.items[i];
        self.unplaced[i / 64] &= !(1 << (i % 64));
        for s in item.lo as usize..item.hi as usize {
            self.crossing[s] -= u32::from(s > item.lo as usize);
            self.touch(s);
        }
        self.trail.push(Change::Placed { item: i as u32 });
        let top = self.lowest[i] + item.bytes;
        let mut result = Ok(());
        for w in 0..self.words {
            let mut rest = self.conflicts[i * self.words + w] & self.unplaced[w];
            while rest != 0 && result.is_ok() {
                let other = w * 64 + rest.trailing_zeros() as usize;
                rest &= rest - 1;
                result = self.raise(other, top);
            }
        }
        self.work += self.words as u64;
        self.settled(result)
    }

    /// Follows from that an item, and so any equal one, does not lie at its lowest offset: it lies on
    /// another item then.
    pub fn refute(&mut self, i: usize) -> Result<(), Conflict> {
        let others = || bits(self.conflicts_of(i), &self.unplaced);
        let top = |other: usize| self.lowest[other] + self.items[other].bytes;
        let to = others().map(top).min().ok_or(Conflict)?;
        let level = self.lowest[i];
        let twin =
            |other: &usize| self.class[*other] == self.class[i] && self.lowest[*other] == level;
        let twins: Vec<usize> = others().filter(twin).collect();
        let mut result = self.raise(i, to);
        for other in twins {
            result = result.and_then(|()| self.raise(other, to));
        }
        self.settled(result)
    }

    fn raise(&mut self, i: usize, to: u64) -> Result<(), Conflict> {
        let item = self.items[i];
        let to = to.next_multiple_of(item.align);
        if to <= self.lowest[i] {
            return Ok(());
        }
        let was = std::mem::replace(&mut self.lowest[i], to);
        self.trail.push(Change::Lowest {
            item: i as u32,
            was,
        });
        for s in item.lo as usize..item.hi as usize {
            self.touch(s);
        }
        if to + item.bytes > self.capacity_bytes {
            for s in item.lo as usize..item.hi as usize {
                self.weight[s] = self.weight[s].saturating_add(1);
            }
            return Err(Conflict);
        }
        Ok(())
    }

    fn touch(&mut self, section: usize) {
        if !std::mem::replace(&mut self.is_dirty[section], true) {
            self.dirty.push(section as u32);
        }
    }

    fn settled(&mut self, result: Result<(), Conflict>) -> Result<(), Conflict> {
        if result.is_ok() {
            return self.settle();
        }
        for section in self.dirty.drain(..) {
            self.is_dirty[section as usize] = false;
        }
        result
    }

    /// Looks again at each section in which something changed: its items one by one, none below its lowest
    /// offset, must end within the capacity.
    fn settle(&mut self) -> Result<(), Conflict> {
        while let Some(section) = self.dirty.pop() {
            let s = section as usize;
            self.is_dirty[s] = false;
            let mut releases = std::mem::take(&mut self.releases);
            releases.clear();
            let members = &self.members[s * self.words..(s + 1) * self.words];
            for i in bits(members, &self.unplaced) {
                releases.push((self.lowest[i], self.items[i].bytes));
            }
            releases.sort_unstable();
            self.work += 30 + self.words as u64 + 5 * releases.len() as u64;
            let top = releases
                .iter()
                .fold(0, |top: u64, &(at, bytes)| top.max(at) + bytes);
            let floor = releases.first().map_or(NO_FLOOR, |r| r.0);
            let candidates = releases.iter().take_while(|r| r.0 == floor).count();
            self.releases = releases;
            if top > self.capacity_bytes {
                self.weight[s] = self.weight[s].saturating_add(1);
                return self.settled(Err(Conflict));
            }
            let now = Section {
                floor,
                candidates: candidates as u32,
                has_slack: top < self.capacity_bytes,
            };
            let was = std::mem::replace(&mut self.floors[s], now);
            self.trail.push(Change::Section { section, was });
        }
        Ok(())
    }

    fn members_of(&self, section: usize) -> &[u64] {
        &self.members[section * self.words..(section + 1) * self.words]
    }

    fn conflicts_of(&self, item: usize) -> &[u64] {
        &self.conflicts[item * self.words..(item + 1) * self.words]
    }
}

/// Numbers items so that equal ones have the same.
fn classes(items: &[Item]) -> Vec<u32> {
    let mut distinct = items.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let number = |item| distinct.partition_point(|d| d < item) as u32;
    items.iter().map(number).collect()
}

/// The items in both sets.
fn bits<'a>(a: &'a [u64], b: &'a [u64]) -> impl Iterator<Item = usize> + 'a {
    a.iter().zip(b).enumerate().flat_map(|(w, (&a, &b))| {
        let mut rest = a & b;
        std::iter::from_fn(move || {
            let at = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (at < 64).then_some(w * 64 + at)
        })
    })
}
