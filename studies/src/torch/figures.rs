//! What training a network beside PyTorch gave.

use serde::{Deserialize, Serialize};

/// One network.
#[derive(Debug, Serialize, Deserialize)]
pub struct Figures {
    /// With its batch.
    pub name: String,
    /// PyTorch's.
    pub version: String,
    /// Measured steps of each process.
    pub rounds: u32,
    /// What else the machine did, as it was told.
    pub beside: Option<String>,
    /// Bytes per second of loads and stores together, of the drive in the same sitting.
    #[serde(default)]
    pub drive: Option<f64>,
    /// PyTorch without a limit comes first.
    pub rows: Vec<Row>,
}

/// One process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    pub who: Who,
    /// Hard limit; `None` without one.
    pub limit: Option<Limit>,
    pub end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Who {
    PyTorch,
    Ours,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Of PyTorch's peak.
    pub percent: f64,
    pub bytes: u64,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum End {
    Ran(Ran),
    /// By the kernel, for want of memory.
    Killed,
    /// Before the first step, with the smallest budget that would do.
    Refused {
        smallest_bytes: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ran {
    /// What the kernel charged the process's cgroup at most.
    pub peak_bytes: u64,
    /// Median.
    pub step_ms: f64,
    /// How our steps make do with the memory there is.
    pub plan: Option<Planned>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    pub strategy: String,
    /// What a step stores and loads.
    pub stored_bytes: u64,
    pub loaded_bytes: u64,
    pub recomputed_flops: u64,
    /// Of a step, by costs that were measured when the model was opened.
    #[serde(default)]
    pub predicted_ms: f64,
    /// From opening the model until the first step.
    pub opened_s: f64,
}
