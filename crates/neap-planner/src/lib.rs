//! Planners: static layout, preload (FlexNN), a search that starts from it, everything resident.
//!
//! All of them turn a [`Workload`] and a budget for its arena into an [`ExecutionPlan`] that
//! [`neap_plan::validate`] accepts:
//!
//! ```text
//!   Workload ──► BaseLayout (what lies still) ──► Schedule (slices, units) ──► addresses, starts ──► plan
//!                layout/                                                   preload/
//! ```
//!
//! Budgets here are arena bytes: the caller has already taken off what else the process needs.
#![forbid(unsafe_code)]

pub mod allocate;
mod assemble;
mod base_layout;
mod free_ranges;
pub mod layout;
mod options;
mod other;
mod own_memory;
mod parallel;
pub mod parts;
pub mod placement;
mod preload;
mod random;
pub mod recompute;
mod ring;
mod schedule;
mod shared;
mod spill;
mod transition;

pub use options::{Effort, PlanOptions};
pub use other::OtherStrategy;
pub use own_memory::{with_copies, with_packed_residents};
pub use parallel::{Parallel, Serial, batch};
pub use preload::{BaseLayouts, Generation, RefineOptions};
pub use random::Random;
pub use ring::{resident_ring_bytes, ring, smallest_ring_bytes};
pub use transition::transition;

use layout::Layouts;
use neap_plan::{ExecutionPlan, Workload};
use neap_sim::{CostProfile, Prediction, Simulator};
use std::cell::OnceCell;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use thiserror::Error;

/// Generations of a search of which nothing else is said.
const DEFAULT_GENERATIONS: u32 = 30;

/// How weights come into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// As early as space allows, part of them resident; everything resident when it fits.
    Preload,
    /// What a search finds that starts from preloading; [`Planner::search`] says for how long.
    Search,
    /// All of them, once.
    Resident,
    /// As somebody else's planner says.
    Other(&'static dyn OtherStrategy),
}

/// A plan and what the simulator says of it.
#[derive(Clone, Debug)]
pub struct Planned {
    pub plan: ExecutionPlan,
    pub prediction: Prediction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// No plan of this strategy fits; the smallest arena for which there is one.
    #[error("the budget is too small: at least {smallest_bytes} bytes are needed")]
    Infeasible { smallest_bytes: u64 },
}

impl Strategy {
    /// Those that are built in.
    pub const ALL: [Strategy; 3] = [Strategy::Preload, Strategy::Search, Strategy::Resident];

    pub fn name(self) -> &'static str {
        match self {
            Strategy::Preload => "preload",
            Strategy::Search => "search",
            Strategy::Resident => "resident",
            Strategy::Other(other) => other.name(),
        }
    }
}

impl std::str::FromStr for Strategy {
    type Err = String;

    /// One that is built in.
    fn from_str(name: &str) -> Result<Self, String> {
        let found = Strategy::ALL.into_iter().find(|s| s.name() == name);
        found.ok_or_else(|| {
            let names = Strategy::ALL.map(Strategy::name).join(", ");
            format!("unknown strategy {name:?}: there are {names}")
        })
    }
}

/// Plans one workload under any number of budgets; the layout work is done once.
///
/// A malformed workload ([`neap_plan::check_workload`]) is feasible in no arena: its bounds are `u64::MAX`.
pub struct Planner<'a> {
    workload: &'a Workload,
    /// `None` when the workload is malformed.
    base_layouts: Option<Rc<BaseLayouts>>,
    options: PlanOptions,
    layouts: Arc<Layouts>,
    /// Worked out when they are first asked for.
    smallest_bytes: OnceCell<u64>,
    unlimited_bytes: OnceCell<u64>,
}

impl<'a> Planner<'a> {
    pub fn new(workload: &'a Workload) -> Self {
        Self::with_options(workload, PlanOptions::default())
    }

    /// A planner that does without some of what it could do.
    pub fn with_options(workload: &'a Workload, options: PlanOptions) -> Self {
        Self::knowing(workload, options, Arc::default())
    }

    /// A planner that knows layouts from others before it, and they from it.
    pub fn knowing(workload: &'a Workload, options: PlanOptions, layouts: Arc<Layouts>) -> Self {
        let base_layouts = neap_plan::check_workload(workload)
            .is_ok()
            .then(|| Rc::new(BaseLayouts::new(workload, options, &layouts)));
        Self::on(base_layouts, workload, options, layouts)
    }

