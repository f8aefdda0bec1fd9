//! The integer program.
//!
//! ```text
//!   minimise   T
//!   over       x(a, b, m) in {0, 1}    nodes a..b of the forward pass are a segment, in mode m
//!              z in [0, 1]             share of the states that stays in memory
//!   where      the chosen segments follow each other from the first forward node to the last
//!              T ≥ all nodes + Σ x · what is computed again + what swapping takes of computing
//!              T ≥ (Σ x · bytes swapped + (1 - z) · states) · 2 / rate
//!              fixed(t) + used(t) · (1 - z) + states · z + Σ x · bytes(t) ≤ memory    for each t
//! ```
//! Times t are ranges of nodes, of which the fullest node counts. A short tape has one for each node, and a cut at each;
//! for it the program is exact.

use super::column::{Column, Drops, Mode};
use super::cuts::pieces;
use super::{Reads, Tape};
use microlp::{
    ComparisonOp, OptimizationDirection, Problem, SolutionStatus, SolveOptions, Variable,
};
use neap_sim::CostProfile;
use std::ops::Range;

/// How large the integer program may be, and how long it is solved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Segments are unions of so many ranges of forward nodes.
    pub pieces: usize,
    /// Memory is limited at so many times.
    pub times: usize,
    /// Branches that the solver looks at. Counted instead of timed, so that a step is planned alike on every machine.
    pub branches: u64,
    /// Whether activations and states may be in the spill file.
    pub swaps: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            pieces: 16,
            times: 64,
            branches: 300,
            swaps: true,
        }
    }
}

/// What an integer program found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Values that are computed again.
    pub dropped: Vec<usize>,
    /// The fullest time, as the program has it.
    pub peak_bytes: u64,
    pub swapped_bytes: u64,
    /// Whether nothing better fits; otherwise the solver was stopped before it knew.
    pub is_proven: bool,
}

/// The choice that takes the least time within `memory_bytes`; `None` where there is none, or the solver found none before
/// it was stopped.
pub fn cheapest(
    tape: &Tape,
    memory_bytes: u64,
    costs: &CostProfile,
    limits: Limits,
) -> Option<Chosen> {
    if !tape.is_well_formed() || memory_bytes == 0 {
        return None;
    }
    let reads = tape.reads();
    let columns = columns(tape, &reads, limits);
    let slots = slots(tape, limits.times);
    let fixed = fixed(tape, &reads, &slots);
    let mut program = Program::new(tape, &columns, memory_bytes, costs, limits);
    program.limit(&columns, &fixed, &slots);
    program.solve(&columns, &fixed, &slots, limits.branches)
}

/// A segment, by the pieces that it begins and ends with, in a mode.
struct Piece {
    from: usize,
    to: usize,
    column: Column,
}

fn columns(tape: &Tape, reads: &[Reads], limits: Limits) -> Vec<Piece> {
    let pieces = pieces(tape, reads, limits.pieces.max(1));
    let mut found = Vec::new();
    for from in 0..pieces.len() {
        for to in from + 1..=pieces.len() {
            let segment = pieces[from].start..pieces[to - 1].end;
            let mut most_dropped = 0;
            for drops in [Drops::Nothing, Drops::Cheap, Drops::All] {
                // Several pieces that drop nothing are as many segments.
                if drops == Drops::Nothing && to > from + 1 {
                    continue;
                }
                let of = |swaps| Column::of(tape, reads, segment.clone(), Mode { drops, swaps });
                let column = of(false);
                if drops != Drops::Nothing && column.dropped.len() <= most_dropped {
                    continue;
                }
                most_dropped = column.dropped.len();
                found.push(Piece { from, to, column });
                let column = of(true);
                if limits.swaps && column.swapped_bytes > 0 {
                    found.push(Piece { from, to, column });
                }
            }
        }
    }
    found
}

