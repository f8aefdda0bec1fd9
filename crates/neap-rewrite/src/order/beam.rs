//! The search for an order: all beginnings of orders that are worth it grow by one node at a time.
//!
//! ```text
//!   {}  ─►  {a} {b}  ─►  {a b} {a c} {b d}  ─►  …      beginnings of the same nodes are one: the better;
//!                                                     of the others, the best few go on
//! ```
//! Better is what has needed less at its highest step (below what some step needs in any order, all are equal),
//! then what has less memory in use behind it, then what had less over all of its steps. Among equals, the earlier
//! node of the given order is next.

use super::memory::Memory;
use neap_ir::NodeId;
use std::collections::HashMap;

/// Beginnings that go on.
const WIDTH: usize = 64;

/// The best order that is found; the same every time.
pub(super) fn search(memory: &Memory) -> Vec<NodeId> {
    let least_bytes = memory.least_peak_bytes();
    let mut trail: Vec<Link> = Vec::with_capacity(memory.nodes.len());
    let mut beam = vec![Beginning::new(memory)];
    for _ in 0..memory.nodes.len() {
        let mut found: HashMap<u64, Longer> = HashMap::new();
        for (from, beginning) in beam.iter().enumerate() {
            for &node in beginning.choices(memory) {
                let longer = Longer {
                    rank: beginning.rank(memory, node, least_bytes),
                    node,
                    from,
                };
                let nodes = beginning.nodes ^ scattered(node);
                let best = found.entry(nodes).or_insert(longer);
                *best = (*best).min(longer);
            }
        }
        let mut found: Vec<Longer> = found.into_values().collect();
        found.sort_unstable();
        found.truncate(WIDTH);
        beam = found
            .into_iter()
            .map(|longer| {
                let mut made = beam[longer.from].clone();
                trail.push(Link {
                    node: longer.node,
                    before: made.last,
                });
                made.last = Some(trail.len() - 1);
                made.run(memory, longer.node);
                made
            })
            .collect();
    }
    let mut order = Vec::with_capacity(memory.nodes.len());
    let mut at = beam[0].last;
    while let Some(link) = at.map(|at| &trail[at]) {
        order.push(NodeId(link.node as u32));
        at = link.before;
    }
    order.reverse();
    order
}

/// A node of a beginning, and where in the trail the one before it is.
struct Link {
    node: usize,
    before: Option<usize>,
}

/// A beginning with one more node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Longer {
    rank: Rank,
    node: usize,
    from: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    peak_bytes: u64,
    /// In use when the last node is done.
    left_bytes: u64,
    /// Over all steps.
    sum_bytes: u64,
}

#[derive(Clone)]
struct Beginning {
    /// Of its nodes, whatever their order.
    nodes: u64,
    last: Option<usize>,
    /// By node: those before it that are not done.
    waits: Box<[u16]>,
    /// By tensor: nodes that have yet to touch it.
    left: Box<[u16]>,
    /// Nodes that may be next, in the given order.
    ready: Vec<usize>,
    rank: Rank,
}

impl Beginning {
    fn new(memory: &Memory) -> Beginning {
        let waits = |node: usize| memory.nodes[node].waits;
        Beginning {
            nodes: 0,
            last: None,
            waits: memory.nodes.iter().map(|n| n.waits).collect(),
            left: memory.tensors.iter().map(|t| t.touched).collect(),
            ready: (0..memory.nodes.len()).filter(|&n| waits(n) == 0).collect(),
            rank: Rank {
                peak_bytes: 0,
                left_bytes: 0,
                sum_bytes: 0,
            },
        }
    }

    /// Nodes to go on with. What only names memory comes as soon as it may: it costs nothing.
    fn choices(&self, memory: &Memory) -> &[usize] {
        let is_free = |&node: &usize| !memory.nodes[node].is_step;
        match self.ready.iter().position(is_free) {
            Some(at) => &self.ready[at..at + 1],
            None => &self.ready,
        }
    }

    /// With one more node.
    fn rank(&self, memory: &Memory, node: usize, least_bytes: u64) -> Rank {
        let node = &memory.nodes[node];
        let is_new = |t: usize| self.left[t] == memory.tensors[t].touched;
        let ends = |t: usize| self.left[t] == 1 && !memory.tensors[t].is_output;
        let bytes = |wanted: &dyn Fn(usize) -> bool| {
            let tensors = node.touches.iter().filter(|&&t| wanted(t));
            let bytes = tensors.map(|&t| memory.tensors[t].bytes);
            bytes.fold(0, u64::saturating_add)
        };
        let mut takes = node.takes.iter();
        let taken = takes.find(|&&(input, output)| ends(input) && is_new(output));
        let taken_bytes = taken.map_or(0, |&(input, _)| memory.tensors[input].bytes);
        let used_bytes = self.rank.left_bytes.saturating_add(bytes(&is_new));
        let step_bytes = (used_bytes - taken_bytes).saturating_add(node.needed_bytes);
        Rank {
            peak_bytes: self.rank.peak_bytes.max(step_bytes).max(least_bytes),
            left_bytes: used_bytes.saturating_sub(bytes(&ends)),
            sum_bytes: match node.is_step {
                true => self.rank.sum_bytes.saturating_add(step_bytes),
                false => self.rank.sum_bytes,
            },
        }
    }

    fn run(&mut self, memory: &Memory, node: usize) {
        self.rank = self.rank(memory, node, 0);
        self.nodes ^= scattered(node);
        let done = &memory.nodes[node];
        done.touches.iter().for_each(|&t| self.left[t] -= 1);
        self.ready.retain(|&ready| ready != node);
        for &after in &done.after {
            self.waits[after] -= 1;
            if self.waits[after] == 0 {
                let at = self.ready.partition_point(|&ready| ready < after);
                self.ready.insert(at, after);
            }
        }
    }
}

/// Numbers of which no few combine to the same (SplitMix64).
fn scattered(node: usize) -> u64 {
    let mut x = (node as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
