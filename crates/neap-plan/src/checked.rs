//! Plans that were checked: the only ones that run.

use crate::{ExecutionPlan, Verdict, Violation, Workload, validate};
use std::sync::Arc;

/// A plan that [`validate`] found right for its workload. Neither can be changed, so what was checked is what runs. A copy
/// takes no memory.
#[derive(Clone, Debug)]
pub struct Checked {
    workload: Arc<Workload>,
    plan: Arc<ExecutionPlan>,
    verdict: Verdict,
}

impl Checked {
    /// # Errors
    /// The first thing found wrong.
    pub fn new(
        workload: impl Into<Arc<Workload>>,
        mut plan: ExecutionPlan,
    ) -> Result<Checked, Violation> {
        let workload = workload.into();
        let verdict = validate(&workload, &plan)?;
        // It may be kept for long.
        plan.loads.shrink_to_fit();
        plan.computes.shrink_to_fit();
        plan.resident.shrink_to_fit();
        Ok(Checked {
            workload,
            plan: Arc::new(plan),
            verdict,
        })
    }

    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    pub fn plan(&self) -> &ExecutionPlan {
        &self.plan
    }

    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Whether both plans have one workload in memory.
    pub fn shares_workload(&self, other: &Checked) -> bool {
        Arc::ptr_eq(&self.workload, &other.workload)
    }

    /// Takes the other's workload instead of its own, where they are equal.
    pub fn share_workload(&mut self, other: &Checked) {
        if self.workload == other.workload {
            self.workload = other.workload.clone();
        }
    }

    /// For whoever runs it: the lists of the plan may be taken apart. They are copied where another has this plan, too.
    pub fn into_parts(self) -> (Arc<Workload>, ExecutionPlan, Verdict) {
        (self.workload, Arc::unwrap_or_clone(self.plan), self.verdict)
    }
}
