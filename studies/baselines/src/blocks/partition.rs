//! Where to cut: the partition with the least delay of those in which any two neighbouring blocks fit into
//! memory together (SwapNet, Section 6.2.2, Equations 2 to 4).
//!
//! All partitions are tried where they are few; dynamic programming finds the same where they are not.
//! A state is the last block, its labels what led there:
//!
//! ```text
//!   0 ──────── a ──── b ──── c          state a..b: (delay so far, lead)       lead: t_ov − t_out of the
//!   └─ before ─┘      └ next ┘          to state b..c: adds t_ov of a..b             block before a..b
//! ```
//! Of two labels one is useless when it is later by at least what its lead is longer: a longer lead saves
//! no more than itself.

use super::delay::{Objective, evaluate};
use super::layers::{Layer, create_blocks};

/// A partition and its figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Indices of the layers at which blocks begin, without 0.
    pub points: Vec<usize>,
    /// The most that two neighbouring blocks take together.
    pub most_bytes: u64,
    /// Value of the objective.
    pub delay_ns: u64,
}

/// Up to so many partitions are tried one by one.
const FEW: u64 = 4096;

/// The best partition into each number of blocks from `first_blocks` on that has any, for at most
/// `most_found` such numbers. None has more blocks than there are layers.
pub fn best(
    layers: &[Layer],
    room_bytes: u64,
    first_blocks: usize,
    most_found: usize,
    objective: Objective,
) -> Vec<Partition> {
    let first_blocks = first_blocks.min(layers.len()).max(2);
    let mut found = Vec::new();
    let mut search = None;
    for blocks in first_blocks..=layers.len() {
        if found.len() >= most_found {
            break;
        }
        let one = if search.is_none() && ways(layers.len(), blocks) <= FEW {
            exhaustive(layers, room_bytes, blocks, objective)
        } else {
            let dp = search.get_or_insert_with(|| Search::new(layers, room_bytes, objective));
            dp.until(blocks)
        };
        found.extend(one);
    }
    found
}

/// The best partition into `blocks`, by dynamic programming.
pub fn dynamic(
    layers: &[Layer],
    room_bytes: u64,
    blocks: usize,
    objective: Objective,
) -> Option<Partition> {
    let possible = (2..=layers.len()).contains(&blocks);
    possible.then(|| Search::new(layers, room_bytes, objective).until(blocks))?
}

/// Ways to cut `layers` into `blocks`, or more than [`FEW`].
fn ways(layers: usize, blocks: usize) -> u64 {
    let mut ways = 1u64;
    for i in 0..blocks.saturating_sub(1) as u64 {
        ways = ways * (layers as u64 - 1 - i) / (i + 1);
        if ways > FEW {
            return u64::MAX;
        }
    }
    ways
}

/// Sums over layers before each index.
struct Sums {
    bytes: Vec<u64>,
    input_ns: Vec<u64>,
    execute_ns: Vec<u64>,
    output_ns: Vec<u64>,
}

impl Sums {
    fn new(layers: &[Layer]) -> Sums {
        let sums = |of: &dyn Fn(&Layer) -> u64| {
            let mut sum = 0;
            let after = layers.iter().map(|l| {
                sum += of(l);
                sum
            });
            std::iter::once(0).chain(after).collect()
        };
        Sums {
            bytes: sums(&|l| l.bytes),
            input_ns: sums(&|l| l.input_ns),
            execute_ns: sums(&|l| l.execute_ns),
            output_ns: sums(&|l| l.output_ns),
        }
    }

    fn layers(&self) -> usize {
        self.bytes.len() - 1
    }

    fn bytes(&self, begin: usize, end: usize) -> u64 {
        self.bytes[end] - self.bytes[begin]
    }

    /// The residual of block `a..b` when the next one ends at `next`.
    fn residual(&self, a: usize, b: usize, next: usize, lead_ns: i64) -> u64 {
        let input_ns = (self.input_ns[next] - self.input_ns[b]) as i64;
        let execute_ns = (self.execute_ns[b] - self.execute_ns[a]) as i64;
        (input_ns - execute_ns - lead_ns).max(0) as u64
    }

    fn most_bytes(&self, points: &[usize]) -> u64 {
        let mut cuts = vec![0];
        cuts.extend_from_slice(points);
        cuts.push(self.layers());
        let pairs = cuts.windows(3).map(|w| self.bytes(w[0], w[2]));
        pairs.max().unwrap_or(self.bytes[self.layers()])
    }

    /// Whatever the cuts are: the whole run's own execution, and the first block's input.
    fn fixed_ns(&self, first_end: usize, objective: Objective) -> u64 {
        match objective {
            Objective::Residual => 0,
            Objective::Latency => self.input_ns[first_end] + self.execute_ns[self.layers()],
        }
    }
}

/// The best partition into `blocks`, by trying all.
pub fn exhaustive(
    layers: &[Layer],
    room_bytes: u64,
    blocks: usize,
    objective: Objective,
) -> Option<Partition> {
    if !(2..=layers.len()).contains(&blocks) {
        return None;
    }
    let sums = Sums::new(layers);
    let mut best: Option<Partition> = None;
    let mut points: Vec<usize> = (1..blocks).collect();
    let last = layers.len();
    loop {
        let most_bytes = sums.most_bytes(&points);
        if most_bytes <= room_bytes {
            let delay_ns = evaluate(&create_blocks(&points, layers), objective);
            if best.as_ref().is_none_or(|b| delay_ns < b.delay_ns) {
                best = Some(Partition {
                    points: points.clone(),
                    most_bytes,
                    delay_ns,
                });
            }
        }
        // The next combination in lexicographic order.
        let count = points.len();
        let Some(i) = (0..count).rev().find(|&i| points[i] < last - (count - i)) else {
            return best;
        };
        let mut from = points[i];
        for point in &mut points[i..] {
            from += 1;
            *point = from;
        }
    }
}

