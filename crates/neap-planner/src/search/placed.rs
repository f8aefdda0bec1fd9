//! Beyond the paper: no size classes. Tensors get addresses from the layout solver, the search starts from
//! heuristic schedules and goes on by small steps beside crossover.
//!
//! The paper pools memory "because it is difficult to incorporate a dynamic allocator in GA's search"
//! (Section 8). Here a genome is timed with bytes counted only; addresses come at the end, when what the
//! search found is laid out. Where that takes more than there is, bytes are counted more strictly and it is
//! laid out again; then loads wait for whoever really lay at their addresses.

use std::ops::ControlFlow;
use std::sync::Mutex;

use super::dataflow::{Dataflow, OpId, TensorId, TensorKind};
use super::device::Device;
use super::evolve::{Generation, Infeasible, Parallel, batch, pop, push};
use super::lanes::{Outcome, play};
use super::order;
use super::random::Random;
use super::swap::{After, Memory, Rules, Stay, SwapPlan, SwapPlanner};
use crate::layout::{Block, allocate, lay_out};
use neap_plan::StepRange;

/// Tensors lie at multiples of this, as accelerators want it.
const ALIGN_BYTES: u64 = 512;
/// More blocks than this are laid out by an allocator that goes with the run; the solver would take seconds.
const MOST_SOLVED: usize = 6000;

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

