//! Plans that are made before they are needed, so that a change of the budget does not wait for planning.
//!
//! ```text
//!   prepare    │ plan B0 │ plan B1 │ … │ plan Bn │          once, between two runs
//!   set_budget                     B1 ─► the plan for B1 ─► rearrange         no planning
//! ```

use crate::ledger::Ledger;
use crate::plan::Plan;
use neap_ir::Program;
use neap_plan::{ExecutionPlan, Verdict, Workload};
use std::sync::Arc;

/// Plans for some budgets of the whole process; workloads that several are for are there once.
#[derive(Default)]
pub(crate) struct PlansAhead {
    workloads: Vec<(Arc<Program>, Arc<Workload>)>,
    plans: Vec<Kept>,
    /// What all of it takes, nearly.
    bytes: u64,
}

struct Kept {
    budget_bytes: u64,
    workload: usize,
    execution: ExecutionPlan,
    verdict: Verdict,
    latency_ns: u64,
    tables_bytes: u64,
}

/// What a session goes over to.
#[derive(Clone)]
pub(crate) struct Next {
    pub program: Arc<Program>,
    pub workload: Arc<Workload>,
    pub execution: ExecutionPlan,
    pub verdict: Verdict,
    pub budget_bytes: Option<u64>,
    pub ledger: Ledger,
    pub latency_ns: u64,
}

impl From<Plan> for Next {
    fn from(plan: Plan) -> Next {
        Next {
            ledger: plan.ledger,
            program: plan.program,
            workload: Arc::new(plan.workload),
            execution: plan.execution,
            verdict: plan.verdict,
            budget_bytes: plan.budget_bytes,
            latency_ns: plan.prediction.latency_ns,
        }
    }
}

impl PlansAhead {
    /// What keeping the plan takes beside what there is.
    fn added_bytes(&self, plan: &Plan) -> u64 {
        let plan_bytes = size_of::<Kept>() + plan_heap_bytes(&plan.execution);
        let is_new = self.workload_of(plan).is_none();
        let workload_bytes = workload_heap_bytes(&plan.workload);
        (plan_bytes + if is_new { workload_bytes } else { 0 }) as u64
    }

    fn workload_of(&self, plan: &Plan) -> Option<usize> {
        let mut known = self.workloads.iter();
        known.position(|(_, workload)| workload.digest == plan.workload.digest)
    }

    /// Keeps a plan for its budget, unless all would take more than `most_bytes`; whether it is kept.
    pub fn add(&mut self, plan: Plan, most_bytes: u64) -> bool {
        let Some(budget_bytes) = plan.budget_bytes else {
            return false;
        };
        let added_bytes = self.added_bytes(&plan);
        if self.bytes + added_bytes > most_bytes {
            return false;
        }
        self.bytes += added_bytes;
        let known = self.workload_of(&plan);
        let workload = known.unwrap_or(self.workloads.len());
        if known.is_none() {
            let mut workload = plan.workload;
            workload.steps.shrink_to_fit();
            self.workloads.push((plan.program, Arc::new(workload)));
        }
        let mut execution = plan.execution;
        execution.loads.shrink_to_fit();
        execution.computes.shrink_to_fit();
        execution.resident.shrink_to_fit();
        self.plans.push(Kept {
            budget_bytes,
            workload,
            execution,
            verdict: plan.verdict,
            latency_ns: plan.prediction.latency_ns,
            tables_bytes: plan.ledger.tables_bytes,
        });
        true
    }

    /// A plan that was made for this budget, if it still fits into it beside what is taken without an arena.
    pub fn find(&self, budget_bytes: u64, base: &Ledger) -> Option<Next> {
        let fits = |kept: &&Kept| kept.ledger(base).total_bytes() <= budget_bytes;
        let made = |kept: &&Kept| kept.budget_bytes == budget_bytes;
        let kept = self.plans.iter().filter(made).find(fits)?;
        let (program, workload) = &self.workloads[kept.workload];
        Some(Next {
            program: program.clone(),
            workload: workload.clone(),
            execution: kept.execution.clone(),
            verdict: kept.verdict,
            budget_bytes: Some(budget_bytes),
            ledger: kept.ledger(base),
            latency_ns: kept.latency_ns,
        })
    }

    pub fn len(&self) -> usize {
        self.plans.len()
    }

    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }
}

impl Kept {
    fn ledger(&self, base: &Ledger) -> Ledger {
        base.with_arena(self.tables_bytes, self.verdict.high_water_bytes)
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
