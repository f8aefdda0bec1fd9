//! The search for a layout: parts one by one, the highest next, by a heuristic and an exact search in turns.

use super::effort::Effort;
use super::exact::{Found, Search};
use super::sections::{Part, parts};
use super::valley::Filler;
use super::{Block, StaticLayout, lower_bound_bytes};

/// Work of a part's first turn; later ones get more.
const FIRST_TURN: u64 = 20_000_000;

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// A layout this high is good enough.
    pub enough_bytes: u64,
    /// When it is proven that no layout is this low, there is no point in going on.
    pub limit_bytes: u64,
}

/// What was found, and what is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solved {
    /// The lowest layout found: passes [`super::check`]. `None` if the effort was too small for any.
    pub layout: Option<StaticLayout>,
    /// Most bytes live at once.
    pub lower_bound_bytes: u64,
    /// No layout is lower than this: the lower bound, or more where the search has proven more.
    pub proven_bytes: u64,
}

impl Request {
    /// Any layout within a capacity.
    pub fn fit(capacity_bytes: u64) -> Self {
        Self {
            enough_bytes: capacity_bytes,
            limit_bytes: capacity_bytes,
        }
    }

    /// The lowest layout, if it can be within a capacity.
    pub fn minimize(limit_bytes: u64) -> Self {
        Self {
            enough_bytes: 0,
            limit_bytes,
        }
    }
}

impl Solved {
    /// Whether there is a layout, and none is lower.
    pub fn is_optimal(&self) -> bool {
        self.layout
            .as_ref()
            .is_some_and(|l| l.high_water_bytes <= self.proven_bytes)
    }
}

/// Searches until the request is met, proven not to be possible, or the effort is spent. Deterministic but
/// for when the effort is stopped. Alignments are powers of two, or any numbers that divide one another;
/// sizes and alignments add up to less than 2^62 bytes.
pub fn solve(blocks: &[Block], request: Request, effort: &mut Effort<'_>) -> Solved {
    let mut offsets = vec![0; blocks.len()];
    let mut tasks: Vec<Task> = parts(blocks, &mut offsets)
        .into_iter()
        .map(Task::new)
        .collect();
    let lower_bound = lower_bound_bytes(blocks);
    let mut proven_bytes = lower_bound;
    while !effort.spent() && proven_bytes <= request.limit_bytes {
        let goal_bytes = proven_bytes.max(request.enough_bytes);
        let highest = tasks.iter_mut().max_by_key(|t| t.height_bytes());
        let Some(task) = highest.filter(|t| t.height_bytes() > goal_bytes) else {
            break;
        };
        task.turn(goal_bytes, effort);
        proven_bytes = proven_bytes.max(task.proven_bytes);
    }
    let mut whole = true;
    for task in &tasks {
        whole &= task.best.is_some();
        for (&block, offset) in task.part.blocks.iter().zip(task.best.iter().flatten()) {
            offsets[block as usize] = task.part.base_bytes + offset;
        }
    }
    let ends = blocks
        .iter()
        .zip(&offsets)
        .filter(|(b, _)| b.bytes > 0 && !b.live.is_empty());
    let high_water_bytes = ends.map(|(b, offset)| b.bytes + offset).max().unwrap_or(0);
    let layout = StaticLayout {
        offsets,
        high_water_bytes,
    };
    debug_assert!(!whole || super::check(blocks, &layout).is_ok());
    Solved {
        layout: whole.then_some(layout),
        lower_bound_bytes: lower_bound,
        proven_bytes,
    }
}

/// One part and how far its search is.
struct Task {
    part: Part,
    filler: Filler,
    /// Heights of pushed-down layouts are multiples of this.
    unit_bytes: u64,
    /// Offsets by item, above the part's base.
    best: Option<Vec<u64>>,
    best_bytes: u64,
    /// No layout of this part, with what lies below it, is lower.
    proven_bytes: u64,
    /// The capacity that the exact search works on.
    search: Option<(u64, Search)>,
    /// A height, without the base, for which the exact search ran out of its turn.
    too_hard_bytes: Option<u64>,
    turns: u32,
}

impl Task {
    fn new(part: Part) -> Self {
        Self {
            filler: Filler::new(&part),
            unit_bytes: unit_bytes(&part),
            best: None,
            best_bytes: u64::MAX,
            proven_bytes: part.base_bytes + part.bound_bytes(),
            search: None,
            too_hard_bytes: None,
            turns: 0,
            part,
        }
    }

    /// With what lies below.
    fn height_bytes(&self) -> u64 {
        self.part.base_bytes.saturating_add(self.best_bytes)
    }

    /// Comes closer to the goal, or to the proof that it cannot be met.
    fn turn(&mut self, goal_bytes: u64, effort: &mut Effort<'_>) {
        let goal = goal_bytes.max(self.proven_bytes) - self.part.base_bytes;
        let work = FIRST_TURN << (self.turns / 2).min(30);
        self.turns += 1;
        if self.turns == 1 {
            // A layout first, whatever it takes.
            self.fill(goal, 3, effort);
            return;
        }
        let searchable = Search::can_take(self.part.items.len(), self.part.sections);
        if !self.turns.is_multiple_of(2) || !searchable {
            let best = self.best_bytes;
            effort.slice(work, |effort| self.fill(goal, u32::MAX, effort));
            if best != self.best_bytes {
                self.too_hard_bytes = None;
            }
        } else {
            effort.slice(work, |effort| self.search(goal, effort));
        }
    }

    fn fill(&mut self, goal: u64, rounds: u32, effort: &mut Effort<'_>) {
        self.filler.run(&self.part, goal, rounds, effort);
        if let Some(layout) = self.filler.best()
            && layout.height_bytes < self.best_bytes
        {
            self.best_bytes = layout.height_bytes;
            self.best = Some(layout.offsets.clone());
        }
    }

    /// Exact search at the goal; where that was too hard, half-way between it and the best.
    fn search(&mut self, goal: u64, effort: &mut Effort<'_>) {
        let close =
            |hard: u64| self.best_bytes - hard <= (self.best_bytes / 4096).max(self.unit_bytes);
        let capacity = match self.too_hard_bytes {
            Some(hard) if hard >= goal && !close(hard) => hard + (self.best_bytes - hard) / 2,
            _ => goal,
        };
        let mut search = match self.search.take() {
            Some((same, search)) if same == capacity => search,
            _ => Search::new(&self.part.items, self.part.sections, capacity),
        };
        match search.run(effort) {
            Found::Offsets(offsets) => {
                let tops = offsets
                    .iter()
                    .zip(&self.part.items)
                    .map(|(o, i)| o + i.bytes);
                self.best_bytes = tops.max().unwrap_or(0);
                self.best = Some(offsets);
                self.too_hard_bytes = self.too_hard_bytes.filter(|&hard| hard < self.best_bytes);
            }
            Found::Impossible => {
                let more = (capacity + 1).next_multiple_of(self.unit_bytes);
                self.proven_bytes = self.proven_bytes.max(self.part.base_bytes + more);
                self.too_hard_bytes = None;
            }
            Found::Nothing => {
                self.too_hard_bytes = Some(capacity);
                self.search = Some((capacity, search));
            }
        }
    }
}

/// Sizes are multiples of this, and alignments divide it: offsets of pushed-down layouts are multiples of it.
/// 1 where alignments do not.
fn unit_bytes(part: &Part) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let unit = part.items.iter().fold(0, |unit, i| gcd(unit, i.bytes));
    let aligned = part.items.iter().all(|i| unit.is_multiple_of(i.align));
    if aligned { unit.max(1) } else { 1 }
}
