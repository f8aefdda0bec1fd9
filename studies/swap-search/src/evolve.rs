//! The genetic algorithm (SwapAdvisor, Section 5): a population of schedules with allocations, of which
//! children are made, mutated and timed, and survivors drawn by how fast they are.

use std::ops::ControlFlow;
use std::sync::Mutex;

use neap_planner::{Generation, Parallel, Random, batch};
use thiserror::Error;

use crate::allocation::{Allocation, Classes, Pools};
use crate::dataflow::{Dataflow, OpId};
use crate::device::Device;
use crate::lanes::{Outcome, play};
use crate::order;
use crate::swap::{Memory, Rules, SwapPlan, SwapPlanner, SwapTask};

/// What is searched; the rest stays as it was at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Scope {
    #[default]
    Both,
    /// In the allocation that the best of the first generation has.
    ScheduleOnly,
    /// With operators in the order in which they were given.
    AllocationOnly,
}

#[derive(Clone, Copy, Debug)]
pub struct SearchOptions {
    pub seed: u64,
    /// N_p of the paper.
    pub population: usize,
    /// P of the paper: how likely each element of a genome changes.
    pub mutation: f64,
    /// Divides the exponents of the softmax that chooses survivors: 1 is the paper's Equation 1, less prefers
    /// the fast more.
    pub temperature: f64,
    /// Whether the best of all always survives.
    pub keeps_best: bool,
    pub scope: Scope,
    pub classes: Classes,
    pub rules: Rules,
    /// So many of the first generation have their operators in the order in which they were given, the others in random
    /// ones, as all of the paper's.
    pub given_orders: usize,
    /// Ends after so many generations, if nothing ends it sooner.
    pub generations: u32,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            population: 144,
            mutation: 0.1,
            temperature: 0.05,
            keeps_best: true,
            scope: Scope::Both,
            classes: Classes::Monotonic,
            rules: Rules::default(),
            given_orders: 0,
            generations: u32::MAX,
        }
    }
}

/// The best genome, and what it does.
#[derive(Clone, Debug)]
pub struct Found {
    pub order: Vec<OpId>,
    pub allocation: Allocation,
    pub plan: SwapPlan,
    pub outcome: Outcome,
    pub last: Generation,
}

/// No memory pools of this capacity let every operator run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("memory pools need at least {smallest_bytes} bytes")]
pub struct Infeasible {
    pub smallest_bytes: u64,
}

#[derive(Clone)]
struct Individual {
    order: Vec<OpId>,
    allocation: Allocation,
    time_ns: f64,
}

/// Everything that stays the same during a search.
struct Setting<'a> {
    flow: &'a Dataflow,
    device: &'a Device,
    pools: Pools,
    options: &'a SearchOptions,
    /// Planners at rest, with their memory.
    planners: Mutex<Vec<SwapPlanner>>,
}

impl Setting<'_> {
    /// Infinite where the planner finds no room.
    fn time_ns(&self, order: &[OpId], allocation: &Allocation) -> f64 {
        let mut planner = pop(&self.planners).unwrap_or_default();
        let memory = Memory::pools(self.flow, allocation);
        let plan = planner.plan(&SwapTask {
            flow: self.flow,
            order,
            memory: &memory,
            device: self.device,
            rules: &self.options.rules,
        });
        let outcome = plan.and_then(|plan| play(self.flow, plan, self.device));
        push(&self.planners, planner);
        outcome.map_or(f64::INFINITY, |o| o.total_ns)
    }

    fn random(&self, individual: u32) -> Random {
        Random::new(self.options.seed, 0, individual)
    }

    fn first_order(&self, individual: usize, random: &mut Random) -> Vec<OpId> {
        match self.options.scope {
            _ if individual < self.options.given_orders => self.flow.given_order(),
            Scope::AllocationOnly => self.flow.given_order(),
            Scope::Both | Scope::ScheduleOnly => order::random(self.flow, random),
        }
    }

    /// The four children of two parents: each of two schedules with each of two allocations, mutated.
    fn children(&self, a: &Individual, b: &Individual, random: &mut Random) -> Vec<Individual> {
        let Self {
            flow,
            pools,
            options,
            ..
        } = self;
        let orders = if options.scope == Scope::AllocationOnly {
            vec![a.order.clone()]
        } else {
            let cut = random.below(a.order.len().max(1));
            let crossed = order::cross(&a.order, &b.order, cut);
            let mutated = crossed.map(|o| order::mutate(flow, &o, options.mutation, random));
            mutated.to_vec()
        };
        let allocations = if options.scope == Scope::ScheduleOnly {
            vec![a.allocation.clone()]
        } else {
            let cut = random.below(flow.sizes().len().max(1));
            let crossed = pools.cross(&a.allocation, &b.allocation, cut);
            // Where a child fits no more, its parent takes its place.
            let crossed = crossed.into_iter().zip([a, b]);
            let crossed = crossed.map(|(c, p)| c.unwrap_or_else(|| p.allocation.clone()));
            crossed
                .map(|c| pools.mutate(&c, options.mutation, random).unwrap_or(c))
                .collect()
        };
        let mut children = Vec::with_capacity(4);
        for order in &orders {
            for allocation in &allocations {
                children.push(Individual {
                    order: order.clone(),
                    allocation: allocation.clone(),
                    time_ns: self.time_ns(order, allocation),
                });
            }
        }
        children
    }
}

