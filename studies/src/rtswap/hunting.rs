//! Misses are hunted in sets at the edge of what each test admits; and how many sets the tests refuse without need.

use super::figures::parallel;
use neap_realtime::demand::{self, of_steps, of_swapping};
use neap_realtime::hunt::hunt;
use neap_realtime::simulate::{Actor, Choices, Scene, simulate};
use neap_realtime::{Random, System, sets, theorem};

/// What a hunt came to.
#[derive(Clone, Copy, Default)]
pub struct Bag {
    pub sets: u64,
    pub jobs: u64,
    pub misses: u64,
    /// Sets with a miss.
    pub missing_sets: u64,
}

impl Bag {
    fn plus(self, other: Bag) -> Bag {
        Bag {
            sets: self.sets + other.sets,
            jobs: self.jobs + other.jobs,
            misses: self.misses + other.misses,
            missing_sets: self.missing_sets + other.missing_sets,
        }
    }
}

/// Which sets are hunted in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Prey {
    Theorem,
    Demand,
    Steps,
    /// Just beyond the edge: periods 2 % shorter than the exact test admits, nothing swapped.
    Refused,
}

/// Jobs of each block, which has its own seed.
const BLOCK_JOBS: u64 = 250_000;

/// Hunts until about so many jobs were played.
pub fn hunts(prey: Prey, jobs: u64, seed: u64) -> Bag {
    let blocks = jobs.div_ceil(BLOCK_JOBS) as usize;
    let bags = parallel(blocks, |block| {
        block_of(prey, Random::new(seed ^ prey as u64, block as u64))
    });
    bags.into_iter().fold(Bag::default(), Bag::plus)
}

fn block_of(prey: Prey, mut random: Random) -> Bag {
    let mut bag = Bag::default();
    while bag.jobs < BLOCK_JOBS {
        let Some(scene) = scene(prey, &mut random) else {
            continue;
        };
        let found = hunt(&scene, 24, 120, random.bits());
        bag = bag.plus(Bag {
            sets: 1,
            jobs: found.jobs,
            misses: found.misses,
            missing_sets: u64::from(found.misses > 0),
        });
    }
    bag
}

fn scene(prey: Prey, random: &mut Random) -> Option<Scene> {
    let (system, volumes) = sets::draw(random, prey != Prey::Theorem);
    let none = vec![0; system.tasks.len()];
    let roomy = |s: &System| System {
        memory_bytes: 1 << 20,
        ..s.clone()
    };
    match prey {
        Prey::Theorem => {
            let edge = sets::at_the_edge(&system, |s| theorem::admits(s, &volumes))?;
            Some(Scene::of_swapping(&edge, &volumes))
        }
        Prey::Demand => {
            let admits = |s: &System| demand::check(&of_swapping(s, &volumes)).is_admitted();
            let edge = sets::at_the_edge(&system, admits)?;
            Some(Scene::of_swapping(&edge, &volumes))
        }
        Prey::Steps => {
            let parts = random.between(2, 6);
            let resume_ns = random.between(0, 3);
            let actors = |s: &System| stepped(s, parts, resume_ns);
            let admits = |s: &System| demand::check(&of_steps(&actors(s))).is_admitted();
            let edge = sets::at_the_edge(&system, admits)?;
            Some(Scene::of_actors(actors(&edge)))
        }
        Prey::Refused => {
            let admits = |s: &System| demand::check(&of_swapping(s, &none)).is_admitted();
            let edge = sets::at_the_edge(&roomy(&system), admits)?;
            let beyond = sets::stretched(&edge, 251);
            let refused = beyond.check().is_ok() && !admits(&beyond);
            refused.then(|| Scene::of_swapping(&beyond, &none))
        }
    }
}

