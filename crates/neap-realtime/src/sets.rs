//! Random systems at the edge of what a test admits, where a wrong test would be caught.

use crate::random::Random;
use crate::task::{SwapCost, System, Task};

/// A system whose tasks demand more memory than there is, and volumes that fit ([`System::volumes_fit`]). Deadlines are
/// periods, or between half and one and a half of them when `any_deadlines`.
pub fn draw(random: &mut Random, any_deadlines: bool) -> (System, Vec<u64>) {
    loop {
        let count = 2 + random.index(5);
        let unit = [1, 10, 1000][random.index(3)];
        let tasks: Vec<Task> = (0..count)
            .map(|_| {
                let longest = [60, 400][random.index(2)];
                let period_ns = unit * random.between(20, longest);
                let footprint = random.between(3, 12);
                let wcet = unit * random.between(1, 20);
                let deadline_ns = match any_deadlines {
                    true => random.between(period_ns / 2, period_ns + period_ns / 2),
                    false => period_ns,
                };
                Task {
                    wcet_ns: wcet,
                    period_ns,
                    deadline_ns,
                    footprint_bytes: footprint,
                    swappable_bytes: random.between(0, footprint),
                }
            })
            .collect();
        let total: u64 = tasks.iter().map(|t| t.footprint_bytes).sum();
        let largest = tasks.iter().map(|t| t.footprint_bytes).max().unwrap_or(1);
        let system = System {
            memory_bytes: random.between(largest, total),
            cost: SwapCost {
                chunk_bytes: 1,
                in_ns: random.between(0, 4 * unit),
                out_ns: random.between(0, 4 * unit),
            },
            tasks,
        };
        if let Some(volumes) = draw_volumes(random, &system) {
            return (system, volumes);
        }
    }
}

/// Random volumes that fit; `None` when a few tries find none.
fn draw_volumes(random: &mut Random, system: &System) -> Option<Vec<u64>> {
    let most: Vec<u64> = (0..system.tasks.len())
        .map(|i| system.swappable_chunks(i))
        .collect();
    for _ in 0..8 {
        let volumes: Vec<u64> = most.iter().map(|&m| random.between(0, m)).collect();
        if system.volumes_fit(&volumes) {
            return Some(volumes);
        }
    }
    system.volumes_fit(&most).then_some(most)
}

/// The same system slowed down or sped up until `admits` hardly holds: periods and deadlines are multiplied by the smallest factor, in steps of
/// a 256th, at which it does. `None` when no factor up to 64 is enough.
pub fn at_the_edge(system: &System, admits: impl Fn(&System) -> bool) -> Option<System> {
    let (mut low, mut high) = (0, 64 * 256);
    if !admits(&stretched(system, high)) {
        return None;
    }
    while high - low > 1 {
        let middle = (low + high) / 2;
        match admits(&stretched(system, middle)) {
            true => high = middle,
            false => low = middle,
        }
    }
    Some(stretched(system, high))
}

/// Periods and deadlines times `factor` / 256.
pub fn stretched(system: &System, factor: u64) -> System {
    let mut system = system.clone();
    for task in &mut system.tasks {
        task.period_ns = (task.period_ns * factor / 256).max(1);
        task.deadline_ns = (task.deadline_ns * factor / 256).max(1);
    }
    system
}
