//! Searches programs, kernels and strategies for the plan that is predicted fastest.

use crate::error::SearchError;
use crate::kernels::Kernels;
use crate::options::Options;
use crate::preparing::{Planning, prepare};
use crate::programs::Programs;
use crate::times::StepTimes;
use crate::variants::Variants;
use crate::workload::highest_beside_chains;
use neap_ir::Program;
use neap_plan::{ExecutionPlan, Verdict, Workload};
use neap_planner::{PlanError, PlanOptions, Planned, Planner, Strategy};
use neap_sim::{CostProfile, Prediction};
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

type Result<T> = std::result::Result<T, SearchError>;

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
    ) -> std::result::Result<Planned, PlanError>;
}

/// A plan with what it is for and was made with.
pub struct Compiled {
    /// Which of the programs it is for.
    pub program: Arc<Program>,
    pub workload: Workload,
    pub execution: ExecutionPlan,
    pub prediction: Prediction,
    /// What the independent validator found.
    pub verdict: Verdict,
    /// Set aside for page tables of the arena.
    pub tables_bytes: u64,
    pub costs: CostProfile,
}

/// Programs that may run, each with its workload, in search of the fastest plan.
pub struct Search<'a> {
    request: Request<'a>,
    programs: Vec<Variants<'a>>,
    /// In other orders, for strategies that search.
    reordered: Vec<Variants<'a>>,
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
        let searches = request.strategies().contains(&Strategy::Search);
        let reordered = match searches {
            true => request.programs.with_more_room(options.bands()),
            false => Vec::new(),
        };
        let reordered = reordered.into_iter().map(|p| Variants::new(p, options));
        Search {
            programs,
            reordered: reordered.collect(),
            whole_arena_bytes: OnceCell::new(),
            request,
        }
    }

    /// An arena in which everything is resident, with its page tables.
    pub fn whole_bytes(&self) -> u64 {
        with_tables(self.whole_arena_bytes())
    }

    fn whole_arena_bytes(&self) -> u64 {
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
    /// resident.
    ///
    /// # Errors
    /// [`SearchError::Infeasible`] names the smallest room that is enough.
    pub fn run(&self, room_bytes: Option<u64>) -> Result<Compiled> {
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
    fn plan_by_choice(&self, options: PlanOptions, room_bytes: Option<u64>) -> Result<Compiled> {
        let mut best: Option<Compiled> = None;
        let mut smallest: Option<u64> = None;
        for &strategy in self.request.strategies() {
            match self.plan_of(strategy, options, room_bytes) {
                Ok(plan) => {
                    let is_faster =
                        |old: &Compiled| plan.prediction.latency_ns < old.prediction.latency_ns;
                    if best.as_ref().is_none_or(is_faster) {
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
        options: PlanOptions,
        room_bytes: Option<u64>,
    ) -> Result<Compiled> {
        let request = &self.request;
        let kernels = Kernels::preferred(request.options.exact);
        let plain = OnceCell::new();
        let mut smallest_bytes = u64::MAX;
        let mut best: Option<Candidate> = None;
        let whole = self.whole_arena_bytes();
        let room = room_bytes.unwrap_or_else(|| with_tables(whole));
        let attempt = Attempt {
            room,
            whole,
            request,
        };
        let reordered = match strategy {
            Strategy::Search => &self.reordered[..],
            _ => &[],
        };
        for variants in self.programs.iter().chain(reordered) {
            let program = &variants.program;
            let workload = variants.workload(kernels);
            let costs = request.costs_of(program, &workload, &plain);
            // With all weights at hand it would be no faster than what is found.
            let at_best_ns = at_best_ns(&workload, &costs);
            if best.as_ref().is_some_and(|b| latency_ns(b) <= at_best_ns) {
                continue;
            }
            let planner = variants.planner(&workload, request.programs, options);
            let smallest = planner.smallest_feasible_bytes();
            let mut limit_ns = best.as_ref().map_or(u64::MAX, latency_ns);
            let highest_bytes = highest_beside_chains(program, &workload);
            let fastest = workload.clone();
            let mut found = attempt
                .plan(planner, strategy, &costs, limit_ns)
                .map(|found| found.map(|(p, t)| (p, t, workload, costs)));
            // The workspaces of fast kernels may be what does not fit, or what leaves no room to load.
            let is_tight = found.is_err() || room < smallest.saturating_mul(2);
            let direct = is_tight.then(|| variants.workload(Kernels::Direct));
            if let Some(direct) = direct.filter(|direct| direct.digest != fastest.digest) {
                let mut tried = vec![fastest.digest.clone()];
                let planner = variants.planner(&direct, request.programs, options);
                let least = planner.smallest_feasible_bytes();
                let lower_chains = Kernels::FastestWithin(highest_bytes);
                let others = match least <= room {
                    true => &[lower_chains, Kernels::FastestWithin(least), Kernels::Direct][..],
                    // Where direct kernels do not fit, none do.
                    false => &[],
                };
                if let (Err(PlanError::Infeasible { smallest_bytes }), []) = (&mut found, others) {
                    *smallest_bytes = planner.smallest_bytes_of(strategy).min(*smallest_bytes);
                }
                for &kernels in others {
                    let workload = variants.workload(kernels);
                    if !tried.contains(&workload.digest) {
                        tried.push(workload.digest.clone());
                        let costs = request.costs_of(program, &workload, &plain);
                        let planner = variants.planner(&workload, request.programs, options);
                        if let Ok(Some((planned, ..))) = &found {
                            limit_ns = planned.prediction.latency_ns;
                        }
                        let other = attempt.plan(planner, strategy, &costs, limit_ns);
                        // `None` is not better than what there is.
                        if found.is_err() || matches!(other, Ok(Some(_))) {
                            found = other.map(|o| o.map(|(p, t)| (p, t, workload, costs)));
                        }
                    }
                    if found.is_ok() && kernels != lower_chains {
                        break;
                    }
                }
            }
            match found {
                Err(PlanError::Infeasible {
                    smallest_bytes: bytes,
                }) => smallest_bytes = smallest_bytes.min(bytes),
                Ok(Some((planned, tables_bytes, workload, costs))) => {
                    best = Some(Candidate {
                        variants,
                        workload,
                        planned,
                        costs,
                        tables_bytes,
                    });
                }
                Ok(None) => {}
            }
        }
        let Some(best) = best else {
            return Err(SearchError::Infeasible { smallest_bytes });
        };
        let Candidate {
            variants,
            workload,
            planned,
            costs,
            mut tables_bytes,
        } = best;
        let mut best = Planning {
            workload: variants.take(workload),
            planned,
            costs,
        };
        if request.options.prepared_weights {
            let arena_bytes = best.planned.plan.arena_bytes;
            let used = tables_bytes + arena_bytes;
            let spare = room_bytes.map_or(u64::MAX / 2, |room| room.saturating_sub(used));
            let spare = spare - tables_of(spare).min(spare);
            best = request.with_prepared_panels(&variants.program, best, spare);
            tables_bytes += tables_of(best.planned.plan.arena_bytes - arena_bytes);
        }
        let verdict =
            neap_plan::validate(&best.workload, &best.planned.plan).map_err(|violation| {
                SearchError::Defect(format!("the planner made a bad plan: {violation}"))
            })?;
        Ok(Compiled {
            program: variants.program.clone(),
            execution: best.planned.plan,
            prediction: best.planned.prediction,
            verdict,
            workload: best.workload,
            tables_bytes,
            costs: best.costs,
        })
    }
}

impl Request<'_> {
    /// Uses up to `spare_bytes` behind the arena where that makes the plan faster.
    fn with_prepared_panels(&self, program: &Program, old: Planning, spare_bytes: u64) -> Planning {
        let (threads, isa) = (self.options.threads, self.options.isa);
        prepare(program, threads, isa, self.times, &old, spare_bytes).unwrap_or(old)
    }

    /// What is known of the steps' times with the kernels that compute them.
    fn costs_of(
        &self,
        program: &Arc<Program>,
        workload: &Workload,
        plain: &OnceCell<Workload>,
    ) -> CostProfile {
        let direct = || self.options.workload(&self.programs.plain, Kernels::Direct);
        let options = self.options;
        let mut costs = self.programs.costs_of(
            program,
            workload,
            options.threads,
            options.isa,
            self.costs,
            self.times,
            || plain.get_or_init(direct),
        );
        self.times.apply(program, workload, &mut costs);
        costs
    }

    fn strategies(&self) -> &[Strategy] {
        self.options.strategy.strategies()
    }
}

/// What all plans of one request are made with.
struct Attempt<'a> {
    /// Bytes for the arena and its page tables.
    room: u64,
    /// An arena in which everything would be resident.
    whole: u64,
    request: &'a Request<'a>,
}

impl Attempt<'_> {
    /// A plan that is faster than `limit_ns`, and what of the room it must leave to page tables.
    fn plan(
        &self,
        planner: Planner,
        strategy: Strategy,
        costs: &CostProfile,
        limit_ns: u64,
    ) -> std::result::Result<Option<(Planned, u64)>, PlanError> {
        let tables_bytes = match strategy {
            // Nothing is resident, or everything.
            Strategy::Blocks | Strategy::Resident => 0,
            Strategy::Preload | Strategy::OnDemand | Strategy::OdSwap | Strategy::Search => {
                let spare = self.room.saturating_sub(planner.smallest_feasible_bytes());
                self.tables_with_gaps().min(spare)
            }
        };
        let room = self.room - tables_bytes;
        let planned = match strategy {
            Strategy::Search => {
                let planned = self.request.refine.refine(&planner, room, costs)?;
                (planned.prediction.latency_ns < limit_ns).then_some(planned)
            }
            _ => planner.plan_below(room, strategy, costs, limit_ns)?,
        };
        Ok(planned.map(|planned| (planned, tables_bytes)))
    }

    /// Page tables of an arena in this room whose resident weights may lie apart. Those of all weights, side by side,
    /// are enough for any part of them.
    fn tables_with_gaps(&self) -> u64 {
        let for_gaps = (self.request.options.tables_for_gaps)(self.room) * TABLE_BYTES;
        (tables_of(self.room) + for_gaps).min(tables_of(self.whole))
    }
}

struct Candidate<'a> {
    variants: &'a Variants<'a>,
    workload: Rc<Workload>,
    planned: Planned,
    costs: CostProfile,
    tables_bytes: u64,
}

const TABLE_BYTES: u64 = 4096;

/// Page tables of an arena: one for each 2 MiB, also where those are one page, which keeps a table for the
/// day on which it is split.
fn tables_of(arena_bytes: u64) -> u64 {
    const MAPPED_BY_ONE: u64 = 2 << 20;
    arena_bytes.div_ceil(MAPPED_BY_ONE) * TABLE_BYTES
}

fn with_tables(arena_bytes: u64) -> u64 {
    arena_bytes.saturating_add(tables_of(arena_bytes))
}

fn latency_ns(candidate: &Candidate) -> u64 {
    candidate.planned.prediction.latency_ns
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
