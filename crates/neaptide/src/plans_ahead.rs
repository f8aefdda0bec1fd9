//! Plans that are made before they are needed, so that a change of the budget does not wait for planning.
//!
//! ```text
//!   prepare    │ plan B0 │ plan B1 │ … │ plan Bn │          once, between two runs
//!   set_budget                     B1 ─► the plan for B1 ─► rearrange         no planning
//! ```

use crate::ledger::Ledger;
use crate::plan::Plan;
use neap_ir::Program;
use neap_plan::{Checked, ExecutionPlan, Workload};
use std::sync::Arc;

/// Plans for some budgets of the whole process; workloads that several are for are there once.
#[derive(Default)]
pub(crate) struct PlansAhead {
    plans: Vec<Next>,
    /// What all of it takes, nearly.
    bytes: u64,
}

/// What a session goes over to.
#[derive(Clone)]
pub(crate) struct Next {
    pub program: Arc<Program>,
    pub checked: Checked,
    pub budget_bytes: Option<u64>,
    pub ledger: Ledger,
    pub latency_ns: u64,
}

impl From<Plan> for Next {
    fn from(plan: Plan) -> Next {
        Next {
            ledger: plan.ledger,
            program: plan.program,
            checked: plan.checked,
            budget_bytes: plan.budget_bytes,
            latency_ns: plan.prediction.latency_ns,
        }
    }
}

impl Next {
    /// Beside what is taken without an arena now.
    pub fn beside(self, base: &Ledger) -> Next {
        let ledger = base.with_arena(
            self.ledger.tables_bytes,
            self.checked.verdict().high_water_bytes,
        );
        Next { ledger, ..self }
    }
}

impl PlansAhead {
    /// Keeps a plan for its budget, unless all would take more than `most_bytes`; whether it is kept.
    pub fn add(&mut self, plan: Plan, most_bytes: u64) -> bool {
        if plan.budget_bytes.is_none() {
            return false;
        }
        let mut next = Next::from(plan);
        for known in &self.plans {
            next.checked.share_workload(&known.checked);
        }
        let is_shared = |known: &Next| known.checked.shares_workload(&next.checked);
        let workload_bytes = match self.plans.iter().any(is_shared) {
            true => 0,
            false => workload_heap_bytes(next.checked.workload()),
        };
        let plan_bytes = size_of::<Next>() + plan_heap_bytes(next.checked.plan());
        let added_bytes = (plan_bytes + workload_bytes) as u64;
        if self.bytes + added_bytes > most_bytes {
            return false;
        }
        self.bytes += added_bytes;
        self.plans.push(next);
        true
    }

    /// A plan that was made for this budget, if it still fits into it beside what is taken without an arena.
    pub fn find(&self, budget_bytes: u64, base: &Ledger) -> Option<Next> {
        let made = self
            .plans
            .iter()
            .filter(|next| next.budget_bytes == Some(budget_bytes));
        let mut now = made.map(|next| next.clone().beside(base));
        now.find(|next| next.ledger.total_bytes() <= budget_bytes)
    }

    pub fn len(&self) -> usize {
        self.plans.len()
    }

    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }
}

pub(crate) fn plan_heap_bytes(plan: &ExecutionPlan) -> usize {
    // A small allocation takes 32 bytes.
    let extents = plan.computes.iter().map(|c| &c.weights.extents);
    let extents = extents.filter(|e| !e.is_empty());
    let extents: usize = extents.map(|e| size_of_val(&**e).max(32)).sum();
    extents
        + size_of_val(plan.buffers.as_slice())
        + size_of_val(plan.workspaces.as_slice())
        + size_of_val(plan.resident.as_slice())
        + size_of_val(plan.loads.as_slice())
        + size_of_val(plan.computes.as_slice())
        + size_of_val(plan.stores.as_slice())
        + size_of_val(plan.returns.as_slice())
}

pub(crate) fn workload_heap_bytes(workload: &Workload) -> usize {
    let names = workload.steps.iter().map(|s| s.name.len());
    let names = names.chain(workload.buffers.iter().map(|b| b.name.len()));
    let steps = workload
        .steps
        .iter()
        .map(|s| size_of_val(s.extents.as_slice()) + 4 * (s.reads.len() + s.writes.len()) + 3 * 16);
    names.map(|n| n + 16).sum::<usize>()
        + steps.sum::<usize>()
        + size_of_val(workload.steps.as_slice())
        + size_of_val(workload.buffers.as_slice())
}
