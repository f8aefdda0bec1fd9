//! A hunt for missed deadlines: adversarial and random choices, played by the simulator.

use crate::random::Random;
use crate::simulate::{Choices, Miss, Outcome, Scene, simulate};

/// What a hunt found.
#[derive(Clone, Debug, Default)]
pub struct Hunt {
    pub jobs: u64,
    pub misses: u64,
    /// The first miss, and the choices that lead to it.
    pub found: Option<(Miss, Choices)>,
    /// Longest response seen, by task.
    pub response_ns: Vec<u64>,
}

impl Hunt {
    fn add(&mut self, outcome: &Outcome, choices: &Choices) {
        self.jobs += outcome.jobs;
        self.misses += outcome.misses;
        self.response_ns.resize(outcome.response_ns.len(), 0);
        for (longest, &seen) in self.response_ns.iter_mut().zip(&outcome.response_ns) {
            *longest = (*longest).max(seen);
        }
        if let Some(miss) = outcome.first_miss
            && self.found.is_none()
        {
            self.found = Some((miss, choices.clone()));
        }
    }
}

/// Plays so many trials of a scene, each of about `jobs` jobs. The choices that left least time to a deadline are
/// changed a little and played again, every third time.
pub fn hunt(scene: &Scene, trials: u64, jobs: u64, seed: u64) -> Hunt {
    let mut random = Random::new(seed, 0);
    let mut hunt = Hunt::default();
    let mut tightest: Option<(u64, Choices)> = None;
    for trial in 0..trials {
        let mut choices = match &tightest {
            Some((_, best)) if trial % 3 == 2 => varied(scene, best, &mut random),
            _ => draw(scene, &mut random),
        };
        choices.until_ns = until_ns(scene, &choices, jobs);
        let outcome = simulate(scene, &choices);
        hunt.add(&outcome, &choices);
        if tightest
            .as_ref()
            .is_none_or(|(least, _)| outcome.least_slack_ns < *least)
        {
            tightest = Some((outcome.least_slack_ns, choices));
        }
    }
    hunt
}

/// So long that about so many jobs are released.
fn until_ns(scene: &Scene, choices: &Choices, jobs: u64) -> u64 {
    let per_ns: f64 = scene.actors.iter().map(|a| 1.0 / a.period_ns as f64).sum();
    let first = choices.phases_ns.iter().max().copied().unwrap_or(0);
    first.min(1 << 60) + (jobs as f64 / per_ns) as u64
}

fn draw(scene: &Scene, random: &mut Random) -> Choices {
    let count = scene.actors.len();
    let mut choices = Choices::synchronous(scene, 0);
    choices.seed = random.bits();
    choices.phases_ns = match random.index(4) {
        // Each somewhere in its period.
        0 => (scene.actors.iter())
            .map(|a| random.below(a.period_ns))
            .collect(),
        // One or two begin, all others come a moment later.
        1 | 2 => {
            let mut phases = vec![1 + random.below(2); count];
            phases[random.index(count)] = 0;
            if random.chance(60) {
                phases[random.index(count)] = 0;
            }
            phases
        }
        // Deadlines meet, a few periods later.
        _ => {
            let meet = scene.actors.iter().map(|a| a.deadline_ns + a.period_ns);
            let meet = meet.max().unwrap_or(0);
            let early = scene.actors.iter();
            early
                .map(|a| (meet - a.deadline_ns) % a.period_ns + random.below(2))
                .collect()
        }
    };
    random.shuffle(&mut choices.ranks);
    place(scene, &mut choices, random);
    if random.chance(40) {
        choices.execution_percent = random.between(0, 100);
    }
    if random.chance(40) {
        choices.transfer_percent = random.between(0, 100);
    }
    if random.chance(25) {
        choices.sporadic_percent = random.between(1, 50);
    }
    choices
}

/// Who is in memory at the beginning.
fn place(scene: &Scene, choices: &mut Choices, random: &mut Random) {
    let mut order: Vec<usize> = (0..scene.actors.len()).collect();
    random.shuffle(&mut order);
    let mut free = scene.shared_chunks;
    choices.resident_chunks.fill(0);
    let none = random.chance(10);
    for task in order {
        let chunks = scene.actors[task].volume_chunks.min(free);
        if !none {
            choices.resident_chunks[task] = chunks;
            free -= chunks;
        }
    }
}

fn varied(scene: &Scene, best: &Choices, random: &mut Random) -> Choices {
    let mut choices = best.clone();
    choices.seed = random.bits();
    let task = random.index(scene.actors.len());
    let actor = &scene.actors[task];
    choices.phases_ns[task] = match random.index(4) {
        0 => random.below(actor.period_ns),
        1 => choices.phases_ns[task].saturating_sub(1),
        2 => choices.phases_ns[task] + 1,
        _ => choices.phases_ns[random.index(scene.actors.len())] + random.below(2),
    };
    match random.index(6) {
        0 => choices.execution_percent = 100,
        1 => choices.transfer_percent = 100,
        2 => random.shuffle(&mut choices.ranks),
        3 => place(scene, &mut choices, random),
        4 => choices.sporadic_percent = 0,
        _ => {}
    }
    choices
}
