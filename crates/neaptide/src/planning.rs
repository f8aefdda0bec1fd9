//! From a model and a budget to a plan.

use crate::budget::{Budget, Scope};
use crate::calibrate::{CostSource, Known};
use crate::error::Result;
use crate::ledger::{self, Ledger};
use crate::model::Model;
use crate::on_device::OnDevice;
use crate::options::RunOptions;
use crate::plan::{Bounds, Plan};
use crate::request::{self, Request};
use neap_compile::{BandMode, Kernels, StrategyChoice, Target, tables_of, workload};
use neap_kernels::simd::Isa;
use neap_ops::{Choice, Kernel};
use neap_plan::Workload;

impl Model {
    /// What must be planned on this machine with so many threads, without row bands and computed by
    /// direct kernels.
    pub fn workload(&self, threads: usize) -> Workload {
        workload(self.program(), target(threads), Kernels::Direct)
    }

    /// Of each step of the program, whether it is computed in bfloat16 where memory does not matter.
    pub fn steps_in_bf16(&self, options: &RunOptions) -> Vec<bool> {
        let kernels = Kernels::preferred(options.exact);
        let workload = options.compiling().workload(self.program(), kernels);
        let is_so = |kernel| matches!(Choice::try_from(kernel), Ok(c) if c.kernel == Kernel::Pairs);
        workload.steps.iter().map(|s| is_so(s.kernel)).collect()
    }

    /// The same of every program that may run, the preferred first.
    pub fn workloads(&self, threads: usize, bands: BandMode) -> Vec<Workload> {
        let options = RunOptions {
            threads,
            bands,
            ..RunOptions::default()
        };
        let compiling = options.compiling();
        let programs = self.programs.of(bands);
        programs
            .map(|program| compiling.workload(program, Kernels::Direct))
            .collect()
    }

    /// The smallest feasible and the unlimited footprint: of the engine alone where the options' budget is
    /// [`Budget::Engine`], else of the process.
    pub fn bounds(&self, options: &RunOptions) -> Bounds {
        let compiling = options.compiling();
        let programs = self.programs.of(compiling.bands());
        let held: Vec<Workload> = programs
            .map(|program| compiling.workload(program, Kernels::Direct))
            .collect();
        // As it is when a plan is made.
        let base = self.base(options);
        drop(held);
        let smallest = neap_compile::smallest_bytes(&self.programs, &compiling);
        let needed = match OnDevice::of(options) {
            None => base.with_arena(tables_of(smallest), smallest),
            Some(device) => device.ledger(OnDevice::base(base), smallest),
        };
        Bounds {
            smallest: needed.named(self.opening_bytes()),
            needed,
            whole: request::whole(&self.programs, options, options.budget.scope()),
        }
    }

    /// A budget in bytes; `None` without a limit. A percentage is of [`Bounds::whole`], and so the same number of
    /// bytes in every process.
    pub fn budget_bytes(&self, budget: Budget, options: &RunOptions) -> Option<u64> {
        budget.bytes(|| request::whole(&self.programs, options, Scope::Process).total_bytes())
    }

    /// The same options without a percentage, so that costs are found for as many bytes as are planned for.
    pub(crate) fn in_bytes(&self, options: &RunOptions) -> RunOptions {
        let budget = match options.budget {
            Budget::Percent(_) => (self.budget_bytes(options.budget, options))
                .map_or(Budget::Unlimited, Budget::Bytes),
            budget => budget,
        };
        RunOptions {
            budget,
            ..options.clone()
        }
    }

    /// Plans for the budget of `options`.
    ///
    /// # Errors
    /// [`Error::Infeasible`] names the smallest budget that can be met.
    pub fn plan(&self, options: &RunOptions) -> Result<Plan> {
        let started = std::time::Instant::now();
        let options = &self.in_bytes(options);
        let known = crate::calibrate::known(self, options)?;
        let started = match known.source {
            // That is not planning.
            CostSource::Measured => std::time::Instant::now(),
            _ => started,
        };
        self.plan_knowing(&known, options, started)
    }

    /// A plan by each of these strategies instead of the one in `options`, to compare them: all count with the same
    /// memory of this process and know the same of the machine.
    ///
    /// # Errors
    /// As [`Model::plan`]: outside for what concerns all, inside for one strategy.
    pub fn plans(
        &self,
        options: &RunOptions,
        strategies: &[StrategyChoice],
    ) -> Result<Vec<Result<Plan>>> {
        let options = &self.in_bytes(options);
        let known = crate::calibrate::known(self, options)?;
        let mut base = None;
        let plan = |&strategy: &StrategyChoice| {
            let options = RunOptions {
                strategy,
                ..options.clone()
            };
            let request = Request {
                programs: &self.programs,
                budget: options.budget,
                options: &options,
                known: &known,
                opening_bytes: self.opening_bytes(),
                machine_bytes: self.host.machine_bytes(),
            };
            request.plan(std::time::Instant::now(), || {
                *base.get_or_insert_with(|| self.base(&options))
            })
        };
        Ok(strategies.iter().map(plan).collect())
    }

    /// [`Model::plan`] with what is known of this machine.
    pub(crate) fn plan_knowing(
        &self,
        known: &Known,
        options: &RunOptions,
        started: std::time::Instant,
    ) -> Result<Plan> {
        let request = Request {
            programs: &self.programs,
            budget: options.budget,
            options,
            known,
            opening_bytes: self.opening_bytes(),
            machine_bytes: self.host.machine_bytes(),
        };
        request.plan(started, || self.base(options))
    }

    /// What a later process takes while it opens the model: it may have to pack it.
    pub(crate) fn opening_bytes(&self) -> u64 {
        let package = self.package.as_ref().filter(|_| self.is_cached());
        package.map_or(0, |package| package.opening_bytes)
    }

    /// What is taken without an arena, once nothing is held that only planning needs.
    fn base(&self, options: &RunOptions) -> Ledger {
        let scope = options.budget.scope();
        let process_bytes = match scope {
            Scope::Process => {
                self.host.trim();
                self.host.charged_bytes()
            }
            Scope::Engine => ledger::engine_heap_bytes(&self.programs),
        };
        let reserve = request::reserve(&self.programs, options);
        Ledger::before_arena(scope, process_bytes, &reserve)
    }
}

/// This machine with so many threads.
fn target(threads: usize) -> Target {
    Target {
        threads,
        isa: Isa::detect(),
    }
}
