//! Beyond the paper: no size classes. Every tensor has an address of its own, the search starts from heuristic
//! schedules and from what pools have found, and goes on by small steps beside crossover.
//!
//! The paper pools memory "because it is difficult to incorporate a dynamic allocator in GA's search"
//! (Section 8). Here the allocator is part of planning a genome's swaps, so that what is timed is what will
//! lie there: to count bytes while searching and to look for a layout afterwards finds none for networks
//! whose tensors are a large part of the memory, and elsewhere one in which loads wait for each other.

use std::ops::ControlFlow;
use std::sync::Mutex;

use crate::dataflow::{Dataflow, OpId, TensorId};
use crate::device::Device;
use crate::evolve::{Found, Infeasible, pop, push};
use crate::lanes::{Outcome, play};
use crate::order;
use crate::swap::{Memory, PlaceRules, Rules, Side, SwapPlan, SwapPlanner, SwapTask};
use neap_planner::{Generation, Parallel, Random, batch};

/// Tensors lie at multiples of this, as accelerators want it.
const ALIGN_BYTES: u64 = 512;

#[derive(Clone, Copy, Debug)]
pub struct PlacedOptions {
    pub seed: u64,
    pub population: usize,
    pub generations: u32,
}

impl Default for PlacedOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            population: 24,
            generations: u32::MAX,
        }
    }
}

/// The best that was found.
#[derive(Clone, Debug)]
pub struct Placed {
    pub plan: SwapPlan,
    /// One past the highest byte used.
    pub high_water_bytes: u64,
    pub outcome: Outcome,
    /// What the best heuristic schedule took, before any search.
    pub heuristic_ns: f64,
    pub last: Generation,
}

#[derive(Clone)]
struct Individual {
    order: Vec<OpId>,
    bias: Vec<i32>,
    recency: f64,
    places: PlaceRules,
    time_ns: f64,
}

struct Setting<'a> {
    flow: &'a Dataflow,
    device: &'a Device,
    capacity_bytes: u64,
    memory: Memory,
    /// Tensors by size, the largest first: who goes matters most for those.
    large: Vec<TensorId>,
    planners: Mutex<Vec<SwapPlanner>>,
}

impl Setting<'_> {
    fn rules(individual: &Individual) -> Rules {
        Rules {
            recency: individual.recency,
            places: individual.places,
            ..Rules::default()
        }
    }

    /// Plans the individual's run and plays it; the plan stays in the planner.
    fn play(&self, planner: &mut SwapPlanner, individual: &Individual) -> Option<Outcome> {
        planner.set_bias(&individual.bias);
        let rules = Self::rules(individual);
        let plan = planner.plan(&SwapTask {
            flow: self.flow,
            order: &individual.order,
            memory: &self.memory,
            device: self.device,
            rules: &rules,
        })?;
        play(self.flow, plan, self.device)
    }

    fn timed(&self, mut individual: Individual) -> Individual {
        let mut planner = pop(&self.planners).unwrap_or_default();
        let outcome = self.play(&mut planner, &individual);
        push(&self.planners, planner);
        individual.time_ns = outcome.map_or(f64::INFINITY, |o| o.total_ns);
        individual
    }

    fn with_order(&self, order: Vec<OpId>, recency: f64, side: Side) -> Individual {
        self.timed(Individual {
            order,
            bias: Vec::new(),
            recency,
            places: PlaceRules {
                side,
                ..PlaceRules::default()
            },
            time_ns: 0.0,
        })
    }

    /// Genomes to start from: operators as given, and grouped by what parameters they need.
    fn heuristics(&self) -> Vec<(Vec<OpId>, f64, Side)> {
        let given = self.flow.given_order();
        let n = given.len();
        let mut orders = vec![given.clone()];
        for part in [2, 8] {
            let warm = self.capacity_bytes / part;
            orders.push(order::regroup(self.flow, &given, 0, n, warm));
        }
        orders.dedup();
        let rules = [0.0, 1.0, 3.0]
            .map(|recency| [Side::Nobody, Side::Loads].map(|side| (recency, side)))
            .concat();
        let each = orders.iter();
        each.flat_map(|o| rules.iter().map(|&(r, s)| (o.clone(), r, s)))
            .collect()
    }

    fn mutate_places(&self, places: &mut PlaceRules, random: &mut Random) {
        match random.below(3) {
            0 => places.far_power = 1 + random.below(4) as u8,
            1 => places.late_penalty = [0.0, 0.3, 1.0, 3.0, 10.0][random.below(5)],
            _ => {
                places.side = match random.below(3) {
                    0 => Side::Nobody,
                    1 => Side::Loads,
                    _ => {
                        let sizes = self.flow.sizes();
                        Side::Below(sizes[random.below(sizes.len())])
                    }
                }
            }
        }
    }

    fn planned(&self, individual: &Individual) -> Option<(SwapPlan, Outcome)> {
        let mut planner = SwapPlanner::default();
        let outcome = self.play(&mut planner, individual)?;
        Some((planner.take_plan(), outcome))
    }

    /// Nothing is faster than what pools have found: their objects have addresses too.
    fn as_pooled(&self, pooled: &Found, heuristic_ns: f64) -> Placed {
        Placed {
            high_water_bytes: pooled.plan.high_water_bytes(self.flow),
            plan: pooled.plan.clone(),
            outcome: pooled.outcome,
            heuristic_ns,
            last: pooled.last,
        }
    }

    fn child(&self, population: &[Individual], random: &mut Random) -> Individual {
        // The better of two.
        let pick = |random: &mut Random| {
            let i = random
                .below(population.len())
                .min(random.below(population.len()));
            &population[i]
        };
        let parent = pick(random);
        let mut child = parent.clone();
        let n = child.order.len();
        match random.below(12) {
            0 | 1 => {
                for _ in 0..1 + random.below(4) {
                    child.order = order::move_one(self.flow, &child.order, random);
                }
            }
            2 => {
                let few = (1.0 + 8.0 * random.unit()) / n.max(1) as f64;
                child.order = order::mutate(self.flow, &child.order, few.min(0.3), random);
            }
            3 | 4 => {
                let other = pick(random);
                let cut = random.below(n.max(1));
                let [a, _] = order::cross(&child.order, &other.order, cut);
                child.order = a;
            }
            5 => {
                let (from, count) = (random.below(n.max(1)), 1 + random.below(n.max(1)));
                let warm = self.capacity_bytes / (1 << random.below(5));
                child.order = order::regroup(self.flow, &child.order, from, count, warm);
            }
            6 => child.recency = [0.0, 0.5, 1.0, 2.0, 4.0][random.below(5)],
            7 | 8 => self.mutate_places(&mut child.places, random),
            _ => {
                child.bias.resize(self.flow.tensors().len(), 0);
                for _ in 0..1 + random.below(3) {
                    // Large tensors more often.
                    let most = random.below(self.large.len()).max(1);
                    let t = self.large[random.below(most)].index();
                    let reach = f64::from(n as u32);
                    child.bias[t] = (random.normal() * reach * 0.5) as i32;
                }
            }
        }
        self.timed(child)
    }
}

