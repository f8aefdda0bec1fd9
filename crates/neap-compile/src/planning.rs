//! Searches programs, kernels and strategies for the plan that is predicted fastest.

use crate::attempt::{Attempt, Candidate};
use crate::costs::Costs;
use crate::error::SearchError;
use crate::kernels::Kernels;
use crate::options::Options;
use crate::page_tables::{tables_of, with_tables};
use crate::preparing::Preparing;
use crate::programs::Programs;
use crate::request::Request;
use crate::strips;
use crate::variants::Variants;
use neap_ir::Program;
use neap_plan::{Checked, Violation, Workload};
use neap_planner::{PlanError, PlanOptions, Planned, Planner, Strategy};
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
    /// Set aside for the program and its plan, where it is none of those of the request.
    pub heap_bytes: u64,
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
    /// Set aside for the program and its plan, where it is none of those of the request.
    pub heap_bytes: u64,
    pub costs: CostProfile,
}

impl Draft {
    pub fn latency_ns(&self) -> u64 {
        self.planned.prediction.latency_ns
    }

    /// # Errors
    /// Where the planner made a bad plan.
    pub fn check(self) -> std::result::Result<Compiled, Violation> {
        let Planned { plan, prediction } = self.planned;
        Ok(Compiled {
            program: self.program,
            plan: Checked::new(self.workload, plan)?,
            prediction,
            tables_bytes: self.tables_bytes,
            heap_bytes: self.heap_bytes,
            costs: self.costs,
        })
    }
}

/// The smallest room that any of these programs has a plan for, without its page tables.
pub fn smallest_bytes(programs: &Programs, options: &Options) -> u64 {
    let whole = programs.of(options.bands()).map(|program| {
        let workload = options.workload(program, Kernels::Direct);
        let planner = programs.planner(&workload, options.planner);
        planner.smallest_feasible_bytes()
    });
    let smallest = whole.min().unwrap_or(u64::MAX);
    if !strips::are_allowed(options) {
        return smallest;
    }
    let in_strips = strips::programs(&programs.plain, smallest);
    in_strips.fold(smallest, |smallest, program| {
        let workload = options.workload(&program, Kernels::Direct);
        let arena_bytes =
            Planner::with_options(&workload, options.planner).smallest_feasible_bytes();
        smallest.min(strips::heap_bytes(&program).with(arena_bytes))
    })
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

    /// The smallest room that there is a plan for, without its page tables.
    pub fn smallest_bytes(&self) -> u64 {
        smallest_bytes(self.request.programs, self.request.options)
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
        // Other kernels and row bands come before spilling, which moves more bytes, and before strips, which are many steps.
        let found = self.plan_by_choice(&self.programs, in_memory, room_bytes);
        let found = match found {
            Err(SearchError::Infeasible { .. }) if options.planner.spill => {
                self.plan_by_choice(&self.programs, options.planner, room_bytes)
            }
            Err(error) => Err(error),
            Ok(found) => return Ok(found),
        };
        match strips::are_allowed(options) {
            true => self.find_in_strips(found, room_bytes),
            false => found,
        }
    }

    /// The best plan of a program in strips, where it is better than what is found without.
    fn find_in_strips(&self, mut best: Result<Draft>, room_bytes: Option<u64>) -> Result<Draft> {
        let options = self.request.options;
        // Where nothing fits, no more memory is taken to find out how much would do.
        let most_bytes = match (room_bytes, &best) {
            (Some(bytes), _) => bytes,
            (None, Err(SearchError::Infeasible { smallest_bytes })) => *smallest_bytes,
            (None, _) => return best,
        };
        let mut slower = 0;
        for program in strips::programs(&self.request.programs.plain, most_bytes) {
            let heap_bytes = strips::heap_bytes(&program);
            let room_bytes = room_bytes.map(|bytes| bytes.saturating_sub(heap_bytes.kept));
            let program = [Variants::new(Arc::new(program), options)];
            let found = self.plan_by_choice(&program, options.planner, room_bytes);
            best = match (best, found) {
                (Ok(best), Ok(found)) if found.latency_ns() >= best.latency_ns() => {
                    slower += 1;
                    // Lower strips are more steps.
                    if slower == 2 {
                        return Ok(best);
                    }
                    Ok(best)
                }
                (_, Ok(found)) => Ok(Draft {
                    heap_bytes: heap_bytes.kept,
                    ..found
                }),
                (
                    Err(SearchError::Infeasible { smallest_bytes: a }),
                    Err(SearchError::Infeasible { smallest_bytes: b }),
                ) => {
                    let smallest_bytes = a.min(heap_bytes.with(b));
                    Err(SearchError::Infeasible { smallest_bytes })
                }
                (Ok(best), Err(SearchError::Infeasible { .. })) => Ok(best),
                (Err(error @ SearchError::Defect(_)), _) | (_, Err(error)) => return Err(error),
            };
        }
        best
    }

    /// The plan of the strategy asked for, or the best of several.
    fn plan_by_choice(
        &self,
        programs: &[Variants],
        options: PlanOptions,
        room_bytes: Option<u64>,
    ) -> Result<Draft> {
        let mut best: Option<Draft> = None;
        let mut smallest: Option<u64> = None;
        for &strategy in self.request.strategies() {
            match self.plan_of(programs, strategy, options, room_bytes) {
                Ok(plan) => {
                    if best
                        .as_ref()
                        .is_none_or(|old| plan.latency_ns() < old.latency_ns())
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
        programs: &[Variants],
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
        for variants in programs {
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
            heap_bytes: 0,
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
