//! `ExecutionPlan`: where everything lies in the arena and what may start when. Plain data.

use serde::{Deserialize, Serialize};

use crate::{ByteRange, PanelRange, StepId};

/// A cyclic plan: the same loads and computes in every run, the tail of one run prefetching the head of
/// the next.
///
/// ```text
///   run r−1                       │ run r
///   compute  … │ c5 │ c6 │ c7 │ c8│ c0 │ c1 │ c2 │ c3 │ …
///   load       … l4 ─────┐  ┌─ l0 ─────┘    ┌─ l1 ┘
///                        └──┘ run_back = 1  └ run_back = 0
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecutionPlan {
    /// The planner that made it: `preload`, `ondemand`, `resident`, …
    pub strategy: String,
    /// Digest of the workload that it is for.
    pub digest: String,
    /// Size of the arena. Its base address is a multiple of [`crate::BLOCK_BYTES`].
    pub arena_bytes: u64,
    /// Arena offset of each buffer, by `BufferId`.
    pub buffers: Vec<u64>,
    /// Arena offset of each step's workspace, by `StepId` (0 where the workspace is empty).
    pub workspaces: Vec<u64>,
    /// Read once when a session opens, never overwritten.
    pub resident: Vec<ResidentLoad>,
    /// Loads of one run, in the order in which the load lane starts them.
    pub loads: Vec<Load>,
    /// Computes of one run, in order.
    pub computes: Vec<Compute>,
}

/// Whole blocks of the file, read once at open to `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidentLoad {
    pub file_offset: u64,
    pub bytes: u64,
    pub offset: u64,
}

/// Whole blocks of the file, read in each run to `offset` in the arena. `file_offset`, `bytes` and
/// `offset` are multiples of [`crate::BLOCK_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    pub file_offset: u64,
    pub bytes: u64,
    pub offset: u64,
    /// The earliest moment at which it may start. Loads start in plan order, so a load also waits for
    /// those before it to have started.
    pub after: AfterCompute,
}

/// "When `computes` computes of run `r − run_back` are done", for a load of run `r`.
///
/// `run_back` is 0 or 1. With 1, `computes` is less than the number of computes: "after all of the
/// previous run" is written [`AfterCompute::START`], which also waits for that run's outputs to be taken.
/// Before the first run, dependencies on the run before it hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AfterCompute {
    pub run_back: u32,
    pub computes: u32,
}

/// A step, or a slice of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compute {
    pub step: StepId,
    /// The panels that this slice computes; [`PanelRange::NONE`] for a step without panels.
    pub panels: PanelRange,
    pub weights: WeightsAt,
    /// It may start when the first `needs` loads of this run are complete.
    pub needs: u32,
}

/// Arena offsets of the first byte wanted of each of a compute's weights (of the weights, not of the
/// block that they begin in).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsAt {
    /// The slice's panels, contiguous. `None` for a step without panels.
    pub panels: Option<u64>,
    /// Each of the step's extents, in the step's order.
    pub extents: Vec<u64>,
    /// The table, when it is loaded whole. `None` with a table: the step reads its rows from storage.
    pub table: Option<u64>,
}

impl AfterCompute {
    /// The run has begun: every compute of the run before is done and its outputs are taken.
    pub const START: AfterCompute = AfterCompute {
        run_back: 0,
        computes: 0,
    };

    /// Unrolled time, in computes, for a load of run `run` when a run has `n` computes. Saturates at 0,
    /// the time at which a session opens.
    pub fn time(self, run: u64, n: u64) -> u64 {
        (run * n + u64::from(self.computes)).saturating_sub(u64::from(self.run_back) * n)
    }
}

impl Load {
    pub fn file_range(&self) -> ByteRange {
        ByteRange::at(self.file_offset, self.bytes)
    }

    pub fn arena_range(&self) -> ByteRange {
        ByteRange::at(self.offset, self.bytes)
    }
}

impl ResidentLoad {
    pub fn file_range(&self) -> ByteRange {
        ByteRange::at(self.file_offset, self.bytes)
    }

    pub fn arena_range(&self) -> ByteRange {
        ByteRange::at(self.offset, self.bytes)
    }
}

impl ExecutionPlan {
    pub fn resident_bytes(&self) -> u64 {
        self.resident
            .iter()
            .map(|l| l.bytes)
            .fold(0, u64::saturating_add)
    }

    pub fn loaded_bytes_per_run(&self) -> u64 {
        self.loads
            .iter()
            .map(|l| l.bytes)
            .fold(0, u64::saturating_add)
    }

    /// Whether the step's compute reads its table rows from storage itself.
    pub fn reads_rows(&self, workload: &crate::Workload, compute: usize) -> bool {
        let c = &self.computes[compute];
        c.weights.table.is_none() && workload.steps[c.step.index()].rows.is_some()
    }
}
