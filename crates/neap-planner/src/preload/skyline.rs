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
        let first = self.split(begin);
        let last = if end < self.end {
            self.split(end)
        } else {
            self.segments.len()
        };
        for s in &mut self.segments[first..last] {
            s.free_since = s.free_since.max(until);
        }
        self.merge(first.saturating_sub(1), last + 1);
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
        let first = self
            .segments
            .partition_point(|s| s.begin <= begin)
            .saturating_sub(1);
        let inside = self.segments[first..].iter().take_while(|s| s.begin < end);
        inside.map(|s| s.free_since).max().unwrap_or(0)
    }

    /// The place of `bytes` (a multiple of the block) that is free since earliest, if that is no later
    /// than `deadline`: its offset and since when. Among equals the lowest.
    pub fn earliest(&self, bytes: u64, deadline: u32) -> Option<(u64, u32)> {
        let block = neap_plan::BLOCK_BYTES;
        let count = self.segments.len();
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
        for i in 0..count {
            // From the begin of segment i upwards.
            let offset = self.segments[i].begin.next_multiple_of(block);
            if self.segments[i].free_since <= limit && offset + bytes <= self.end {
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
            let offset = end_of(i).checked_sub(bytes).map(|o| o / block * block);
            if let Some(offset) = offset.filter(|_| self.segments[i].free_since <= limit) {
                let mut since = 0;
                for j in (0..=i).rev() {
                    since = since.max(self.segments[j].free_since);
                    if since > limit || self.segments[j].begin <= offset {
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

    /// Index of the segment that begins at `address`, made if need be.
    fn split(&mut self, address: u64) -> usize {
        let i = self.segments.partition_point(|s| s.begin < address);
        if self.segments.get(i).is_none_or(|s| s.begin != address) {
            let free_since = self.segments[i - 1].free_since;
            self.segments.insert(
                i,
                Segment {
                    begin: address,
                    free_since,
                },
            );
        }
        i
    }

    fn merge(&mut self, from: usize, to: usize) {
        let mut i = from + 1;
        let mut to = to.min(self.segments.len());
        while i < to {
            if self.segments[i].free_since == self.segments[i - 1].free_since {
                self.segments.remove(i);
                to -= 1;
            } else {
                i += 1;
            }
        }
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
            let at = |i: usize| *plain[i..i + bytes as usize].iter().max().unwrap();
            let want = (0..=40 - bytes as usize).map(at).min().filter(|&m| m <= deadline);
            let got = skyline.earliest(bytes * BLOCK, deadline);
            prop_assert_eq!(got.map(|g| g.1), want);
            if let Some((offset, since)) = got {
                prop_assert_eq!(at((offset / BLOCK) as usize), since);
            }
        }
    }
}
