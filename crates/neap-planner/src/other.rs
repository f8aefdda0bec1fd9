//! Planners from elsewhere, such as those of papers that are only compared with.

use crate::preload::BaseLayouts;
use neap_plan::{ExecutionPlan, Workload};
use neap_sim::{CostProfile, Prediction};
use std::fmt;
use std::hash::{Hash, Hasher};

/// A strategy that is not built in. It makes its plans of [`parts`](crate::parts), keeps no weights in memory, and is told by
/// its name from others.
pub trait OtherStrategy: Sync {
    fn name(&self) -> &'static str;

    /// The smallest arena for which it has a plan, but for one that keeps all weights.
    fn smallest_bytes(&self, w: &Workload, base_layouts: &BaseLayouts) -> u64;

    /// A plan whose arena is at most `budget_bytes`; `None` when there is none.
    fn plan(
        &self,
        w: &Workload,
        base_layouts: &BaseLayouts,
        budget_bytes: u64,
        costs: &CostProfile,
    ) -> Option<(ExecutionPlan, Prediction)>;
}

impl fmt::Debug for dyn OtherStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl PartialEq for dyn OtherStrategy {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn OtherStrategy {}

impl Hash for dyn OtherStrategy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}
