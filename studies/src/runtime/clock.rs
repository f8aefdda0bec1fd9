//! Jobs by the clock: released each period, run one at a time, the earliest deadline first.
//!
//! ```text
//!   clock ─► releases ─► queue by deadline ─► the way runs it to its end ─► a line
//! ```

use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// One job that ended. Times are from the first release on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    pub task: usize,
    pub release_ns: u64,
    pub began_ns: u64,
    pub ended_ns: u64,
    /// Of it, what went before its execution: memory given up and weights read.
    pub swap_ns: u64,
    /// Of it, while nothing was computed as weights were on their way.
    pub drive_ns: u64,
    /// Time of processors that the host gave to others meanwhile.
    pub stolen_ns: u64,
    /// From when the processor was free to when the job was handed over: releases, the choice of the job, and of victims.
    pub choosing_ns: u64,
    /// The clock woke up so much later than the release; 0 for a job that found the processor busy.
    pub late_ns: u64,
    /// Its outputs have the bits of the task's first job.
    pub is_same: bool,
}

/// How a job ran.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ran {
    pub swap_ns: u64,
    pub drive_ns: u64,
    pub choosing_ns: u64,
}

/// Who runs jobs.
pub trait Runs {
    /// Runs one job of a task to its end; `next_ns` is when each task releases its next.
    fn run(&mut self, task: usize, next_ns: &[u64]) -> Result<Ran>;

    /// Whether the outputs of the last run of a task have the bits of its first run. It is asked when the job's end was noted.
    fn is_same(&mut self, task: usize) -> Result<bool>;
}

/// Ordered: the earliest deadline, then the earliest release, then the first task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Job {
    pub deadline_ns: u64,
    pub release_ns: u64,
    pub task: usize,
}

/// Which jobs are there.
pub struct Timetable {
    /// Periods, which are deadlines too.
    periods_ns: Vec<u64>,
    next_ns: Vec<u64>,
    /// Nothing is released from then on.
    until_ns: u64,
    ready: BinaryHeap<Reverse<Job>>,
    pub released: Vec<u64>,
}

impl Timetable {
    /// All tasks release their first job at once: what is worst for the later ones.
    pub fn new(periods_ns: &[u64], until_ns: u64) -> Timetable {
        Timetable {
            periods_ns: periods_ns.to_vec(),
            next_ns: vec![0; periods_ns.len()],
            until_ns,
            ready: BinaryHeap::new(),
            released: vec![0; periods_ns.len()],
        }
    }

    pub fn release(&mut self, now_ns: u64) {
        for task in 0..self.next_ns.len() {
            while self.next_ns[task] <= now_ns && self.next_ns[task] < self.until_ns {
                let release_ns = self.next_ns[task];
                self.ready.push(Reverse(Job {
                    deadline_ns: release_ns + self.periods_ns[task],
                    release_ns,
                    task,
                }));
                self.next_ns[task] += self.periods_ns[task];
                self.released[task] += 1;
            }
        }
    }

    pub fn take(&mut self) -> Option<Job> {
        self.ready.pop().map(|Reverse(job)| job)
    }

    /// When the next job is released; `None` at the end.
    pub fn next_release_ns(&self) -> Option<u64> {
        let next = self.next_ns.iter().copied().min()?;
        (next < self.until_ns).then_some(next)
    }

    /// When each task's next job is there: one that waits is there now, however long it waits.
    pub fn next_of_each(&self) -> Vec<u64> {
        let mut next = self.next_ns.clone();
        for Reverse(job) in &self.ready {
            next[job.task] = next[job.task].min(job.release_ns);
        }
        next
    }
}

