//! From programs, a budget and what the process takes without its arena to a plan.

use crate::budget::Budget;
use crate::calibrate::Known;
use crate::error::{Error, Result};
use crate::memory;
use crate::programs::Programs;
use crate::session::{Plan, RunOptions};
use crate::workload::workload;
use neap_ir::Program;
use neap_kernels::simd::Isa;
use neap_plan::Workload;
use neap_planner::{PlanError, Planned, Planner};
use neap_sim::CostProfile;
use std::sync::Arc;
use std::time::Instant;

/// Added to the smallest feasible budget when it is named, so that a later process whose pages fall
/// a little differently still fits.
const NAMED_SLACK_BYTES: u64 = 512 * 1024;

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
        let work = |program: &Program| workload(program, self.options.threads, Isa::detect());
        let mut programs = self.programs.of(self.options.bands).peekable();
        let mut first = programs.peek().map(|program| work(program));
        memory::trim_heap();
        let base = base_bytes();
        let mut whole_bytes = None;
        let mut smallest_bytes = u64::MAX;
        let mut best: Option<Candidate> = None;
        let mut budget_bytes = None;
        for program in programs {
            let workload = first.take().unwrap_or_else(|| work(program));
            let plain = || work(&self.programs.plain);
            let mut costs = self.programs.costs_of(program, &self.known.costs, plain);
            self.known.times.apply(program, &mut costs);
            // With all weights at hand it would be no faster than what is found.
            let at_best_ns = at_best_ns(&workload, &costs);
            if best.as_ref().is_some_and(|b| latency_ns(b) <= at_best_ns) {
                continue;
            }
            let planner = Planner::with_options(&workload, self.options.planner);
            let whole = *whole_bytes.get_or_insert_with(|| planner.unlimited_high_water_bytes());
            budget_bytes = match self.budget {
                Budget::Unlimited => None,
                Budget::Bytes(bytes) => Some(bytes),
                Budget::Percent(percent) => {
                    let all = base.saturating_add(whole) as f64;
                    Some((all * percent / 100.0) as u64)
                }
            };
            let room = budget_bytes.map_or(whole, |bytes| bytes.saturating_sub(base));
            let tables_bytes = set_aside(&workload, &planner, room, whole);
            match planner.plan(room - tables_bytes, self.options.strategy, &costs) {
                Err(PlanError::Infeasible {
                    smallest_bytes: bytes,
                }) => smallest_bytes = smallest_bytes.min(bytes),
                Ok(planned) => {
                    drop(planner);
                    let is_better =
                        |old: &Candidate| planned.prediction.latency_ns < latency_ns(old);
                    if best.as_ref().is_none_or(is_better) {
                        best = Some(Candidate {
                            program: program.clone(),
                            workload,
                            planned,
                            costs,
                            tables_bytes,
                        });
                    }
                }
            }
        }
        let Some(best) = best else {
            return Err(Error::Infeasible {
                budget_bytes: budget_bytes.unwrap_or(u64::MAX),
                smallest_bytes: named(base.saturating_add(smallest_bytes)),
            });
        };
        let verdict =
            neap_plan::validate(&best.workload, &best.planned.plan).map_err(|violation| {
                Error::Defect(format!("the planner made a bad plan: {violation}"))
            })?;
        Ok(Plan {
            program: best.program,
            execution: best.planned.plan,
            prediction: best.planned.prediction,
            verdict,
            workload: best.workload,
            budget_bytes,
            base_overhead_bytes: base + best.tables_bytes,
            tables_bytes: best.tables_bytes,
            costs: best.costs,
            known: self.known.clone(),
            planning_ns: started.elapsed().as_nanos() as u64,
        })
    }
}

struct Candidate {
    program: Arc<Program>,
    workload: Workload,
    planned: Planned,
    costs: CostProfile,
    tables_bytes: u64,
}

/// Of `room_bytes` for the arena, what is kept for page tables. Resident weights lie where they are in
/// the file, so that a few of them, far apart, take as many tables as all of them would. None are
/// scattered when everything is resident, or nothing.
fn set_aside(workload: &Workload, planner: &Planner, room_bytes: u64, whole_bytes: u64) -> u64 {
    const MAPPED_BY_ONE: u64 = 2 << 20;
    const TABLE_BYTES: u64 = 4096;
    if room_bytes >= whole_bytes {
        return 0;
    }
    let most = workload.weight_bytes().div_ceil(MAPPED_BY_ONE) * TABLE_BYTES;
    most.min(room_bytes.saturating_sub(planner.smallest_feasible_bytes()))
}

fn latency_ns(candidate: &Candidate) -> u64 {
    candidate.planned.prediction.latency_ns
}

/// What the steps take when nothing is waited for.
fn at_best_ns(workload: &Workload, costs: &CostProfile) -> u64 {
    let steps = workload.steps.iter().enumerate();
    steps
        .map(|(index, step)| {
            costs
                .step_ns(index, step)
                .saturating_add(costs.compute_overhead_ns)
        })
        .fold(0, u64::saturating_add)
}

/// What opening and packing any model takes before a plan is made.
const LEAST_PROCESS_BYTES: u64 = 6 << 20;

/// A feasible size as it is told to people: with slack, in whole 64 KiB.
pub(crate) fn named(bytes: u64) -> u64 {
    (bytes + NAMED_SLACK_BYTES)
        .max(LEAST_PROCESS_BYTES)
        .next_multiple_of(64 * 1024)
}
