//! From programs, a budget and what the process takes without its arena to a plan.

use crate::budget::Budget;
use crate::calibrate::Known;
use crate::error::{Error, Result};
use crate::kernels::Kernels;
use crate::memory;
use crate::preparing::{Planning, prepare};
use crate::programs::Programs;
use crate::session::{Plan, RunOptions};
use crate::strategy::SearchEffort;
use crate::variants::Variants;
use crate::workload::highest_beside_chains;
use neap_ir::Program;
use neap_plan::Workload;
use neap_planner::{PlanError, PlanOptions, Planned, Planner, Strategy};
use neap_sim::CostProfile;
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// Added to the smallest feasible budget when it is named, so that a later process whose pages fall
/// a little differently still fits.
const NAMED_SLACK_BYTES: u64 = 512 * 1024;

/// What to plan for; the budget of `options` is not looked at.
pub(crate) struct Request<'a> {
    pub programs: &'a Programs,
    pub budget: Budget,
    pub options: &'a RunOptions,
    pub known: &'a Known,
}

impl Request<'_> {
    /// Uses up to `spare_bytes` behind the arena where that makes the plan faster.
    fn with_prepared_panels(&self, program: &Program, old: Planning, spare_bytes: u64) -> Planning {
        let (threads, times) = (self.options.threads, &self.known.times);
        prepare(program, threads, times, &old, spare_bytes).unwrap_or(old)
    }

    /// What is known of the steps' times with the kernels that compute them.
    fn costs(
        &self,
        program: &Arc<Program>,
        workload: &Workload,
        plain: &OnceCell<Workload>,
    ) -> CostProfile {
        let direct = || self.options.workload(&self.programs.plain, Kernels::Direct);
        let (known, threads) = (self.known, self.options.threads);
        let mut costs = self.programs.costs_of(
            program,
            workload,
            threads,
            &known.costs,
            &known.times,
            || plain.get_or_init(direct),
        );
        self.known.times.apply(program, workload, &mut costs);
        costs
    }

    /// `base_bytes` counts the process without its arena, once the first workload is in memory.
    pub(crate) fn plan(&self, started: Instant, base_bytes: impl FnOnce() -> u64) -> Result<Plan> {
        let kernels = Kernels::preferred(self.options.exact);
        let programs = self.programs.of(self.options.bands());
        let programs: Vec<_> = programs.map(|p| Variants::new(p, self.options)).collect();
        if let Some(first) = programs.first() {
            first.workload(kernels);
        }
        let searches = self.strategies().contains(&Strategy::Search);
        let reordered = match searches {
            true => self.programs.with_more_room(self.options.bands()),
            false => Vec::new(),
        };
        let reordered = reordered.iter().map(|p| Variants::new(p, self.options));
        let reordered: Vec<_> = reordered.collect();
        memory::trim_heap();
        let base = base_bytes();
        let in_memory = PlanOptions {
            spill: false,
            ..self.options.planner
        };
        // Other kernels and row bands come before spilling, which moves more bytes.
        let mut found = self.plan_by_choice(in_memory, base, &programs, &reordered);
        if self.options.planner.spill && matches!(found, Err(Error::Infeasible { .. })) {
            found = self.plan_by_choice(self.options.planner, base, &programs, &reordered);
        }
        let mut plan = found?;
        plan.planning_ns = started.elapsed().as_nanos() as u64;
        Ok(plan)
    }

    fn strategies(&self) -> &[Strategy] {
        self.options.strategy.strategies()
    }

    /// The plan of the strategy asked for, or the best of several; programs in other orders are for those that search.
    fn plan_by_choice(
        &self,
        options: PlanOptions,
        base: u64,
        programs: &[Variants],
        reordered: &[Variants],
    ) -> Result<Plan> {
        let mut best: Option<Plan> = None;
        let mut infeasible: Option<Error> = None;
        for &strategy in self.strategies() {
            let reordered = match strategy {
                Strategy::Search => reordered,
                _ => &[],
            };
            match self.plan_of(strategy, options, base, (programs, reordered)) {
                Ok(plan) => {
                    let is_faster =
                        |old: &Plan| plan.prediction.latency_ns < old.prediction.latency_ns;
                    if best.as_ref().is_none_or(is_faster) {
                        best = Some(plan);
                    }
                }
                Err(error @ Error::Infeasible { .. }) => infeasible = smaller(infeasible, error),
                Err(error) => return Err(error),
            }
        }
        match (best, infeasible) {
            (Some(plan), _) => Ok(plan),
            (None, Some(error)) => Err(error),
            (None, None) => Err(Error::Defect("no strategy was tried".into())),
        }
    }

    /// The best plan of one strategy, made with these options of planners.
    fn plan_of(
        &self,
        strategy: Strategy,
        options: PlanOptions,
        base: u64,
        (programs, reordered): (&[Variants], &[Variants]),
    ) -> Result<Plan> {
        let kernels = Kernels::preferred(self.options.exact);
        let plain = OnceCell::new();
        let mut whole_bytes = None;
        let mut smallest_bytes = u64::MAX;
        let mut best: Option<Candidate> = None;
        let mut budget_bytes = None;
        for variants in programs.iter().chain(reordered) {
            let program = variants.program;
            let workload = variants.workload(kernels);
            let costs = self.costs(program, &workload, &plain);
            // With all weights at hand it would be no faster than what is found.
            let at_best_ns = at_best_ns(&workload, &costs);
            if best.as_ref().is_some_and(|b| latency_ns(b) <= at_best_ns) {
                continue;
            }
            let planner = variants.planner(&workload, self.programs, options);
            let whole = *whole_bytes.get_or_insert_with(|| planner.unlimited_high_water_bytes());
            budget_bytes = match self.budget {
                Budget::Unlimited => None,
                Budget::Bytes(bytes) => Some(bytes),
                Budget::Percent(percent) => {
                    let all = base.saturating_add(with_tables(whole));
                    Some((all as f64 * percent / 100.0) as u64)
                }
            };
            let room = budget_bytes.map_or(with_tables(whole), |b| b.saturating_sub(base));
            let attempt = Attempt {
                room,
                whole,
                search: self.options.search,
            };
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
                let planner = variants.planner(&direct, self.programs, options);
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
                        let costs = self.costs(program, &workload, &plain);
                        let planner = variants.planner(&workload, self.programs, options);
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
            return Err(Error::Infeasible {
                budget_bytes: budget_bytes.unwrap_or(u64::MAX),
                smallest_bytes: named(base.saturating_add(smallest_bytes)),
            });
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
        if self.options.prepared_weights {
            let arena_bytes = best.planned.plan.arena_bytes;
            let used = base + tables_bytes + arena_bytes;
            let spare = budget_bytes.map_or(u64::MAX / 2, |b| b.saturating_sub(used));
            let spare = spare - tables_of(spare).min(spare);
            best = self.with_prepared_panels(variants.program, best, spare);
            tables_bytes += tables_of(best.planned.plan.arena_bytes - arena_bytes);
        }
        let verdict =
            neap_plan::validate(&best.workload, &best.planned.plan).map_err(|violation| {
                Error::Defect(format!("the planner made a bad plan: {violation}"))
            })?;
        Ok(Plan {
            program: variants.program.clone(),
            execution: best.planned.plan,
            prediction: best.planned.prediction,
            verdict,
            workload: best.workload,
            budget_bytes,
            base_overhead_bytes: base + tables_bytes,
            tables_bytes,
            costs: best.costs,
            known: self.known.clone(),
            planning_ns: 0,
        })
    }
}

