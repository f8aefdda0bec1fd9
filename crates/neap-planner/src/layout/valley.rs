//! Filling valleys: a heuristic for parts of any size.
//!
//! The lowest valley of the skyline is next. In it, the section that most bytes are still to come to must
//! not be wasted: of the items that are live there and fit between the walls, the longest goes to the
//! bottom. A valley that nothing fits is filled up to its lower wall.
//!
//! ```text
//!   ▲ ┌────┐                     ┌────
//!   │ │    │ ┌────────────┐      │        ▲ the section with most bytes to come
//!   │ │    └─┤ the longest├──────┘
//!   │ │      └────────────┘                takes sections · items / 2 at worst, much less as a rule
//!   └─┴──────────────▲───────────────► section
//! ```
//!
//! Then again, and again: sections and items that ended too high are taken more seriously in the next round.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::effort::Effort;
use super::exact::scramble;
use super::sections::Part;

/// What makes one candidate better than another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    Length,
    Area,
    /// Length, and better at a wall than away from it.
    Walls,
}

const MEASURES: [Measure; 3] = [Measure::Length, Measure::Area, Measure::Walls];

/// After so many rounds without gain, blame starts again from the best.
const PATIENCE: u32 = 16;

/// Rounds of filling one part, each wiser than the one before.
pub struct Filler {
    loads: Vec<u64>,
    /// Items by first section, those that end later first.
    order: Vec<u32>,
    /// By section: where its items begin in `order`.
    begins: Vec<u32>,
    /// By section, and at the end: the step of its first beginning; an item is no longer than the difference.
    steps: Vec<u32>,
    blame: Blame,
    best: Option<(Filled, Measure, Blame)>,
    rounds: u32,
    since_best: u32,
}

#[derive(Clone)]
struct Blame {
    /// By section: bytes it is treated as if they were still to come.
    extra: Vec<u64>,
    /// By item: by how much its measure counts.
    factor: Vec<f32>,
}

/// Offsets by item, and their height.
#[derive(Clone, Debug)]
pub struct Filled {
    pub offsets: Vec<u64>,
    pub height_bytes: u64,
}

impl Filler {
    pub fn new(part: &Part) -> Self {
        let items = &part.items;
        let mut order: Vec<u32> = (0..items.len() as u32).collect();
        order.sort_by_key(|&i| (items[i as usize].lo, Reverse(items[i as usize].hi)));
        let mut begins = vec![0u32; part.sections + 1];
        for item in items {
            begins[item.lo as usize + 1] += 1;
        }
        for s in 0..part.sections {
            begins[s + 1] += begins[s];
        }
        Self {
            loads: part.loads(),
            order,
            begins,
            steps: part.steps.clone(),
            blame: Blame {
                extra: vec![0; part.sections],
                factor: vec![1.0; items.len()],
            },
            best: None,
            rounds: 0,
            since_best: 0,
        }
    }

    pub fn best(&self) -> Option<&Filled> {
        self.best.as_ref().map(|b| &b.0)
    }

    /// Rounds until the height is at most `goal_bytes`, the effort is spent, or `rounds` are over.
    pub fn run(&mut self, part: &Part, goal_bytes: u64, rounds: u32, effort: &mut Effort<'_>) {
        for _ in 0..rounds {
            if self.best().is_some_and(|b| b.height_bytes <= goal_bytes) || effort.spent() {
                return;
            }
            let measure = self.measure();
            let Some(layout) = self.fill(part, measure, effort) else {
                return;
            };
            self.rounds += 1;
            self.since_best += 1;
            let least = self.best().map_or(u64::MAX, |b| b.height_bytes);
            let height = layout.height_bytes;
            let blame_above = goal_bytes + (height.min(least).saturating_sub(goal_bytes)) / 8 * 7;
            let tops = layout.offsets.clone();
            if height < least {
                self.best = Some((layout, measure, self.blame.clone()));
                self.since_best = 0;
            }
            if self.rounds < MEASURES.len() as u32 {
                continue;
            }
            if self.since_best >= PATIENCE
                && let Some((.., blame)) = &self.best
            {
                self.blame = blame.clone();
                self.since_best = 0;
            }
            self.blame_for(part, &tops, blame_above);
        }
    }

