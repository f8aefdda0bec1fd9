//! Searches programs, kernels and strategies for the plan that is predicted fastest.

use crate::attempt::{Attempt, Candidate};
use crate::costs::Costs;
use crate::error::SearchError;
use crate::kernels::Kernels;
use crate::page_tables::{tables_of, with_tables};
use crate::preparing::Preparing;
use crate::request::Request;
use crate::variants::Variants;
use neap_ir::Program;
use neap_plan::{Checked, Violation, Workload};
use neap_planner::{PlanError, PlanOptions, Planned, Strategy};
use neap_sim::{CostProfile, Prediction};
use std::cell::OnceCell;
use std::sync::Arc;

type Result<T> = std::result::Result<T, SearchError>;

/// A plan with what it is for and was made with.
pub struct Compiled {
    /// Which of the programs it is for.
    pub program: Arc<Program>,
    pub plan: Checked,
    pub prediction: Prediction,
    /// Set aside for page tables of the arena.
    pub tables_bytes: u64,
    pub costs: CostProfile,
}

/// The same before it is checked, and while it may be changed.
pub struct Draft {
    /// Which of the programs it is for.
    pub program: Arc<Program>,
    pub workload: Workload,
    pub planned: Planned,
    /// Set aside for page tables of the arena.
    pub tables_bytes: u64,
    pub costs: CostProfile,
}

impl Draft {
    /// # Errors
    /// Where the planner made a bad plan.
    pub fn check(self) -> std::result::Result<Compiled, Violation> {
        let Planned { plan, prediction } = self.planned;
        Ok(Compiled {
            program: self.program,
            plan: Checked::new(self.workload, plan)?,
            prediction,
            tables_bytes: self.tables_bytes,
            costs: self.costs,
        })
    }
}

/// Programs that may run, each with its workload, in search of the fastest plan.
pub struct Search<'a> {
    request: Request<'a>,
    programs: Vec<Variants<'a>>,
    whole_arena_bytes: OnceCell<u64>,
}

impl<'a> Search<'a> {
    /// Makes the first workload: most of what a search keeps in memory.
    pub fn new(request: Request<'a>) -> Search<'a> {
        let options = request.options;
        let kernels = Kernels::preferred(options.exact);
        let programs = request.programs.of(options.bands());
        let programs: Vec<_> = programs
            .map(|p| Variants::new(p.clone(), options))
            .collect();
        if let Some(first) = programs.first() {
            first.workload(kernels);
        }
        Search {
            programs,
            whole_arena_bytes: OnceCell::new(),
            request,
        }
    }

    /// An arena in which everything is resident, without its page tables.
    pub fn whole_arena_bytes(&self) -> u64 {
        let options = self.request.options;
        let found = || {
            let first = self.programs.first()?;
            let workload = first.workload(Kernels::preferred(options.exact));
            let in_memory = PlanOptions {
                spill: false,
                ..options.planner
            };
            let planner = first.planner(&workload, self.request.programs, in_memory);
            Some(planner.unlimited_high_water_bytes())
        };
        *self
            .whole_arena_bytes
            .get_or_init(|| found().unwrap_or(u64::MAX))
    }

    /// The best plan whose arena and page tables take at most `room_bytes`; without a limit, everything may be
    /// resident. It is not checked yet.
    ///
    /// # Errors
    /// [`SearchError::Infeasible`] names the smallest room that is enough.
    pub fn find(&self, room_bytes: Option<u64>) -> Result<Draft> {
        let options = self.request.options;
        let in_memory = PlanOptions {
            spill: false,
            ..options.planner
        };
        // Other kernels and row bands come before spilling, which moves more bytes.
        let found = self.plan_by_choice(in_memory, room_bytes);
        match found {
            Err(SearchError::Infeasible { .. }) if options.planner.spill => {
                self.plan_by_choice(options.planner, room_bytes)
            }
            found => found,
        }
    }

    /// The plan of the strategy asked for, or the best of several.
    fn plan_by_choice(&self, options: PlanOptions, room_bytes: Option<u64>) -> Result<Draft> {
        let mut best: Option<Draft> = None;
        let mut smallest: Option<u64> = None;
        for &strategy in self.request.strategies() {
            match self.plan_of(strategy, options, room_bytes) {
                Ok(plan) => {
                    let latency_ns = |draft: &Draft| draft.planned.prediction.latency_ns;
                    if best
                        .as_ref()
                        .is_none_or(|old| latency_ns(&plan) < latency_ns(old))
                    {
                        best = Some(plan);
                    }
                }
                Err(SearchError::Infeasible { smallest_bytes }) => {
                    smallest = Some(smallest.map_or(smallest_bytes, |s| s.min(smallest_bytes)));
                }
                Err(error) => return Err(error),
            }
        }
        match (best, smallest) {
            (Some(plan), _) => Ok(plan),
            (None, Some(smallest_bytes)) => Err(SearchError::Infeasible { smallest_bytes }),
            (None, None) => Err(SearchError::Defect("no strategy was tried".into())),
        }
    }

    /// The best plan of one strategy, made with these options of planners.
    fn plan_of(
        &self,
        strategy: Strategy,
        planner: PlanOptions,
        room_bytes: Option<u64>,
    ) -> Result<Draft> {
        let attempt = Attempt {
            request: &self.request,
            costs: Costs::new(&self.request),
            strategy,
            planner,
            room_bytes: room_bytes.unwrap_or_else(|| with_tables(self.whole_arena_bytes())),
            whole_arena_bytes: self.whole_arena_bytes(),
        };
        let mut best: Option<Candidate> = None;
        let mut smallest_bytes = u64::MAX;
        for variants in &self.programs {
            match attempt.plan(variants, best.as_ref()) {
                Ok(None) => {}
                Ok(faster) => best = faster,
                Err(PlanError::Infeasible {
                    smallest_bytes: bytes,
                }) => smallest_bytes = smallest_bytes.min(bytes),
            }
        }
        let best = best.ok_or(SearchError::Infeasible { smallest_bytes })?;
        Ok(self.finished(best, room_bytes))
    }

    /// With panels prepared in what the plan leaves of the room.
    fn finished(&self, best: Candidate, room_bytes: Option<u64>) -> Draft {
        let Request { options, times, .. } = self.request;
        let mut best = Draft {
            program: best.variants.program.clone(),
            workload: best.variants.take(best.workload),
            planned: best.planned,
            tables_bytes: best.tables_bytes,
            costs: best.costs,
        };
        if options.prepared_weights {
            let memory_bytes = best.planned.plan.memory_bytes();
            let used = best.tables_bytes + memory_bytes;
            let spare = room_bytes.map_or(u64::MAX / 2, |room| room.saturating_sub(used));
            let spare = spare - tables_of(spare).min(spare);
            let preparing = Preparing {
                target: options.target,
                times,
            };
            best = preparing.prepare(&best, spare).unwrap_or(best);
            best.tables_bytes += tables_of(best.planned.plan.memory_bytes() - memory_bytes);
        }
        best
    }
}