/// One way to a state.
#[derive(Clone, Copy)]
struct Label {
    delay_ns: u64,
    lead_ns: i64,
    /// In `Search::nodes`: the end of the block before, and so on.
    parent: u32,
}

/// Partitions that end in block `begin..end`.
struct State {
    begin: usize,
    end: usize,
    labels: Vec<Label>,
}

/// Dynamic programming, a block at a time.
struct Search {
    sums: Sums,
    room_bytes: u64,
    objective: Objective,
    /// How many blocks the states at hand have; they are sorted by their ends.
    blocks: usize,
    states: Vec<State>,
    /// End of a block, and the node of the one before it.
    nodes: Vec<(u32, u32)>,
}

const NO_PARENT: u32 = u32::MAX;

impl Search {
    fn new(layers: &[Layer], room_bytes: u64, objective: Objective) -> Search {
        let sums = Sums::new(layers);
        let ends = (1..=layers.len()).take_while(|&end| sums.bytes[end] <= room_bytes);
        let states = ends.map(|end| State {
            begin: 0,
            end,
            labels: vec![Label {
                delay_ns: sums.fixed_ns(end, objective),
                lead_ns: 0,
                parent: NO_PARENT,
            }],
        });
        Search {
            states: states.collect(),
            sums,
            room_bytes,
            objective,
            blocks: 1,
            nodes: Vec::new(),
        }
    }

    /// The best partition into `blocks`, which are no fewer than at the last call.
    fn until(&mut self, blocks: usize) -> Option<Partition> {
        while self.blocks < blocks {
            self.step();
        }
        self.finish()
    }

    /// The residual of a state's block when the next one ends at `next`.
    fn residual(&self, state: &State, next: usize, label: &Label) -> u64 {
        match (state.begin, self.objective) {
            (0, Objective::Residual) => 0,
            _ => self
                .sums
                .residual(state.begin, state.end, next, label.lead_ns),
        }
    }

    /// From states of so many blocks to those of one more.
    fn step(&mut self) {
        let n = self.sums.layers();
        let mut states = Vec::with_capacity(self.states.len());
        let mut by_next: Vec<Vec<Label>> = vec![Vec::new(); n + 1];
        let old = std::mem::take(&mut self.states);
        for group in old.chunk_by(|a, b| a.end == b.end) {
            let Some(end) = group.first().map(|s| s.end) else {
                continue;
            };
            for (state, label) in group
                .iter()
                .flat_map(|s| s.labels.iter().map(move |l| (s, l)))
            {
                let parent = self.nodes.len() as u32;
                self.nodes.push((end as u32, label.parent));
                let output_ns = self.sums.output_ns[end] - self.sums.output_ns[state.begin];
                for next in end + 1..=n {
                    if self.sums.bytes(state.begin, next) > self.room_bytes {
                        break;
                    }
                    let ov_ns = self.residual(state, next, label);
                    let reached = Label {
                        delay_ns: label.delay_ns + ov_ns,
                        lead_ns: ov_ns as i64 - output_ns as i64,
                        parent,
                    };
                    add(&mut by_next[next], reached);
                }
            }
            let reached = by_next.iter_mut().enumerate().skip(end + 1);
            states.extend(reached.filter(|(_, labels)| !labels.is_empty()).map(
                |(next, labels)| State {
                    begin: end,
                    end: next,
                    labels: std::mem::take(labels),
                },
            ));
        }
        states.sort_by_key(|s| s.end);
        self.states = states;
        self.blocks += 1;
    }

    /// Of the states at hand that reach the end, the best.
    fn finish(&self) -> Option<Partition> {
        let n = self.sums.layers();
        let ended = self.states.iter().filter(|s| s.end == n);
        let ways = ended.flat_map(|s| s.labels.iter().map(move |l| (s, l)));
        let (delay_ns, label) = ways
            .map(|(state, label)| (label.delay_ns + self.residual(state, n, label), label))
            .min_by_key(|(delay_ns, _)| *delay_ns)?;
        let mut points = Vec::with_capacity(self.blocks);
        let mut at = label.parent;
        while let Some(&(end, parent)) = self.nodes.get(at as usize) {
            points.push(end as usize);
            at = parent;
        }
        points.reverse();
        Some(Partition {
            most_bytes: self.sums.most_bytes(&points),
            points,
            delay_ns,
        })
    }
}

/// Labels of one state, at most: the earliest are kept. Small networks never have so many; in large ones
/// the rest would differ in how a microsecond of delay is shared.
const MOST_LABELS: usize = 16;

/// Adds a label unless another is as good, and drops those that it makes useless.
fn add(labels: &mut Vec<Label>, new: Label) {
    let covers = |a: &Label, b: &Label| {
        a.delay_ns as i64 + (b.lead_ns - a.lead_ns).max(0) <= b.delay_ns as i64
    };
    if labels.iter().any(|old| covers(old, &new)) {
        return;
    }
    labels.retain(|old| !covers(&new, old));
    if labels.len() == MOST_LABELS {
        let latest = labels.iter_mut().max_by_key(|l| l.delay_ns);
        if let Some(latest) = latest.filter(|l| l.delay_ns > new.delay_ns) {
            *latest = new;
        }
        return;
    }
    labels.push(new);
}
