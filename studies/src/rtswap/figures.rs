//! Figure 7 of the paper: schedulable sets by number of tasks, by memory, by resolution.

use super::methods::{METHODS, Method};
use super::workloads::{GPU_MIB, Task, growing, raised, rising};
use neap_realtime::Random;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Sets of each point.
pub const SETS: usize = 100;
pub const TASKS: std::ops::RangeInclusive<usize> = 4..=13;
/// Per cent of memory taken away.
pub const REDUCED: [u64; 15] = [0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70];

/// For each method (in the order of [`METHODS`]) the sets that its test admits at each point.
pub struct Figure {
    /// `[method][point]`.
    pub admitted: Vec<Vec<usize>>,
    /// The average over sets of how far each method goes: see the three functions.
    pub reach: Vec<f64>,
}

/// Number of tasks. Reach: the sum over points, so that ratios are the paper's "more sets".
pub fn by_tasks(seed: u64) -> (Figure, f64) {
    let sets = sets(seed);
    let figure = figure(TASKS.count(), |method, set, point| {
        method.admits(&sets[set][..TASKS.start() + point], GPU_MIB)
    });
    let last = sets.iter().map(|tasks| overflow_gb(tasks)).sum::<f64>() / SETS as f64;
    (figure, last)
}

/// What 13 tasks need beyond the memory.
fn overflow_gb(tasks: &[Task]) -> f64 {
    let total: u64 = tasks.iter().map(|t| t.workload.footprint_mib).sum();
    total.saturating_sub(GPU_MIB) as f64 / 1024.0
}

/// Memory taken away from sets of five tasks, in per cent. Reach: the most that a set bears, averaged over those admitted with
/// all memory.
pub fn by_memory(seed: u64) -> Figure {
    let sets = sets(seed);
    let admits = |method: Method, set: usize, point: usize| {
        method.admits(&sets[set][..5], GPU_MIB * (100 - REDUCED[point]) / 100)
    };
    let mut figure = figure(REDUCED.len(), admits);
    figure.reach = reach(&figure.admitted, |bars| {
        let borne: f64 = bars
            .windows(2)
            .zip(REDUCED.windows(2))
            .map(|(bars, reduced)| bars[1] as f64 * (reduced[1] - reduced[0]) as f64)
            .sum();
        borne / bars[0].max(1) as f64
    });
    figure
}

/// Tasks of high resolution among ten, none to all. Reach: the share of tasks that can be high, in per cent.
pub fn by_resolution(seed: u64) -> Figure {
    let sets: Vec<(Vec<Task>, Vec<usize>)> = (0..SETS)
        .map(|i| rising(&mut Random::new(seed, 1000 + i as u64)))
        .collect();
    let mut figure = figure(11, |method, set, high| {
        let (tasks, order) = &sets[set];
        method.admits(&raised(tasks, order, high), GPU_MIB)
    });
    figure.reach = reach(&figure.admitted, |bars| {
        bars[1..].iter().sum::<usize>() as f64 / SETS as f64 * 10.0
    });
    figure
}

fn sets(seed: u64) -> Vec<Vec<Task>> {
    (0..SETS)
        .map(|i| growing(&mut Random::new(seed, i as u64), *TASKS.end()))
        .collect()
}

fn reach(admitted: &[Vec<usize>], of: impl Fn(&[usize]) -> f64) -> Vec<f64> {
    admitted.iter().map(|bars| of(bars)).collect()
}

/// A set counts at a point only if it was admitted at all points before, which ask for less.
fn figure(points: usize, admits: impl Fn(Method, usize, usize) -> bool + Sync) -> Figure {
    let jobs = METHODS.len() * SETS;
    let lasted = parallel(jobs, |job| {
        let (method, set) = (METHODS[job / SETS], job % SETS);
        (0..points).take_while(|&p| admits(method, set, p)).count()
    });
    let admitted: Vec<Vec<usize>> = lasted
        .chunks(SETS)
        .map(|lasted| {
            (0..points)
                .map(|p| lasted.iter().filter(|&&l| l > p).count())
                .collect()
        })
        .collect();
    let reach = admitted
        .iter()
        .map(|bars: &Vec<usize>| bars.iter().sum::<usize>() as f64);
    Figure {
        reach: reach.collect(),
        admitted,
    }
}

/// All jobs on two threads; results in order.
pub fn parallel<T: Send>(jobs: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= jobs {
                return done;
            }
            done.push((i, job(i)));
        }
    };
    let mut all: Vec<(usize, T)> = std::thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads
            .into_iter()
            .flat_map(|t| {
                t.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    });
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, t)| t).collect()
}
