//! Programs in strips, for rooms in which activations do not fit otherwise.

use crate::options::Options;
use crate::programs::{BandMode, check_supported};
use neap_ir::Program;
use neap_planner::Strategy;

/// Strips are of about so many bytes, the longest first.
const STRIP_BYTES: [u64; 8] = [
    16 << 20,
    8 << 20,
    4 << 20,
    2 << 20,
    1 << 20,
    512 << 10,
    256 << 10,
    128 << 10,
];

/// A program of more steps is not planned: planning takes time and memory for each.
const MOST_STEPS: usize = 12_000;

/// Heap that a program in strips and its plan take for each step, and what planning it takes besides.
const STEP_BYTES: u64 = 2 << 10;
const PLANNING_BYTES: u64 = 3 << 20;
const PLANNING_STEP_BYTES: u64 = 7 << 10;

/// What a program takes on the heap.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeapBytes {
    /// While it is there.
    pub kept: u64,
    /// While it is planned, when no activation is in memory yet.
    pub planning: u64,
}

impl HeapBytes {
    /// The room that is enough for an arena of so many bytes.
    pub fn with(self, arena_bytes: u64) -> u64 {
        arena_bytes.saturating_add(self.kept).max(self.planning)
    }
}

pub(crate) fn heap_bytes(program: &Program) -> HeapBytes {
    let steps = program.steps.len() as u64;
    HeapBytes {
        kept: steps * STEP_BYTES,
        planning: PLANNING_BYTES + steps * PLANNING_STEP_BYTES,
    }
}

/// Whether strips may be planned with these options.
pub(crate) fn are_allowed(options: &Options) -> bool {
    let by_planner = |strategy: &Strategy| matches!(strategy, Strategy::Preload | Strategy::Search);
    options.bands() == BandMode::Auto
        && options.is_on_processor()
        && options.strategy.strategies().iter().all(by_planner)
}

/// Programs in strips that may fit into a room and can be planned within it, the longest strips first.
pub(crate) fn programs(plain: &Program, room_bytes: u64) -> impl Iterator<Item = Program> + '_ {
    STRIP_BYTES
        .into_iter()
        .filter(move |&bytes| bytes < room_bytes)
        .filter_map(|bytes| neap_rewrite::with_strips(plain, bytes))
        .filter(|program| program.check().is_ok() && check_supported(program).is_ok())
        .take_while(move |program| {
            let can_plan = heap_bytes(program).planning <= room_bytes;
            can_plan && program.steps.len() <= MOST_STEPS
        })
}
