//! A memory budget added up: every part by name, in one place.
//!
//! ```text
//!   total = process                       what the kernel charges before the arena is there
//!         + threads + fixed + outputs     still to be taken, so set aside
//!         + kept_pieces + caller
//!         + tables + arena + copies       planned
//!         + slack + packing               in sizes that are named for a later process
//! ```

use crate::budget::{Bytes, Scope};
use neap_compile::Programs;
use neap_ir::{Const, Graph, Program};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// Touched stack and kernel stack of one thread.
const THREAD_BYTES: u64 = 64 * 1024;

/// What a session allocates after its plan is made (operand tables, I/O rings), and what the kernel charges in
/// batches: 32 pages for each processor that a process has run on.
const FIXED_BYTES: u64 = 768 * 1024;

/// Of that for each step of a program: the plan and the search for it, operand tables. Programs of fewer steps find room in
/// [`FIXED_BYTES`].
const PLANNED_STEP_BYTES: u64 = 512;
const STEPS_IN_FIXED: u64 = 1000;

/// Of a training step's program in any case and for each step, as a plan stores states and activations, too. From where planning
/// begins until a plan is at hand and its session open, processes of 920, 1,638 and 2,796 steps grew by 1.8, 2.4 and 3.7 MiB,
/// which [`FIXED_BYTES`] is to cover as well.
const TRAINING_PLANNED_BYTES: u64 = 768 * 1024;
const TRAINING_PLANNED_STEP_BYTES: u64 = 1280;

/// The same when a plan is replaced: most of the first plan's part is in use by then, and is charged.
const FIXED_AGAIN_BYTES: u64 = 256 * 1024;

/// What kept activations are read back through, piece by piece.
const KEPT_PIECE_BYTES: u64 = 256 * 1024;

/// Plans that are made beforehand leave so much of their budget, for what a process takes beside its arena then and not
/// now. One that does not fit all the same is made anew, so this is about speed, not about the budget.
pub(crate) const WAVER_BYTES: u64 = 256 * 1024;

/// Page tables and heap end on other pages from process to process, so a size that is named for a later process
/// is larger than what this process needs.
const SLACK_BYTES: u64 = 448 * 1024;

/// Of that so much is left where page tables of a large arena, which slack is to cover, would take nearly all of it.
const LEAST_SLACK_BYTES: u64 = 224 * 1024;

/// A training that turns out to take more than was foreseen is planned again with that and so much, as it may differ by some pages again.
pub(crate) const FORESEEN_BYTES: u64 = 64 * 1024;

/// Named sizes are whole multiples of this, so that two processes that differ by a few pages mostly name the same.
const NAMED_UNIT_BYTES: u64 = 64 * 1024;

/// Reading, packing and planning any model takes so much of a process, however small its arena: a run packs the model
/// first, within the same budget (the CLI's test `packing_obeys_the_budget_too`).
const LEAST_NAMED_BYTES: u64 = 6 << 20;

/// The same of a model of many nodes: what any model takes, and its graph two and a half times: as it is read, as it is lowered,
/// and as programs that are encoded. Packing 6,500 nodes took 8.1 MiB within a hard limit, of the 12.8 MiB that this gives.
const LEAST_OPENING_BYTES: u64 = 4 << 20;
const GRAPH_HALVES: u64 = 5;

/// Of a training, each of the step's graphs so many halves of times.
const TRAINING_HALVES: u64 = 5;

/// What a process is taken to need beside its arena when everything is resident: program text, stacks and heap, then
/// graph and plan of each step, then one checksum of 4 bytes for each 4 KiB of weights. Real processes differ by some
/// pages from run to run; percentages must not.
const NOMINAL_PROCESS_BYTES: u64 = 4 << 20;
const NOMINAL_STEP_BYTES: u64 = 4096;
const WEIGHT_BYTES_PER_CHECKSUM_BYTE: u64 = 1024;

/// Heap of a model and its session for each step of its programs: nodes, values and their names, operands, the plan
/// (see `the_engines_heap_is_accounted_for`).
const ENGINE_STEP_BYTES: u64 = 4096;

