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
mod in_place;
mod memory;

pub use in_place::with_steps_in_order;

use crate::needs::step_bytes;
use crate::place;
use memory::Memory;
use neap_ir::{NodeId, Program};

/// When another order is worth it: one that needs less at its highest step is better for every plan.
#[derive(Debug, Clone, Copy)]
pub struct OrderLimits {
    /// Programs whose highest step needs no more are left as they are.
    pub enough_bytes: u64,
    /// The share by which the highest step must need less.
    pub peak_gain: f64,
    /// Larger graphs are left as they are.
    pub most_nodes: usize,
}

impl Default for OrderLimits {
    fn default() -> OrderLimits {
        OrderLimits {
            enough_bytes: 2 << 20,
            peak_gain: 1.0 / 64.0,
            most_nodes: 4096,
        }
    }
}

/// The program with its steps in an order that needs less memory; `None` where none is found that is worth it.
pub fn with_less_memory(program: &Program, limits: &OrderLimits) -> Option<Program> {
    let peak_bytes = |p: &Program| step_bytes(p).into_iter().max().unwrap_or(0);
    let given_bytes = peak_bytes(program);
    if given_bytes <= limits.enough_bytes || program.graph.nodes.len() > limits.most_nodes {
        return None;
    }
    let order = beam::search(&Memory::of(program));
    if order.is_sorted() {
        return None;
    }
    let made = reordered(program, &order);
    let most_bytes = given_bytes as f64 * (1.0 - limits.peak_gain);
    let found_bytes = peak_bytes(&made);
    (found_bytes < given_bytes && found_bytes as f64 <= most_bytes).then_some(made)
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
