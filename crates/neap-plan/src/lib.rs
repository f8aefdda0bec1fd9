//! Vocabulary of execution plans: workloads, layouts, actions, timelines and the independent validator.
//!
//! ```text
//!   lowering ──► Workload ──► planner ──► ExecutionPlan ──► Checked ──► executor / simulator ──► Timeline
//!                (what)                   (where, when)     (proof)     (how long)
//! ```
//!
//! Everything here is plain data. Bytes are `u64`, intervals are half-open, ids are typed. The unit of
//! storage is the [`BLOCK_BYTES`] block; the unit of time is the [`Compute`], counted from the start of a run.
//! The whole semantics, with drawings, is in `docs/plan-semantics.md`.
#![forbid(unsafe_code)]

mod checked;
mod copies;
mod interval;
mod lane;
mod plan;
pub mod render;
pub mod sets;
mod space;
mod timeline;
mod transition;
mod validate;
mod workload;

pub use checked::Checked;
pub use copies::HostCopy;
pub use interval::{BufferId, ByteRange, KernelId, PanelRange, StepId, StepRange};
pub use lane::{Lane, LaneId, LaneKind, Lanes, LinkId, MOST_WAITS, Turn, Wait};
pub use plan::{
    AfterCompute, Compute, ExecutionPlan, Load, PreparedPanels, ResidentLoad, Return, State, Store,
    WeightsAt, whole_blocks,
};
pub use space::{Area, Place, Space, SpaceId, SpaceKind};
pub use timeline::{RunTiming, Span, Timeline};
pub use transition::{Held, Home, Keep, Transition, validate_transition};
pub use validate::{Verdict, Violation, check_workload, validate};
pub use workload::{BufferSpec, Extent, PanelSpec, RowTable, StepSpec, Workload};

/// Bytes of one storage block. Loads read whole blocks to addresses that are multiples of it.
pub const BLOCK_BYTES: u64 = 4096;

/// Alignment of every step's workspace ([`BLOCK_BYTES`] when the step reads table rows into it).
pub const WORKSPACE_ALIGN: u64 = 64;
