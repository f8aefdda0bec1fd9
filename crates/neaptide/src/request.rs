//! From programs, a budget, and what is taken beside the arena, to a plan.

use crate::budget::{Budget, Scope};
use crate::calibrate::Known;
use crate::error::{Error, Result};
use crate::ledger::{self, Ledger, Reserve, Whole};
use crate::on_device::{OnDevice, Placed, of_link_alone};
use crate::options::RunOptions;
use crate::plan::Plan;
use neap_compile::{Compiled, Programs, Search, SearchError, StepTimes, tables_of};
use neap_ir::ValueId;
use neap_ops::Choice;
use neap_plan::KernelId;
use neap_planner::Strategy;
use neap_sim::CostProfile;
use std::time::Instant;

/// What spans of runs may take before they are written.
pub(crate) const RECORDED_BYTES: u64 = 512 << 10;

/// The kernel counts in these.
const PAGE_BYTES: u64 = 4096;

/// What to plan for; the budget of `options` is not looked at.
pub(crate) struct Request<'a> {
    pub programs: &'a Programs,
    pub budget: Budget,
    pub options: &'a RunOptions,
    pub known: &'a Known,
    /// What a later process takes while it opens the model.
    pub opening_bytes: u64,
    /// The limit where there is no lower budget ([`Host::machine_bytes`](crate::Host::machine_bytes)).
    pub machine_bytes: Option<u64>,
}

impl Request<'_> {
    /// `base` adds up what is taken without the arena, once the first workload is in memory.
    pub(crate) fn plan(&self, started: Instant, base: impl FnOnce() -> Ledger) -> Result<Plan> {
        let options = self.options.compiling();
        let search = Search::new(neap_compile::Request {
            programs: self.programs,
            options: &options,
            costs: &self.known.costs,
            times: &self.known.times,
            refine: &self.options.search,
        });
        let base = base();
        let whole = || whole_of(self.programs, self.options, Scope::Process, &search);
        let budget_bytes = self.budget.bytes(|| whole().total_bytes());
        // Without a budget everything stays in memory, where the machine has so much. A larger budget is no more than that.
        let of_machine = |bytes: &u64| {
            let arena_bytes = search.whole_arena_bytes();
            base.with_arena(tables_of(arena_bytes), arena_bytes)
                .total_bytes()
                > *bytes
        };
        match (budget_bytes, self.machine_bytes.filter(of_machine)) {
            (None, Some(bytes)) => {
                let found = self.within(&search, base, Some(bytes), started);
                found.map_err(Error::without_budget)
            }
            // A limit is in whole pages: it is no less than a budget that it was made of.
            (Some(given), Some(bytes)) if given.saturating_sub(bytes) >= PAGE_BYTES => {
                self.within(&search, base, Some(bytes), started)
            }
            (given, _) => self.within(&search, base, given, started),
        }
    }

    fn within(
        &self,
        search: &Search,
        base: Ledger,
        budget_bytes: Option<u64>,
        started: Instant,
    ) -> Result<Plan> {
        if let Some(device) = OnDevice::of(self.options) {
            let base = OnDevice::base(base);
            let placed = self.on_device(&device, search, base, budget_bytes)?;
            return Ok(self.finished(placed.found, placed.ledger, budget_bytes, started));
        }
        let room_bytes = budget_bytes.map(|bytes| bytes.saturating_sub(base.total_bytes()));
        let found = search.find(room_bytes).map_err(|error| match error {
            SearchError::Infeasible { smallest_bytes } => Error::infeasible(
                budget_bytes.unwrap_or(u64::MAX),
                base.with_arena(tables_of(smallest_bytes), smallest_bytes)
                    .named(self.opening_bytes),
            ),
            SearchError::Defect(what) => Error::Defect(what),
        })?;
        let found = found.check().map_err(Error::bad_plan)?;
        let base = Ledger {
            fixed_bytes: base.fixed_bytes + found.heap_bytes,
            ..base
        };
        let ledger = base.with_arena(found.tables_bytes, found.plan.verdict().high_water_bytes);
        // An empty arena fits into no room.
        if let Some(bytes) = budget_bytes.filter(|&bytes| bytes < base.total_bytes()) {
            return Err(Error::infeasible(bytes, ledger.named(self.opening_bytes)));
        }
        Ok(self.finished(found, ledger, budget_bytes, started))
    }

    fn on_device(
        &self,
        device: &OnDevice,
        search: &Search,
        base: Ledger,
        budget_bytes: Option<u64>,
    ) -> Result<Placed> {
        let weights = self.programs.plain.packed.iter().map(|p| p.bytes);
        let room_bytes = budget_bytes.map_or(u64::MAX, |b| b.saturating_sub(base.total_bytes()));
        if weights.sum::<u64>() > room_bytes {
            return device.plan(search, base, budget_bytes, self.opening_bytes);
        }
        let rates = self.options.accelerator.as_ref().and_then(|a| a.rates());
        let costs = of_link_alone(&self.known.costs, rates.and_then(|rates| rates.link));
        let compiling = self.options.compiling();
        let search = Search::new(neap_compile::Request {
            programs: self.programs,
            options: &compiling,
            costs: &costs,
            times: &self.known.times,
            refine: &self.options.search,
        });
        device.plan(&search, base, budget_bytes, self.opening_bytes)
    }

    fn finished(
        &self,
        found: Compiled,
        ledger: Ledger,
        budget_bytes: Option<u64>,
        started: Instant,
    ) -> Plan {
        let accelerator = self.options.accelerator.as_ref();
        let on_device = accelerator.map(|accelerator| {
            let here = accelerator.computes(&found.program).into_iter();
            let steps = here.zip(&found.plan.workload().steps);
            let on_processor = KernelId::from(Choice::ON_PROCESSOR);
            steps
                .map(|(here, step)| here && step.kernel != on_processor)
                .collect()
        });
        Plan {
            on_device,
            program: found.program,
            checked: found.plan,
            prediction: found.prediction,
            ledger,
            budget_bytes,
            costs: found.costs,
            known: self.known.clone(),
            planning_ns: started.elapsed().as_nanos() as u64,
        }
    }
}

