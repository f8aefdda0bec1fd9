//! What plans are sought with.

use crate::kernels::Kernels;
use crate::programs::{BandMode, is_in_strips};
use crate::split::Divide;
use crate::target::Target;
use crate::workload::{give_scratch, keep_activations, leave, leave_results, workload};
use neap_ir::Program;
use neap_ops::ScratchKernel;
use neap_plan::Workload;
use neap_planner::{PlanOptions, Strategy};
use std::sync::Arc;

/// The strategy of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrategyChoice {
    Only(Strategy),
    /// Whichever is predicted fastest.
    Auto,
}

/// All that [`StrategyChoice::Auto`] tries. What is everything resident, each of them finds where it fits.
const AUTO: [Strategy; 2] = [Strategy::Preload, Strategy::Search];

impl StrategyChoice {
    /// The strategies to plan with.
    pub(crate) fn strategies(&self) -> &[Strategy] {
        match self {
            StrategyChoice::Auto => &AUTO,
            StrategyChoice::Only(strategy) => std::slice::from_ref(strategy),
        }
    }
}

impl From<Strategy> for StrategyChoice {
    fn from(strategy: Strategy) -> Self {
        Self::Only(strategy)
    }
}

/// What a model is compiled for, except for the memory that it may take.
#[derive(Debug, Clone)]
pub struct Options {
    pub target: Target,
    pub strategy: StrategyChoice,
    /// What the planner may do; anything but the default is for comparison.
    pub planner: PlanOptions,
    pub bands: BandMode,
    /// The same kernels under every budget.
    pub exact: bool,
    /// Panels are also kept in the form that kernels take, where memory is left over.
    pub prepared_weights: bool,
    /// All activations live to the end of the run and are kept. There are no row bands then, as those never make
    /// whole activations.
    pub keep_activations: bool,
    /// Which steps a device leaves to the processor; without, those that it cannot compute. Goes with `exact`.
    pub divide: Option<Arc<dyn Divide>>,
    /// Kernels of a device that take scratch. Goes with `exact`, as they are the same under every budget.
    pub with_scratch: Option<Arc<dyn WithScratch>>,
}

/// Kernels of a device that take scratch.
pub trait WithScratch: std::fmt::Debug + Send + Sync {
    /// By step; `None`, or nothing, for those that have none.
    fn kernels(&self, program: &Program) -> Vec<Option<ScratchKernel>>;
}

impl Options {
    /// What must be planned of a program.
    pub fn workload(&self, program: &Program, kernels: Kernels) -> Workload {
        let mut workload = workload(program, self.target, kernels);
        if let Some(divide) = &self.divide {
            let left = divide.divide(program, &workload).left;
            leave(&mut workload, program, &left);
        }
        if let Some(device) = &self.with_scratch {
            give_scratch(&mut workload, program, &device.kernels(program));
        }
        if self.keep_activations {
            keep_activations(&mut workload, program);
        } else if self.is_on_processor() && is_in_strips(program) {
            leave_results(&mut workload, program);
        }
        workload
    }

    /// Whether all steps are computed where the caller's memory is.
    pub(crate) fn is_on_processor(&self) -> bool {
        self.divide.is_none() && self.with_scratch.is_none()
    }

    pub fn bands(&self) -> BandMode {
        if self.keep_activations {
            BandMode::Off
        } else {
            self.bands
        }
    }
}