    /// A planner on the base layouts of another one, for the same workload and options but for whether to spill.
    pub fn on(
        base_layouts: Option<Rc<BaseLayouts>>,
        workload: &'a Workload,
        options: PlanOptions,
        layouts: Arc<Layouts>,
    ) -> Self {
        Self {
            workload,
            base_layouts,
            options,
            layouts,
            smallest_bytes: OnceCell::new(),
            unlimited_bytes: OnceCell::new(),
        }
    }

    /// What its plans stand on; `None` when the workload is malformed.
    pub fn base_layouts(&self) -> Option<Rc<BaseLayouts>> {
        self.base_layouts.clone()
    }

    /// The smallest arena for which a streaming plan exists: one panel per slice where need be, and
    /// activations in the spill file.
    pub fn smallest_feasible_bytes(&self) -> u64 {
        *self.smallest_bytes.get_or_init(|| self.smallest())
    }

    fn smallest(&self) -> u64 {
        let spilled = match &self.base_layouts {
            Some(_) if self.options.spill => {
                spill::smallest_bytes(self.workload, self.options, &self.layouts)
            }
            _ => u64::MAX,
        };
        spilled.min(self.smallest_without_spilling())
    }

    fn smallest_without_spilling(&self) -> u64 {
        let base_layouts = self.base_layouts.as_ref();
        let streamed = base_layouts.map_or(u64::MAX, |g| g.smallest_bytes());
        streamed.min(self.unlimited_high_water_bytes())
    }

    /// The smallest arena for which this strategy has a plan.
    pub fn smallest_bytes_of(&self, strategy: Strategy) -> u64 {
        let unlimited = self.unlimited_high_water_bytes();
        match (strategy, &self.base_layouts) {
            (Strategy::Resident, _) | (_, None) => unlimited,
            (Strategy::Preload, _) => self.smallest_feasible_bytes(),
            (Strategy::Search, _) => self.smallest_without_spilling(),
            (Strategy::Other(other), Some(base_layouts)) => {
                unlimited.min(other.smallest_bytes(self.workload, base_layouts))
            }
        }
    }

    /// The arena in which everything is resident.
    pub fn unlimited_high_water_bytes(&self) -> u64 {
        *self.unlimited_bytes.get_or_init(|| {
            let base_layouts = self.base_layouts.as_ref();
            base_layouts.map_or(u64::MAX, |g| preload::all_resident_bytes(self.workload, g))
        })
    }

    /// A plan whose arena is at most `budget_bytes`.
    ///
    /// # Errors
    /// [`PlanError::Infeasible`] names the smallest arena for which this strategy has a plan.
    pub fn plan(
        &self,
        budget_bytes: u64,
        strategy: Strategy,
        costs: &CostProfile,
    ) -> Result<Planned, PlanError> {
        let planned = self.plan_below(budget_bytes, strategy, costs, u64::MAX)?;
        // A plan of a predicted `u64::MAX` does not exist: costs are bounded.
        planned.ok_or(PlanError::Infeasible {
            smallest_bytes: u64::MAX,
        })
    }