/// What a process that runs this model is taken to need beside its arena and inputs, see [`Ledger::whole`].
pub(crate) fn nominal_process_bytes(programs: &Programs) -> u64 {
    NOMINAL_PROCESS_BYTES + steps(&programs.plain) * NOMINAL_STEP_BYTES + checksums_bytes(programs)
}

/// Heap of an open model and its session, beside what is set aside for every session.
pub(crate) fn engine_heap_bytes(programs: &Programs) -> u64 {
    program_heap_bytes(programs) + checksums_bytes(programs)
}

/// Heap of programs, their plan, and what a session makes of both.
pub(crate) fn program_heap_bytes(programs: &Programs) -> u64 {
    let banded = programs.banded.iter().map(|p| steps(p));
    let steps: u64 = banded.chain([steps(&programs.plain)]).sum();
    steps * ENGINE_STEP_BYTES
}

/// Steps of a program, and operators of its loops, which are no steps of their own.
fn steps(program: &Program) -> u64 {
    let inner = program.graph.bodies().into_iter().map(|b| b.nodes.len());
    (program.steps.len() + inner.sum::<usize>()) as u64
}

/// What a process that packs a model takes at the most before anything is planned, from what its graph takes on the heap.
pub(crate) fn opening_bytes(graph: &Graph) -> u64 {
    LEAST_OPENING_BYTES + graph_heap_bytes(graph) / 2 * GRAPH_HALVES
}

/// The same of a process that trains: its model, so many graphs of the step as they are derived and lowered, and a plan for
/// each. All but the first compute something twice, which is half as much again at the most.
pub(crate) fn training_opening_bytes(model_bytes: u64, step: &Program, programs: u64) -> u64 {
    let graph_bytes = graph_heap_bytes(&step.graph) / 2 * TRAINING_HALVES;
    let others_bytes = graph_bytes / 2 * 3 * programs.saturating_sub(1);
    LEAST_OPENING_BYTES + model_bytes + graph_bytes + others_bytes
}

/// What opening a model takes beside what a process has in any case and beside the open model, for a process with other
/// models in memory.
pub(crate) fn opening_beside_bytes(opening_bytes: u64) -> u64 {
    opening_bytes.saturating_sub(LEAST_OPENING_BYTES)
}

/// Nearly what a graph takes on the heap.
pub(crate) fn graph_heap_bytes(graph: &Graph) -> u64 {
    let bodies = graph.bodies().into_iter().map(own_heap_bytes);
    own_heap_bytes(graph) + bodies.sum::<u64>()
}

/// The same without the bodies of its loops.
fn own_heap_bytes(graph: &Graph) -> u64 {
    // Names and lists are allocations of their own.
    const SMALL_BYTES: usize = 32;
    let values = graph.values.iter();
    let values = values.map(|v| size_of_val(v) + v.name.len() + 2 * SMALL_BYTES);
    let nodes = graph.nodes.iter();
    let nodes = nodes.map(|n| size_of_val(n) + n.name.len() + 4 * SMALL_BYTES);
    let consts = graph.consts.iter().map(|data| match data {
        Const::Inline(literal) => size_of_val(data) + literal.len_bytes() + SMALL_BYTES,
        _ => size_of_val(data),
    });
    (values.sum::<usize>() + nodes.sum::<usize>() + consts.sum::<usize>()) as u64
}

/// Heap of a trainer: of its program, and of the constants that are part of it.
pub(crate) fn training_heap_bytes(program: &Program) -> u64 {
    let inline = |c: &Const| match c {
        Const::Inline(literal) => literal.len_bytes() as u64,
        _ => 0,
    };
    let constants: u64 = program.graph.consts.iter().map(inline).sum();
    program.steps.len() as u64 * ENGINE_STEP_BYTES + constants
}

/// What a trainer's process takes beside that, once there is a plan.
pub(crate) fn training_planned_bytes(program: &Program) -> u64 {
    TRAINING_PLANNED_BYTES + program.steps.len() as u64 * TRAINING_PLANNED_STEP_BYTES
}

