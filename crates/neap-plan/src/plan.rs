//! `ExecutionPlan`: where everything lies in which space, and what may start when. Plain data.

use serde::{Deserialize, Serialize};

use crate::{
    Area, BLOCK_BYTES, BufferId, ByteRange, HostCopy, LaneId, Lanes, PanelRange, Place, Space,
    SpaceId, SpaceKind, StepId, Turn, Wait,
};

/// A cyclic plan: the same loads, stores and computes in every run, the tail of one run prefetching the head of
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
    /// What addresses are in, by [`SpaceId`].
    pub spaces: Vec<Space>,
    /// What goes on at the same time, by [`LaneId`].
    #[serde(default)]
    pub lanes: Lanes,
    /// Where each buffer lies until it returns elsewhere, by `BufferId`.
    pub buffers: Vec<Place>,
    /// Where each step's workspace is, by `StepId` (anywhere where the workspace is empty).
    pub workspaces: Vec<Place>,
    /// Read once and never overwritten, in the order in which they are read: that of the computes that first
    /// need them.
    pub resident: Vec<ResidentLoad>,
    /// Panels in the form that kernels take, sorted by step: one entry for each step that has them so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prepared: Vec<PreparedPanels>,
    /// Loads of one run. Those of a lane are in the order in which it starts them; so are computes and stores.
    pub loads: Vec<Load>,
    /// Loads are handed to storage in groups: when all before have arrived, as many as may start then and
    /// have together at most so many bytes, but at least one. For storage that reports no read before all
    /// are done that it has in hand. 0: each as soon as it may start.
    ///
    /// ```text
    ///   each    ├─ l0 ──────┤            groups   ├ l0 ┤
    ///                ├─ l1 ─┤  both reported here       ├ l1 ─┤
    /// ```
    #[serde(default, skip_serializing_if = "is_zero_bytes")]
    pub group_bytes: u64,
    /// Computes of one run, in order of steps.
    pub computes: Vec<Compute>,
    /// Stores of one run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<Store>,
    /// Buffers that come back after they were stored, sorted by buffer, then by step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub returns: Vec<Return>,
    /// Parts of the packed file that the host keeps beside a device's memory, in order of the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<HostCopy>,
    /// The spill space is memory of the host, beside a device's, and no file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spills_to_host: bool,
    /// Where each of the workload's states is kept while its memory is given back, in order of buffers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<State>,
}

/// The home of a buffer that survives runs ([`crate::Workload::states`]): whole blocks of a file. The kind of the home's
/// space says where the state is between runs.
///
/// ```text
///   home in          run r                          run r + 1
///   SpaceKind::State ├────────── in memory ─────────┼──────────── …       home: while memory is given back
///   SpaceKind::Spill   ├ load ─ use ┤   ├ use ─ store ┤   ├ load …        home: whenever it is not in use
/// ```
/// One whose home is in the spill file *streams*: each run loads it before it first uses it, may drop it and load it again,
/// and stores it after it was last written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub buffer: BufferId,
    pub home: Place,
}

/// Whole blocks of the packed file, read once: before or beside the first run under the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidentLoad {
    pub from: Place,
    pub bytes: u64,
    pub to: Place,
    /// The first compute that waits for it.
    pub first: u32,
}

/// Where a step keeps its panels in the form that its kernel takes
/// ([`StepSpec::prepared_panel_bytes`](crate::StepSpec::prepared_panel_bytes)), panel after panel: memory that nothing
/// else ever uses. A compute of the step makes those of its panels that are not there yet of the stored ones,
/// which it gets like any other; so later runs find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedPanels {
    pub step: StepId,
    pub at: Place,
}

/// Whole blocks of a file, read to memory in each run: weights, or from the spill file an activation that was stored
/// there. Offsets and `bytes` are multiples of [`crate::BLOCK_BYTES`]. A load from the spill file waits for nothing of the
/// run before and belongs to one [`Return`].
///
/// It waits for the computes that use the memory which it fills, and for the stores that empty it, or wrote what it reads
/// back. Only a load may wait for the run before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    pub from: Place,
    pub bytes: u64,
    pub to: Place,
    pub turn: Turn,
}

