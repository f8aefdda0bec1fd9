//! Memory with addresses: each tensor has a contiguous place, and what lies together must go together.
//!
//! ```text
//!   0                                                                        capacity
//!   │ A1 │  free  │ W7 │ A4 (used by this operator) │ free │ W2 │ W5 │  free  │
//!        ├────── a place for W8: W7 goes ──┤✗               ├── W2 goes ──┤
//! ```
//!
//! A place begins (or, from the top down, ends) where a segment does. Of all places the one is taken that is
//! cheapest: sending a byte away costs the more the sooner it is used again, twice that where it must be stored
//! first; and memory that was in use until just now costs, since a load would have to wait for it.

use std::collections::VecDeque;

use super::planner::Wish;
use super::scan::Scan;
use super::{After, Rules, Side};

const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Segment {
    begin: u64,
    end: u64,
    /// The tensor that lies there, or [`NOBODY`].
    owner: u32,
    /// Since when it is free.
    after: After,
}

/// What it means to have a segment.
#[derive(Clone, Copy)]
struct Price {
    /// Infinite where it cannot be had.
    cost: f64,
    /// A load would have to wait for it.
    is_late: bool,
    after: After,
}

/// Prices of neighbouring segments together.
#[derive(Default)]
struct Window {
    cost: f64,
    /// How many there are that cost anything: with none left, the sum is exactly 0.
    priced: u32,
    pinned: u32,
    late: u32,
    /// How many wait for a store.
    stores: u32,
    /// Those that are free later than all behind them, the latest first.
    ends: VecDeque<(usize, u32)>,
}

impl Window {
    fn add(&mut self, i: usize, price: &Price) {
        self.count(price, 1);
        let computes = price.after.computes;
        while self.ends.back().is_some_and(|&(_, last)| last <= computes) {
            self.ends.pop_back();
        }
        self.ends.push_back((i, computes));
    }

    fn remove(&mut self, i: usize, price: &Price) {
        self.count(price, -1);
        if self.ends.front().is_some_and(|&(first, _)| first == i) {
            self.ends.pop_front();
        }
    }

    fn count(&mut self, price: &Price, by: i32) {
        let counted = |is: bool| if is { by } else { 0 };
        let add = |count: &mut u32, is: bool| *count = count.wrapping_add_signed(counted(is));
        add(&mut self.pinned, price.cost.is_infinite());
        add(&mut self.late, price.is_late);
        add(&mut self.stores, price.after.stores > 0);
        if price.cost.is_finite() && price.cost > 0.0 {
            add(&mut self.priced, true);
            self.cost = match self.priced {
                0 => 0.0,
                _ => self.cost + f64::from(by) * price.cost,
            };
        }
    }

    /// When the last of them is free.
    fn latest(&self) -> u32 {
        self.ends.front().map_or(0, |&(_, computes)| computes)
    }
}

#[derive(Default)]
pub struct Places {
    /// All of memory, in order.
    segments: Vec<Segment>,
    prices: Vec<Price>,
}

impl Places {
    pub fn reset(&mut self, capacity_bytes: u64) {
        self.segments.clear();
        self.segments.push(Segment {
            begin: 0,
            end: capacity_bytes,
            owner: NOBODY,
            after: After::default(),
        });
    }

    /// Gives a tensor a place, and says since when that is free. `None` when there is none: what the operator
    /// has already lies in the way.
    pub fn allocate(
        &mut self,
        scan: &mut Scan,
        wish: &Wish,
        rules: &Rules,
    ) -> Option<(After, u64)> {
        if wish.takes == 0 {
            return Some((After::default(), 0));
        }
        let offset = self.choose(scan, wish, rules)?;
        self.clear(scan, offset, wish.takes);
        Some((self.occupy(offset, wish.takes, wish.tensor.0), offset))
    }

    /// The cheapest place for `wish`.
    pub fn choose(&mut self, scan: &Scan, wish: &Wish, rules: &Rules) -> Option<u64> {
        self.price(scan, wish, rules);
        let from_top = match rules.places.side {
            Side::Nobody => false,
            Side::Loads => wish.loads,
            Side::Below(bytes) => wish.takes < bytes,
        };
        let count = self.segments.len();
        let index = |i: usize| if from_top { count - 1 - i } else { i };
        let late = rules.places.late_penalty * wish.takes as f64;
        let mut best = (f64::INFINITY, 0u32, 0u64);
        // Segments `first..next` cover the place; their prices are summed as both ends move on.
        let mut window = Window::default();
        let mut next = 0;
        for first in 0..count {
            let begin = &self.segments[index(first)];
            let offset = if from_top {
                begin.end.checked_sub(wish.takes)
            } else {
                Some(begin.begin)
            };
            let Some(offset) = offset else { break };
            let end = offset + wish.takes;
            let covers = |i: usize| {
                let segment = &self.segments[index(i)];
                if from_top {
                    segment.begin <= offset
                } else {
                    segment.end >= end
                }
            };
            while next < count && (next <= first || !covers(next - 1)) {
                window.add(next, &self.prices[index(next)]);
                next += 1;
            }
            if !covers(next - 1) {
                break;
            }
            if window.pinned == 0 {
                let penalty = if window.late > 0 { late } else { 0.0 };
                // Sums of what has come and gone are not exact.
                let cost = window.cost.max(0.0) + penalty;
                // Who stores or loads there would rather begin early; a result comes after all of that anyway.
                let waits = wish.loads || window.stores > 0;
                let tie = if waits { window.latest() } else { 0 };
                if (cost, tie) < (best.0, best.1) {
                    best = (cost, tie, offset);
                }
            }
            window.remove(first, &self.prices[index(first)]);
        }
        best.0.is_finite().then_some(best.2)
    }

