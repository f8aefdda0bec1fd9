//! Planners of steps of training from elsewhere, such as those of papers that are only compared with.

use neap_ir::Program;
use neap_plan::Workload;
use neap_planner::Planned;
use neap_sim::CostProfile;
use std::fmt;
use std::hash::{Hash, Hasher};

/// A step, and the memory that there is for it.
pub struct StepToPlan<'a> {
    pub program: &'a Program,
    pub workload: &'a Workload,
    /// For the arena.
    pub room_bytes: u64,
    pub costs: &'a CostProfile,
    /// What the steps of another program of the same step of training need.
    pub workload_of: &'a dyn Fn(&Program) -> Workload,
}

/// A program of the step, which may have its operators in another order, and a plan of it.
pub struct PlannedStep {
    pub program: Program,
    pub workload: Workload,
    pub planned: Planned,
}

/// A strategy that is not built in; it is told by its name from others.
pub trait OtherTrainStrategy: Sync {
    fn name(&self) -> &'static str;

    /// Heap that planning takes for a program of so many operators.
    fn heap_bytes(&self, operators: usize) -> u64;

    /// A plan, or the smallest arena in which there is one.
    ///
    /// # Errors
    /// What went wrong, if the planner itself is at fault.
    fn plan(&self, step: &StepToPlan) -> Result<Result<PlannedStep, u64>, String>;
}

impl fmt::Debug for dyn OtherTrainStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl PartialEq for dyn OtherTrainStrategy {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn OtherTrainStrategy {}

impl Hash for dyn OtherTrainStrategy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}
