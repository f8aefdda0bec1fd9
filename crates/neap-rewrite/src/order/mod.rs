//! Orders of steps: the same operators over the same weights, in the topological order in which the results that
//! wait for their readers take least memory.
//!
//! ```text
//!   as exported    x ─ a1 ─ b1 ─ a2 ─ b2 ─ +      b1 takes much, and waits beside x while a2 is made
//!   reordered      x ─ a1 ─ a2 ─ b1 ─ b2 ─ +      it is made when nothing else is there
//! ```
//! Values are placed anew for an order: what is computed in place, and what is part of what, follows from who reads
//! last. Arithmetic does not change, and so no bit does.

mod beam;
mod memory;

use crate::needs::step_bytes;
use crate::place;
use memory::Memory;
use neap_ir::{NodeId, Program};

/// When another order is worth it.
#[derive(Debug, Clone, Copy)]
pub struct OrderLimits {
    /// Programs whose highest step needs no more are left as they are.
    pub enough_bytes: u64,
    /// The share by which the highest step must need less ...
    pub peak_gain: f64,
    /// ... or, where it needs no more, all steps in the mean. `None`: that is not enough.
    pub mean_gain: Option<f64>,
    /// Larger graphs are left as they are.
    pub most_nodes: usize,
}

impl OrderLimits {
    /// An order that is better at its highest step is so for every plan.
    pub const LOWER_PEAK: OrderLimits = OrderLimits {
        enough_bytes: 2 << 20,
        peak_gain: 1.0 / 64.0,
        mean_gain: None,
        most_nodes: 4096,
    };

    /// One that leaves more room beside other steps is better under some budgets: to be planned with both.
    pub const LOWER_MEAN: OrderLimits = OrderLimits {
        mean_gain: Some(1.0 / 16.0),
        ..OrderLimits::LOWER_PEAK
    };
}

/// The program with its steps in an order that needs less memory; `None` where none is found that is worth it.
pub fn with_less_memory(program: &Program, limits: &OrderLimits) -> Option<Program> {
    let given = Needs::of(program);
    if given.peak_bytes <= limits.enough_bytes || program.graph.nodes.len() > limits.most_nodes {
        return None;
    }
    let order = beam::search(&Memory::of(program));
    if order.is_sorted() {
        return None;
    }
    let made = reordered(program, &order);
    Needs::of(&made).gains(&given, limits).then_some(made)
}

/// The program with its nodes in another order, which is a topological one.
pub fn reordered(program: &Program, order: &[NodeId]) -> Program {
    let mut graph = program.graph.clone();
    let node = |id: &NodeId| program.graph.nodes[id.index()].clone();
    graph.nodes = order.iter().map(node).collect();
    let mut made = place::run(graph, format!("{}-reordered", program.digest));
    made.packed = program.packed.clone();
    made
}

/// What the steps of a program need.
struct Needs {
    peak_bytes: u64,
    mean_bytes: f64,
}

impl Needs {
    fn of(program: &Program) -> Needs {
        let bytes = step_bytes(program);
        Needs {
            peak_bytes: bytes.iter().copied().max().unwrap_or(0),
            mean_bytes: bytes.iter().map(|&b| b as f64).sum::<f64>() / bytes.len().max(1) as f64,
        }
    }

    fn gains(&self, given: &Needs, limits: &OrderLimits) -> bool {
        let is_less = |new: f64, old: f64, share: f64| new < old && new <= old * (1.0 - share);
        let (new, old) = (self.peak_bytes as f64, given.peak_bytes as f64);
        let has_lower_mean = |share| is_less(self.mean_bytes, given.mean_bytes, share);
        is_less(new, old, limits.peak_gain)
            || new <= old && limits.mean_gain.is_some_and(has_lower_mean)
    }
}
