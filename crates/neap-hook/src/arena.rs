//! Where allocations lie in a reserved range of addresses that uniform chunks back (RT-Swap, Section IV).
//!
//! An allocation goes where it needs the fewest chunks that are not there yet, then where it leaves the smallest hole:
//! chunks that are partly used fill first, so little is lost inside them.

use std::collections::BTreeMap;

/// Starts and lengths of allocations are multiples of this, as CUDA's are.
pub const ALIGN: u64 = 512;

/// Offsets in bytes from the start of the range.
pub struct Arena {
    chunk_bytes: u64,
    /// Holes: offset and length. They never touch each other.
    free: BTreeMap<u64, u64>,
    used: BTreeMap<u64, u64>,
    /// Allocations that touch each chunk.
    tenants: Vec<u32>,
}

impl Arena {
    /// A range of so many bytes, a multiple of the chunk's.
    pub fn new(range_bytes: u64, chunk_bytes: u64) -> Arena {
        Arena {
            chunk_bytes,
            free: BTreeMap::from([(0, range_bytes)]),
            used: BTreeMap::new(),
            tenants: Vec::new(),
        }
    }

    /// Takes room for an allocation, and gives its offset. `is_there` says of a chunk whether it costs nothing new.
    pub fn take(&mut self, bytes: u64, is_there: impl Fn(usize) -> bool) -> Option<u64> {
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGN)?;
        let cost = |at: u64| {
            let new = self.chunks(at, bytes).filter(|&c| !is_there(c));
            new.count()
        };
        let holes = self.free.iter().filter(|&(_, &length)| length >= bytes);
        let places = holes.flat_map(|(&hole, &length)| {
            let first = (cost(hole), length, hole);
            let last = hole + length - bytes;
            // The end of the range is left alone.
            let ends_range = hole.div_ceil(self.chunk_bytes) as usize >= self.tenants.len();
            let second = (!ends_range).then(|| (cost(last), length, last));
            [Some(first), second]
        });
        let (_, length, at) = places.flatten().min()?;
        let hole = *self.free.range(..=at).next_back()?.0;
        self.free.remove(&hole);
        if at > hole {
            self.free.insert(hole, at - hole);
        }
        let after = hole + length - (at + bytes);
        if after > 0 {
            self.free.insert(at + bytes, after);
        }
        self.used.insert(at, bytes);
        for chunk in self.chunks(at, bytes) {
            if self.tenants.len() <= chunk {
                self.tenants.resize(chunk + 1, 0);
            }
            self.tenants[chunk] += 1;
        }
        Some(at)
    }

    /// Gives an allocation back: the chunks in which nothing is left. `None` where none begins there.
    pub fn give(&mut self, at: u64) -> Option<Vec<usize>> {
        let bytes = self.used.remove(&at)?;
        let (mut start, mut end) = (at, at + bytes);
        if let Some((&before, &length)) = self.free.range(..at).next_back()
            && before + length == at
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(length) = self.free.remove(&end) {
            end += length;
        }
        self.free.insert(start, end - start);
        let chunks = self.chunks(at, bytes);
        for chunk in chunks.clone() {
            self.tenants[chunk] -= 1;
        }
        Some(chunks.filter(|&c| self.tenants[c] == 0).collect())
    }

    /// The allocation that holds this offset: where it begins, and its length.
    pub fn find(&self, offset: u64) -> Option<(u64, u64)> {
        let (&at, &bytes) = self.used.range(..=offset).next_back()?;
        (offset < at + bytes).then_some((at, bytes))
    }

    /// The chunks of some bytes.
    pub fn chunks(&self, at: u64, bytes: u64) -> std::ops::Range<usize> {
        let (first, last) = (at / self.chunk_bytes, (at + bytes - 1) / self.chunk_bytes);
        first as usize..last as usize + 1
    }

    /// Whether any allocation touches this chunk.
    pub fn is_used(&self, chunk: usize) -> bool {
        self.tenants.get(chunk).is_some_and(|&count| count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 2 << 20;

    fn arena() -> Arena {
        Arena::new(64 * CHUNK, CHUNK)
    }

    fn take(arena: &mut Arena, bytes: u64) -> u64 {
        let there: Vec<bool> = (0..64).map(|c| arena.is_used(c)).collect();
        arena.take(bytes, |c| there[c]).unwrap()
    }

    #[test]
    fn small_objects_share_a_chunk() {
        let mut arena = arena();
        let places: Vec<u64> = (0..1000).map(|_| take(&mut arena, 1000)).collect();
        assert_eq!(places[1], 1024);
        assert!(places.iter().all(|&at| at < CHUNK));
        assert!(!arena.is_used(1));
    }

    #[test]
    fn a_partly_used_chunk_fills_before_a_new_one() {
        let mut arena = arena();
        let first = take(&mut arena, 3 * CHUNK / 2);
        let second = take(&mut arena, CHUNK / 2);
        assert_eq!((first, second), (0, 3 * CHUNK / 2));
        let third = take(&mut arena, CHUNK);
        assert_eq!(third, 2 * CHUNK);
        // The hole of the first needs no new chunk for its second half alone.
        assert_eq!(arena.give(first), Some(vec![0]));
        assert_eq!(take(&mut arena, CHUNK / 4), 3 * CHUNK / 2 - CHUNK / 4);
        assert!(!arena.is_used(0));
    }

    #[test]
    fn the_smallest_hole_that_is_there_is_taken() {
        let mut arena = arena();
        let places: Vec<u64> = (0..8).map(|_| take(&mut arena, CHUNK / 8)).collect();
        arena.give(places[1]);
        arena.give(places[2]);
        arena.give(places[5]);
        assert_eq!(take(&mut arena, CHUNK / 8), places[5]);
    }

    #[test]
    fn what_is_given_back_is_whole_again() {
        let mut arena = arena();
        let mut random = 1u64;
        let mut held: Vec<(u64, u64)> = Vec::new();
        for _ in 0..4000 {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let bytes = 1 + (random >> 40) % (CHUNK / 2);
            if random >> 63 == 0 || held.len() > 40 {
                if let Some((at, _)) = held.pop() {
                    let emptied = arena.give(at).unwrap();
                    assert!(emptied.iter().all(|&c| !arena.is_used(c)));
                }
            } else {
                let at = take(&mut arena, bytes);
                let overlaps = |&(a, b): &(u64, u64)| at < a + b && a < at + bytes;
                assert!(!held.iter().any(overlaps));
                assert_eq!(at % ALIGN, 0);
                assert_eq!(arena.find(at + bytes - 1).unwrap().0, at);
                held.insert(held.len() / 2, (at, bytes));
            }
        }
        for (at, _) in held {
            arena.give(at).unwrap();
        }
        assert!(arena.used.is_empty());
        assert_eq!(arena.free, BTreeMap::from([(0, 64 * CHUNK)]));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut arena = arena();
        assert_eq!(arena.take(64 * CHUNK + 1, |_| false), None);
        assert_eq!(arena.take(u64::MAX, |_| false), None);
        assert_eq!(arena.give(0), None);
        assert_eq!(arena.find(0), None);
    }
}
