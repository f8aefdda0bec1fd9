//! One strategy within one room: the kernels of each program that give the fastest plan.
//!
//! ```text
//!   fastest kernels ─► fits, with room to load ─────────────────────────────► plan
//!                   └► tight ─► lower row bands ─► smaller workspaces ─► direct ─► the fastest of what fits
//! ```

use crate::costs::Costs;
use crate::kernels::Kernels;
use crate::page_tables::{TABLE_BYTES, tables_of};
use crate::request::Request;
use crate::variants::Variants;
use crate::workload::highest_beside_chains;
use neap_plan::Workload;
use neap_planner::{PlanError, PlanOptions, Planned, Planner, Strategy};
use neap_sim::CostProfile;
use std::rc::Rc;

/// What all plans of one strategy share.
pub(crate) struct Attempt<'a> {
    pub request: &'a Request<'a>,
    pub costs: Costs<'a>,
    pub strategy: Strategy,
    pub planner: PlanOptions,
    /// For the arena and its page tables.
    pub room_bytes: u64,
    /// An arena in which everything would be resident.
    pub whole_arena_bytes: u64,
}

/// A plan of one program with one choice of kernels.
pub(crate) struct Candidate<'a> {
    pub variants: &'a Variants<'a>,
    pub workload: Rc<Workload>,
    pub planned: Planned,
    pub costs: CostProfile,
    /// Left to page tables.
    pub tables_bytes: u64,
}

/// `None`: there are plans, none of them fast enough.
type Found<'a> = Result<Option<Candidate<'a>>, PlanError>;

impl Candidate<'_> {
    pub fn latency_ns(&self) -> u64 {
        self.planned.prediction.latency_ns
    }
}

impl<'a> Attempt<'a> {
    /// The fastest plan of a program, where it is faster than `best`.
    pub fn plan(&self, variants: &'a Variants<'a>, best: Option<&Candidate>) -> Found<'a> {
        let fastest = variants.workload(Kernels::preferred(self.request.options.exact));
        let costs = self.costs.of(&variants.program, &fastest);
        // With all weights at hand it would be no faster than what is found.
        let at_best_ns = at_best_ns(&fastest, &costs);
        if best.is_some_and(|best| best.latency_ns() <= at_best_ns) {
            return Ok(None);
        }
        let limit_ns = best.map_or(u64::MAX, Candidate::latency_ns);
        let planner = self.planner(variants, &fastest);
        let smallest_bytes = planner.smallest_feasible_bytes();
        let found = self.plan_with(planner, variants, &fastest, costs, limit_ns);
        // The workspaces of fast kernels may be what does not fit, or what leaves no room to load.
        let is_tight = found.is_err() || self.room_bytes < smallest_bytes.saturating_mul(2);
        match is_tight {
            true => self.plan_in_less_memory(variants, &fastest, found, limit_ns),
            false => found,
        }
    }

    /// What is found with kernels that need less memory than the fastest, where that is better than what there is.
    fn plan_in_less_memory(
        &self,
        variants: &'a Variants<'a>,
        fastest: &Workload,
        mut found: Found<'a>,
        limit_ns: u64,
    ) -> Found<'a> {
        let direct = variants.workload(Kernels::Direct);
        if direct.digest == fastest.digest {
            return found;
        }
        let planner = self.planner(variants, &direct);
        let least_bytes = planner.smallest_feasible_bytes();
        if least_bytes > self.room_bytes {
            // Where direct kernels do not fit, none do.
            return found.map_err(|PlanError::Infeasible { smallest_bytes }| {
                let of_direct = planner.smallest_bytes_of(self.strategy);
                let smallest_bytes = smallest_bytes.min(of_direct);
                PlanError::Infeasible { smallest_bytes }
            });
        }
        let highest_bytes = highest_beside_chains(&variants.program, fastest);
        let lower_chains = Kernels::FastestWithin(highest_bytes);
        let smallest = Kernels::FastestWithin(least_bytes);
        let mut tried = vec![fastest.digest.clone()];
        for kernels in [lower_chains, smallest, Kernels::Direct] {
            let workload = variants.workload(kernels);
            if !tried.contains(&workload.digest) {
                tried.push(workload.digest.clone());
                let limit_ns = match &found {
                    Ok(Some(candidate)) => candidate.latency_ns(),
                    _ => limit_ns,
                };
                let costs = self.costs.of(&variants.program, &workload);
                let planner = self.planner(variants, &workload);
                let other = self.plan_with(planner, variants, &workload, costs, limit_ns);
                // `None` is not better than what there is.
                if found.is_err() || matches!(other, Ok(Some(_))) {
                    found = other;
                }
            }
            if found.is_ok() && kernels != lower_chains {
                break;
            }
        }
        found
    }

    fn planner<'w>(&self, variants: &Variants, workload: &'w Rc<Workload>) -> Planner<'w> {
        variants.planner(workload, self.request.programs, self.planner)
    }

    /// A plan that is faster than `limit_ns`.
    fn plan_with(
        &self,
        planner: Planner,
        variants: &'a Variants<'a>,
        workload: &Rc<Workload>,
        costs: CostProfile,
        limit_ns: u64,
    ) -> Found<'a> {
        let tables_bytes = self.tables_bytes(&planner);
        let arena_bytes = self.room_bytes - tables_bytes;
        let planned = match self.strategy {
            Strategy::Search => {
                let refine = self.request.refine;
                let planned = refine.refine(&planner, arena_bytes, &costs)?;
                (planned.prediction.latency_ns < limit_ns).then_some(planned)
            }
            strategy => planner.plan_below(arena_bytes, strategy, &costs, limit_ns)?,
        };
        Ok(planned.map(|planned| Candidate {
            variants,
            workload: workload.clone(),
            planned,
            costs,
            tables_bytes,
        }))
    }

    /// What of the room is left to page tables.
    fn tables_bytes(&self, planner: &Planner) -> u64 {
        match self.strategy {
            // Nothing is resident, or everything.
            Strategy::Resident | Strategy::Other(_) => 0,
            Strategy::Preload | Strategy::Search => {
                let room_bytes = self.room_bytes;
                let for_gaps = neap_planner::placement::tables_for_gaps(room_bytes) * TABLE_BYTES;
                // Those of all weights, side by side, are enough for any part of them.
                let enough = tables_of(self.whole_arena_bytes);
                let spare_bytes = room_bytes.saturating_sub(planner.smallest_feasible_bytes());
                (tables_of(room_bytes) + for_gaps)
                    .min(enough)
                    .min(spare_bytes)
            }
        }
    }
}

/// What the steps take when nothing is waited for.
fn at_best_ns(workload: &Workload, costs: &CostProfile) -> u64 {
    let steps = workload.steps.iter().enumerate();
    steps
        .map(|(index, step)| {
            costs
                .step_ns(index, step)
                .saturating_add(costs.compute_overhead_ns)
        })
        .fold(0, u64::saturating_add)
}
