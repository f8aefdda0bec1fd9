//! `Skyline`: for every arena address, since when it is free. The view of a planner that goes forward in time.
//!
//! ```text
//!   free since    ▲      ┌────┐
//!   (computes)    │ ┌────┘    └──┐      ┌───
//!                 │─┘            └──────┘
//!                 └──────────────────────────► address
//! ```

/// One segment runs to the next one's begin, the last to the end of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    begin: u64,
    free_since: u32,
}

#[derive(Clone, Debug)]
pub struct Skyline {
    segments: Vec<Segment>,
    end: u64,
}

impl Skyline {
    pub fn new(arena_bytes: u64) -> Self {
        Self {
            segments: vec![Segment {
                begin: 0,
                free_since: 0,
            }],
            end: arena_bytes,
        }
    }

    /// Takes over another's state, reusing memory.
    pub fn copy_from(&mut self, other: &Self) {
        self.segments.clone_from(&other.segments);
        self.end = other.end;
    }

    /// `begin..end` is in use until `until` (or longer, if it already was).
    pub fn paint(&mut self, begin: u64, end: u64, until: u32) {
        let end = end.min(self.end);
        if begin >= end {
            return;
        }
        let first = self.at(begin);
        let mut last = first;
        let mut is_latest = self.segments[first].free_since <= until;
        while let Some(s) = self.segments.get(last + 1).filter(|s| s.begin < end) {
            is_latest &= s.free_since <= until;
            last += 1;
        }
        if is_latest {
            self.replace(first, last, begin, end, until);
        } else {
            // Something in there is in use for longer: its parts one by one.
            let mut at = end;
            for i in (first..=last).rev() {
                let s = self.segments[i];
                let from = s.begin.max(begin);
                if s.free_since < until {
                    self.replace(i, i, from, at, until);
                }
                at = from;
            }
        }
    }

    /// Segments `first..=last`, which hold `begin..end`, give way to one for that range; what is left of them
    /// at either side stays, and equal neighbours become one.
    fn replace(&mut self, first: usize, last: usize, begin: u64, end: u64, free_since: u32) {
        let after = self.segments.get(last + 1).copied();
        let (left, right) = (self.segments[first], self.segments[last]);
        let mut new = [Segment { begin, free_since }; 3];
        let mut count = 0;
        let (mut from, mut to) = (first, last + 1);
        // What comes before the range, in these segments or as their neighbour.
        let mut before = from.checked_sub(1).map(|i| self.segments[i].free_since);
        if left.begin < begin {
            new[0] = left;
            count = 1;
            before = Some(left.free_since);
        }
        if before == Some(free_since) {
            // It goes on from there; that segment stays as it is.
            if count == 1 {
                from += 1;
                count = 0;
            }
        } else {
            new[count] = Segment { begin, free_since };
            count += 1;
        }
        if after.map_or(self.end, |s| s.begin) > end {
            if right.free_since != free_since {
                new[count] = Segment {
                    begin: end,
                    free_since: right.free_since,
                };
                count += 1;
            }
        } else if after.is_some_and(|s| s.free_since == free_since) {
            to += 1;
        }
        let (old, new) = (to - from, &new[..count]);
        if old == count {
            self.segments[from..to].copy_from_slice(new);
        } else {
            self.segments.splice(from..to, new.iter().copied());
        }
    }

    /// Forgets differences before `time`: all that is free since then is the same.
    pub fn forget(&mut self, time: u32) {
        let mut seen_old = false;
        self.segments.retain_mut(|s| {
            let old = s.free_since <= time;
            if old {
                s.free_since = time;
            }
            let keep = !(old && seen_old);
            seen_old = old;
            keep
        });
    }

    /// Since when all of `begin..end` is free.
    pub fn free_since(&self, begin: u64, end: u64) -> u32 {
        let first = self.at(begin);
        let inside = self.segments[first..].iter().take_while(|s| s.begin < end);
        inside.map(|s| s.free_since).max().unwrap_or(0)
    }