/// Ranges of nodes, of which forward nodes are never in one with backward nodes.
fn slots(tape: &Tape, most: usize) -> Vec<Range<usize>> {
    let count = tape.nodes.len();
    if count <= most {
        return (0..count).map(|at| at..at + 1).collect();
    }
    let mut found = Vec::new();
    let mut cut = |from: usize, to: usize, parts: usize| {
        let length = (to - from).div_ceil(parts.max(1)).max(1);
        let starts = (from..to).step_by(length);
        found.extend(starts.map(|at| at..(at + length).min(to)));
    };
    // What is made again is in the backward pass.
    cut(0, tape.forward, most / 3);
    cut(tape.forward, count, most - most / 3);
    found
}

/// What does not depend on the choice.
struct Fixed {
    /// Beside states and what can be dropped.
    bytes: i64,
    /// Of the states that are used there.
    states_bytes: u64,
}

fn fixed(tape: &Tape, reads: &[Reads], slots: &[Range<usize>]) -> Vec<Fixed> {
    let mut kept = vec![0i64; tape.nodes.len() + 1];
    for (value, reads) in tape.values.iter().zip(reads) {
        kept[value.made_by] += value.bytes as i64;
        kept[reads.last() + 1] -= value.bytes as i64;
    }
    for at in 1..kept.len() {
        kept[at] += kept[at - 1];
    }
    let of = |slot: &Range<usize>| {
        let nodes = || slot.clone().map(|at| (at, &tape.nodes[at]));
        let beside = nodes().map(|(at, node)| node.live_bytes as i64 - kept[at]);
        Fixed {
            bytes: beside.max().unwrap_or(0),
            states_bytes: nodes().map(|(_, n)| n.states_bytes).max().unwrap_or(0),
        }
    };
    slots.iter().map(of).collect()
}

struct Program<'a> {
    tape: &'a Tape,
    problem: Problem,
    memory_bytes: u64,
    /// By column.
    chosen: Vec<Variable>,
    /// Share of the states that stays in memory, where that is a question.
    resident: Option<Variable>,
}

/// Coefficients below this share of the largest are nothing: the solver works best without them.
const LEAST_COEFFICIENT: f64 = 1e-6;

/// Of the time that swapping takes, so much counts though it is hidden behind computing: a plan that swaps as much as it just
/// can hide waits in places.
const HIDDEN_SHARE: f64 = 0.05;

