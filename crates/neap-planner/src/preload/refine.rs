//! `search`: from the best plans of the preload planner on, as long as it is let. Windows and slicings that the
//! planner does not try, and resident weights exchanged for others, each timed by the simulator.
//!
//! The order of steps and their activations stay.

use std::ops::ControlFlow;

use neap_plan::{BLOCK_BYTES, ExecutionPlan, Workload};
use neap_sim::{CostProfile, Prediction, Simulator};

use super::place::addresses;
use super::residency::{Simulated, Window};
use super::{BaseLayouts, all_resident, most_slices, slicings, windows};
use crate::assemble::assemble;
use crate::base_layout::BaseLayout;
use crate::parallel::{Parallel, batch};
use crate::random::Random;
use crate::schedule::{Schedule, Slicing};

/// How long to search, and with what luck.
#[derive(Clone, Copy, Debug)]
pub struct RefineOptions {
    pub seed: u64,
    pub generations: u32,
}

/// Times of one generation's survivors: the report on a search that goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Generation {
    pub number: u32,
    /// Candidates timed so far.
    pub timed: u64,
    /// The best found so far, whether it survived or not.
    pub best_ns: f64,
    pub mean_ns: f64,
    pub worst_ns: f64,
}

const POPULATION: usize = 12;
/// Slices so small that a plan of them takes long and gains nothing.
const SMALLEST_SLICE_BYTES: f64 = 64.0 * 1024.0;

#[derive(Clone)]
struct Individual<'a> {
    base_layout: &'a BaseLayout,
    window_bytes: u64,
    schedule: Schedule,
    offsets: Vec<u64>,
    resident: Vec<bool>,
    latency_ns: u64,
}

struct Setting<'a> {
    w: &'a Workload,
    base_layouts: &'a BaseLayouts,
    budget_bytes: u64,
    costs: &'a CostProfile,
}

impl<'a> Setting<'a> {
    fn window<'i>(&'i self, i: &'i Individual<'a>) -> Window<'i> {
        Window {
            w: self.w,
            base_layout: i.base_layout,
            schedule: &i.schedule,
            offsets: &i.offsets,
            window_bytes: i.window_bytes,
            cyclic: self.base_layouts.options.cyclic,
        }
    }

    fn simulated(&self, i: &Individual<'a>) -> Simulated {
        self.window(i)
            .simulate(&i.resident, self.costs, &mut Simulator::default())
    }

    /// Weights resident as the preload planner would have it. Slices fit a window of `cut_for_bytes`, which is no larger
    /// than the window: more of them are in it at once.
    fn filled(
        &self,
        base_layout: &'a BaseLayout,
        cut_for_bytes: u64,
        window_bytes: u64,
        slicing: Slicing,
    ) -> Option<Individual<'a>> {
        let room_bytes = self.budget_bytes.checked_sub(window_bytes)?;
        let (schedule, offsets) = place(self.w, base_layout, cut_for_bytes, window_bytes, slicing)?;
        let mut individual = Individual {
            base_layout,
            window_bytes,
            schedule,
            offsets,
            resident: Vec::new(),
            latency_ns: 0,
        };
        let mut sim = Simulator::default();
        let filled = self
            .window(&individual)
            .fill(room_bytes, self.costs, &mut sim);
        let (resident, simulated) = filled?;
        individual.resident = resident;
        individual.latency_ns = simulated.prediction.latency_ns;
        Some(individual)
    }

    /// A window and a slicing drawn at random, sizes evenly by their logarithms.
    fn drawn(&self, random: &mut Random) -> Option<Individual<'a>> {
        let base_layouts: Vec<&BaseLayout> = [&self.base_layouts.loose, &self.base_layouts.tight]
            .into_iter()
            .chain(&self.base_layouts.tables)
            .collect();
        let base_layout = base_layouts[random.below(base_layouts.len())];
        let least = self.base_layouts.smallest_bytes();
        let spare = self.budget_bytes.saturating_sub(least) as f64;
        let more = (spare + 1.0).powf(random.unit()) as u64;
        let window_bytes = least + more / 4096 * 4096;
        let cap = SMALLEST_SLICE_BYTES * 256f64.powf(random.unit());
        let slicing = Slicing {
            cap_bytes: cap as u64,
            in_gap: 1 + random.below(6) as u64,
            gather_bytes: (cap / 8.0) as u64,
        };
        self.filled(base_layout, window_bytes, window_bytes, slicing)
    }

    /// Some resident weights exchanged for others that fit.
    fn exchanged(&self, parent: &Individual<'a>, random: &mut Random) -> Individual<'a> {
        let mut child = parent.clone();
        let units = &child.schedule.units;
        if units.is_empty() {
            return child;
        }
        let used: u64 = (units.iter().zip(&child.resident))
            .filter(|(_, resident)| **resident)
            .map(|(u, _)| u.file.len())
            .sum();
        let mut room = (self.budget_bytes - child.window_bytes).saturating_sub(used);
        for _ in 0..1 + random.below(4) {
            let i = random.below(units.len());
            if child.resident[i] && !units[i].resident {
                child.resident[i] = false;
                room += units[i].file.len();
            }
        }
        for _ in 0..16 {
            let i = random.below(units.len());
            if !child.resident[i] && units[i].file.len() <= room {
                child.resident[i] = true;
                room -= units[i].file.len();
            }
        }
        // Of units that several steps share one may have left, and nothing with it.
        if child.window_bytes + resident_bytes(&child) > self.budget_bytes {
            return parent.clone();
        }
        child.latency_ns = self.simulated(&child).prediction.latency_ns;
        child
    }
}

