//! From a model and a budget to a session that runs.

use crate::budget::{Budget, Scope};
use crate::calibrate::{Calibration, CostSource, Known};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::in_use::InUse;
use crate::ledger::{self, Ledger};
use crate::model::{Model, TensorInfo};
use crate::prepared::Prepared;
use crate::request::{self, Request};
use crate::spill;
use neap_compile::{
    BandCount, BandMode, Kernels, Programs, StrategyChoice, Target, count_bands, kernel_counts,
    tables_of, workload,
};
use neap_ir::Program;
use neap_kernels::simd::Isa;
use neap_ops::Choice;
use neap_plan::{ExecutionPlan, Timeline, Verdict, Workload};
use neap_runtime::{InputTensor, OutputTensor};
use neap_sim::{CostProfile, Prediction};
use neap_store::{IoMode, ThrottledSource};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::strategy::SearchEffort;
pub use neap_planner::{PlanOptions, Strategy};

/// How to run a model.
#[derive(Debug, Clone)]
pub struct RunOptions {
    pub budget: Budget,
    pub threads: usize,
    /// Which vector instructions compute; anything but the default is for tests and comparison.
    pub isa: Isa,
    pub strategy: StrategyChoice,
    /// For how long [`Strategy::Search`] searches, each time that it plans.
    pub search: SearchEffort,
    /// What the planner may do; anything but the default is for comparison.
    pub planner: PlanOptions,
    pub io: IoMode,
    /// Storage as if it gave no more than so many bytes per second; for comparison.
    pub throttle_bytes_per_second: Option<u64>,
    /// Memory the caller will still take while the session lives, beside the inputs it already holds.
    pub reserve_bytes: u64,
    /// Costs to plan with; without them, those that `calibration` finds.
    pub costs: Option<CostProfile>,
    pub calibration: Calibration,
    pub bands: BandMode,
    /// The same kernels under every budget, so that outputs are the same bits too. Otherwise the
    /// fastest kernels that fit; those of one layer differ in rounding only.
    pub exact: bool,
    /// Where memory is left over when everything is resident, panels are also kept in the form that kernels take. The
    /// bits of the results are the same without.
    pub prepared_weights: bool,
    /// Where activations go that a plan stores; by default beside the packed model.
    pub spill_dir: Option<PathBuf>,
    /// All activations stay until they are read after the run ([`Session::kept`]), in memory or in the
    /// spill file, as a backward pass would need them. Those are the buffers as the program has them:
    /// results that are computed in place of others are what is left of both. Row bands, which never
    /// make whole activations, are off then.
    pub keep_activations: bool,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions {
            budget: Budget::Unlimited,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            isa: Isa::detect(),
            strategy: StrategyChoice::Only(Strategy::Preload),
            search: SearchEffort::default(),
            planner: PlanOptions::default(),
            io: IoMode::Auto,
            throttle_bytes_per_second: None,
            reserve_bytes: 0,
            costs: None,
            calibration: Calibration::Auto,
            bands: BandMode::Auto,
            exact: false,
            prepared_weights: true,
            spill_dir: None,
            keep_activations: false,
        }
    }
}

impl RunOptions {
    /// What plans are sought with.
    pub(crate) fn compiling(&self) -> neap_compile::Options {
        neap_compile::Options {
            target: Target {
                threads: self.threads,
                isa: self.isa,
            },
            strategy: self.strategy,
            planner: self.planner,
            bands: self.bands,
            exact: self.exact,
            prepared_weights: self.prepared_weights,
            keep_activations: self.keep_activations,
            tables_for_gaps: neap_runtime::tables_for_gaps,
        }
    }
}

/// This machine with so many threads.
fn target(threads: usize) -> Target {
    Target {
        threads,
        isa: Isa::detect(),
    }
}

/// A plan with the figures around it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Which of the model's programs it is for.
    pub program: Arc<Program>,
    pub workload: Workload,
    pub execution: ExecutionPlan,
    pub prediction: Prediction,
    /// What the independent validator found.
    pub verdict: Verdict,
    /// `None` without a limit.
    pub budget_bytes: Option<u64>,
    /// Where the planned peak goes, part by part.
    pub ledger: Ledger,
    pub costs: CostProfile,
    /// What `costs` came from, for plans of other programs and budgets.
    pub(crate) known: Known,
    pub planning_ns: u64,
}

impl Plan {
    /// Planned peak of the whole process, or of the engine.
    pub fn high_water_bytes(&self) -> u64 {
        self.ledger.total_bytes()
    }

    /// The same without the arena.
    pub fn base_overhead_bytes(&self) -> u64 {
        self.ledger.base_bytes()
    }

    /// No plan can have a lower peak with these live ranges.
    pub fn lower_bound_bytes(&self) -> u64 {
        self.base_overhead_bytes() + self.verdict.lower_bound_bytes
    }

    /// Where the costs came from.
    pub fn cost_source(&self) -> CostSource {
        self.known.source
    }

    /// What the user should hear about calibration, such as that its cache is damaged.
    pub fn cost_remark(&self) -> Option<&str> {
        self.known.remark.as_deref()
    }

