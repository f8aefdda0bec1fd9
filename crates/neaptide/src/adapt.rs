//! A session goes over to another budget between two runs.
//!
//! ```text
//!   run ─► rest: loads in flight end, activations and streamed weights are the kernel's
//!          plan for the new budget, in the memory that this freed
//!          rearrange: resident weights that the new plan gives up are the kernel's                  ─► run
//! ```
//! Resident weights that the new plan adds are read beside that run, in the order in which it needs them.
//! At no moment does the process take more than the larger of the two budgets.

use crate::budget::Budget;
use crate::error::Result;
use crate::memory;
use crate::planning::Request;
use crate::session::{Plan, Session};
use crate::spill;
use neap_planner::Effort;
use neap_store::Spill;
use std::time::Instant;

/// What a session may still allocate when its plan is replaced, counted anew: most of the
/// first plan's reserve has been used by then.
const RESERVE_BYTES: u64 = 256 * 1024;

/// One change of the budget, with its cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Adaptation {
    /// Budgets of the whole process; `None` without a limit.
    pub budget_before_bytes: Option<u64>,
    pub budget_bytes: Option<u64>,
    /// Planned peak of the whole process from now on.
    pub high_water_bytes: u64,
    pub predicted_latency_ns: u64,
    /// All of it; planning is part of it, and the rest is rearranging.
    pub total_ns: u64,
    pub planning_ns: u64,
    /// Resident weights: stayed, were given up, are read beside the next run.
    pub kept_bytes: u64,
    pub released_bytes: u64,
    pub read_bytes: u64,
}

impl Adaptation {
    /// Waiting for loads in flight, tables, memory to and from the kernel.
    pub fn rearranging_ns(&self) -> u64 {
        self.total_ns.saturating_sub(self.planning_ns)
    }
}

impl Session {
    /// Runs within another budget of the whole process from now on. Memory above it has been given
    /// back to the kernel when this returns.
    ///
    /// # Errors
    /// [`Error::Infeasible`](crate::Error::Infeasible) names the smallest budget that can be met; the
    /// session goes on under the old one, as it does when the memory cannot be had
    /// ([`Error::Run`](crate::Error::Run)).
    pub fn set_budget(&mut self, budget: Budget) -> Result<Adaptation> {
        let started = Instant::now();
        self.inner.rest();
        let planning = Instant::now();
        let plan = self.plan_anew(budget, planning);
        // Planning took memory that the new plan means to use.
        memory::trim_heap();
        memory::trim_program();
        let planning_ns = planning.elapsed().as_nanos() as u64;
        let plan = plan.inspect_err(|_| self.inner.wake())?;
        let adaptation = Adaptation {
            budget_before_bytes: self.standing.budget_bytes,
            budget_bytes: plan.budget_bytes,
            high_water_bytes: plan.high_water_bytes(),
            predicted_latency_ns: plan.prediction.latency_ns,
            planning_ns,
            ..Adaptation::default()
        };
        let replaced = self.larger_spill(&plan).and_then(|spill| {
            let (program, execution) = (plan.program, plan.execution);
            Ok(self
                .inner
                .replace(program, execution, &plan.workload, spill)?)
        });
        if replaced.is_ok() {
            self.standing.budget_bytes = plan.budget_bytes;
            self.standing.high_water_bytes = adaptation.high_water_bytes;
        }
        drop(plan.workload);
        memory::trim_heap();
        let replaced = replaced?;
        Ok(Adaptation {
            kept_bytes: replaced.kept_bytes,
            released_bytes: replaced.released_bytes,
            read_bytes: replaced.read_bytes,
            total_ns: started.elapsed().as_nanos() as u64,
            ..adaptation
        })
    }

    /// A new spill file, where the one that there is would be too small.
    fn larger_spill(&self, plan: &Plan) -> Result<Option<Box<dyn Spill>>> {
        let bytes = plan.verdict.spill_bytes;
        if bytes <= self.inner.spill_room_bytes() {
            return Ok(None);
        }
        spill::open(&self.standing.spill_folder, bytes, &self.standing.options)
    }

    fn plan_anew(&self, budget: Budget, started: Instant) -> Result<Plan> {
        let mut options = self.standing.options.clone();
        options.planner.effort = Effort::Quick;
        let request = Request {
            programs: &self.standing.programs,
            budget,
            options: &options,
            known: &self.standing.known,
        };
        let held_bytes = self.inner.held_bytes();
        request.plan(started, || {
            memory::trim_program();
            let others = memory::current_bytes(self.standing.options.own_cgroup);
            let now = others.saturating_sub(held_bytes) + RESERVE_BYTES;
            now.max(self.standing.base_bytes)
        })
    }
}