/// What stays, each byte once.
fn resident_bytes(of: &Individual) -> u64 {
    let units = of.schedule.units.iter().zip(&of.resident);
    let files = units
        .filter(|(_, resident)| **resident)
        .map(|(u, _)| u.file);
    let mut files: Vec<(u64, u64)> = files.map(|f| (f.begin, f.begin + f.len())).collect();
    files.sort_unstable();
    let mut end = 0;
    files.into_iter().fold(0, |bytes, (begin, last)| {
        let own = last.saturating_sub(begin.max(end));
        end = end.max(last);
        bytes + own
    })
}

/// The fastest plan found within `budget_bytes`, at least as fast as every one that the preload planner
/// considers; `progress` may end the search.
pub fn refine(
    w: &Workload,
    base_layouts: &BaseLayouts,
    budget_bytes: u64,
    costs: &CostProfile,
    options: &RefineOptions,
    parallel: &dyn Parallel,
    progress: &mut dyn FnMut(&Generation) -> ControlFlow<()>,
) -> Option<(ExecutionPlan, Prediction)> {
    if let Some(all) = all_resident(
        w,
        base_layouts,
        budget_bytes,
        costs,
        &mut Simulator::default(),
    ) {
        return Some(all);
    }
    let preloaded = super::plan(w, base_layouts, budget_bytes, costs, u64::MAX);
    let setting = Setting {
        w,
        base_layouts,
        budget_bytes,
        costs,
    };
    let effort = base_layouts.options.effort;
    let all_bytes = budget_bytes / BLOCK_BYTES * BLOCK_BYTES;
    let mut starts: Vec<(&BaseLayout, u64, u64, Slicing)> = Vec::new();
    for window_bytes in windows(effort, base_layouts.smallest_bytes(), w.weight_bytes())
        .take_while(|&bytes| bytes <= budget_bytes)
    {
        for &slicing in slicings(effort) {
            let some = [&base_layouts.loose, &base_layouts.tight].into_iter();
            let all = some.clone().chain(&base_layouts.tables);
            starts.extend(all.map(|g| (g, window_bytes, window_bytes, slicing)));
            starts.extend(some.map(|g| (g, window_bytes, all_bytes, slicing)));
        }
    }
    let first = batch(parallel, starts.len(), &|i| {
        let (base_layout, cut_for_bytes, window_bytes, slicing) = starts[i];
        setting
            .filled(base_layout, cut_for_bytes, window_bytes, slicing)
            .into_iter()
            .collect()
    });
    let mut timed = first.len() as u64;
    let mut population = fittest(first);
    let mut number = 0;
    while let (Some(best), Some(worst)) = (population.first(), population.last()) {
        let mean = population.iter().map(|i| i.latency_ns as f64).sum::<f64>();
        let report = Generation {
            number,
            timed,
            best_ns: best.latency_ns as f64,
            mean_ns: mean / population.len() as f64,
            worst_ns: worst.latency_ns as f64,
        };
        if progress(&report).is_break() || number >= options.generations {
            break;
        }
        number += 1;
        let children = batch(parallel, 2 * POPULATION, &|i| {
            let mut random = Random::new(options.seed, number, i as u32);
            if random.chance(0.3) {
                return setting.drawn(&mut random).into_iter().collect();
            }
            // The better of two.
            let n = population.len();
            let parent = &population[random.below(n).min(random.below(n))];
            vec![setting.exchanged(parent, &mut random)]
        });
        timed += children.len() as u64;
        population.extend(children);
        population = fittest(population);
    }
    let found = population.first().map(|best| {
        let simulated = setting.simulated(best);
        let plan = assemble("search", &setting.window(best), &best.resident, &simulated);
        (plan, simulated.prediction)
    });
    let both = found.into_iter().chain(preloaded);
    both.min_by_key(|(_, prediction)| prediction.latency_ns)
}

/// A schedule with addresses; weights of small steps gathered where that can be placed.
fn place(
    w: &Workload,
    base_layout: &BaseLayout,
    cut_for_bytes: u64,
    window_bytes: u64,
    slicing: Slicing,
) -> Option<(Schedule, Vec<u64>)> {
    if base_layout.needed_bytes > cut_for_bytes {
        return None;
    }
    let apart = Slicing {
        gather_bytes: 0,
        ..slicing
    };
    [slicing, apart].into_iter().find_map(|slicing| {
        let schedule = Schedule::new(w, base_layout, cut_for_bytes, slicing, most_slices(w))?;
        let offsets = addresses(&schedule, base_layout, window_bytes)?;
        Some((schedule, offsets))
    })
}

/// The fastest, one for each time.
fn fittest(mut population: Vec<Individual>) -> Vec<Individual> {
    population.sort_by_key(|i| i.latency_ns);
    population.dedup_by_key(|i| i.latency_ns);
    population.truncate(POPULATION);
    population
}