fn planned_bytes(steps: usize) -> u64 {
    (steps as u64).saturating_sub(STEPS_IN_FIXED) * PLANNED_STEP_BYTES
}

fn checksums_bytes(programs: &Programs) -> u64 {
    let weights: u64 = programs.plain.packed.iter().map(|p| p.bytes).sum();
    weights / WEIGHT_BYTES_PER_CHECKSUM_BYTE
}

/// The parts of a memory budget, all in bytes; their sum is [`Ledger::total_bytes`]. As JSON it has a key for each
/// part, and `total_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Ledger {
    pub scope: Scope,
    /// Of the process: program text in use, stacks, heap (graph, plan, checksums of weights), page tables so far, and
    /// tensors that the caller holds already. Of the engine: the heap of its model and session.
    pub process_bytes: u64,
    /// Stacks of the threads that compute.
    pub threads_bytes: u64,
    /// Operand tables and I/O rings of a session, and what the kernel charges in batches.
    pub fixed_bytes: u64,
    /// Output tensors, which the caller allocates.
    pub outputs_bytes: u64,
    /// What kept activations are read back through.
    pub kept_pieces_bytes: u64,
    /// What the caller asked to set aside ([`RunOptions::reserve_bytes`](crate::RunOptions::reserve_bytes)).
    pub caller_bytes: u64,
    /// Page tables of the arena.
    pub tables_bytes: u64,
    /// Activations, workspaces, resident weights, weights in flight: planned to the byte. 0 where they are in a device's memory.
    pub arena_bytes: u64,
    /// Weights that the host keeps for a device, and activations that leave it, in pinned memory.
    pub copies_bytes: u64,
    /// In sizes that are named for another process: what it may take more than this one.
    pub slack_bytes: u64,
    /// In such sizes: what that process takes beyond all of these while it reads and packs the model, if it has to.
    pub packing_bytes: u64,
    /// In a device's own memory, beside all of these. In JSON only where there is one.
    pub device: Option<DeviceLedger>,
}

/// What is taken of a device's own memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceLedger {
    /// By the driver, as measured before anything was planned; 0 where it does not tell.
    pub reserve_bytes: u64,
    /// Activations, workspaces, resident weights, weights in flight: planned to the byte.
    pub arena_bytes: u64,
}

impl DeviceLedger {
    /// The sum of both.
    pub fn total_bytes(&self) -> u64 {
        self.reserve_bytes.saturating_add(self.arena_bytes)
    }
}

/// What must be set aside for a session.
pub(crate) struct Reserve {
    pub threads: usize,
    /// Of its longest program.
    pub steps: usize,
    pub outputs_bytes: u64,
    pub keeps_activations: bool,
    pub caller_bytes: u64,
}

/// With everything resident.
pub(crate) struct Whole {
    pub process_bytes: u64,
    pub tables_bytes: u64,
    pub arena_bytes: u64,
}

impl Ledger {
    /// A process or an engine that takes `process_bytes` now, before its arena is there.
    pub(crate) fn before_arena(scope: Scope, process_bytes: u64, reserve: &Reserve) -> Ledger {
        let kept_pieces = u64::from(reserve.keeps_activations) * KEPT_PIECE_BYTES;
        Ledger {
            scope,
            process_bytes,
            threads_bytes: reserve.threads as u64 * THREAD_BYTES,
            fixed_bytes: FIXED_BYTES
                + match scope {
                    Scope::Process => planned_bytes(reserve.steps),
                    // It counts for each step already.
                    Scope::Engine => 0,
                },
            outputs_bytes: match scope {
                Scope::Process => reserve.outputs_bytes,
                // They are the caller's.
                Scope::Engine => 0,
            },
            kept_pieces_bytes: kept_pieces,
            caller_bytes: reserve.caller_bytes,
            ..Ledger::default()
        }
    }

