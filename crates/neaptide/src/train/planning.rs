//! From a step's program and a budget to a plan.

use crate::budget::{Budget, Scope};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::ledger::{Ledger, Reserve, training_heap_bytes};
use crate::train::TrainOptions;
use neap_compile::{Kernels, Target, tables_of, workload};
use neap_ir::Program;
use neap_plan::{ExecutionPlan, Verdict, Workload, validate};
use neap_planner::{PlanError, Planner, Strategy};
use neap_sim::CostProfile;

/// A plan that is valid for its workload.
pub(super) struct StepPlan {
    pub workload: Workload,
    pub execution: ExecutionPlan,
    pub verdict: Verdict,
    pub ledger: Ledger,
    pub budget_bytes: Option<u64>,
}

/// Plans for the budget of `options`. The machine is taken to be a modest one: costs decide between plans, and no plan's
/// results depend on them.
pub(super) fn plan(program: &Program, options: &TrainOptions, host: &dyn Host) -> Result<StepPlan> {
    let target = Target {
        threads: options.threads,
        isa: options.isa,
    };
    let workload = workload(program, target, Kernels::Direct);
    neap_plan::check_workload(&workload)
        .map_err(|reason| Error::BadInput(format!("the step cannot be planned: {reason}")))?;
    let planner = Planner::new(&workload);
    let whole_bytes = planner.unlimited_high_water_bytes();
    let base = base(program, options, host);
    let with_arena = |bytes: u64| base.with_arena(tables_of(bytes), bytes);
    let whole = || with_arena(whole_bytes).total_bytes();
    let budget_bytes = options.budget.bytes(whole);
    let room_bytes = budget_bytes.map(|bytes| {
        let room = bytes.saturating_sub(base.total_bytes());
        room - tables_of(room).min(room)
    });
    let costs = CostProfile::default();
    let planned = match room_bytes.filter(|&room| room < whole_bytes) {
        None => planner.plan(u64::MAX, Strategy::Resident, &costs),
        Some(room) => planner.plan(room, Strategy::Preload, &costs),
    };
    let planned = planned.map_err(|PlanError::Infeasible { smallest_bytes }| {
        Error::infeasible(
            budget_bytes.unwrap_or(u64::MAX),
            with_arena(smallest_bytes).named(),
        )
    })?;
    let verdict = validate(&workload, &planned.plan)
        .map_err(|violation| Error::Defect(format!("the planner made a bad plan: {violation}")))?;
    let ledger = with_arena(verdict.high_water_bytes);
    drop(planner);
    Ok(StepPlan {
        workload,
        execution: planned.plan,
        verdict,
        ledger,
        budget_bytes,
    })
}

/// What is taken beside the arena.
fn base(program: &Program, options: &TrainOptions, host: &dyn Host) -> Ledger {
    let scope = options.budget.scope();
    let process_bytes = match (scope, options.budget) {
        // The same in every process.
        (Scope::Process, Budget::Bytes(_)) => {
            host.trim();
            host.charged_bytes()
        }
        _ => training_heap_bytes(program),
    };
    let graph = &program.graph;
    let outputs = graph.outputs.iter();
    let reserve = Reserve {
        threads: options.threads,
        outputs_bytes: outputs.map(|&v| graph.value(v).len_bytes() as u64).sum(),
        keeps_activations: false,
        caller_bytes: options.reserve_bytes,
    };
    Ledger::before_arena(scope, process_bytes, &reserve)
}