/// What must be set aside for a session of a model.
pub(crate) fn reserve(programs: &Programs, options: &RunOptions) -> Reserve {
    Reserve {
        threads: options.threads,
        steps: most_steps(programs),
        outputs_bytes: tensors_bytes(programs, &programs.plain.graph.outputs),
        keeps_activations: options.keep_activations,
        caller_bytes: options.reserve_bytes + tracing_bytes(programs, options),
    }
}

/// Of the longest program.
pub(crate) fn most_steps(programs: &Programs) -> usize {
    let banded = programs.banded.as_ref().map_or(0, |p| p.steps.len());
    banded.max(programs.plain.steps.len())
}

/// What a kept plan takes, and what is recorded before it is written.
fn tracing_bytes(programs: &Programs, options: &RunOptions) -> u64 {
    const STEP_BYTES: u64 = 1024;
    let steps = programs.plain.steps.len() as u64;
    match options.keep_plan {
        true => 2 * RECORDED_BYTES + steps * STEP_BYTES,
        false => 0,
    }
}

/// With everything resident: what `100%` means.
pub(crate) fn whole(programs: &Programs, options: &RunOptions, scope: Scope) -> Ledger {
    let compiling = neap_compile::Options {
        // The same for all of them; others would look for orders of steps first.
        strategy: Strategy::Preload.into(),
        ..options.compiling()
    };
    // Costs do not count here.
    let (costs, times) = (CostProfile::default(), StepTimes::default());
    let search = Search::new(neap_compile::Request {
        programs,
        options: &compiling,
        costs: &costs,
        times: &times,
        refine: &options.search,
    });
    whole_of(programs, options, scope, &search)
}

fn whole_of(programs: &Programs, options: &RunOptions, scope: Scope, search: &Search) -> Ledger {
    let arena_bytes = search.whole_arena_bytes();
    let whole = Whole {
        process_bytes: match scope {
            Scope::Process => {
                let inputs_bytes = tensors_bytes(programs, &programs.plain.graph.inputs);
                ledger::nominal_process_bytes(programs) + inputs_bytes
            }
            Scope::Engine => ledger::engine_heap_bytes(programs),
        },
        tables_bytes: tables_of(arena_bytes),
        arena_bytes,
    };
    let reserve = Reserve {
        // The nominal process counts them.
        steps: 0,
        ..reserve(programs, options)
    };
    Ledger::whole(scope, &reserve, &whole)
}

fn tensors_bytes(programs: &Programs, values: &[ValueId]) -> u64 {
    let graph = &programs.plain.graph;
    values
        .iter()
        .map(|&v| graph.value(v).ty.len_bytes() as u64)
        .sum()
}
