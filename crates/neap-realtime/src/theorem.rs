//! The paper's schedulability test: Lemma 1 and Theorem 1 (RT-Swap, Section V-D).
//!
//! Volumes are in chunks, one for each task. The test holds for deadlines equal to periods; for shorter ones it is
//! applied with the deadline in place of the period, which asks for more and so is still sound.

use crate::ratio::Share;
use crate::task::{System, Task};

/// B_max: the longest that a job waits for jobs of later deadlines (Lemma 1, Equation 2).
pub fn blocking_ns(system: &System, volumes: &[u64]) -> u64 {
    let each = system.tasks.iter().zip(volumes).map(|(task, &chunks)| {
        let region = system.in_ns(chunks).saturating_add(task.wcet_ns);
        region.max(system.out_ns(chunks))
    });
    each.fold(two_longest_ns(system), u64::max)
}

/// The sum of the two longest execution times, of two tasks.
pub fn two_longest_ns(system: &System) -> u64 {
    let (mut first, mut second) = (0, 0);
    for task in &system.tasks {
        let wcet = task.wcet_ns;
        (first, second) = match wcet > first {
            true => (wcet, first),
            false => (first, second.max(wcet)),
        };
    }
    first + second
}

/// The left side of Equation 3. The set is schedulable under the paper's policy if it is at most
/// [`Share::ONE`] and [`System::volumes_fit`].
pub fn load(system: &System, volumes: &[u64]) -> Share {
    let shortest = system.tasks.iter().map(recurrence_ns).min().unwrap_or(1);
    let work = system.tasks.iter().zip(volumes).enumerate();
    let used: Share = work
        .map(|(i, (task, &chunks))| Share::of(system.occupation_ns(i, chunks), recurrence_ns(task)))
        .sum();
    Share::of(blocking_ns(system, volumes), shortest) + used
}

/// Whether Theorem 1 admits the set with these volumes.
pub fn admits(system: &System, volumes: &[u64]) -> bool {
    system.volumes_fit(volumes) && load(system, volumes) <= Share::ONE
}

/// The period, or the deadline where that is shorter.
pub(crate) fn recurrence_ns(task: &Task) -> u64 {
    task.period_ns.min(task.deadline_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SwapCost, Task};

    fn example() -> System {
        let task = |wcet_ns, period_ns| Task {
            wcet_ns,
            period_ns,
            deadline_ns: period_ns,
            footprint_bytes: 100,
            swappable_bytes: 50,
        };
        System {
            memory_bytes: 250,
            cost: SwapCost {
                chunk_bytes: 10,
                in_ns: 2,
                out_ns: 1,
            },
            tasks: vec![task(10, 100), task(30, 200), task(20, 400)],
        }
    }

    #[test]
    fn the_sets_of_figure_5_are_what_the_equations_say() {
        let system = example();
        // 300 demanded, 250 there: each must find 50 in what the others give up.
        assert!(system.volumes_fit(&[0, 5, 5]));
        assert!(!system.volumes_fit(&[0, 5, 4]));
        assert!(!system.volumes_fit(&[0, 6, 6]), "more than is swappable");
        // Regions take 10, 10 + 30, 10 + 20; two executions 30 + 20.
        assert_eq!(blocking_ns(&system, &[0, 5, 5]), 50);
        // 50/100 + 10/100 + 45/200 + 35/400
        let load = load(&system, &[0, 5, 5]).as_f64();
        assert!(
            (load - (0.5 + 0.1 + 0.225 + 0.0875)).abs() < 1e-12,
            "{load}"
        );
        assert!(admits(&system, &[0, 5, 5]));
    }

    #[test]
    fn a_long_region_blocks_longer_than_two_executions() {
        let mut system = example();
        system.cost.in_ns = 10;
        assert_eq!(blocking_ns(&system, &[0, 5, 5]), 80);
        assert!(!admits(&system, &[0, 5, 5]));
    }
}