/// Searches for the schedule and the addresses in `capacity_bytes` with which `flow` runs fastest. `pooled`
/// is what a search over pools of that capacity has found: its schedule is one to start from, and the result
/// is never slower, as long as its plan can be repeated as it is ([`SwapPlan::repeats`]).
///
/// # Errors
/// [`Infeasible`] when the tensors of some operator do not fit.
pub fn improve(
    flow: &Dataflow,
    device: &Device,
    capacity_bytes: u64,
    options: &PlacedOptions,
    pooled: Option<&Found>,
    parallel: &dyn Parallel,
    progress: &mut dyn FnMut(&Generation) -> ControlFlow<()>,
) -> Result<Placed, Infeasible> {
    let infeasible = Infeasible {
        smallest_bytes: largest_operator_bytes(flow),
    };
    let mut large: Vec<TensorId> = (0..flow.tensors().len() as u32).map(TensorId).collect();
    large.sort_by_key(|t| std::cmp::Reverse(flow.tensors()[t.index()].bytes));
    let setting = Setting {
        flow,
        device,
        capacity_bytes,
        memory: Memory::places(flow, capacity_bytes, ALIGN_BYTES),
        large,
        planners: Mutex::new(Vec::new()),
    };
    let mut starts = setting.heuristics();
    let heuristics = starts.len();
    if let Some(pooled) = pooled {
        let sides = [Side::Nobody, Side::Loads];
        starts.extend(sides.map(|side| (pooled.order.clone(), 1.0, side)));
    }
    let first = batch(parallel, starts.len(), &|i| {
        let (order, recency, side) = starts[i].clone();
        vec![setting.with_order(order, recency, side)]
    });
    let heuristic_ns = first[..heuristics].iter().map(|i| i.time_ns);
    let heuristic_ns = heuristic_ns.fold(f64::INFINITY, f64::min);
    let size = options.population.max(2);
    let mut population = fittest(first, size);
    let kept = pooled.filter(|p| p.plan.repeats());
    if population.is_empty() {
        return kept
            .map(|p| setting.as_pooled(p, heuristic_ns))
            .ok_or(infeasible);
    }
    let mut timed = starts.len() as u64;
    let mut number = 0;
    let last = loop {
        let mean_ns = population.iter().map(|i| i.time_ns).sum::<f64>() / population.len() as f64;
        let report = Generation {
            number,
            timed,
            best_ns: population[0].time_ns,
            mean_ns,
            worst_ns: population[population.len() - 1].time_ns,
        };
        // Nothing is faster than never to wait.
        let is_ideal = report.best_ns <= flow.ideal_ns() as f64 + 1.0;
        if progress(&report).is_break() || is_ideal || number >= options.generations {
            break report;
        }
        number += 1;
        let children = batch(parallel, 2 * size, &|i| {
            let mut random = Random::new(options.seed, number, i as u32);
            vec![setting.child(&population, &mut random)]
        });
        timed += children.len() as u64;
        population.extend(children);
        population = fittest(population, size);
    };
    if let Some(pooled) = kept
        && pooled.outcome.total_ns <= population[0].time_ns
    {
        let last = Generation {
            best_ns: pooled.outcome.total_ns,
            ..last
        };
        return Ok(Placed {
            last,
            ..setting.as_pooled(pooled, heuristic_ns)
        });
    }
    let (plan, outcome) = setting.planned(&population[0]).ok_or(infeasible)?;
    Ok(Placed {
        high_water_bytes: plan.high_water_bytes(flow),
        plan,
        outcome,
        heuristic_ns,
        last,
    })
}

/// The fastest, one for each time.
fn fittest(mut population: Vec<Individual>, count: usize) -> Vec<Individual> {
    population.retain(|i| i.time_ns.is_finite());
    population.sort_by(|a, b| a.time_ns.total_cmp(&b.time_ns));
    population.dedup_by(|a, b| a.time_ns == b.time_ns);
    population.truncate(count);
    population
}

fn largest_operator_bytes(flow: &Dataflow) -> u64 {
    let bytes = |op: u32| {
        let touches = flow.touches(OpId(op)).iter();
        let each = touches.map(|t| flow.tensors()[t.tensor.index()].bytes);
        each.map(|b| b.next_multiple_of(ALIGN_BYTES)).sum::<u64>()
    };
    (0..flow.operators().len() as u32)
        .map(bytes)
        .max()
        .unwrap_or(0)
}