/// A whole buffer, written to the spill file. Offsets and `bytes` are multiples of
/// [`crate::BLOCK_BYTES`]: a buffer that is ever stored takes [`whole_blocks`] of memory.
///
/// ```text
///   compute   │ writes b │ reads b │         │         │ reads b │
///   store                ├─ b ──┤
///   load                                 ├── b ──┤
///   memory    ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓ anything      ▓▓▓▓▓▓▓▓▓▓▓▓▓▓      elsewhere, if the plan says so
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    pub buffer: BufferId,
    /// Where the buffer lies in memory at that time.
    pub from: Place,
    pub bytes: u64,
    /// Where it goes in the spill file.
    pub to: Place,
    /// It waits for the computes that write what it stores, one at least.
    pub turn: Turn,
}

/// From `step` on, `buffer` lies where the load of that index puts it. Between its last use before
/// `step` and that load its memory is free, once what must be stored of it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Return {
    pub buffer: BufferId,
    pub step: StepId,
    pub load: u32,
}

/// "When `computes` computes of run `r − run_back` are done", for a load of run `r`: what a [`Turn`] waits for of one
/// compute lane, as a moment of that lane.
///
/// `run_back` is 0 or 1. With 1, `computes` is less than the number of computes: "after all of the
/// previous run" is [`AfterCompute::START`], which also waits for that run's stores to be complete
/// and its outputs to be taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
    /// It waits for the loads that bring its weights, and for the stores that empty the memory which it writes to.
    pub turn: Turn,
}

/// Where the first byte wanted is of each of a compute's weights (of the weights, not of the
/// block that they begin in).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsAt {
    /// The slice's panels, contiguous. `None` for a step without panels.
    pub panels: Option<Place>,
    /// Each of the step's extents, in the step's order.
    pub extents: Box<[Place]>,
    /// The table, when it is loaded whole. `None` with a table: the step reads its rows from storage.
    pub table: Option<Place>,
}

impl AfterCompute {
    /// The run has begun: every compute and store of the run before is done and its outputs are taken.
    pub const START: AfterCompute = AfterCompute {
        run_back: 0,
        computes: 0,
    };

    /// The earliest moment of a compute lane at which an action with that turn may start.
    pub fn of(turn: Turn, lane: LaneId) -> AfterCompute {
        match turn.wait_for(lane) {
            Some(wait) => AfterCompute {
                run_back: wait.run_back.into(),
                computes: wait.count,
            },
            None => AfterCompute {
                run_back: turn.run_back().into(),
                computes: 0,
            },
        }
    }

    /// The turn of a load of [`LaneId::LOAD`] that waits for this in [`LaneId::COMPUTE`], and for so many stores of the
    /// same run.
    ///
    /// # Panics
    /// If `run_back` is more than 1.
    pub fn load(self, stores: u32) -> Turn {
        let run_back = u8::try_from(self.run_back).unwrap_or(u8::MAX);
        let wait = |lane, count| Wait {
            lane,
            count,
            run_back,
        };
        let turn = Turn::of(LaneId::LOAD).wait(wait(LaneId::COMPUTE, self.computes));
        match stores {
            0 => turn,
            _ => turn.wait(wait(LaneId::STORE, stores)),
        }
    }

    /// Unrolled time, in computes, for a load of run `run` when a run has `n` computes. Saturates at 0,
    /// the time at which a session opens.
    pub fn time(self, run: u64, n: u64) -> u64 {
        (run * n + u64::from(self.computes)).saturating_sub(u64::from(self.run_back) * n)
    }
}

impl Load {
    pub fn file_range(&self) -> ByteRange {
        ByteRange::at(self.from.offset, self.bytes)
    }

    /// The memory that it fills.
    pub fn area(&self) -> Area {
        self.to.area(self.bytes)
    }

