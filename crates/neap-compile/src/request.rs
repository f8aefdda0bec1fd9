//! What is asked of a search.

use crate::options::Options;
use crate::programs::Programs;
use crate::times::StepTimes;
use neap_planner::{PlanError, Planned, Planner, Strategy};
use neap_sim::CostProfile;

/// What to search.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub programs: &'a Programs,
    pub options: &'a Options,
    /// With the times of the plain program's steps, by direct kernels, where they were measured.
    pub costs: &'a CostProfile,
    /// What is known of single steps.
    pub times: &'a StepTimes,
    /// How [`Strategy::Search`] searches.
    pub refine: &'a dyn Refine,
}

/// Searches for a plan by [`Planner::search`] for as long as it is willing to.
pub trait Refine {
    /// # Errors
    /// As [`Planner::search`].
    fn refine(
        &self,
        planner: &Planner,
        room_bytes: u64,
        costs: &CostProfile,
    ) -> Result<Planned, PlanError>;
}

impl Request<'_> {
    pub(crate) fn strategies(&self) -> &[Strategy] {
        self.options.strategy.strategies()
    }
}