    /// A process with a plan of so many steps at hand, and all else that it needs but the session and its arena: so that `process_bytes`
    /// is measured, and what was estimated of it when planning began can be told from what it came to.
    pub(crate) fn planned(&self, process_bytes: u64, steps: usize) -> Ledger {
        Ledger {
            process_bytes,
            fixed_bytes: FIXED_BYTES + planned_bytes(steps),
            ..*self
        }
    }

    /// A process or an engine with several sessions in common work memory, `unopened` of which are still to be opened
    /// beside the first.
    pub(crate) fn of_several(
        scope: Scope,
        process_bytes: u64,
        reserve: &Reserve,
        unopened: u64,
    ) -> Ledger {
        let first = Ledger::before_arena(scope, process_bytes, reserve);
        Ledger {
            fixed_bytes: first.fixed_bytes + unopened * FIXED_AGAIN_BYTES,
            ..first
        }
    }

    /// A process whose session exists, so that what was set aside for it is mostly charged; `process_bytes` is without
    /// the arena. Never less than `first`, with which the session was opened: a session may give memory back and take
    /// it again.
    pub(crate) fn between_runs(first: &Ledger, process_bytes: u64) -> Ledger {
        let now = Ledger {
            scope: Scope::Process,
            process_bytes,
            fixed_bytes: FIXED_AGAIN_BYTES,
            ..Ledger::default()
        };
        let is_more = first.scope != now.scope || now.total_bytes() > first.total_bytes();
        match is_more {
            true => now,
            false => *first,
        }
    }

    /// With everything resident: what `100%` means. It depends on the model and its options only, so a percentage is
    /// the same number of bytes in every process. What a caller sets aside beside is not part of it.
    pub(crate) fn whole(scope: Scope, reserve: &Reserve, whole: &Whole) -> Ledger {
        let before = Ledger::before_arena(scope, whole.process_bytes, reserve);
        Ledger {
            caller_bytes: 0,
            ..before.with_arena(whole.tables_bytes, whole.arena_bytes)
        }
    }

    /// The same with an arena.
    pub(crate) fn with_arena(self, tables_bytes: u64, arena_bytes: u64) -> Ledger {
        Ledger {
            tables_bytes,
            arena_bytes,
            ..self
        }
    }

    /// The same as it is named to people, for a later process: with slack, which page tables of the arena are part of as far as enough
    /// is left, and with room to pack the model first, which takes `opening_bytes` in all.
    pub(crate) fn named(self, opening_bytes: u64) -> Ledger {
        let needed = self.total_bytes() - self.tables_bytes;
        let least_bytes = match self.scope {
            Scope::Process => LEAST_NAMED_BYTES.max(opening_bytes),
            // Packing is not the engine's lasting memory.
            Scope::Engine => 0,
        };
        let slack_bytes = SLACK_BYTES.max(self.tables_bytes.saturating_add(LEAST_SLACK_BYTES));
        let in_units = |bytes: u64| {
            bytes
                .checked_next_multiple_of(NAMED_UNIT_BYTES)
                .unwrap_or(u64::MAX)
        };
        let named = in_units(needed.saturating_add(slack_bytes));
        let packing_bytes = in_units(least_bytes).saturating_sub(named);
        let room_bytes = named - needed;
        let tables_bytes = self.tables_bytes.min(room_bytes);
        let device = self.device.map(|device| DeviceLedger {
            arena_bytes: (device
                .arena_bytes
                .checked_next_multiple_of(NAMED_UNIT_BYTES))
            .unwrap_or(u64::MAX),
            ..device
        });
        Ledger {
            tables_bytes,
            slack_bytes: room_bytes - tables_bytes,
            packing_bytes,
            device,
            ..self
        }
    }