    /// Each once, then mostly the one that did best.
    fn measure(&self) -> Measure {
        let turn = self.rounds as usize;
        match &self.best {
            Some((_, best, _)) if turn >= MEASURES.len() && !turn.is_multiple_of(4) => *best,
            _ => MEASURES[turn % MEASURES.len()],
        }
    }

    /// Sections and items that end above `above` weigh more from now on; other sections forget.
    fn blame_for(&mut self, part: &Part, offsets: &[u64], above: u64) {
        let salt = scramble(u64::from(self.rounds));
        let chance = |n: u64| (scramble(salt ^ n) % 1024) as f32 / 1024.0;
        let mut tops = vec![0u64; part.sections];
        for (i, item) in part.items.iter().enumerate() {
            let top = offsets[i] + item.bytes;
            if top <= above {
                continue;
            }
            let factor = &mut self.blame.factor[i];
            *factor = (*factor * (1.0 + 0.5 * chance(i as u64))).min(1e6);
            for t in &mut tops[item.lo as usize..item.hi as usize] {
                *t = top.max(*t);
            }
        }
        for (s, (extra, top)) in self.blame.extra.iter_mut().zip(tops).enumerate() {
            if top > above {
                let more = (top - above) as f64 * f64::from(0.25 + chance(!(s as u64)));
                *extra = (*extra + more as u64).min(u64::MAX / 4);
            } else {
                *extra -= *extra / 16;
            }
        }
    }

    /// `None` when the effort is spent.
    fn fill(&self, part: &Part, measure: Measure, effort: &mut Effort<'_>) -> Option<Filled> {
        let items = &part.items;
        let mut waiting = Waiting::new(self);
        let mut to_come: Vec<u64> = self
            .loads
            .iter()
            .zip(&self.blame.extra)
            .map(|(load, extra)| load + extra)
            .collect();
        let most_factor = self.blame.factor.iter().copied().fold(1.0, f32::max);
        let mut floors = vec![0u64; part.sections];
        let mut offsets = vec![0u64; items.len()];
        let mut height_bytes = 0;
        // Valleys by floor and first section; one that has changed since is skipped.
        let mut valleys = BinaryHeap::from([Reverse((0u64, 0usize))]);
        let mut left = items.len();
        while left > 0 {
            let Reverse((floor, lo)) = valleys.pop()?;
            if floors[lo] != floor || (lo > 0 && floors[lo - 1] == floor) {
                continue;
            }
            let mut hi = lo;
            let mut fullest = lo;
            while hi < part.sections && floors[hi] == floor {
                if to_come[hi] > to_come[fullest] {
                    fullest = hi;
                }
                hi += 1;
            }
            let (mut best, mut seen) = (None, 0);
            for (last, must_reach) in [(fullest, fullest as u32), (hi - 1, 0)] {
                let mut section = waiting.next(lo);
                while section <= last {
                    // What begins here or later is no longer than the rest of the valley.
                    let room = (self.steps[hi] - self.steps[section]) as f32 * most_factor;
                    if measure == Measure::Length && best.is_some_and(|(b, _)| b >= room) {
                        break;
                    }
                    for &i in waiting.that_end_by(section, hi as u32, items) {
                        let item = &items[i as usize];
                        if item.hi <= must_reach {
                            break;
                        }
                        seen += 1;
                        let length = item.length as f32;
                        let worth = match measure {
                            Measure::Length => length,
                            Measure::Area => length * item.bytes as f32,
                            Measure::Walls => {
                                let walls = u8::from(item.lo as usize == lo)
                                    + u8::from(item.hi as usize == hi);
                                length
                                    + 0.25
                                        * f32::from(walls)
                                        * (self.steps[hi] - self.steps[lo]) as f32
                            }
                        } * self.blame.factor[i as usize];
                        if best.is_none_or(|(b, _)| worth > b) {
                            best = Some((worth, i));
                        }
                    }
                    seen += 1;
                    section = waiting.next(section + 1);
                }
                if best.is_some() {
                    break;
                }
            }
            if !effort.take(2 * (hi - lo) as u64 + 4 * seen + 50) {
                return None;
            }
            let (level, from, to) = match best {
                Some((_, i)) => {
                    let item = &items[i as usize];
                    waiting.remove(i, item.lo as usize);
                    let offset = floor.next_multiple_of(item.align);
                    offsets[i as usize] = offset;
                    height_bytes = height_bytes.max(offset + item.bytes);
                    left -= 1;
                    let (from, to) = (item.lo as usize, item.hi as usize);
                    for t in &mut to_come[from..to] {
                        *t -= item.bytes;
                    }
                    if from > lo {
                        valleys.push(Reverse((floor, lo)));
                    }
                    if to < hi {
                        valleys.push(Reverse((floor, to)));
                    }
                    (offset + item.bytes, from, to)
                }
                None => {
                    let wall = |s: Option<&u64>| s.copied().unwrap_or(u64::MAX);
                    let left_wall = if lo > 0 {
                        wall(floors.get(lo - 1))
                    } else {
                        u64::MAX
                    };
                    (left_wall.min(wall(floors.get(hi))), lo, hi)
                }
            };
            floors[from..to].fill(level);
            if level < u64::MAX {
                let mut first = from;
                while first > 0 && floors[first - 1] == level {
                    first -= 1;
                }
                valleys.push(Reverse((level, first)));
            }
        }
        Some(Filled {
            offsets,
            height_bytes,
        })
    }
}

