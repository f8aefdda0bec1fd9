//! SwapAdvisor's genomes as plans that run: the swap planner decides which weights stay and where the others
//! come, around the activations of a ground.
//!
//! ```text
//!   Schedule, Ground ──► SliceFlow ──► SwapPlanner ─┬─► what stays from run to run: resident
//!                            ▲                      └─► where each other unit lies ──► Window ──► plan
//!                         genome: schedule, biases, rules         │
//!                            └──────────── simulated ◄────────────┘
//! ```
//!
//! A genome's swaps are planned twice. First in all of memory, from run to run as the paper does it (Section 4.2):
//! the parameters that are there at the beginning and at the end of a run are those that stay. They move
//! to the top, and two runs are planned below them, in which nothing else stays for good; the second one shows
//! where each unit comes when the run before is known. Only weights leave, so that nothing is ever stored.
//!
//! Steps keep the order of their workload: live ranges, aliasing and what is computed in place were decided for it.
//! Another order is another workload (the paper's other half of a genome is in [`crate::search`]).

mod flow;
#[cfg(test)]
mod tests;

use neap_plan::{BLOCK_BYTES, ExecutionPlan, Workload};
use neap_sim::{CostProfile, Prediction, Simulator};

use crate::assemble::assemble;
use crate::ground::Ground;
use crate::preload::residency::{Played, Window};
use crate::preload::{Grounds, most_slices, slicings, windows};
use crate::schedule::Schedule;
use crate::search::{
    Device, Kept, OpId, Parallel, PlaceRules, Random, Rules, Side, Stay, SwapPlanner, SwapTask,
    batch,
};
use flow::SliceFlow;

const POPULATION: usize = 8;
/// Schedules that genomes choose from.
const MOST_BASES: usize = 12;
/// Above these, a genome takes too long.
const MOST_UNITS: usize = 4000;

/// What a genome's schedule is: a ground, and how finely the steps are cut.
struct Base<'a> {
    ground: &'a Ground,
    /// What lies beside the resident weights has so much, at least.
    window_bytes: u64,
    schedule: Schedule,
    once: SliceFlow,
    twice: SliceFlow,
}

#[derive(Clone)]
struct Genome {
    base: usize,
    /// By unit, added to its next use when it is chosen who leaves.
    bias: Vec<i32>,
    recency: f64,
    places: PlaceRules,
    latency_ns: u64,
}

/// What a genome comes to.
struct Placed {
    resident: Vec<bool>,
    offsets: Vec<u64>,
    window_bytes: u64,
    played: Played,
}

/// A search over genomes, a generation at a time.
pub struct Swapped<'a> {
    w: &'a Workload,
    grounds: &'a Grounds,
    costs: &'a CostProfile,
    device: Device,
    arena_bytes: u64,
    seed: u64,
    bases: Vec<Base<'a>>,
    population: Vec<Genome>,
}

impl<'a> Swapped<'a> {
    /// For an arena of `budget_bytes`, which is at least the grounds' smallest.
    pub fn new(
        w: &'a Workload,
        grounds: &'a Grounds,
        budget_bytes: u64,
        costs: &'a CostProfile,
        seed: u64,
    ) -> Self {
        let one_way = costs.storage_bytes_per_second;
        let mut out = Self {
            w,
            grounds,
            costs,
            device: Device {
                one_way_bytes_per_second: one_way,
                both_ways_bytes_per_second: one_way,
                transfer_latency_ns: costs.request_latency_ns,
            },
            arena_bytes: budget_bytes / BLOCK_BYTES * BLOCK_BYTES,
            seed,
            bases: Vec::new(),
            population: Vec::new(),
        };
        let effort = grounds.options.effort;
        let sizes = windows(effort, grounds.smallest_bytes(), w.weight_bytes());
        for window_bytes in sizes.take_while(|&bytes| bytes <= out.arena_bytes) {
            for &slicing in slicings(effort) {
                for ground in [&grounds.loose, &grounds.tight] {
                    let known = |b: &Base| std::ptr::eq(b.ground, ground);
                    let base = Schedule::new(w, ground, window_bytes, slicing, most_slices(w))
                        .filter(|_| ground.needed_bytes <= window_bytes)
                        .filter(|s| s.units.len() <= MOST_UNITS);
                    let Some(schedule) = base else { continue };
                    let is_new =
                        |b: &Base| !known(b) || b.schedule.slices.len() != schedule.slices.len();
                    if out.bases.len() < MOST_BASES && out.bases.iter().all(is_new) {
                        out.bases.extend(out.base(ground, window_bytes, schedule));
                    }
                }
            }
        }
        out
    }

