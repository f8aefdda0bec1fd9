//! Runs execution plans under a fixed memory budget: arena, threads, load lane, [`Session`].
//!
//! ```text
//!              Program + ExecutionPlan
//!                       │ checked against each other, once
//!   Source ──────► LoadLane ──────► Arena ◄────── Executor ──────► Pool
//!   (storage)      starts loads,    weights,      computes steps    (threads)
//!   Spill  ◄─────► notes arrivals   activations   and slices
//!   (temporary)    SpillLane: stores
//! ```
//! Plans are made elsewhere; this crate only proves that one is safe and carries it out. One thread
//! drives all lanes, so there are no locks between loading and computing: storage works on its own,
//! kernels spread over the pool's threads, and in between the executor starts what may start.
//!
//! What makes the unsafe parts sound: [`neap_plan::validate`] proves that no two things in use at the
//! same time share arena memory, for every possible timing of loads; opening a session proves that the
//! program's operands are where the plan says; and a load's memory is left alone from its submission
//! until the source reports it. Kernels' tasks write disjoint parts, and the pool orders their writes
//! before the end of the call.

mod arena;
mod arrived;
mod buffer_uses;
mod caller_work;
mod cancel;
mod clock;
mod commons;
mod device;
mod error;
mod execute;
mod fit;
mod gates;
mod host_spill;
mod incoming;
mod late;
mod load_lane;
mod mapping;
mod moves;
mod own_memory;
mod pool;
mod prepared;
mod recorder;
mod resolve;
mod results;
mod rows;
mod session;
mod spill;
mod staged;
mod stream;
mod tensors;
mod worker_affinity;

pub use cancel::CancelToken;
pub use clock::{Clock, Monotonic};
pub use commons::{Commons, SharedWork};
pub use device::{
    Accelerator, Cpu, Device, DeviceRates, Job, JobError, LinkRates, Meanwhile, MemoryRange,
    PreparedSlice,
};
pub use error::RuntimeError;
pub use own_memory::{Block, Link, OwnMemory, OwnMemoryFigures, Transfer};
pub use pool::Pool;
pub use session::{BackingStore, Kept, Options, Replaced, Session, StateInfo, Stats};
pub use staged::STAGING_BYTES;
pub use stream::{Computed, Part, WeightStream};
pub use tensors::{InputTensor, OutputTensor};