    /// Row bands in force.
    pub fn bands(&self) -> BandCount {
        count_bands(&self.program)
    }

    /// How many layers with panel weights each kernel computes, by its name; each layer of a chain in row bands
    /// counts.
    pub fn kernels(&self) -> BTreeMap<&'static str, usize> {
        kernel_counts(&self.program, &self.workload)
    }

    /// Writes a timeline of this plan as trace events (JSON), which Perfetto opens; `title` names the process
    /// in it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_trace(
        &self,
        out: &mut impl std::io::Write,
        title: &str,
        timeline: &Timeline,
    ) -> std::io::Result<()> {
        let kernel = |id| {
            let choice = Choice::try_from(id).unwrap_or_default();
            choice.kernel.label().to_owned()
        };
        let (workload, plan) = (&self.workload, &self.execution);
        neap_plan::render::write_trace(out, title, workload, plan, timeline, kernel)
    }

    /// What is predicted to happen in `runs` runs, the first from a standing start.
    pub fn simulate(&self, runs: u32) -> Timeline {
        neap_sim::simulate(&self.workload, &self.execution, &self.costs, runs)
    }
}

/// The memory a model needs, at the extremes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The smallest budget that will be accepted, with slack for a later process.
    pub smallest: Ledger,
    /// Everything resident: what `100%` means. The same in every process, and without what the caller sets aside.
    pub whole: Ledger,
}

impl Bounds {
    /// The smallest budget that will be accepted.
    pub fn smallest_feasible_bytes(&self) -> u64 {
        self.smallest.total_bytes()
    }

    /// With everything resident.
    pub fn unlimited_high_water_bytes(&self) -> u64 {
        self.whole.total_bytes()
    }

    /// What is taken without an arena and its page tables, in this process.
    pub fn base_overhead_bytes(&self) -> u64 {
        self.smallest.base_bytes() - self.smallest.tables_bytes
    }
}

impl Model {
    /// What must be planned on this machine with so many threads, without row bands and computed by
    /// direct kernels.
    pub fn workload(&self, threads: usize) -> Workload {
        workload(self.program(), target(threads), Kernels::Direct)
    }

    /// The same of every program that may run, the preferred first.
    pub fn workloads(&self, threads: usize, bands: BandMode) -> Vec<Workload> {
        let programs = self.programs.of(bands);
        programs
            .map(|program| workload(program, target(threads), Kernels::Direct))
            .collect()
    }

    /// The smallest feasible and the unlimited footprint: of the engine alone where the options' budget is
    /// [`Budget::Engine`], else of the process.
    pub fn bounds(&self, options: &RunOptions) -> Bounds {
        let compiling = options.compiling();
        let programs = self.programs.of(compiling.bands());
        let workloads: Vec<Workload> = programs
            .map(|program| compiling.workload(program, Kernels::Direct))
            .collect();
        let base = self.base(options);
        let smallest = workloads.iter().map(|w| {
            self.programs
                .planner(w, options.planner)
                .smallest_feasible_bytes()
        });
        let smallest = smallest.min().unwrap_or(u64::MAX);
        drop(workloads);
        Bounds {
            smallest: base.with_arena(tables_of(smallest), smallest).named(),
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
        };
        request.plan(started, || self.base(options))
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

    /// Prepares to run, which begins to load what the plan keeps resident. Takes the model: its tables are
    /// now the session's.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a model without weights, or when files cannot be opened or read.
    pub fn into_session(mut self, plan: Plan, options: &RunOptions) -> Result<Session> {
        let (packed, mut file) = self.take_packed()?;
        let packed = InUse::new(packed, &file);
        let mut source = file.open_source(options.io)?;
        if let Some(rate) = options.throttle_bytes_per_second {
            source = Box::new(ThrottledSource::new(source, rate)?);
        }
        let verifier = file.take_verifier()?;
        let inputs = self.inputs();
        let outputs = self.outputs();
        let program = plan.program;
        let settings = neap_runtime::Options {
            threads: options.threads,
            isa: options.isa,
        };
        // What planning took is not charged beside the arena.
        self.host.trim();
        let spill_folder = spill::folder(options, self.place());
        let storage = neap_runtime::Storage {
            source,
            verifier,
            spill: spill::open(&spill_folder, plan.verdict.spill_bytes, options)?,
        };
        let inner =
            neap_runtime::Session::open(program, plan.execution, &plan.workload, storage, settings)
                .map_err(|e| packed.told(e))?;
        drop(plan.workload);
        self.host.trim();
        Ok(Session {
            inner,
            inputs,
            outputs,
            packed,
            standing: Standing {
                programs: self.programs,
                options: options.clone(),
                spill_folder,
                known: plan.known,
                host: self.host,
                first_base: plan.ledger.with_arena(0, 0),
                ledger: plan.ledger,
                budget_bytes: plan.budget_bytes,
                prepared: Prepared::default(),
            },
        })
    }
}

/// A model ready to run again and again inside its budget. Nothing is allocated while it runs but
/// the two short lists of tensors.
pub struct Session {
    pub(crate) inner: neap_runtime::Session,
    inputs: Vec<TensorInfo>,
    outputs: Vec<TensorInfo>,
    pub(crate) packed: InUse,
    pub(crate) standing: Standing,
}

/// What the plan in force was made from and for.
pub(crate) struct Standing {
    pub programs: Programs,
    pub options: RunOptions,
    pub spill_folder: PathBuf,
    pub known: Known,
    pub host: Arc<dyn Host>,
    /// Without the arena, as the first plan took it.
    pub first_base: Ledger,
    /// Of the plan in force.
    pub ledger: Ledger,
    pub budget_bytes: Option<u64>,
    pub prepared: Prepared,
}

impl Session {
    pub fn inputs(&self) -> &[TensorInfo] {
        &self.inputs
    }

