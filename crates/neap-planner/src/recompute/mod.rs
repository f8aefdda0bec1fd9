//! Which activations of a step of training are computed again in its backward pass, instead of being kept.
//!
//! ```text
//!   Tape: forward nodes │ backward nodes       what each costs, what it reads, how large that is
//!         ●──●──●──●──●──●│●──●──●──●──●──●
//!         └──────┘└──────┘  segments of the forward pass, each with a mode: kept, cheap values again, all again,
//!                           and any of these with what it keeps in the spill file meanwhile
//! ```
//! A value that is dropped is made again just before the first backward node that wants it, together with what it is
//! made of that was dropped, too (`neap_autodiff::recompute`). What crosses the end of a segment is never dropped by
//! it, so segments do not depend on each other, and memory and time are sums over them.
//!
//! - [`segments`]: segments of about √n steps (Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost*,
//!   section 4).
//! - [`cheapest`]: the segments and modes that take the least time within a memory limit, as an integer program. The
//!   question is Checkmate's (Jain et al., MLSys 2020), and with swapping POET's (Patil et al., ICML 2022); theirs decides
//!   for each value and each step. Here a value is made again once, and decisions are by segment, so that the program has
//!   hundreds of variables instead of millions.

mod column;
mod cuts;
mod program;

pub use cuts::segments;
pub use program::{Chosen, Limits, cheapest};

/// A step of training as this choice sees it.
#[derive(Clone, Debug, Default)]
pub struct Tape {
    /// In order; those before `forward` make the loss.
    pub nodes: Vec<TapeNode>,
    pub forward: usize,
    /// Results of the forward pass that can be made again.
    pub values: Vec<TapeValue>,
    /// All states together: parameters, moments, statistics.
    pub states_bytes: u64,
}

#[derive(Clone, Debug, Default)]
pub struct TapeNode {
    pub ns: u64,
    /// Memory in use there where everything is kept, without states.
    pub live_bytes: u64,
    /// Of the states that it uses.
    pub states_bytes: u64,
    /// Indices of values.
    pub reads: Vec<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct TapeValue {
    /// A node of the forward pass.
    pub made_by: usize,
    pub bytes: u64,
    /// Whether it costs next to nothing to make it of what is kept anyway.
    pub is_cheap: bool,
}

/// When the nodes of a tape read a value.
#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    /// The last of the forward pass; where it is made, if there is none.
    forward: usize,
    backward: Option<(usize, usize)>,
}

impl Reads {
    fn last(&self) -> usize {
        self.backward.map_or(self.forward, |(_, last)| last)
    }
}

impl Tape {
    /// By value.
    fn reads(&self) -> Vec<Reads> {
        let of = |v: &TapeValue| Reads {
            forward: v.made_by,
            backward: None,
        };
        let mut all: Vec<Reads> = self.values.iter().map(of).collect();
        for (at, node) in self.nodes.iter().enumerate() {
            for &value in &node.reads {
                let reads = &mut all[value];
                if at < self.forward {
                    reads.forward = reads.forward.max(at);
                } else {
                    let (first, _) = reads.backward.unwrap_or((at, at));
                    reads.backward = Some((first, at));
                }
            }
        }
        all
    }

    fn is_well_formed(&self) -> bool {
        let known = |n: &TapeNode| n.reads.iter().all(|&v| v < self.values.len());
        self.forward <= self.nodes.len()
            && self.values.iter().all(|v| v.made_by < self.forward)
            && self.nodes.iter().all(known)
    }
}

#[cfg(test)]
mod tests;