/// What all plans of one request are made with.
struct Attempt {
    /// Bytes for the arena and its page tables.
    room: u64,
    /// An arena in which everything would be resident.
    whole: u64,
    search: SearchEffort,
}

impl Attempt {
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
                tables_with_gaps(self.room, self.whole).min(spare)
            }
        };
        let room = self.room - tables_bytes;
        let planned = match strategy {
            Strategy::Search => {
                let planned = self.search.run(&planner, room, costs)?;
                (planned.prediction.latency_ns < limit_ns).then_some(planned)
            }
            _ => planner.plan_below(room, strategy, costs, limit_ns)?,
        };
        Ok(planned.map(|planned| (planned, tables_bytes)))
    }
}

/// Of two budgets that are too small, the one that names the smaller.
fn smaller(old: Option<Error>, new: Error) -> Option<Error> {
    let named = |e: &Error| match e {
        Error::Infeasible { smallest_bytes, .. } => *smallest_bytes,
        _ => u64::MAX,
    };
    match old {
        Some(old) if named(&old) <= named(&new) => Some(old),
        _ => Some(new),
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

/// Page tables of an arena of `room` bytes whose resident weights may lie apart. Those of all weights, side by side, are
/// enough for any part of them.
fn tables_with_gaps(room: u64, whole: u64) -> u64 {
    let for_gaps = neap_runtime::tables_for_gaps(room) * TABLE_BYTES;
    (tables_of(room) + for_gaps).min(tables_of(whole))
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

/// What opening and packing any model takes before a plan is made.
const LEAST_PROCESS_BYTES: u64 = 6 << 20;

/// A feasible size as it is told to people: with slack, in whole 64 KiB.
pub(crate) fn named(bytes: u64) -> u64 {
    (bytes + NAMED_SLACK_BYTES)
        .max(LEAST_PROCESS_BYTES)
        .next_multiple_of(64 * 1024)
}
