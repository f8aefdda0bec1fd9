//! How a model is run.

use crate::budget::Budget;
use crate::calibrate::Calibration;
use crate::sharing::Sharing;
use crate::strategy::SearchEffort;
use neap_compile::{BandMode, Divide, StrategyChoice, Target, WithScratch};
use neap_ir::Program;
use neap_kernels::simd::Isa;
use neap_ops::ScratchKernel;
use neap_planner::{PlanOptions, Strategy};
use neap_runtime::Accelerator;
use neap_sim::CostProfile;
use neap_store::IoMode;
use std::path::PathBuf;
use std::sync::Arc;

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
    /// All activations stay until they are read after the run ([`Session::kept`](crate::Session::kept)), in memory or in the
    /// spill file, as a backward pass would need them. Those are the buffers as the program has them:
    /// results that are computed in place of others are what is left of both. Row bands, which never
    /// make whole activations, are off then.
    pub keep_activations: bool,
    /// The plan in force stays in memory, so that what runs do can be written as a trace
    /// ([`Runner::profile`](crate::Runner::profile)). Memory for both is set aside within the budget.
    pub keep_plan: bool,
    /// Computes instead of the processor, which takes over what it cannot compute. Kernels are then the same under every budget,
    /// without row bands: direct ones, and those with scratch that the device wants, unless `exact` forbids them.
    pub accelerator: Option<Arc<dyn Accelerator>>,
    /// What plans may take of an accelerator's own memory, with what its driver takes there; without, all that it has. `budget` is
    /// then of the host's memory alone, and what it leaves holds weights for the link.
    pub device_budget_bytes: Option<u64>,
    /// The accelerator computes only what it is predicted to compute sooner than the processor. For plans in the host's memory.
    pub sharing: Option<Arc<Sharing>>,
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
            keep_plan: false,
            accelerator: None,
            device_budget_bytes: None,
            sharing: None,
        }
    }
}

impl RunOptions {
    /// What plans are sought with.
    pub(crate) fn compiling(&self) -> neap_compile::Options {
        let is_cpu = self.accelerator.is_none();
        neap_compile::Options {
            target: Target {
                threads: self.threads,
                isa: self.isa,
            },
            strategy: self.strategy,
            planner: self.planner,
            bands: if is_cpu { self.bands } else { BandMode::Off },
            exact: self.exact || !is_cpu,
            prepared_weights: self.prepared_weights && is_cpu,
            keep_activations: self.keep_activations,
            divide: (self.sharing.clone()).map(|sharing| sharing as Arc<dyn Divide>),
            with_scratch: (self.accelerator.clone())
                .filter(|_| !self.exact && self.sharing.is_none())
                .map(|device| Arc::new(ScratchOf(device)) as Arc<dyn WithScratch>),
        }
    }
}

/// Kernels that an accelerator wants scratch for.
#[derive(Debug)]
struct ScratchOf(Arc<dyn Accelerator>);

impl WithScratch for ScratchOf {
    fn kernels(&self, program: &Program) -> Vec<Option<ScratchKernel>> {
        self.0.with_scratch(program)
    }
}