impl<'a> Program<'a> {
    fn new(
        tape: &'a Tape,
        columns: &[Piece],
        memory_bytes: u64,
        costs: &CostProfile,
        limits: Limits,
    ) -> Program<'a> {
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let all_ns: u64 = tape.nodes.iter().map(|n| n.ns).sum();
        let unit = all_ns.max(1) as f64;
        let moving = |bytes: u64| 2.0 * bytes as f64 / costs.both_ways_rate() * 1e9 / unit;
        let handling = |bytes: u64| 2.0 * costs.handling_ns(bytes) as f64 / unit;
        let time = problem.add_var(1.0, (0.0, f64::INFINITY));
        let chosen: Vec<Variable> = columns
            .iter()
            .map(|c| problem.add_binary_var(HIDDEN_SHARE * moving(c.column.swapped_bytes)))
            .collect();
        let states = moving(tape.states_bytes);
        let resident = (limits.swaps && tape.states_bytes > 0)
            .then(|| problem.add_var(-HIDDEN_SHARE * states, (0.0, 1.0)));
        let each = || columns.iter().zip(&chosen);
        let mut computing = vec![(time, 1.0)];
        let mut swapping = vec![(time, 1.0)];
        for (piece, &x) in each() {
            let column = &piece.column;
            let ns = column.ns as f64 / unit + handling(column.swapped_bytes);
            push(&mut computing, x, -ns);
            push(&mut swapping, x, -moving(column.swapped_bytes));
        }
        let mut streamed = 0.0;
        if let Some(z) = resident {
            let handling = handling(tape.states_bytes);
            push(&mut computing, z, handling);
            push(&mut swapping, z, states);
            streamed = handling;
        }
        problem.add_constraint(computing, ComparisonOp::Ge, 1.0 + streamed);
        let streamed = resident.map_or(0.0, |_| states);
        problem.add_constraint(swapping, ComparisonOp::Ge, streamed);
        let last = columns.iter().map(|c| c.to).max().unwrap_or(0);
        for at in 0..last {
            let mut flow: Vec<(Variable, f64)> = Vec::new();
            flow.extend(each().filter(|(c, _)| c.from == at).map(|(_, &x)| (x, 1.0)));
            flow.extend(each().filter(|(c, _)| c.to == at).map(|(_, &x)| (x, -1.0)));
            let begins = if at == 0 { 1.0 } else { 0.0 };
            problem.add_constraint(flow, ComparisonOp::Eq, begins);
        }
        Program {
            tape,
            problem,
            memory_bytes,
            chosen,
            resident,
        }
    }

    /// Memory is limited in all slots.
    fn limit(&mut self, columns: &[Piece], fixed: &[Fixed], slots: &[Range<usize>]) {
        let unit = self.memory_bytes as f64;
        let mut rows: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); slots.len()];
        for (piece, &x) in columns.iter().zip(&self.chosen) {
            let bytes = piece.column.most_bytes(slots);
            for (row, bytes) in rows.iter_mut().zip(bytes) {
                push(row, x, bytes as f64 / unit);
            }
        }
        for (mut row, fixed) in rows.into_iter().zip(fixed) {
            let mut room = (self.memory_bytes as i64 - fixed.bytes) as f64;
            let states = self.tape.states_bytes;
            match self.resident {
                Some(z) => {
                    room -= fixed.states_bytes as f64;
                    let idle = states.saturating_sub(fixed.states_bytes);
                    push(&mut row, z, idle as f64 / unit);
                }
                None => room -= states as f64,
            }
            let bound = room / unit;
            self.problem.add_constraint(row, ComparisonOp::Le, bound);
        }
    }

    fn solve(
        &self,
        columns: &[Piece],
        fixed: &[Fixed],
        slots: &[Range<usize>],
        branches: u64,
    ) -> Option<Chosen> {
        let mut options = SolveOptions::default();
        options.node_limit = Some(branches);
        let solution = self
            .problem
            .solve_with(options)
            .ok()?
            .into_solution()
            .ok()?;
        let picked = columns.iter().zip(&self.chosen);
        let picked = picked.filter(|&(_, &x)| solution.var_value(x) > 0.5);
        let picked: Vec<&Column> = picked.map(|(piece, _)| &piece.column).collect();
        let share = self.resident.map_or(1.0, |z| solution.var_value(z));
        let mut most: Vec<f64> = (fixed.iter())
            .map(|f| {
                let idle = self.tape.states_bytes.saturating_sub(f.states_bytes);
                f.bytes as f64 + f.states_bytes as f64 + share * idle as f64
            })
            .collect();
        for column in &picked {
            for (most, bytes) in most.iter_mut().zip(column.most_bytes(slots)) {
                *most += bytes as f64;
            }
        }
        let streamed = (1.0 - share) * self.tape.states_bytes as f64;
        Some(Chosen {
            dropped: picked.iter().flat_map(|c| c.dropped.clone()).collect(),
            peak_bytes: most.into_iter().fold(0.0, f64::max) as u64,
            swapped_bytes: picked.iter().map(|c| c.swapped_bytes).sum::<u64>() + streamed as u64,
            is_proven: solution.status() == SolutionStatus::Optimal,
        })
    }
}

fn push(row: &mut Vec<(Variable, f64)>, variable: Variable, coefficient: f64) {
    if coefficient.abs() >= LEAST_COEFFICIENT {
        row.push((variable, coefficient));
    }
}
