//! From a step's programs and a budget to a plan.

use crate::budget::{Budget, Scope};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::ledger::{Ledger, Reserve, training_heap_bytes};
use crate::train::TrainOptions;
use crate::train::step::Step;
use neap_compile::{Kernels, Target, tables_of, workload};
use neap_ir::Program;
use neap_plan::{ExecutionPlan, Verdict, Workload, validate};
use neap_planner::{PlanError, PlanOptions, Planned, Planner, Strategy};
use neap_sim::CostProfile;

/// A plan that is valid for its workload.
pub(super) struct StepPlan {
    /// Whether it is for the step's other program, which computes cheap activations again.
    pub recomputes: bool,
    pub workload: Workload,
    pub execution: ExecutionPlan,
    pub verdict: Verdict,
    pub ledger: Ledger,
    pub budget_bytes: Option<u64>,
}

/// Plans for the budget of `options`: everything in memory where that fits; else the faster, as predicted, of a plan that
/// keeps or moves all activations and one that computes cheap ones again. The machine is taken to be a modest one: costs
/// decide between plans, and no plan's results depend on them.
pub(super) fn plan(step: &Step, options: &TrainOptions, host: &dyn Host) -> Result<StepPlan> {
    let target = Target {
        threads: options.threads,
        isa: options.isa,
    };
    let workload = |program: &Program| workload(program, target, Kernels::Direct);
    let kept = workload(&step.program);
    neap_plan::check_workload(&kept)
        .map_err(|reason| Error::BadInput(format!("the step cannot be planned: {reason}")))?;
    let planner = Planner::with_options(&kept, PLANNING);
    let whole_bytes = planner.unlimited_high_water_bytes();
    let base = base(&step.program, options, host);
    let with_arena = |bytes: u64| base.with_arena(tables_of(bytes), bytes);
    let whole = || with_arena(whole_bytes).total_bytes();
    let budget_bytes = options.budget.bytes(whole);
    let opening_bytes = step.opening_bytes;
    let refused = |smallest_bytes: u64| {
        let smallest = with_arena(smallest_bytes).named(opening_bytes);
        Error::infeasible(budget_bytes.unwrap_or(u64::MAX), smallest)
    };
    let is_of_process = options.budget.scope() == Scope::Process;
    if is_of_process && budget_bytes.is_some_and(|bytes| bytes < opening_bytes) {
        return Err(refused(planner.smallest_feasible_bytes()));
    }
    let room_bytes = budget_bytes.map(|bytes| {
        let room = bytes.saturating_sub(base.total_bytes());
        room - tables_of(room).min(room)
    });
    let costs = CostProfile::default();
    let tight = room_bytes.filter(|&room| room < whole_bytes);
    let (planned, recomputing) = match tight {
        None => (planner.plan(u64::MAX, Strategy::Resident, &costs), None),
        Some(room) => {
            let kept = planner.plan(room, Strategy::Preload, &costs);
            let other = workload(&step.recomputing);
            let again = Planner::with_options(&other, PLANNING);
            let again = again.plan(room, Strategy::Preload, &costs);
            match is_better(&again, &kept) {
                true => (again, Some(other)),
                false => (kept, None),
            }
        }
    };
    drop(planner);
    let planned =
        planned.map_err(|PlanError::Infeasible { smallest_bytes }| refused(smallest_bytes))?;
    let recomputes = recomputing.is_some();
    let workload = recomputing.unwrap_or(kept);
    let verdict = validate(&workload, &planned.plan)
        .map_err(|violation| Error::Defect(format!("the planner made a bad plan: {violation}")))?;
    Ok(StepPlan {
        recomputes,
        ledger: with_arena(verdict.high_water_bytes),
        workload,
        execution: planned.plan,
        verdict,
        budget_bytes,
    })
}

/// A thorough planner tries how weights would best be sliced, and here are none.
const PLANNING: PlanOptions = PlanOptions {
    effort: neap_planner::Effort::Quick,
    static_memory: true,
    cyclic: true,
    spill: true,
    stream_states: true,
};

type Found = std::result::Result<Planned, PlanError>;

/// Whether it is predicted faster, or is a plan where the other is none, or names a smaller budget.
fn is_better(found: &Found, other: &Found) -> bool {
    match (found, other) {
        (Ok(found), Ok(other)) => found.prediction.latency_ns < other.prediction.latency_ns,
        (Ok(_), Err(_)) => true,
        (Err(_), Ok(_)) => false,
        (
            Err(PlanError::Infeasible { smallest_bytes }),
            Err(PlanError::Infeasible {
                smallest_bytes: other,
            }),
        ) => smallest_bytes < other,
    }
}

/// What is taken beside the arena.
fn base(program: &Program, options: &TrainOptions, host: &dyn Host) -> Ledger {
    let scope = options.budget.scope();
    let process_bytes = match (scope, options.budget) {
        (Scope::Process, Budget::Bytes(_)) => {
            host.trim();
            host.charged_bytes()
        }
        // The same in every process.
        _ => training_heap_bytes(program),
    };
    let graph = &program.graph;
    let outputs = graph.outputs.iter();
    let reserve = Reserve {
        threads: options.threads,
        // A trainer's heap counts them.
        steps: 0,
        outputs_bytes: outputs.map(|&v| graph.value(v).len_bytes() as u64).sum(),
        keeps_activations: false,
        caller_bytes: options.reserve_bytes,
    };
    Ledger::before_arena(scope, process_bytes, &reserve)
}