    /// Every part with its name, in the order in which they are told.
    pub fn parts(&self) -> [(&'static str, u64); 11] {
        [
            ("process", self.process_bytes),
            ("threads", self.threads_bytes),
            ("fixed", self.fixed_bytes),
            ("outputs", self.outputs_bytes),
            ("kept_pieces", self.kept_pieces_bytes),
            ("caller", self.caller_bytes),
            ("tables", self.tables_bytes),
            ("arena", self.arena_bytes),
            ("copies", self.copies_bytes),
            ("slack", self.slack_bytes),
            ("packing", self.packing_bytes),
        ]
    }

    /// The sum of all parts.
    pub fn total_bytes(&self) -> u64 {
        let parts = self.parts();
        parts
            .iter()
            .fold(0, |sum, &(_, bytes)| sum.saturating_add(bytes))
    }

    /// What is set aside for a session beside its arena and page tables.
    pub fn reserve_bytes(&self) -> u64 {
        [
            self.threads_bytes,
            self.fixed_bytes,
            self.outputs_bytes,
            self.kept_pieces_bytes,
            self.caller_bytes,
        ]
        .iter()
        .fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }

    /// All but the arena, slack and room for packing.
    pub fn base_bytes(&self) -> u64 {
        self.process_bytes
            .saturating_add(self.reserve_bytes())
            .saturating_add(self.tables_bytes)
    }

    /// Part by part; for several processes together.
    pub fn plus(&self, other: &Ledger) -> Ledger {
        let sum = |of: fn(&Ledger) -> u64| of(self).saturating_add(of(other));
        Ledger {
            scope: self.scope,
            process_bytes: sum(|l| l.process_bytes),
            threads_bytes: sum(|l| l.threads_bytes),
            fixed_bytes: sum(|l| l.fixed_bytes),
            outputs_bytes: sum(|l| l.outputs_bytes),
            kept_pieces_bytes: sum(|l| l.kept_pieces_bytes),
            caller_bytes: sum(|l| l.caller_bytes),
            tables_bytes: sum(|l| l.tables_bytes),
            arena_bytes: sum(|l| l.arena_bytes),
            copies_bytes: sum(|l| l.copies_bytes),
            slack_bytes: sum(|l| l.slack_bytes),
            packing_bytes: sum(|l| l.packing_bytes),
            device: None,
        }
    }
}

/// In short: `process 3.2 MiB + reserve 1 MiB + tables 12 KiB + arena 4.5 MiB + slack 560 KiB`; what is nothing is left out.
impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = match self.scope {
            Scope::Process => "process",
            Scope::Engine => "engine",
        };
        let parts = [
            (first, self.process_bytes),
            ("reserve", self.reserve_bytes()),
            ("tables", self.tables_bytes),
            ("arena", self.arena_bytes),
            ("copies", self.copies_bytes),
            ("slack", self.slack_bytes),
            ("packing", self.packing_bytes),
        ];
        let mut between = "";
        for (name, bytes) in parts.into_iter().filter(|&(_, bytes)| bytes > 0) {
            write!(f, "{between}{name} {}", Bytes(bytes))?;
            between = " + ";
        }
        if let Some(device) = &self.device {
            let (reserve, arena) = (Bytes(device.reserve_bytes), Bytes(device.arena_bytes));
            write!(f, "; on the device: driver {reserve} + arena {arena}")?;
        }
        Ok(())
    }
}

impl Serialize for Ledger {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let more = usize::from(self.device.is_some());
        let mut out = serializer.serialize_struct("Ledger", 13 + more)?;
        out.serialize_field("scope", &self.scope)?;
        out.serialize_field("process_bytes", &self.process_bytes)?;
        out.serialize_field("threads_bytes", &self.threads_bytes)?;
        out.serialize_field("fixed_bytes", &self.fixed_bytes)?;
        out.serialize_field("outputs_bytes", &self.outputs_bytes)?;
        out.serialize_field("kept_pieces_bytes", &self.kept_pieces_bytes)?;
        out.serialize_field("caller_bytes", &self.caller_bytes)?;
        out.serialize_field("tables_bytes", &self.tables_bytes)?;
        out.serialize_field("arena_bytes", &self.arena_bytes)?;
        out.serialize_field("copies_bytes", &self.copies_bytes)?;
        out.serialize_field("slack_bytes", &self.slack_bytes)?;
        out.serialize_field("packing_bytes", &self.packing_bytes)?;
        out.serialize_field("total_bytes", &self.total_bytes())?;
        if let Some(device) = &self.device {
            out.serialize_field("device", device)?;
        }
        out.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESERVE: Reserve = Reserve {
        threads: 2,
        steps: 900,
        outputs_bytes: 4000,
        keeps_activations: true,
        caller_bytes: 9000,
    };