/// The best that was found, with addresses.
#[derive(Clone, Debug)]
pub struct Placed {
    pub plan: SwapPlan,
    /// By stay of the plan.
    pub offsets: Vec<u64>,
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
            keeps_initial: true,
            ..Rules::default()
        }
    }

    fn timed(&self, mut individual: Individual) -> Individual {
        let mut planner = pop(&self.planners).unwrap_or_default();
        planner.set_bias(&individual.bias);
        let rules = Self::rules(&individual);
        let plan = planner.plan(
            self.flow,
            &individual.order,
            &self.memory,
            self.device,
            &rules,
        );
        let outcome = plan.and_then(|plan| play(self.flow, plan, self.device));
        push(&self.planners, planner);
        individual.time_ns = outcome.map_or(f64::INFINITY, |o| o.total_ns);
        individual
    }

    fn with_order(&self, order: Vec<OpId>, recency: f64) -> Individual {
        self.timed(Individual {
            order,
            bias: Vec::new(),
            recency,
            time_ns: 0.0,
        })
    }

    /// Schedules to start from: as given, and with operators grouped by what parameters they need.
    fn heuristics(&self) -> Vec<(Vec<OpId>, f64)> {
        let given = self.flow.given_order();
        let n = given.len();
        let mut orders = vec![given.clone()];
        for part in [2, 8] {
            let warm = self.capacity_bytes / part;
            orders.push(order::regroup(self.flow, &given, 0, n, warm));
        }
        orders.dedup();
        let recencies = [0.0, 1.0, 3.0];
        let each = orders.iter();
        each.flat_map(|o| recencies.map(|r| (o.clone(), r)))
            .collect()
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
        match random.below(10) {
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

/// Searches from heuristic schedules, and places what it finds in `capacity_bytes`.
///
/// # Errors
/// [`Infeasible`] when some operator does not fit, whatever is sent away, or no layout was found.
pub fn improve(
    flow: &Dataflow,
    device: &Device,
    capacity_bytes: u64,
    options: &PlacedOptions,
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
        memory: Memory::bytes(flow, capacity_bytes, ALIGN_BYTES),
        large,
        planners: Mutex::new(Vec::new()),
    };
    let starts = setting.heuristics();
    let first = batch(parallel, starts.len(), &|i| {
        let (order, recency) = starts[i].clone();
        vec![setting.with_order(order, recency)]
    });
    let size = options.population.max(2);
    let mut population = fittest(first, size);
    if population.is_empty() {
        return Err(infeasible);
    }
    let heuristic_ns = population[0].time_ns;
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
    // Of some that are as fast, one may lie better.
    let placed = population.iter().take(4).filter_map(|i| place(&setting, i));
    let (plan, offsets, high_water_bytes, outcome) = placed
        .min_by(|a, b| a.3.total_ns.total_cmp(&b.3.total_ns))
        .ok_or(infeasible)?;
    Ok(Placed {
        plan,
        offsets,
        high_water_bytes,
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

type Laid = (SwapPlan, Vec<u64>, u64, Outcome);

fn place(setting: &Setting, individual: &Individual) -> Option<Laid> {
    let Setting {
        flow,
        device,
        capacity_bytes,
        ..
    } = *setting;
    let mut planner = SwapPlanner::default();
    planner.set_bias(&individual.bias);
    let rules = Setting::rules(individual);
    let least = largest_operator_bytes(flow);
    let mut counted_bytes = capacity_bytes;
    for _ in 0..16 {
        let memory = Memory::bytes(flow, counted_bytes, ALIGN_BYTES);
        planner.plan(flow, &individual.order, &memory, device, &rules)?;
        let mut plan = planner.take_plan();
        let mut over = u64::MAX;
        for lead in LEADS {
            let blocks: Vec<Block> = plan.stays.iter().map(|s| block(flow, s, lead)).collect();
            let layout = if blocks.len() > MOST_SOLVED {
                allocate(&blocks)
            } else {
                lay_out(&blocks)
            };
            if layout.high_water_bytes <= capacity_bytes {
                wait_for_addresses(flow, &mut plan, &blocks, &layout.offsets);
                let outcome = play(flow, &plan, device)?;
                return Some((plan, layout.offsets, layout.high_water_bytes, outcome));
            }
            over = over.min(layout.high_water_bytes - capacity_bytes);
        }
        if counted_bytes == least {
            return None;
        }
        let fewer = (over / 2).max(capacity_bytes / 64);
        counted_bytes = counted_bytes.saturating_sub(fewer).max(least);
    }
    None
}

/// By how many operators, at most, a load's memory is its own before it is needed: shorter stays are
/// easier to place.
const LEADS: [u32; 3] = [u32::MAX, 48, 8];

/// What a stay takes: a result from the operator that makes it, a load from when it may begin.
fn block(flow: &Dataflow, stay: &Stay, lead: u32) -> Block {
    let begin = match stay.load {
        Some(_) => stay.from.computes.max(stay.first_use.saturating_sub(lead)),
        None if stay.initial => 0,
        None => stay.first_use,
    };
    Block {
        bytes: flow.tensors()[stay.tensor.index()].bytes,
        align: ALIGN_BYTES,
        live: StepRange::new(begin.min(stay.to), stay.to),
    }
}

/// Replaces what loads and results wait for, which was counted in bytes, by whoever lay at their addresses.
fn wait_for_addresses(flow: &Dataflow, plan: &mut SwapPlan, blocks: &[Block], offsets: &[u64]) {
    let mut by_time: Vec<usize> = (0..blocks.len())
        .filter(|&i| !blocks[i].live.is_empty())
        .collect();
    by_time.sort_by_key(|&i| (plan.stays[i].first_use, i));
    // Who lies where, by address: (end, stay), disjoint.
    let mut here: std::collections::BTreeMap<u64, (u64, usize)> = Default::default();
    let mut stored_before = vec![0u32; flow.tensors().len()];
    for needs in &mut plan.needs {
        needs.stores = 0;
    }
    for i in by_time {
        let (begin, end) = (offsets[i], offsets[i] + blocks[i].bytes);
        let mut after = After::default();
        let first = here
            .range(..=begin)
            .next_back()
            .map_or(begin, |(&at, _)| at);
        let met: Vec<(u64, (u64, usize))> = here
            .range(first..end.max(begin + 1))
            .filter(|(_, (other_end, _))| *other_end > begin)
            .map(|(&at, &other)| (at, other))
            .collect();
        for (at, (other_end, other)) in met {
            let stay = &plan.stays[other];
            after.computes = after.computes.max(stay.to);
            after.stores = after.stores.max(stay.store.map_or(0, |s| s + 1));
            here.remove(&at);
            if at < begin {
                here.insert(at, (begin, other));
            }
            if other_end > end {
                here.insert(end, (other_end, other));
            }
        }
        here.insert(begin, (end, i));
        let stay = &mut plan.stays[i];
        stay.from = after;
        let tensor = stay.tensor.index();
        match stay.load {
            Some(load) => {
                let load = &mut plan.loads[load as usize];
                load.after = After {
                    stores: after.stores.max(stored_before[tensor]),
                    ..after
                };
            }
            None if stay.initial => {}
            None => {
                let needs = &mut plan.needs[stay.first_use as usize];
                needs.stores = needs.stores.max(after.stores);
            }
        }
        if let Some(store) = stay.store
            && flow.tensors()[tensor].kind != TensorKind::Input
        {
            stored_before[tensor] = store + 1;
        }
    }
}
