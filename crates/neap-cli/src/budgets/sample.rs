//! One look at a run: what the live view and the trace show.

use serde::Serialize;

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Since the first run began.
    pub time_s: f64,
    /// Runs done.
    pub run: u64,
    pub latency_ms: f64,
    pub stall_ms: f64,
    /// `None` without a limit.
    pub budget_bytes: Option<u64>,
    /// What the kernel counted after the run.
    pub memory_bytes: u64,
    /// Of the adaptation before the run; 0 without one.
    pub adaptation_ms: f64,
}