    fn example() -> Ledger {
        Ledger::before_arena(Scope::Process, 3 << 20, &RESERVE).with_arena(8192, 5 << 20)
    }

    #[test]
    fn parts_add_up() {
        let ledger = example();
        let sum: u64 = ledger.parts().iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(sum, ledger.total_bytes());
        assert_eq!(ledger.base_bytes() + ledger.arena_bytes, sum);
        let by_hand = (3 << 20) + 2 * THREAD_BYTES + FIXED_BYTES + 4000 + KEPT_PIECE_BYTES + 9000;
        assert_eq!(sum, by_hand + 8192 + (5 << 20));
        let both = ledger.plus(&ledger);
        assert_eq!(both.total_bytes(), 2 * sum);
    }

    #[test]
    fn a_named_size_has_slack_and_no_more_for_page_tables() {
        let without = example().with_arena(0, 5 << 20).named(0);
        let with = example().named(0);
        assert_eq!(with.total_bytes(), without.total_bytes());
        assert_eq!(with.total_bytes() % NAMED_UNIT_BYTES, 0);
        assert_eq!(with.tables_bytes, 8192);
        assert_eq!(with.slack_bytes + 8192, without.slack_bytes);
        assert!(without.slack_bytes >= SLACK_BYTES);
        // Tables of an arena of 1 GiB.
        let large = example().with_arena(2 << 20, 1 << 30);
        assert!(large.named(0).total_bytes() >= large.total_bytes() + LEAST_SLACK_BYTES);
        assert_eq!(large.named(0).tables_bytes, 2 << 20);
        let small = Ledger::before_arena(Scope::Process, 1 << 20, &RESERVE).named(0);
        assert_eq!(small.total_bytes(), LEAST_NAMED_BYTES);
        assert!(small.slack_bytes < SLACK_BYTES + NAMED_UNIT_BYTES);
        assert_eq!(with.packing_bytes, 0);
        let endless = example().with_arena(0, u64::MAX).named(0);
        assert_eq!(endless.total_bytes(), u64::MAX);
    }

    #[test]
    fn many_steps_and_nodes_are_counted() {
        let of = |steps| {
            let reserve = Reserve { steps, ..RESERVE };
            Ledger::before_arena(Scope::Process, 3 << 20, &reserve)
        };
        let few = of(STEPS_IN_FIXED as usize);
        assert_eq!(few, of(1));
        let many = of(STEPS_IN_FIXED as usize + 5000);
        assert_eq!(many.fixed_bytes, FIXED_BYTES + 5000 * PLANNED_STEP_BYTES);
        assert_eq!(few.named(1 << 20), few.named(0));
        let opening = few.named(20 << 20);
        assert_eq!(opening.total_bytes(), 20 << 20);
        assert_eq!(opening.base_bytes(), few.base_bytes());
    }

    #[test]
    fn every_part_is_written_and_read_again() {
        let ledger = example().named(0);
        let bytes = serde_json::to_value(ledger).unwrap();
        let names: Vec<String> = ledger
            .parts()
            .iter()
            .map(|(n, _)| format!("{n}_bytes"))
            .collect();
        for (name, (_, bytes_of)) in names.iter().zip(ledger.parts()) {
            assert_eq!(bytes[name], bytes_of, "{name}");
        }
        assert_eq!(bytes["total_bytes"], ledger.total_bytes());
        let back: Ledger = serde_json::from_value(bytes).unwrap();
        assert_eq!(back, ledger);
    }

    #[test]
    fn in_short() {
        let ledger = Ledger {
            process_bytes: 3 << 20,
            fixed_bytes: 1 << 20,
            arena_bytes: 9 << 19,
            ..Ledger::default()
        };
        assert_eq!(
            ledger.to_string(),
            "process 3 MiB + reserve 1 MiB + arena 4.5 MiB"
        );
    }
}
