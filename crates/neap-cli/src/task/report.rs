//! The report of a task: what each model got and did, and what all did together.

use super::file::Policy;
use super::message::{Done, Opened};
use crate::report::{Adapted, Latency};
use neaptide::Bytes;
use serde::Serialize;
use std::fmt::Write;

/// Memory is that of whole processes.
#[derive(Debug, Serialize)]
pub struct TaskReport {
    pub task: String,
    pub total_bytes: u64,
    pub allocate: Policy,
    /// Of the budgets that were given at first.
    pub budgets_bytes: u64,
    pub peak_memory_bytes: u64,
    /// The kernel's count of the task's cgroup, or the models' own peaks together, which need not have
    /// come at once.
    pub peak_memory_source: &'static str,
    pub largest_weighted_latency_ms: Largest,
    pub models: Vec<ModelReport>,
    pub adaptations: Vec<TotalChange>,
}

/// The largest latency times urgency: what an allocation is to make small. Predicted for a model that is
/// alone with its processors and storage.
#[derive(Debug, Serialize)]
pub struct Largest {
    pub measured: f64,
    pub predicted: f64,
    /// What other allocations of the same total are predicted to give; `None` where they cannot.
    pub predicted_curves: Option<f64>,
    pub predicted_paper: Option<f64>,
    pub predicted_equal: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct ModelReport {
    pub name: String,
    pub model: String,
    pub urgency: f64,
    pub threads: u16,
    pub cpus: Vec<usize>,
    /// Its budget's part of the total.
    pub share: f64,
    pub smallest_feasible_bytes: u64,
    pub unlimited_bytes: u64,
    #[serde(flatten)]
    pub opened: Opened,
    #[serde(flatten)]
    pub done: Done,
    pub adaptations: Vec<Adapted>,
}

/// One change of the total.
#[derive(Debug, Serialize)]
pub struct TotalChange {
    pub at_s: f64,
    pub total_before_bytes: u64,
    pub total_bytes: u64,
    pub allocating_ms: f64,
    /// The slowest of the models that shrank, and of those that grew.
    pub shrinking_ms: f64,
    pub growing_ms: f64,
    /// Resident weights that were added; they are read beside the models' next runs.
    pub read_bytes: u64,
    /// Allocating, shrinking and growing.
    pub adapting_ms: f64,
    /// From the change until all budgets are in force, waiting for runs to end included.
    pub settled_ms: f64,
    pub budgets_bytes: Vec<u64>,
}

impl TaskReport {
    pub fn summary(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "total       {}: {} peak ({}), {} given",
            Bytes(self.total_bytes),
            Bytes(self.peak_memory_bytes),
            self.peak_memory_source,
            Bytes(self.budgets_bytes)
        );
        for model in &self.models {
            let Latency {
                median, p95, runs, ..
            } = model.done.latency_ms;
            let _ = writeln!(
                text,
                "{:<11} {} ({:.0} %), {} peak; {median:.2} ms (median of {runs} runs, 95 % within {p95:.2}), \
                 {:.2} ms of it waiting for weights; predicted {:.2} ms",
                model.name,
                Bytes(model.opened.budget_bytes),
                100.0 * model.share,
                Bytes(model.done.peak_memory_bytes),
                model.done.stall_ms,
                model.opened.predicted_latency_ms,
            );
        }
        for change in &self.adaptations {
            let _ = writeln!(
                text,
                "at {:.2} s   {} to {}: adapted in {:.2} ms ({:.2} allocating, {:.2} shrinking, {:.2} growing), \
                 settled after {:.2} ms",
                change.at_s,
                Bytes(change.total_before_bytes),
                Bytes(change.total_bytes),
                change.adapting_ms,
                change.allocating_ms,
                change.shrinking_ms,
                change.growing_ms,
                change.settled_ms,
            );
        }
        let largest = &self.largest_weighted_latency_ms;
        let or_none = |value: Option<f64>| value.map_or("-".into(), |ms| format!("{ms:.2}"));
        let _ = writeln!(
            text,
            "slowest     {:.2} ms weighted by urgency; predicted {:.2}: by curves {}, by Equation 1 {}, equal {}",
            largest.measured,
            largest.predicted,
            or_none(largest.predicted_curves),
            or_none(largest.predicted_paper),
            or_none(largest.predicted_equal),
        );
        text
    }
}