fn stepped(system: &System, parts: u64, resume_ns: u64) -> Vec<Actor> {
    let tasks = system.tasks.iter();
    tasks
        .map(|t| Actor {
            period_ns: t.period_ns,
            deadline_ns: t.deadline_ns,
            wcet_ns: t.wcet_ns,
            step_ns: t.wcet_ns.div_ceil(parts),
            resume_ns,
            volume_chunks: 0,
        })
        .collect()
}

/// Small sets, every phasing of which was played with longest times.
#[derive(Default)]
pub struct Tightness {
    pub drawn: u64,
    /// No phasing misses.
    pub schedulable: u64,
    /// Of those, admitted by Theorem 1 and by demand.
    pub by_theorem: u64,
    pub by_demand: u64,
    /// Admitted, and yet some phasing misses: must be none.
    pub wrong: u64,
}

/// `swaps`: two or three tasks of which some are swapped; otherwise they only execute.
pub fn tightness(swaps: bool, count: usize, seed: u64) -> Tightness {
    let each = parallel(count, |i| {
        let mut random = Random::new(seed, i as u64);
        let (system, volumes) = small(&mut random, swaps);
        let scene = Scene::of_swapping(&system, &volumes);
        let schedulable = !some_phasing_misses(&scene);
        let by_theorem = theorem::admits(&system, &volumes);
        let by_demand = demand::check(&of_swapping(&system, &volumes)).is_admitted();
        (schedulable, by_theorem, by_demand)
    });
    let mut sum = Tightness::default();
    for (schedulable, by_theorem, by_demand) in each {
        sum.drawn += 1;
        sum.schedulable += u64::from(schedulable);
        sum.by_theorem += u64::from(schedulable && by_theorem);
        sum.by_demand += u64::from(schedulable && by_demand);
        sum.wrong += u64::from(!schedulable && (by_theorem || by_demand));
    }
    sum
}

fn small(random: &mut Random, swaps: bool) -> (System, Vec<u64>) {
    loop {
        let count = 2 + random.index(2);
        let tasks = (0..count).map(|_| {
            let period_ns = [8, 10, 12, 15, 20, 24][random.index(6)];
            let footprint_bytes = random.between(1, 3);
            neap_realtime::Task {
                wcet_ns: random.between(1, 5),
                period_ns,
                deadline_ns: period_ns,
                footprint_bytes,
                swappable_bytes: footprint_bytes,
            }
        });
        let tasks: Vec<neap_realtime::Task> = tasks.collect();
        let total: u64 = tasks.iter().map(|t| t.footprint_bytes).sum();
        let largest = tasks.iter().map(|t| t.footprint_bytes).max().unwrap_or(1);
        let system = System {
            memory_bytes: if swaps {
                random.between(largest, total)
            } else {
                total
            },
            cost: neap_realtime::SwapCost {
                chunk_bytes: 1,
                in_ns: 1,
                out_ns: 1,
            },
            tasks,
        };
        let volumes: Vec<u64> = (system.tasks.iter())
            .map(|t| {
                if swaps {
                    random.between(0, t.swappable_bytes)
                } else {
                    0
                }
            })
            .collect();
        let moves = volumes.iter().any(|&v| v > 0);
        if moves == swaps && system.volumes_fit(&volumes) {
            return (system, volumes);
        }
    }
}

/// The first task begins at 0 or 1; the others at every instant of their periods, in both orders of ties.
fn some_phasing_misses(scene: &Scene) -> bool {
    let periods: Vec<u64> = scene.actors.iter().map(|a| a.period_ns).collect();
    let mut choices = Choices::synchronous(scene, 600);
    loop {
        for _ in 0..2 {
            choices.ranks.reverse();
            if simulate(scene, &choices).misses > 0 {
                return true;
            }
        }
        let last = |i: usize| if i == 0 { 1 } else { periods[i] - 1 };
        let next = (0..periods.len()).find(|&i| choices.phases_ns[i] < last(i));
        let Some(i) = next else {
            return false;
        };
        choices.phases_ns[i] += 1;
        choices.phases_ns[..i].fill(0);
    }
}
