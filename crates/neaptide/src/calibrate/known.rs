//! What is known of a machine when a plan is made, and where that came from.

use crate::options::RunOptions;
use neap_compile::{Kernels, Programs, StepTimes};
use neap_sim::CostProfile;
use serde::Serialize;

/// How costs become known when a plan is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Calibration {
    /// Built-in estimates; nothing is measured or read.
    Off,
    /// The cached profile of this machine if there is one, else an estimate that takes milliseconds.
    #[default]
    Auto,
    /// This model is measured first, within the budget, and the profile is cached.
    Full,
}

/// Where a plan's costs came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CostSource {
    /// [`crate::RunOptions::costs`].
    Given,
    #[default]
    BuiltIn,
    /// Estimated in milliseconds when the plan was made.
    Estimated,
    /// A profile that was measured before.
    Cached,
    /// A profile measured for this plan.
    Measured,
}

/// Costs of a model on this machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    /// With the times of the plain program's steps, by direct kernels, where they were measured.
    pub costs: CostProfile,
    pub times: StepTimes,
    pub source: CostSource,
    /// What the user should hear, such as that a cache file is damaged.
    pub remark: Option<String>,
}

impl Known {
    /// The same of steps of other sizes: `programs` of the model for other shapes.
    pub fn of_other_shapes(&self, programs: &Programs, options: &RunOptions) -> Known {
        let mut known = self.clone();
        known.costs.step_ns.clear();
        known.costs.least_slice_ns.clear();
        if !known.times.0.is_empty() {
            let direct = (options.compiling()).workload(&programs.plain, Kernels::Direct);
            known
                .times
                .apply(&programs.plain, &direct, &mut known.costs);
        }
        known
    }
}