    /// The earliest moment of the compute lane at which it may start, on a machine with the default lanes.
    pub fn after(&self) -> AfterCompute {
        AfterCompute::of(self.turn, LaneId::COMPUTE)
    }
}

impl Compute {
    /// So many loads of its run it waits for, on a machine with the default lanes.
    pub fn needs(&self) -> u32 {
        self.turn.count(LaneId::LOAD)
    }
}

impl Store {
    /// So many computes of its run it waits for, on a machine with the default lanes.
    pub fn after(&self) -> u32 {
        self.turn.count(LaneId::COMPUTE)
    }

    /// The memory that it reads.
    pub fn area(&self) -> Area {
        self.from.area(self.bytes)
    }

    pub fn spill_range(&self) -> ByteRange {
        ByteRange::at(self.to.offset, self.bytes)
    }
}

/// Bytes that a buffer takes when it is ever stored: direct I/O moves whole blocks.
pub fn whole_blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES)
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero_bytes(bytes: &u64) -> bool {
    *bytes == 0
}

impl ResidentLoad {
    pub fn file_range(&self) -> ByteRange {
        ByteRange::at(self.from.offset, self.bytes)
    }

    pub fn area(&self) -> Area {
        self.to.area(self.bytes)
    }
}

impl ExecutionPlan {
    pub fn space(&self, id: SpaceId) -> Option<&Space> {
        self.spaces.get(id.index())
    }

    /// What kind of space it is; `None` if the plan lists no such space.
    pub fn kind(&self, id: SpaceId) -> Option<SpaceKind> {
        self.space(id).map(|space| space.kind)
    }

    /// The memory that is charged: all work memory, and what resident loads fill.
    pub fn memory_bytes(&self) -> u64 {
        let work = self.spaces.iter().filter(|s| s.kind == SpaceKind::Work);
        let work_bytes = work.map(|s| s.bytes).fold(0, u64::saturating_add);
        work_bytes.saturating_add(self.resident_bytes())
    }

    pub fn resident_bytes(&self) -> u64 {
        self.resident
            .iter()
            .map(|l| l.bytes)
            .fold(0, u64::saturating_add)
    }

    /// Bytes of panels that are kept in the form that kernels take.
    pub fn prepared_bytes(&self, workload: &crate::Workload) -> u64 {
        let steps = self
            .prepared
            .iter()
            .filter_map(|p| workload.steps.get(p.step.index()));
        steps
            .map(crate::StepSpec::prepared_bytes)
            .fold(0, u64::saturating_add)
    }

    /// Where the step's panels are kept prepared, if they are.
    pub fn prepared_at(&self, step: StepId) -> Option<Place> {
        let found = self.prepared.binary_search_by_key(&step, |p| p.step).ok()?;
        Some(self.prepared[found].at)
    }

    pub fn loaded_bytes_per_run(&self) -> u64 {
        self.loads
            .iter()
            .map(|l| l.bytes)
            .fold(0, u64::saturating_add)
    }

    pub fn stored_bytes_per_run(&self) -> u64 {
        self.stores
            .iter()
            .map(|s| s.bytes)
            .fold(0, u64::saturating_add)
    }

    /// Size of the spill file that the plan needs; 0 when it stores nothing and no state streams.
    pub fn spill_bytes(&self) -> u64 {
        let stored = self.stores.iter().map(|s| s.spill_range().end);
        let is_back = |l: &&Load| self.kind(l.from.space) == Some(SpaceKind::Spill);
        let loaded = self.loads.iter().filter(is_back);
        let loaded = loaded.map(|l| l.file_range().end);
        stored.chain(loaded).max().unwrap_or(0)
    }

    /// The home of a state that is in memory only while it is used.
    pub fn streaming_home(&self, buffer: BufferId) -> Option<Place> {
        let found = self.states.binary_search_by_key(&buffer, |s| s.buffer);
        let home = self.states[found.ok()?].home;
        (self.kind(home.space) == Some(SpaceKind::Spill)).then_some(home)
    }