    /// The place of `bytes` (a multiple of the block) that is free since earliest, if that is no later
    /// than `deadline`: its offset and since when. Among equals the lowest.
    pub fn earliest(&self, bytes: u64, deadline: u32) -> Option<(u64, u32)> {
        let block = neap_plan::BLOCK_BYTES;
        let since = self.segments.iter().map(|s| s.free_since);
        let soonest = since.min().filter(|&s| s <= deadline)?;
        let end_of = |i: usize| self.segments.get(i + 1).map_or(self.end, |s| s.begin);
        let mut best: Option<(u64, u32)> = None;
        let mut consider = |offset: u64, since: u32| {
            let better = match best {
                None => since <= deadline,
                Some((at, s)) => since < s || since == s && offset < at,
            };
            if better {
                best = Some((offset, since));
            }
            best.map_or(deadline, |b| b.1)
        };
        let mut limit = deadline;
        for (i, segment) in self.segments.iter().enumerate() {
            if segment.free_since > limit {
                continue;
            }
            let segment_end = end_of(i);
            // From the begin of segment i upwards.
            let offset = segment.begin.next_multiple_of(block);
            if offset + bytes <= segment_end {
                if segment.free_since == soonest {
                    // Nothing is free since earlier, and nothing so early lies lower.
                    return Some((offset, soonest));
                }
                limit = consider(offset, segment.free_since);
            } else if offset + bytes <= self.end {
                let mut since = 0;
                for s in self.segments[i..]
                    .iter()
                    .take_while(|s| s.begin < offset + bytes)
                {
                    since = since.max(s.free_since);
                    if since > limit {
                        break;
                    }
                }
                if since <= limit {
                    limit = consider(offset, since);
                }
            }
            // From the end of segment i downwards.
            let offset = segment_end.checked_sub(bytes).map(|o| o / block * block);
            if let Some(offset) = offset.filter(|&o| o < segment.begin) {
                let mut since = 0;
                for s in self.segments[..=i].iter().rev() {
                    since = since.max(s.free_since);
                    if since > limit || s.begin <= offset {
                        break;
                    }
                }
                if since <= limit {
                    limit = consider(offset, since);
                }
            }
        }
        best
    }

    /// Index of the segment that holds `address`.
    fn at(&self, address: u64) -> usize {
        self.segments
            .partition_point(|s| s.begin <= address)
            .saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: u64 = neap_plan::BLOCK_BYTES;

    #[test]
    fn paints_splits_and_merges() {
        let mut s = Skyline::new(100);
        s.paint(10, 20, 5);
        s.paint(20, 30, 5);
        assert_eq!(s.segments.len(), 3);
        assert_eq!(
            (
                s.free_since(0, 10),
                s.free_since(0, 11),
                s.free_since(30, 100)
            ),
            (0, 5, 0)
        );
        s.paint(15, 40, 3);
        assert_eq!((s.free_since(15, 30), s.free_since(30, 40)), (5, 3));
        s.forget(4);
        assert_eq!((s.free_since(30, 40), s.free_since(0, 100)), (4, 5));
    }

    proptest! {
        /// Against an array with one entry per block.
        #[test]
        fn agrees_with_a_plain_array(
            paints in prop::collection::vec((0u64..40, 1u64..12, 1u32..50), 0..40),
            bytes in 1u64..10,
            deadline in 0u32..50,
        ) {
            let mut skyline = Skyline::new(40 * BLOCK);
            let mut plain = [0u32; 40];
            for &(begin, len, until) in &paints {
                let end = (begin + len).min(40);
                skyline.paint(begin * BLOCK, end * BLOCK, until);
                for p in &mut plain[begin as usize..end as usize] {
                    *p = until.max(*p);
                }
            }
            for (i, &p) in plain.iter().enumerate() {
                prop_assert_eq!(skyline.free_since(i as u64 * BLOCK, (i as u64 + 1) * BLOCK), p);
            }
            prop_assert!(skyline.segments.windows(2).all(|s| s[0].begin < s[1].begin && s[0].free_since != s[1].free_since));
            let at = |i: usize| *plain[i..i + bytes as usize].iter().max().unwrap();
            let want = (0..=40 - bytes as usize).map(at).min().filter(|&m| m <= deadline);
            let got = skyline.earliest(bytes * BLOCK, deadline);
            prop_assert_eq!(got.map(|g| g.1), want);
            if let Some((offset, since)) = got {
                let lowest = (0..=40 - bytes as usize).find(|&i| at(i) == since);
                prop_assert_eq!(Some((offset / BLOCK) as usize), lowest);
            }
        }
    }
}
