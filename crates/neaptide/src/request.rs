//! From programs, a budget of the whole process and what the process takes without its arena to a plan.

use crate::budget::Budget;
use crate::calibrate::Known;
use crate::error::{Error, Result};
use crate::memory;
use crate::session::{Plan, RunOptions};
use neap_compile::{Programs, Search, SearchError};
use std::time::Instant;

/// Added to the smallest feasible budget when it is named, so that a later process whose pages fall
/// a little differently still fits.
const NAMED_SLACK_BYTES: u64 = 512 * 1024;

/// What opening and packing any model takes before a plan is made.
const LEAST_PROCESS_BYTES: u64 = 6 << 20;

/// What to plan for; the budget of `options` is not looked at.
pub(crate) struct Request<'a> {
    pub programs: &'a Programs,
    pub budget: Budget,
    pub options: &'a RunOptions,
    pub known: &'a Known,
}

impl Request<'_> {
    /// `base_bytes` counts the process without its arena, once the first workload is in memory.
    pub(crate) fn plan(&self, started: Instant, base_bytes: impl FnOnce() -> u64) -> Result<Plan> {
        let options = self.options.compiling();
        let search = Search::new(neap_compile::Request {
            programs: self.programs,
            options: &options,
            costs: &self.known.costs,
            times: &self.known.times,
            refine: &self.options.search,
        });
        memory::trim_heap();
        let base = base_bytes();
        let budget_bytes = match self.budget {
            Budget::Unlimited => None,
            Budget::Bytes(bytes) => Some(bytes),
            Budget::Percent(percent) => {
                let all = base.saturating_add(search.whole_bytes());
                Some((all as f64 * percent / 100.0) as u64)
            }
        };
        let room_bytes = budget_bytes.map(|bytes| bytes.saturating_sub(base));
        let found = search.run(room_bytes).map_err(|error| match error {
            SearchError::Infeasible { smallest_bytes } => Error::Infeasible {
                budget_bytes: budget_bytes.unwrap_or(u64::MAX),
                smallest_bytes: named(base.saturating_add(smallest_bytes)),
            },
            SearchError::Defect(what) => Error::Defect(what),
        })?;
        Ok(Plan {
            program: found.program,
            workload: found.workload,
            execution: found.execution,
            prediction: found.prediction,
            verdict: found.verdict,
            budget_bytes,
            base_overhead_bytes: base + found.tables_bytes,
            tables_bytes: found.tables_bytes,
            costs: found.costs,
            known: self.known.clone(),
            planning_ns: started.elapsed().as_nanos() as u64,
        })
    }
}

/// A feasible size as it is told to people: with slack, in whole 64 KiB.
pub(crate) fn named(bytes: u64) -> u64 {
    (bytes + NAMED_SLACK_BYTES)
        .max(LEAST_PROCESS_BYTES)
        .next_multiple_of(64 * 1024)
}
