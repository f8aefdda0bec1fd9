//! `FreeRanges`: what is free of memory without an end, while ranges are taken and given back. Each change and each search
//! takes about as long as the logarithm of how many there are.

use neap_plan::ByteRange;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
pub struct FreeRanges {
    /// Ends by begin. No two touch.
    ends: BTreeMap<u64, u64>,
    /// The same by size: bytes and begin.
    sizes: BTreeSet<(u64, u64)>,
}

impl FreeRanges {
    /// All of it.
    pub fn new() -> FreeRanges {
        let mut all = FreeRanges {
            ends: BTreeMap::new(),
            sizes: BTreeSet::new(),
        };
        all.insert(0, u64::MAX);
        all
    }

    /// By address.
    pub fn iter(&self) -> impl Iterator<Item = ByteRange> {
        let ends = self.ends.iter();
        ends.map(|(&begin, &end)| ByteRange::new(begin, end))
    }

    /// Takes what is free of a range.
    pub fn take(&mut self, range: ByteRange) {
        while let Some((&begin, &end)) = self.ends.range(..range.end).next_back()
            && end > range.begin
        {
            self.remove(begin, end);
            self.insert(begin, range.begin);
            self.insert(range.end, end);
        }
    }

    /// Gives a range back of which nothing is free.
    pub fn give(&mut self, range: ByteRange) {
        let (mut begin, mut end) = (range.begin, range.end);
        if begin >= end {
            return;
        }
        let below = self.ends.range(..begin).next_back();
        if let Some((&other, _)) = below.filter(|&(_, &other_end)| other_end == begin) {
            self.remove(other, begin);
            begin = other;
        }
        if let Some(&other_end) = self.ends.get(&end) {
            self.remove(end, other_end);
            end = other_end;
        }
        self.insert(begin, end);
    }

    /// Where so many bytes are free, in the smallest range that holds them. Of several the lowest.
    pub fn tightest(&self, bytes: u64, align: u64) -> Option<u64> {
        let large = self.sizes.range((bytes, 0)..);
        let mut places = large.map(|&(size, begin)| (begin.next_multiple_of(align), begin + size));
        let found = places.find(|&(at, end)| at <= end && end - at >= bytes);
        found.map(|(at, _)| at)
    }

    /// The lowest place at which so many bytes are free. It looks at all ranges below.
    pub fn lowest(&self, bytes: u64, align: u64) -> Option<u64> {
        let mut places = self
            .iter()
            .map(|r| (r.begin.next_multiple_of(align), r.end));
        let found = places.find(|&(at, end)| at <= end && end - at >= bytes);
        found.map(|(at, _)| at)
    }

    fn insert(&mut self, begin: u64, end: u64) {
        if begin < end {
            self.ends.insert(begin, end);
            self.sizes.insert((end - begin, begin));
        }
    }

    fn remove(&mut self, begin: u64, end: u64) {
        self.ends.remove(&begin);
        self.sizes.remove(&(end - begin, begin));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list of bytes.
        #[test]
        fn agrees_with_a_plain_list(
            changes in prop::collection::vec((any::<bool>(), 0u64..40, 1u64..9), 0..60),
            bytes in 1u64..9,
            align in 0u32..3,
        ) {
            let mut ranges = FreeRanges::new();
            let mut free = [true; 64];
            for (takes, begin, len) in changes {
                let range = ByteRange::at(begin, len);
                let own = &mut free[begin as usize..(begin + len) as usize];
                if takes {
                    ranges.take(range);
                    own.fill(false);
                } else if own.iter().all(|&free| !free) {
                    ranges.give(range);
                    own.fill(true);
                }
            }
            let listed: Vec<ByteRange> = ranges.iter().collect();
            prop_assert!(listed.windows(2).all(|pair| pair[0].end < pair[1].begin));
            for (at, &free) in (0..).zip(&free) {
                let within = listed.iter().any(|r| r.begin <= at && at < r.end);
                prop_assert_eq!(within, free, "byte {}", at);
            }
            prop_assert_eq!(ranges.sizes.len(), listed.len());
            let align = 1 << align;
            let place = |r: &ByteRange| {
                let at = r.begin.next_multiple_of(align);
                (at + bytes <= r.end).then_some((r.len(), at))
            };
            let fitting: Vec<(u64, u64)> = listed.iter().filter_map(place).collect();
            prop_assert_eq!(ranges.lowest(bytes, align), fitting.iter().map(|f| f.1).min());
            prop_assert_eq!(ranges.tightest(bytes, align), fitting.iter().min().map(|f| f.1));
        }
    }
}
