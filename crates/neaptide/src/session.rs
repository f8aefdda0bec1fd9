//! From a model and a budget to a session that runs.

use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::memory;
use crate::model::{Model, TensorInfo};
use crate::workload::workload;
use neap_ir::Program;
use neap_kernels::simd::Isa;
use neap_plan::{ExecutionPlan, Timeline, Workload};
use neap_planner::{PlanError, Planned};
use neap_sim::CostProfile;
use neap_store::IoMode;
use std::sync::Arc;

pub use neap_planner::Strategy;

/// Bytes per thread that are not in the arena: touched stack, kernel stack.
const THREAD_BYTES: u64 = 64 * 1024;

/// What a session still allocates after its plan is made (operand tables, io rings) and what the
/// kernel charges in batches.
const FIXED_RESERVE_BYTES: u64 = 768 * 1024;

/// Added to the smallest feasible budget when it is named, so that a later process whose pages fall
/// a little differently still fits.
const NAMED_SLACK_BYTES: u64 = 512 * 1024;

/// How to run a model.
#[derive(Debug, Clone)]
pub struct RunOptions {
    pub budget: Budget,
    pub threads: usize,
    pub strategy: Strategy,
    pub io: IoMode,
    /// Memory the caller will still take while the session lives, beside the inputs it already holds.
    pub reserve_bytes: u64,
    /// This process is alone in a memory cgroup, whose count is then believed.
    pub own_cgroup: bool,
    pub costs: Option<CostProfile>,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions {
            budget: Budget::Unlimited,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            strategy: Strategy::Preload,
            io: IoMode::Auto,
            reserve_bytes: 0,
            own_cgroup: false,
            costs: None,
        }
    }
}

/// A plan with the figures around it.
#[derive(Debug, Clone)]
pub struct Plan {
    pub workload: Workload,
    pub planned: Planned,
    /// `None` without a limit.
    pub budget_bytes: Option<u64>,
    /// The process without the arena.
    pub base_overhead_bytes: u64,
    pub costs: CostProfile,
    pub planning_ns: u64,
}

impl Plan {
    pub fn execution(&self) -> &ExecutionPlan {
        &self.planned.plan
    }

    /// Planned peak of the whole process.
    pub fn high_water_bytes(&self) -> u64 {
        self.base_overhead_bytes + self.planned.verdict.high_water_bytes
    }
}

/// The memory a model needs, at the extremes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub base_overhead_bytes: u64,
    /// Whole process, smallest budget that will be accepted.
    pub smallest_feasible_bytes: u64,
    /// Whole process, everything resident.
    pub unlimited_high_water_bytes: u64,
}

impl Model {
    /// What must be planned on this machine with so many threads.
    pub fn workload(&self, threads: usize) -> Workload {
        workload(self.program(), threads, Isa::detect())
    }

    /// The smallest feasible and the unlimited footprint.
    pub fn bounds(&self, options: &RunOptions) -> Result<Bounds> {
        let workload = self.workload(options.threads);
        let base = self.base_overhead(options);
        bounds_of(&workload, base)
    }

    /// Plans for a budget of the whole process.
    ///
    /// # Errors
    /// [`Error::Infeasible`] names the smallest budget that can be met.
    pub fn plan(&self, options: &RunOptions) -> Result<Plan> {
        let started = std::time::Instant::now();
        let workload = self.workload(options.threads);
        let costs = options
            .costs
            .clone()
            .unwrap_or_else(|| crate::calibrate::estimate(options.threads));
        memory::trim_heap();
        let base = self.base_overhead(options);
        let budget_bytes = match options.budget {
            Budget::Unlimited => None,
            Budget::Bytes(bytes) => Some(bytes),
            Budget::Percent(percent) => {
                let unlimited = base + neap_planner::unlimited_high_water_bytes(&workload);
                Some((unlimited as f64 * percent / 100.0) as u64)
            }
        };
        let arena = budget_bytes.map(|bytes| bytes.saturating_sub(base));
        let arena_or_all =
            arena.unwrap_or_else(|| neap_planner::unlimited_high_water_bytes(&workload));
        let planned = neap_planner::plan(&workload, arena_or_all, options.strategy, &costs);
        let planned = match (planned, budget_bytes) {
            (Ok(planned), _) => planned,
            (Err(PlanError::Infeasible { .. }), Some(budget_bytes)) => {
                let smallest_bytes = match options.strategy {
                    Strategy::Resident => {
                        named(base + neap_planner::unlimited_high_water_bytes(&workload))
                    }
                    _ => bounds_of(&workload, base)?.smallest_feasible_bytes,
                };
                return Err(Error::Infeasible {
                    budget_bytes,
                    smallest_bytes,
                });
            }
            (Err(error), _) => return Err(Error::BadInput(error.to_string())),
        };
        let planning_ns = started.elapsed().as_nanos() as u64;
        Ok(Plan {
            workload,
            planned,
            budget_bytes,
            base_overhead_bytes: base,
            costs,
            planning_ns,
        })
    }

    fn base_overhead(&self, options: &RunOptions) -> u64 {
        let outputs: u64 = self.outputs().iter().map(|o| o.len_bytes() as u64).sum();
        memory::current_bytes(options.own_cgroup)
            + options.reserve_bytes
            + outputs
            + options.threads as u64 * THREAD_BYTES
            + FIXED_RESERVE_BYTES
    }

    /// Loads what the plan keeps resident and prepares to run. Takes the model: its tables are now
    /// the session's.
    pub fn into_session(mut self, plan: Plan, options: &RunOptions) -> Result<Session> {
        let source = self.file.open_source(options.io)?;
        let verifier = self.file.take_verifier()?;
        let inputs = self.inputs();
        let outputs = self.outputs();
        let program: Arc<Program> = self.program().clone();
        let settings = neap_runtime::SessionOptions {
            threads: options.threads,
            isa: Isa::detect(),
            ..Default::default()
        };
        let inner = neap_runtime::Session::open(
            program,
            plan.planned.plan,
            &plan.workload,
            source,
            verifier,
            settings,
        )
        .map_err(|e| Error::Run(e.to_string()))?;
        drop(plan.workload);
        memory::trim_heap();
        Ok(Session {
            inner,
            inputs,
            outputs,
        })
    }
}

fn bounds_of(workload: &Workload, base: u64) -> Result<Bounds> {
    let smallest = neap_planner::smallest_feasible_bytes(workload)
        .map_err(|e| Error::BadInput(e.to_string()))?;
    Ok(Bounds {
        base_overhead_bytes: base,
        smallest_feasible_bytes: named(base + smallest),
        unlimited_high_water_bytes: base + neap_planner::unlimited_high_water_bytes(workload),
    })
}

/// A feasible size as it is told to people: with slack, in whole 64 KiB.
fn named(bytes: u64) -> u64 {
    (bytes + NAMED_SLACK_BYTES).next_multiple_of(64 * 1024)
}

/// A model ready to run again and again inside its budget. `run` allocates nothing.
pub struct Session {
    inner: neap_runtime::Session,
    inputs: Vec<TensorInfo>,
    outputs: Vec<TensorInfo>,
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
        self.inner
            .run(inputs, outputs)
            .map_err(|e| Error::Run(e.to_string()))
    }

    /// Counters since the session opened.
    pub fn stats(&self) -> neap_runtime::Stats {
        self.inner.stats()
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
                info.dtype,
                crate::model::shape_text(&info.shape),
                info.len_bytes()
            )));
        }
    }
    Ok(())
}