/// Runs jobs until all that were released have ended, or for `grace` after the last release. `tell` hears of each. Says how
/// many of each task were released.
///
/// # Errors
/// The first that `runs` has.
pub fn drive(
    periods_ns: &[u64],
    window: Duration,
    grace: Duration,
    runs: &mut dyn Runs,
    tell: &mut dyn FnMut(&Done),
) -> Result<Vec<u64>> {
    let mut table = Timetable::new(periods_ns, window.as_nanos() as u64);
    let began = Instant::now();
    let clock = || began.elapsed().as_nanos() as u64;
    let end_ns = (window + grace).as_nanos() as u64;
    let mut woken_for = None;
    loop {
        let free_ns = clock();
        table.release(free_ns);
        if let Some(job) = table.take() {
            if free_ns > end_ns {
                break;
            }
            let next_ns = table.next_of_each();
            let stolen_ns = stolen_ns();
            let handed_ns = clock();
            let ran = runs.run(job.task, &next_ns)?;
            let ended_ns = clock();
            tell(&Done {
                task: job.task,
                release_ns: job.release_ns,
                began_ns: handed_ns,
                ended_ns,
                swap_ns: ran.swap_ns,
                drive_ns: ran.drive_ns,
                stolen_ns: self::stolen_ns().saturating_sub(stolen_ns),
                choosing_ns: handed_ns - free_ns + ran.choosing_ns,
                late_ns: match woken_for.take() == Some(job.release_ns) {
                    true => free_ns - job.release_ns,
                    false => 0,
                },
                is_same: runs.is_same(job.task)?,
            });
        } else if let Some(next_ns) = table.next_release_ns() {
            std::thread::sleep(Duration::from_nanos(next_ns.saturating_sub(clock())));
            woken_for = Some(next_ns);
        } else {
            break;
        }
    }
    // Those after the window are not counted, whenever it was noticed.
    table.release(u64::MAX - 1);
    Ok(table.released)
}

/// Since the machine began, of all processors, as the kernel counts it; 0 where it does not.
fn stolen_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    stolen_ticks(&stat) * TICK_NS
}

/// `USER_HZ`, which programs see, is 100 on every Linux that this runs on.
const TICK_NS: u64 = 10_000_000;

/// The eighth number of the line of all processors.
fn stolen_ticks(stat: &str) -> u64 {
    let all = stat.lines().find(|line| line.starts_with("cpu "));
    let steal = all.and_then(|line| line.split_whitespace().nth(8));
    steal.and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_deadline_goes_first() {
        let mut table = Timetable::new(&[30, 20, 20], 60);
        table.release(0);
        let order: Vec<usize> = std::iter::from_fn(|| table.take())
            .map(|j| j.task)
            .collect();
        assert_eq!(order, [1, 2, 0]);
        assert_eq!(table.next_release_ns(), Some(20));
        // At 40 the second jobs of 1 and 2 are due, as is the first of all at 60.
        table.release(40);
        assert_eq!(table.next_of_each(), [30, 20, 20]);
        let jobs: Vec<(usize, u64)> = std::iter::from_fn(|| table.take())
            .map(|j| (j.task, j.release_ns))
            .collect();
        assert_eq!(jobs, [(1, 20), (2, 20), (0, 30), (1, 40), (2, 40)]);
        // 60 is the end: nothing is released from then on.
        assert_eq!(table.next_release_ns(), None);
        table.release(1000);
        assert_eq!(table.take(), None);
        assert_eq!(table.released, [2, 3, 3]);
    }

    #[test]
    fn stolen_time_is_the_eighth_number() {
        let stat =
            "cpu  221582 1419 39240 113965 34198 0 824 1313 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(stolen_ticks(stat), 1313);
        assert_eq!(stolen_ticks(""), 0);
    }

    struct Instantly(Vec<usize>);

    impl Runs for Instantly {
        fn run(&mut self, task: usize, _: &[u64]) -> Result<Ran> {
            self.0.push(task);
            Ok(Ran::default())
        }

        fn is_same(&mut self, _: usize) -> Result<bool> {
            Ok(true)
        }
    }

    #[test]
    fn every_job_that_is_released_is_told() {
        let mut runs = Instantly(Vec::new());
        let mut told = Vec::new();
        let ms = 1_000_000;
        let released = drive(
            &[4 * ms, 6 * ms],
            Duration::from_millis(12),
            Duration::from_secs(60),
            &mut runs,
            &mut |done| told.push(*done),
        )
        .expect("nothing fails");
        assert_eq!(released, [3, 2]);
        assert_eq!(told.len(), 5);
        assert_eq!(runs.0.iter().filter(|&&task| task == 0).count(), 3);
        assert!(
            told.iter()
                .all(|d| d.release_ns <= d.began_ns && d.began_ns <= d.ended_ns)
        );
    }
}