    /// [`Planner::plan`] where a plan is at hand that takes `limit_ns`: `None` when none is found that is
    /// predicted faster, which takes less time to find out.
    ///
    /// # Errors
    /// As [`Planner::plan`].
    pub fn plan_below(
        &self,
        budget_bytes: u64,
        strategy: Strategy,
        costs: &CostProfile,
        limit_ns: u64,
    ) -> Result<Option<Planned>, PlanError> {
        let infeasible = |smallest_bytes| PlanError::Infeasible { smallest_bytes };
        let Some(base_layouts) = &self.base_layouts else {
            return Err(infeasible(u64::MAX));
        };
        let w = self.workload;
        let resident = || self.all_resident(budget_bytes, costs);
        let planned = |(plan, prediction)| Planned { plan, prediction };
        let found = match strategy {
            Strategy::Resident => resident(),
            Strategy::Other(other) => {
                (other.plan(w, base_layouts, budget_bytes, costs)).map(planned)
            }
            Strategy::Preload if budget_bytes < base_layouts.smallest_bytes() => {
                let found = resident().or_else(|| self.spilling(budget_bytes, costs, limit_ns));
                let is_feasible = || budget_bytes >= self.smallest_feasible_bytes();
                if found.is_none() && limit_ns < u64::MAX && is_feasible() {
                    return Ok(None);
                }
                found
            }
            _ if budget_bytes < base_layouts.smallest_bytes() => resident(),
            Strategy::Preload => {
                let found =
                    preload::plan(w, base_layouts, budget_bytes, costs, limit_ns).map(planned);
                if found.is_none() && limit_ns < u64::MAX {
                    return Ok(None);
                }
                found
            }
            Strategy::Search => {
                let options = RefineOptions {
                    seed: 0,
                    generations: DEFAULT_GENERATIONS,
                };
                let mut go_on = |_: &Generation| ControlFlow::Continue(());
                let parallel = &Serial;
                return self
                    .search(budget_bytes, costs, &options, parallel, &mut go_on)
                    .map(|p| (p.prediction.latency_ns < limit_ns).then_some(p));
            }
        };
        let mut planned = found.ok_or_else(|| infeasible(self.smallest_bytes_of(strategy)))?;
        planned.plan.strategy = strategy.name().to_owned();
        Ok((planned.prediction.latency_ns < limit_ns).then_some(planned))
    }

    /// With some of the activations in the spill file.
    fn spilling(&self, budget_bytes: u64, costs: &CostProfile, limit_ns: u64) -> Option<Planned> {
        let plan = || spill::plan(self.workload, self.options, budget_bytes, costs, limit_ns);
        let found = self.options.spill.then(plan).flatten();
        found.map(|(plan, prediction)| Planned { plan, prediction })
    }

    /// A plan of [`Strategy::Search`]: `progress` hears of each generation and may end the search. For a seed
    /// and a number of generations it is the same however `parallel` works; it is never predicted slower
    /// than the plan of [`Strategy::Preload`].
    ///
    /// # Errors
    /// As [`Planner::plan`].
    pub fn search(
        &self,
        budget_bytes: u64,
        costs: &CostProfile,
        options: &RefineOptions,
        parallel: &dyn Parallel,
        progress: &mut dyn FnMut(&Generation) -> ControlFlow<()>,
    ) -> Result<Planned, PlanError> {
        let infeasible = || PlanError::Infeasible {
            smallest_bytes: self.smallest_bytes_of(Strategy::Search),
        };
        let base_layouts = self.base_layouts.as_ref().ok_or_else(infeasible)?;
        let found = if budget_bytes < base_layouts.smallest_bytes() {
            self.all_resident(budget_bytes, costs)
        } else {
            let w = self.workload;
            preload::refine(
                w,
                base_layouts,
                budget_bytes,
                costs,
                options,
                parallel,
                progress,
            )
            .map(|(plan, prediction)| Planned { plan, prediction })
        };
        let mut planned = found.ok_or_else(infeasible)?;
        planned.plan.strategy = Strategy::Search.name().to_owned();
        Ok(planned)
    }

    fn all_resident(&self, budget_bytes: u64, costs: &CostProfile) -> Option<Planned> {
        let base_layouts = self.base_layouts.as_ref()?;
        let mut sim = Simulator::default();
        let all = preload::all_resident(self.workload, base_layouts, budget_bytes, costs, &mut sim);
        all.map(|(plan, prediction)| Planned { plan, prediction })
    }
}

/// See [`Planner::plan`].
///
/// # Errors
/// [`PlanError::Infeasible`] names the smallest arena for which this strategy has a plan.
pub fn plan(
    workload: &Workload,
    budget_bytes: u64,
    strategy: Strategy,
    costs: &CostProfile,
) -> Result<Planned, PlanError> {
    Planner::new(workload).plan(budget_bytes, strategy, costs)
}

/// See [`Planner::smallest_feasible_bytes`].
pub fn smallest_feasible_bytes(workload: &Workload) -> u64 {
    Planner::new(workload).smallest_feasible_bytes()
}

/// See [`Planner::unlimited_high_water_bytes`].
pub fn unlimited_high_water_bytes(workload: &Workload) -> u64 {
    Planner::new(workload).unlimited_high_water_bytes()
}