/// Searches for the schedule and the memory pools of `capacity_bytes` with which `flow` runs fastest.
/// `progress` hears of each generation and may end the search.
///
/// # Errors
/// [`Infeasible`] when no pools fit.
pub fn search(
    flow: &Dataflow,
    device: &Device,
    capacity_bytes: u64,
    options: &SearchOptions,
    parallel: &dyn Parallel,
    progress: &mut dyn FnMut(&Generation) -> ControlFlow<()>,
) -> Result<Found, Infeasible> {
    let setting = Setting {
        flow,
        device,
        pools: Pools::new(flow, capacity_bytes, options.classes),
        options,
        planners: Mutex::new(Vec::new()),
    };
    let infeasible = Infeasible {
        smallest_bytes: setting.pools.smallest_bytes(),
    };
    let size = options.population.max(2);
    let mut population = batch(parallel, size, &|i| {
        let mut random = setting.random(i as u32);
        let order = setting.first_order(i, &mut random);
        let Some(allocation) = setting.pools.random(&mut random) else {
            return Vec::new();
        };
        let time_ns = setting.time_ns(&order, &allocation);
        vec![Individual {
            order,
            allocation,
            time_ns,
        }]
    });
    let Some(first) = fastest(&population).cloned() else {
        return Err(infeasible);
    };
    let mut best = first;
    if options.scope == Scope::ScheduleOnly {
        let allocation = best.allocation.clone();
        population = batch(parallel, size, &|i| {
            let order = population[i].order.clone();
            let time_ns = setting.time_ns(&order, &allocation);
            vec![Individual {
                order,
                allocation: allocation.clone(),
                time_ns,
            }]
        });
    }
    let mut timed = size as u64;
    let mut number = 0;
    let last = loop {
        let report = report(number, timed, &best, &population);
        if progress(&report).is_break() || number >= options.generations {
            break report;
        }
        number += 1;
        let children = batch(parallel, size.div_ceil(4), &|i| {
            let mut random = Random::new(options.seed, number, i as u32);
            let a = &population[random.below(population.len())];
            let b = &population[random.below(population.len())];
            setting.children(a, b, &mut random)
        });
        timed += children.len() as u64;
        population.extend(children);
        if let Some(faster) = fastest(&population)
            && faster.time_ns < best.time_ns
        {
            best = faster.clone();
        }
        let mut random = Random::new(options.seed, number, u32::MAX);
        population = survivors(
            population,
            size,
            best.time_ns,
            options.temperature,
            &mut random,
        );
        if options.keeps_best {
            population[0] = best.clone();
        }
    };
    let mut planner = SwapPlanner::default();
    let memory = Memory::pools(flow, &best.allocation);
    let made = planner.plan(&SwapTask {
        flow,
        order: &best.order,
        memory: &memory,
        device,
        rules: &options.rules,
    });
    let outcome = made
        .and_then(|plan| play(flow, plan, device))
        .ok_or(infeasible)?;
    Ok(Found {
        order: best.order,
        allocation: best.allocation,
        plan: planner.take_plan(),
        outcome,
        last,
    })
}

pub(super) fn pop<T>(list: &Mutex<Vec<T>>) -> Option<T> {
    list.lock().unwrap_or_else(|e| e.into_inner()).pop()
}

pub(super) fn push<T>(list: &Mutex<Vec<T>>, item: T) {
    list.lock().unwrap_or_else(|e| e.into_inner()).push(item);
}

fn fastest(population: &[Individual]) -> Option<&Individual> {
    let times = population.iter().filter(|i| i.time_ns.is_finite());
    times.min_by(|a, b| a.time_ns.total_cmp(&b.time_ns))
}

fn report(number: u32, timed: u64, best: &Individual, population: &[Individual]) -> Generation {
    let times = || {
        population
            .iter()
            .map(|i| i.time_ns)
            .filter(|t| t.is_finite())
    };
    Generation {
        number,
        timed,
        best_ns: best.time_ns,
        mean_ns: times().sum::<f64>() / times().count().max(1) as f64,
        worst_ns: times().fold(best.time_ns, f64::max),
    }
}

/// Draws `count` without putting back, each with the probability of the paper's Equation 1: the softmax of
/// (best − t) / best. The largest ln(u) / weight are such a sample (Efraimidis and Spirakis).
fn survivors(
    population: Vec<Individual>,
    count: usize,
    best_ns: f64,
    temperature: f64,
    random: &mut Random,
) -> Vec<Individual> {
    let mut keyed: Vec<(f64, Individual)> = population
        .into_iter()
        .map(|individual| {
            let weight = ((best_ns - individual.time_ns) / best_ns / temperature).exp();
            let draw = (1.0 - random.unit()).ln();
            let key = if weight > 0.0 {
                draw / weight
            } else {
                f64::NEG_INFINITY
            };
            (key, individual)
        })
        .collect();
    keyed.sort_by(|a, b| b.0.total_cmp(&a.0));
    keyed.truncate(count);
    keyed
        .into_iter()
        .map(|(_, individual)| individual)
        .collect()
}