    pub fn outputs(&self) -> &[TensorInfo] {
        &self.outputs
    }

    /// Runs once. `inputs` and `outputs` are in the model's order, row-major little-endian bytes of
    /// exactly the tensors' sizes; inputs are read where they lie.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a wrong number or size of tensors, [`Error::Run`] when reading
    /// weights fails or they are corrupted.
    pub fn run(&mut self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        check_sizes("input", &self.inputs, inputs.iter().map(|b| b.len()))?;
        check_sizes("output", &self.outputs, outputs.iter().map(|b| b.len()))?;
        let inputs: Vec<InputTensor> = (self.inputs.iter().zip(inputs))
            .map(|(info, bytes)| InputTensor {
                ty: &info.ty,
                bytes,
            })
            .collect();
        let mut outputs: Vec<OutputTensor> = (self.outputs.iter().zip(outputs))
            .map(|(info, bytes)| OutputTensor {
                ty: &info.ty,
                bytes,
            })
            .collect();
        let run = self.inner.run(&inputs, &mut outputs);
        run.map_err(|e| self.packed.told(e))
    }

    /// Waits until all resident weights are in memory, which the first run after opening or after a change of
    /// the budget does by itself: it reads them as it needs them, and so takes longer.
    ///
    /// # Errors
    /// [`Error::Run`] when they cannot be read or are corrupted; the next run, or this, tries again.
    pub fn settle(&mut self) -> Result<()> {
        self.inner.settle().map_err(|e| self.packed.told(e))
    }

    /// Name and bytes of each activation that is kept after a run, under
    /// [`RunOptions::keep_activations`].
    pub fn kept(&self) -> impl ExactSizeIterator<Item = (&str, u64)> {
        self.inner.kept().iter().map(|k| (k.name.as_str(), k.bytes))
    }

    /// Hands the bytes that the last run left in a kept activation to `visit`, in order and in pieces: raw,
    /// in the layout in which the program holds them.
    ///
    /// # Errors
    /// [`Error::Run`] when no run has ended well since the session was opened or changed its budget, or
    /// the spill file cannot be read.
    pub fn read_kept(&mut self, index: usize, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        Ok(self.inner.read_kept(index, visit)?)
    }

    /// BLAKE3 digest of a kept activation, in hexadecimal; see [`Session::read_kept`].
    ///
    /// # Errors
    /// As [`Session::read_kept`].
    pub fn kept_digest(&mut self, index: usize) -> Result<String> {
        let mut hasher = blake3::Hasher::new();
        self.read_kept(index, &mut |piece| {
            hasher.update(piece);
        })?;
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Budget now in force, of the process or of the engine; `None` without a limit.
    pub fn budget_bytes(&self) -> Option<u64> {
        self.standing.budget_bytes
    }

    /// Planned peak of the whole process, or of the engine, under the plan in force.
    pub fn high_water_bytes(&self) -> u64 {
        self.standing.ledger.total_bytes()
    }

    /// Where that goes, part by part.
    pub fn ledger(&self) -> &Ledger {
        &self.standing.ledger
    }

    /// Counters since the session opened.
    pub fn stats(&self) -> neap_runtime::Stats {
        self.inner.stats()
    }

    /// Records what happens in the next `runs` runs.
    pub fn record_timeline(&mut self, runs: usize) {
        self.inner.record_timeline(runs);
    }

    /// Spans of the recorded runs, when recording was switched on.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.inner.timeline()
    }
}

fn check_sizes(
    what: &str,
    infos: &[TensorInfo],
    sizes: impl ExactSizeIterator<Item = usize>,
) -> Result<()> {
    if sizes.len() != infos.len() {
        return Err(Error::BadInput(format!(
            "the model has {} {what}s, {} were given",
            infos.len(),
            sizes.len()
        )));
    }
    for (info, size) in infos.iter().zip(sizes) {
        if size != info.len_bytes() {
            return Err(Error::BadInput(format!(
                "{what} '{}' is {} {} ({} bytes), {size} bytes were given",
                info.name,
                info.ty.dtype,
                crate::model::shape_text(&info.ty.shape),
                info.len_bytes()
            )));
        }
    }
    Ok(())
}
