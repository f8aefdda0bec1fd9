//! `Timeline`: what happened when, as measured by the executor or predicted by the simulator.

use serde::{Deserialize, Serialize};

use crate::LaneId;

/// One action on one lane.
///
/// ```text
///   load     ├──────── l7 ────────┤
///   compute  ├ c3 ┤░░░░ stall ░░░░├─ c4 ─┤
///   store         ├─── s2 ───┤
///                 ready_ns        start_ns  end_ns
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    pub lane: LaneId,
    pub run: u32,
    /// Index into the plan's loads, computes or stores, whichever the lane's actions are.
    pub action: u32,
    /// When the lane turned to it: for a compute, when the one before it ended (or the run began);
    /// `start_ns - ready_ns` is its stall. For a load or store, when its dependency held.
    pub ready_ns: u64,
    pub start_ns: u64,
    pub end_ns: u64,
}

/// One run, start to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTiming {
    pub start_ns: u64,
    pub end_ns: u64,
    /// Time in which the compute lane waited for loads or stores.
    pub stall_ns: u64,
}

/// Spans in order of recording, and one timing per run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    pub spans: Vec<Span>,
    pub runs: Vec<RunTiming>,
}

impl RunTiming {
    pub fn latency_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }
}

impl Timeline {
    /// A timeline that records so many spans and runs without allocating.
    pub fn with_capacity(spans: usize, runs: usize) -> Self {
        Self {
            spans: Vec::with_capacity(spans),
            runs: Vec::with_capacity(runs),
        }
    }

    /// Records a span when there is room; a full timeline drops it, since recording must not allocate.
    pub fn record(&mut self, span: Span) {
        if self.spans.len() < self.spans.capacity() {
            self.spans.push(span);
        }
    }

    /// The last run, which is the steady state of a cyclic plan.
    pub fn last_run(&self) -> Option<&RunTiming> {
        self.runs.last()
    }

    pub fn spans_of(&self, lane: LaneId, run: u32) -> impl Iterator<Item = &Span> {
        self.spans
            .iter()
            .filter(move |s| s.lane == lane && s.run == run)
    }
}
