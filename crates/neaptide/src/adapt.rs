//! A session goes over to another budget between two runs.
//!
//! ```text
//!   run ─► rest: loads in flight end, activations and streamed weights are the kernel's
//!          plan for the new budget, in the memory that this freed
//!          rearrange: resident weights that the new plan gives up are the kernel's                  ─► run
//! ```
//! Resident weights that the new plan adds are read beside that run, in the order in which it needs them.
//! At no moment does the process take more than the larger of the two budgets.

use crate::budget::{Budget, Scope};
use crate::calibrate::Known;
use crate::error::{Error, Result};
use crate::ledger::{self, Ledger};
use crate::model::TensorInfo;
use crate::plan::Plan;
use crate::plans_ahead::{Next, PlansAhead};
use crate::request::{self, Request};
use crate::session::Session;
use crate::spill;
use neap_compile::Programs;
use neap_planner::Effort;
use neap_runtime::Replaced;
use neap_store::Spill;
use std::time::Instant;

/// One change of the budget, with its cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Adaptation {
    /// Budgets of the whole process; `None` without a limit.
    pub budget_before_bytes: Option<u64>,
    pub budget_bytes: Option<u64>,
    /// Planned peak of the whole process from now on.
    pub high_water_bytes: u64,
    pub predicted_latency_ns: u64,
    /// The plan had been made before ([`Session::prepare`]).
    pub was_prepared: bool,
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
    /// Plans for budgets, in bytes, that may come, of the process or the engine as the first budget was:
    /// [`Session::set_budget`] to one of them then needs no planning. The plans stay in memory, in at most `most_bytes`, which the caller reserves
    /// ([`RunOptions::reserve_bytes`](crate::RunOptions::reserve_bytes)); those of the first budgets are kept where
    /// not all fit, and infeasible ones are left out. Says how many there are.
    ///
    /// # Errors
    /// None that the budgets could cause.
    pub fn prepare(&mut self, budgets: &[u64], most_bytes: u64) -> Result<usize> {
        self.inner.rest();
        let scope = self.standing.first_base.scope;
        let mut prepared = PlansAhead::default();
        for &bytes in budgets {
            // What the process takes beside its arena wavers.
            let nearly = Budget::of(scope, bytes.saturating_sub(ledger::WAVER_BYTES));
            let plan = self.plan_anew(nearly, Instant::now());
            let plan = match plan {
                Ok(plan) => plan,
                Err(Error::Infeasible { .. }) => continue,
                Err(error) => {
                    self.inner.wake();
                    return Err(error);
                }
            };
            let plan = Plan {
                budget_bytes: Some(bytes),
                ..plan
            };
            if !prepared.add(plan, most_bytes) {
                break;
            }
        }
        self.standing.plans_ahead = prepared;
        self.standing.host.trim();
        self.inner.wake();
        Ok(self.standing.plans_ahead.len())
    }

    /// Runs within another budget from now on. Memory above it has been given
    /// back to the kernel when this returns. Nothing has been read: the next run does that, or begins with what
    /// [`Session::prefetch`] has begun.
    ///
    /// # Errors
    /// [`Error::Infeasible`](crate::Error::Infeasible) names the smallest budget that can be met; the
    /// session goes on under the old one, as it does when the memory cannot be had
    /// ([`Error::Machine`](crate::Error::Machine)).
    pub fn set_budget(&mut self, budget: Budget) -> Result<Adaptation> {
        let started = Instant::now();
        self.inner.rest();
        let planning = Instant::now();
        let prepared = self.prepared(budget);
        let was_prepared = prepared.is_some();
        let next = match prepared {
            Some(next) => Ok(next),
            None => {
                let plan = self.plan_anew(budget, planning);
                // Planning took memory that the new plan means to use.
                self.standing.host.trim();
                plan.map(Next::from)
            }
        };
        let planning_ns = planning.elapsed().as_nanos() as u64;
        let next = next.inspect_err(|_| self.inner.wake())?;
        let adaptation = Adaptation {
            budget_before_bytes: self.standing.budget_bytes,
            budget_bytes: next.budget_bytes,
            high_water_bytes: next.ledger.total_bytes(),
            predicted_latency_ns: next.latency_ns,
            was_prepared,
            planning_ns,
            ..Adaptation::default()
        };
        let ledger = next.ledger;
        let replaced = self.adopt(next);
        if replaced.is_ok() {
            self.standing.budget_bytes = adaptation.budget_bytes;
            self.standing.ledger = ledger;
        }
        self.standing.host.trim_heap();
        let replaced = replaced?;
        Ok(Adaptation {
            kept_bytes: replaced.kept_bytes,
            released_bytes: replaced.released_bytes,
            read_bytes: replaced.read_bytes,
            total_ns: started.elapsed().as_nanos() as u64,
            ..adaptation
        })
    }

    /// Goes over to another plan.
    ///
    /// # Errors
    /// As [`Session::set_budget`], but for budgets.
    pub(crate) fn adopt(&mut self, next: Next) -> Result<Replaced> {
        let spill = self.larger_spill(&next)?;
        let held = self.inner.held().map_err(|e| self.packed.told(e))?;
        let transition = neap_planner::transition(&held, next.checked.plan());
        let kept = self.standing.options.keep_plan.then(|| next.clone());
        let replaced = (self.inner).replace(next.program, next.checked, &transition, spill);
        let replaced = replaced.map_err(|e| self.packed.told(e))?;
        self.standing.in_force = kept;
        Ok(replaced)
    }

    /// Goes over to a plan for inputs and outputs of other shapes.
    ///
    /// # Errors
    /// As [`Session::adopt`]: all is as it was.
    pub(crate) fn adopt_as(
        &mut self,
        next: Next,
        inputs: &[TensorInfo],
        outputs: &[TensorInfo],
    ) -> Result<()> {
        self.adopt(next)?;
        self.inputs.clear();
        self.inputs.extend_from_slice(inputs);
        self.outputs.clear();
        self.outputs.extend_from_slice(outputs);
        Ok(())
    }

    /// Begins to read what the next run needs, as far as there is room; a run does so by itself. For time that
    /// passes before the run comes.
    pub fn prefetch(&mut self) {
        self.inner.wake();
    }

    /// A plan for that budget that was made before.
    fn prepared(&self, budget: Budget) -> Option<Next> {
        let (Budget::Bytes(bytes) | Budget::Engine(bytes)) = budget else {
            return None;
        };
        (budget.scope() == self.standing.first_base.scope).then_some(())?;
        let prepared = &self.standing.plans_ahead;
        (!prepared.is_empty()).then_some(())?;
        prepared.find(bytes, &self.base(budget.scope()))
    }

    /// A new spill file, where the one that there is would be too small.
    pub(crate) fn larger_spill(&self, next: &Next) -> Result<Option<Box<dyn Spill>>> {
        let bytes = next.checked.verdict().spill_bytes;
        if bytes <= self.inner.spill_room_bytes() {
            return Ok(None);
        }
        spill::open(&self.standing.spill_folder, bytes, &self.standing.options)
    }

    fn plan_anew(&self, budget: Budget, started: Instant) -> Result<Plan> {
        let (programs, known) = (&self.standing.programs, &self.standing.known);
        self.plan_of(programs, known, budget, 0, started)
    }

    /// A plan for `programs` of this model; callers will hold `growth_bytes` more than now.
    pub(crate) fn plan_of(
        &self,
        programs: &Programs,
        known: &Known,
        budget: Budget,
        growth_bytes: u64,
        started: Instant,
    ) -> Result<Plan> {
        let mut options = self.standing.options.clone();
        options.planner.effort = Effort::Quick;
        let request = Request {
            programs,
            budget,
            options: &options,
            known,
            opening_bytes: 0,
            machine_bytes: self.standing.host.machine_bytes(),
        };
        request.plan(started, || {
            let host = &self.standing.host;
            match budget.scope() {
                Scope::Process => host.trim(),
                Scope::Engine => {}
            }
            self.base_of(programs, budget.scope(), growth_bytes)
        })
    }

    /// What is taken without an arena.
    fn base(&self, scope: Scope) -> Ledger {
        self.base_of(&self.standing.programs, scope, 0)
    }

    /// The same with other programs, when the caller's tensors take `growth_bytes` more.
    pub(crate) fn base_of(&self, programs: &Programs, scope: Scope, growth_bytes: u64) -> Ledger {
        let standing = &self.standing;
        match scope {
            Scope::Process => {
                let all = standing.host.charged_bytes();
                let now = all.saturating_sub(self.inner.residents_bytes());
                let base = Ledger::between_runs(&standing.first_base, now);
                Ledger {
                    outputs_bytes: base.outputs_bytes.saturating_add(growth_bytes),
                    ..base
                }
            }
            Scope::Engine => {
                let heap_bytes = ledger::engine_heap_bytes(programs) + standing.recent.bytes();
                let reserve = request::reserve(programs, &standing.options);
                Ledger::before_arena(scope, heap_bytes, &reserve)
            }
        }
    }
}