    /// Which load brings a weight to which compute, for each weight from the packed file that does not stay.
    pub fn uses(&self, workload: &crate::Workload) -> Vec<(usize, usize)> {
        let mut uses = Vec::with_capacity(self.computes.len());
        for (i, c) in self.computes.iter().enumerate() {
            let step = &workload.steps[c.step.index()];
            let panels = step.panels.map(|p| p.file_range(c.panels));
            let panels = panels.into_iter().zip(c.weights.panels);
            let extents = step.extents.iter().map(|e| e.file_range());
            let extents = extents.zip(c.weights.extents.iter().copied());
            let table = step.rows.map(|r| r.file_range()).zip(c.weights.table);
            for (wanted, at) in panels.chain(extents).chain(table) {
                let brings = |l: &Load| {
                    let delta = l.to.offset.wrapping_sub(l.from.offset);
                    self.kind(l.from.space) == Some(SpaceKind::Packed)
                        && l.to.space == at.space
                        && delta == at.offset.wrapping_sub(wanted.begin)
                        && l.file_range().holds(wanted)
                };
                let known = self.loads.len().min(c.needs() as usize);
                uses.extend(
                    self.loads[..known]
                        .iter()
                        .rposition(brings)
                        .map(|load| (i, load)),
                );
            }
        }
        uses
    }

    /// Size of the state file that the plan needs; 0 without states that stay in memory.
    pub fn state_bytes(&self, workload: &crate::Workload) -> u64 {
        let bytes = |s: &State| workload.buffers[s.buffer.index()].bytes;
        let stays = |s: &&State| self.kind(s.home.space) == Some(SpaceKind::State);
        let ends = self
            .states
            .iter()
            .filter(stays)
            .map(|s| s.home.offset.saturating_add(bytes(s)));
        ends.max().unwrap_or(0)
    }

    /// Where a kept buffer of a valid plan is when a run is over: in the spill file if it was stored after
    /// it was last written, else where it last lay.
    pub fn kept_at(&self, workload: &crate::Workload, buffer: BufferId) -> Place {
        let n = self.computes.len() as u32;
        let listed =
            |step: &crate::StepSpec| [&step.reads, &step.writes].map(|l| l.contains(&buffer));
        let is_listed = workload.steps.iter().any(|s| listed(s) != [false; 2]);
        let writes = |c: &Compute| listed(&workload.steps[c.step.index()])[1] || !is_listed;
        let written = self.computes.iter().rposition(writes);
        let written = written.map_or(0, |compute| compute as u32 + 1);
        let last = self.stores.iter().rev();
        let mut last = last.filter(|s| s.buffer == buffer && (written..=n).contains(&s.after()));
        match last.next() {
            Some(store) => store.to,
            None => {
                let end = StepId(workload.steps.len() as u32);
                self.buffer_at(buffer, end).unwrap_or_default()
            }
        }
    }

    /// The returns of one buffer, by step.
    pub fn returns_of(&self, buffer: BufferId) -> &[Return] {
        let begin = self.returns.partition_point(|r| r.buffer < buffer);
        let count = self.returns[begin..].partition_point(|r| r.buffer == buffer);
        &self.returns[begin..begin + count]
    }

    /// Where a buffer lies while a step computes; `None` if the plan is not valid and names no such
    /// buffer or load.
    pub fn buffer_at(&self, buffer: BufferId, step: StepId) -> Option<Place> {
        let returns = self.returns_of(buffer);
        match returns[..returns.partition_point(|r| r.step <= step)].last() {
            Some(back) => self.loads.get(back.load as usize).map(|l| l.to),
            None => self.buffers.get(buffer.index()).copied(),
        }
    }

    /// Whether the step's compute reads its table rows from storage itself.
    pub fn reads_rows(&self, workload: &crate::Workload, compute: usize) -> bool {
        let c = &self.computes[compute];
        c.weights.table.is_none() && workload.steps[c.step.index()].rows.is_some()
    }
}