    fn base(&self, ground: &'a Ground, window_bytes: u64, schedule: Schedule) -> Option<Base<'a>> {
        let flow = |laps| {
            SliceFlow::new(
                self.w,
                ground,
                &schedule,
                self.costs,
                self.arena_bytes,
                laps,
            )
        };
        Some(Base {
            once: flow(1)?,
            twice: flow(2)?,
            ground,
            window_bytes,
            schedule,
        })
    }

    /// The best found so far.
    pub fn best_ns(&self) -> Option<u64> {
        self.population.first().map(|g| g.latency_ns)
    }

    /// Tries the genomes to begin with, at first, then children of the best. How many were timed.
    pub fn advance(&mut self, generation: u32, parallel: &dyn Parallel) -> u64 {
        let tried = if generation == 0 {
            let rules = [Side::Nobody, Side::Loads].map(|side| PlaceRules {
                side,
                ..PlaceRules::default()
            });
            let starts: Vec<(usize, PlaceRules)> = (0..self.bases.len())
                .flat_map(|base| rules.map(|places| (base, places)))
                .collect();
            batch(parallel, starts.len(), &|i| {
                let (base, places) = starts[i];
                let genome = Genome {
                    base,
                    bias: Vec::new(),
                    recency: 1.0,
                    places,
                    latency_ns: 0,
                };
                self.timed(genome).into_iter().collect()
            })
        } else if self.population.is_empty() {
            Vec::new()
        } else {
            batch(parallel, POPULATION, &|i| {
                let mut random = Random::new(self.seed ^ 0x5741_5044, generation, i as u32);
                self.timed(self.child(&mut random)).into_iter().collect()
            })
        };
        let timed = tried.len() as u64;
        self.population.extend(tried);
        self.population.sort_by_key(|g| g.latency_ns);
        self.population.dedup_by_key(|g| g.latency_ns);
        self.population.truncate(POPULATION);
        timed
    }

    /// The best as a plan.
    pub fn finish(&self) -> Option<(ExecutionPlan, Prediction)> {
        let best = self.population.first()?;
        let placed = self.placed(best)?;
        let base = &self.bases[best.base];
        let window = self.window(base, &placed.offsets, placed.window_bytes);
        let plan = assemble("search", &window, &placed.resident, &placed.played);
        Some((plan, placed.played.prediction))
    }

    fn window<'i>(&'i self, base: &'i Base, offsets: &'i [u64], window_bytes: u64) -> Window<'i> {
        Window {
            w: self.w,
            ground: base.ground,
            schedule: &base.schedule,
            offsets,
            window_bytes,
            cyclic: self.grounds.options.cyclic,
        }
    }

    fn timed(&self, mut genome: Genome) -> Option<Genome> {
        genome.latency_ns = self.placed(&genome)?.played.prediction.latency_ns;
        Some(genome)
    }

    /// `None` where some unit finds no place.
    fn placed(&self, genome: &Genome) -> Option<Placed> {
        let base = &self.bases[genome.base];
        let mut planner = SwapPlanner::default();
        planner.set_bias(&genome.bias);
        let rules = Rules {
            recency: genome.recency,
            places: genome.places,
            ..Rules::default()
        };
        let resident = self.staying(base, genome, &rules, &mut planner)?;
        let SliceFlow { flow, memory } = &base.twice;
        let units = &base.schedule.units;
        let mut window_bytes = self.arena_bytes;
        let mut kept = vec![None; flow.tensors().len()];
        for (i, unit) in units.iter().enumerate().filter(|(i, _)| resident[*i]) {
            window_bytes = window_bytes.checked_sub(unit.file.len())?;
            kept[i] = Some(window_bytes);
        }
        let order: Vec<OpId> = flow.given_order();
        let plan = planner.plan(&SwapTask {
            flow,
            order: &order,
            memory,
            device: &self.device,
            rules: &rules,
            kept: Kept::These(&kept),
        })?;
        if !plan.stores.is_empty() {
            return None;
        }
        // Where each unit is when the second run needs it.
        let n = base.schedule.slices.len() as u32;
        let mut stay_of: Vec<Option<&Stay>> = vec![None; units.len()];
        for stay in &plan.stays {
            if let Some(unit) = units.get(stay.tensor.index())
                && stay.first_use <= n + unit.first
            {
                stay_of[stay.tensor.index()] = Some(stay);
            }
        }
        let mut offsets = vec![0; units.len()];
        for (i, unit) in units.iter().enumerate().filter(|(i, _)| !resident[*i]) {
            let stay = stay_of[i].filter(|s| s.to > n + unit.last)?;
            offsets[i] = stay.offset;
        }
        let window = self.window(base, &offsets, window_bytes);
        let played = window.play(&resident, self.costs, &mut Simulator::default());
        Some(Placed {
            resident,
            offsets,
            window_bytes,
            played,
        })
    }

    /// By unit, whether it stays from run to run: as many as leave the window its room.
    fn staying(
        &self,
        base: &Base,
        genome: &Genome,
        rules: &Rules,
        planner: &mut SwapPlanner,
    ) -> Option<Vec<bool>> {
        let SliceFlow { flow, memory } = &base.once;
        let units = &base.schedule.units;
        let mut resident: Vec<bool> = units.iter().map(|u| u.resident).collect();
        let forced = units.iter().filter(|u| u.resident);
        let forced_bytes: u64 = forced.map(|u| u.file.len()).sum();
        let room = self.arena_bytes - base.window_bytes;
        let mut room = room.checked_sub(forced_bytes)?;
        let order: Vec<OpId> = flow.given_order();
        let plan = planner.plan(&SwapTask {
            flow,
            order: &order,
            memory,
            device: &self.device,
            rules,
            kept: Kept::Found,
        })?;
        let bias = |unit: usize| genome.bias.get(unit).copied().unwrap_or(0);
        let mut initial: Vec<usize> = plan
            .stays
            .iter()
            .filter(|s| s.initial && s.tensor.index() < units.len())
            .map(|s| s.tensor.index())
            .collect();
        initial.sort_by_key(|&unit| (bias(unit), unit));
        for unit in initial {
            let bytes = units[unit].file.len();
            if bytes <= room {
                resident[unit] = true;
                room -= bytes;
            }
        }
        Some(resident)
    }

    fn child(&self, random: &mut Random) -> Genome {
        let n = self.population.len();
        // The better of two.
        let mut child = self.population[random.below(n).min(random.below(n))].clone();
        match random.below(10) {
            0 => {
                child.base = random.below(self.bases.len());
                child.bias.clear();
            }
            1 => child.recency = [0.0, 0.5, 1.0, 2.0, 4.0][random.below(5)],
            2 => child.places.far_power = 1 + random.below(4) as u8,
            3 => child.places.late_penalty = [0.0, 0.3, 1.0, 3.0, 10.0][random.below(5)],
            4 => {
                child.places.side = match child.places.side {
                    Side::Nobody => Side::Loads,
                    Side::Loads | Side::Below(_) => Side::Nobody,
                }
            }
            5 => {
                let other = &self.population[random.below(n)];
                if other.base == child.base && other.bias.len() == child.bias.len() {
                    let cut = random.below(child.bias.len() + 1);
                    child.bias[..cut].copy_from_slice(&other.bias[..cut]);
                }
            }
            _ => {
                let schedule = &self.bases[child.base].schedule;
                child.bias.resize(schedule.units.len(), 0);
                if !child.bias.is_empty() {
                    let reach = schedule.slices.len() as f64 * 0.5;
                    for _ in 0..1 + random.below(4) {
                        let unit = random.below(child.bias.len());
                        child.bias[unit] = (random.normal() * reach) as i32;
                    }
                }
            }
        }
        child
    }
}