/// Items that are not placed yet, by first section.
struct Waiting<'a> {
    begins: &'a [u32],
    order: Vec<u32>,
    /// By section: how many of its items wait.
    count: Vec<u32>,
    /// By section: itself, or a later one; follow these to the next section for which items wait.
    next: Vec<u32>,
}

impl<'a> Waiting<'a> {
    fn new(filler: &'a Filler) -> Self {
        let begins = &filler.begins;
        let count: Vec<u32> = begins.windows(2).map(|w| w[1] - w[0]).collect();
        let mut next: Vec<u32> = (0..begins.len() as u32).collect();
        for s in 0..count.len() {
            if count[s] == 0 {
                next[s] = s as u32 + 1;
            }
        }
        Self {
            begins,
            order: filler.order.clone(),
            count,
            next,
        }
    }

    /// The first section from `s` on in which items begin that wait; the number of sections if none.
    fn next(&mut self, s: usize) -> usize {
        let mut end = s;
        while self.next[end] as usize != end {
            end = self.next[end] as usize;
        }
        let mut at = s;
        while self.next[at] as usize != at {
            at = std::mem::replace(&mut self.next[at], end as u32) as usize;
        }
        end
    }

    /// Those that begin in a section and end by `hi`, later ends first.
    fn that_end_by(&self, section: usize, hi: u32, items: &[super::sections::Item]) -> &[u32] {
        let begin = self.begins[section] as usize;
        let all = &self.order[begin..begin + self.count[section] as usize];
        &all[all.partition_point(|&i| items[i as usize].hi > hi)..]
    }

    fn remove(&mut self, i: u32, section: usize) {
        let begin = self.begins[section] as usize;
        let count = self.count[section] as usize;
        let all = &mut self.order[begin..begin + count];
        if let Some(at) = all.iter().position(|&other| other == i) {
            all[at..].rotate_left(1);
            self.count[section] -= 1;
            if count == 1 {
                self.next[section] = section as u32 + 1;
            }
        }
    }
}