    fn price(&mut self, scan: &Scan, wish: &Wish, rules: &Rules) {
        let position = wish.position as usize;
        let now_ns = scan.elapsed_ns[position];
        let run = scan.plan.order.len() as f64;
        let next_store = scan.plan.stores.len() as u32 + 1;
        let price = |segment: &Segment| {
            if segment.owner == NOBODY {
                let since_ns = scan.elapsed_ns[segment.after.computes as usize];
                let waits = wish.loads || segment.after.stores > 0;
                return Price {
                    cost: 0.0,
                    is_late: waits && now_ns - since_ns < wish.wait_ns,
                    after: segment.after,
                };
            }
            let state = &scan.states[segment.owner as usize];
            let stores = state.dirty && !state.unused;
            let is_pinned = state.pinned_at == wish.position;
            let distance = f64::from(state.key.saturating_sub(wish.position).max(1));
            let sooner = (run / distance).powi(i32::from(rules.places.far_power));
            let bytes = (segment.end - segment.begin) as f64;
            let moves = if stores { 2.0 } else { 1.0 };
            Price {
                cost: if is_pinned {
                    f64::INFINITY
                } else {
                    bytes * moves * sooner
                },
                is_late: (wish.loads || stores)
                    && !scan.is_old(segment.owner as usize, wish.position, wish.wait_ns),
                after: After {
                    computes: if state.unused { 0 } else { state.last_use + 1 },
                    stores: if stores { next_store } else { 0 },
                },
            }
        };
        self.prices.clear();
        self.prices.extend(self.segments.iter().map(price));
    }

    /// Sends everybody away who lies in a range.
    pub fn clear(&mut self, scan: &mut Scan, offset: u64, bytes: u64) {
        for i in self.at(offset)..self.segments.len() {
            let segment = self.segments[i];
            if segment.begin >= offset + bytes {
                break;
            }
            if segment.owner != NOBODY {
                let after = scan.send_away(segment.owner as usize);
                self.segments[i].owner = NOBODY;
                self.segments[i].after = after;
            }
        }
    }

    /// Takes a range in which nobody lies: since when it is free.
    pub fn occupy(&mut self, offset: u64, bytes: u64, owner: u32) -> After {
        let end = offset + bytes;
        if bytes == 0 {
            return After::default();
        }
        let first = self.at(offset);
        let mut last = first;
        let mut after = self.segments[first].after;
        while self.segments[last].end < end {
            last += 1;
            after = after.and(self.segments[last].after);
        }
        let (left, right) = (self.segments[first], self.segments[last]);
        let before = (left.begin < offset).then_some(Segment {
            end: offset,
            ..left
        });
        let rest = (right.end > end).then_some(Segment {
            begin: end,
            ..right
        });
        let own = Segment {
            begin: offset,
            end,
            owner,
            after,
        };
        let parts = before.into_iter().chain([own]).chain(rest);
        self.segments.splice(first..=last, parts);
        after
    }

    /// Whoever lies at `offset` is gone.
    pub fn free(&mut self, offset: u64, bytes: u64, after: After) {
        if bytes == 0 {
            return;
        }
        let mut i = self.at(offset);
        let segment = &mut self.segments[i];
        segment.owner = NOBODY;
        segment.after = after;
        let same = |a: &Segment, b: &Segment| b.owner == NOBODY && a.after == b.after;
        if i + 1 < self.segments.len() && same(&self.segments[i], &self.segments[i + 1]) {
            self.segments[i].end = self.segments[i + 1].end;
            self.segments.remove(i + 1);
        }
        if i > 0 && same(&self.segments[i], &self.segments[i - 1]) {
            i -= 1;
            self.segments[i].end = self.segments[i + 1].end;
            self.segments.remove(i + 1);
        }
    }

    /// Index of the segment that holds an address.
    fn at(&self, offset: u64) -> usize {
        let after = self.segments.partition_point(|s| s.begin <= offset);
        after.saturating_sub(1)
    }
}
