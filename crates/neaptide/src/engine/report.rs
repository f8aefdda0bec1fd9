//! What an engine tells of itself.

use crate::ledger::Ledger;
use neap_ir::TensorType;
use serde::Serialize;

/// An engine's memory, part by part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EngineLedger {
    /// All of it; the arena is the shared work memory and the resident weights of all models.
    pub parts: Ledger,
    /// `None` without a limit.
    pub budget_bytes: Option<u64>,
    /// Work memory that models use in turn.
    pub shared_bytes: u64,
    /// Resident weights of all models, and their page tables.
    pub resident_bytes: u64,
    /// The longest that runs waited for a change of who has how much.
    pub longest_change_ns: u64,
    pub models: Vec<ModelStatus>,
}

/// One model of an engine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelStatus {
    pub name: String,
    pub weight: f64,
    /// Planned for its resident weights, and their page tables.
    pub resident_bytes: u64,
    /// Of these, how much was in memory after its last run.
    pub held_bytes: u64,
    /// Of the shared work memory, what its runs use.
    pub work_bytes: u64,
    /// Of a run, once its resident weights are in memory.
    pub predicted_latency_ns: u64,
    /// Those that ended well.
    pub runs: u64,
    pub cancelled: u64,
    pub failed: u64,
    /// In which computing waited for loads.
    pub stall_ns: u64,
    /// Read for computes, resident weights not.
    pub loaded_bytes: u64,
}

/// How a run went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunReport {
    /// Until its turn came.
    pub waited_ns: u64,
    pub ran_ns: u64,
    /// Of it, while nothing could be computed as weights were on their way.
    pub stall_ns: u64,
    /// Of a model with outputs whose sizes the data decide, what each output is: it lies at the beginning of its place.
    /// Empty for other models, whose outputs are as [`LoadedModel::outputs`](super::LoadedModel::outputs) says.
    pub outputs: Vec<TensorType>,
}
