//! What a cell leaves, and what is told of it.

use super::clock::Done;
use super::tasks::{Prepared, Way};
use serde::{Deserialize, Serialize};

/// One way at one budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    pub way: Way,
    /// Memory demanded above the budget.
    pub percent: u32,
    pub limit_bytes: u64,
    pub window_s: f64,
    /// What was measured: cells may be measured one by one.
    pub commit: String,
    pub scheduled: String,
    pub outcome: Outcome,
    /// `None` where it never began.
    pub start: Option<Start>,
    pub tasks: Vec<TaskFigures>,
    pub choosing_us: Spread,
    pub late_us: Spread,
    /// The most that the kernel charged, and how often the limit was reached.
    pub peak_bytes: u64,
    pub limit_reached: u64,
    /// Pages that had to be read, by the kernel's count for the whole process and its children.
    pub major_faults: Option<u64>,
    /// Jobs whose outputs have other bits than their task's first job.
    pub other_bits: usize,
    /// The first values of each task's outputs, to be compared between ways.
    pub outputs: Vec<Vec<f32>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Ended,
    /// By the kernel, as there was no memory.
    Killed,
    Failed(String),
}

/// What a worker says before the first release.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// From the process's beginning to where jobs could be run.
    pub start_ms: f64,
    /// What the admission test says; `None` where there is none.
    pub admission: Option<String>,
    pub admission_us: Option<f64>,
    /// Longest times of jobs that the test counts with.
    pub counted_ms: Vec<f64>,
    /// What the process has beside weights, activations and buffers; `None` where that cannot be told apart.
    pub beside_bytes: Option<u64>,
    /// What each model may give up, in [`Way::Whole`].
    pub volumes_bytes: Vec<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskFigures {
    pub deadline_ms: f64,
    pub released: u64,
    /// Of those that ended, from release to end.
    pub response_ms: Vec<f64>,
    /// From where they were handed over to their end, swapping included.
    pub latency_ms: Vec<f64>,
    pub swap_ms: Vec<f64>,
    /// Of the latency, while nothing was computed as weights were on their way. Empty where that was not noted.
    #[serde(default)]
    pub drive_ms: Vec<f64>,
    /// Time of processors that the host gave to others meanwhile.
    #[serde(default)]
    pub stolen_ms: Vec<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub average: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    pub fn of(values: &[f64]) -> Spread {
        let count = values.len() as f64;
        match values.is_empty() {
            true => Spread::default(),
            false => Spread {
                average: values.iter().sum::<f64>() / count,
                least: values.iter().copied().fold(f64::INFINITY, f64::min),
                most: values.iter().copied().fold(0.0, f64::max),
            },
        }
    }
}

impl TaskFigures {
    /// Jobs of one task. Where the worker did not say how many were `released`, they are counted by the clock until `ended_ns`.
    pub fn of(task: usize, deadline_ns: u64, released: u64, jobs: &[Done]) -> TaskFigures {
        let own: Vec<&Done> = jobs.iter().filter(|done| done.task == task).collect();
        let ms = |of: &dyn Fn(&Done) -> u64| own.iter().map(|d| of(d) as f64 / 1e6).collect();
        TaskFigures {
            deadline_ms: deadline_ns as f64 / 1e6,
            released,
            response_ms: ms(&|d| d.ended_ns - d.release_ns),
            latency_ms: ms(&|d| d.ended_ns - d.began_ns),
            swap_ms: ms(&|d| d.swap_ns),
            drive_ms: ms(&|d| d.drive_ns),
            stolen_ms: ms(&|d| d.stolen_ns),
        }
    }

    /// Jobs that ended late, and those that never ended.
    pub fn missed(&self) -> u64 {
        let in_time = self
            .response_ms
            .iter()
            .filter(|&&ms| ms <= self.deadline_ms);
        self.released.max(self.response_ms.len() as u64) - in_time.count() as u64
    }

    /// Of the responses of all jobs that were released; `None` where that job never ended.
    pub fn response_at(&self, share: f64) -> Option<f64> {
        let all = (self.released as usize).max(self.response_ms.len());
        let rank = ((share * all as f64).ceil() as usize).max(1) - 1;
        sorted(&self.response_ms).get(rank).copied()
    }
}

impl Cell {
    /// Measured with these deadlines and this limit: other cells are of another preparation.
    pub fn is_of(&self, prepared: &Prepared) -> bool {
        let deadlines_ns = prepared.deadlines_ns();
        let each = self.tasks.iter().zip(&deadlines_ns);
        self.limit_bytes == prepared.limit_bytes(self.percent)
            && self.tasks.len() == deadlines_ns.len()
            && each
                .clone()
                .all(|(task, &ns)| task.deadline_ms == ns as f64 / 1e6)
    }

    pub fn missed(&self) -> u64 {
        self.tasks.iter().map(TaskFigures::missed).sum()
    }

    pub fn released(&self) -> u64 {
        self.tasks.iter().map(|task| task.released).sum()
    }
}

pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// The value below which that share of values is, of those there are.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let sorted = sorted(values);
    let rank = ((share * sorted.len() as f64).ceil() as usize).max(1) - 1;
    sorted.get(rank).copied().unwrap_or(f64::NAN)
}

/// Points of the response time's distribution, in parts of the deadline and per cent of the jobs released, up to `most`
/// deadlines. It ends below 100 where jobs took longer, or never ended.
pub fn distribution(task: &TaskFigures, most: f64) -> Vec<(f64, f64)> {
    let all = (task.released as usize).max(task.response_ms.len()).max(1) as f64;
    let parts = sorted(&task.response_ms)
        .into_iter()
        .map(|ms| ms / task.deadline_ms);
    let mut points = vec![(0.0, 0.0)];
    for (before, part) in parts.take_while(|&part| part <= most).enumerate() {
        points.push((part, before as f64 / all * 100.0));
        points.push((part, (before + 1) as f64 / all * 100.0));
    }
    let last = points.last().map_or(0.0, |p| p.1);
    points.push((most, last));
    thinned(points)
}

/// A plot needs no more.
const MOST_POINTS: usize = 400;

fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let step = points.len().div_ceil(MOST_POINTS).max(1);
    let last = points.len() - 1;
    let kept = points.into_iter().enumerate();
    kept.filter(|(at, _)| at % step == 0 || *at == last)
        .map(|(_, point)| point)
        .collect()
}

/// Whether two ways computed the same: the largest difference in parts of the largest value.
pub fn largest_difference(one: &[f32], other: &[f32]) -> f64 {
    if one.len() != other.len() || one.is_empty() {
        return f64::INFINITY;
    }
    let scale = one.iter().fold(f32::MIN_POSITIVE, |m, v| m.max(v.abs()));
    let differ = |(a, b): (&f32, &f32)| f64::from((a - b).abs() / scale);
    // NaN is larger than everything.
    let all = one.iter().zip(other).map(differ);
    all.fold(0.0, |most, d| if d.is_nan() || d > most { d } else { most })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> TaskFigures {
        let done = |release_ns, began_ns, ended_ns| Done {
            task: 1,
            release_ns,
            began_ns,
            ended_ns,
            swap_ns: 0,
            drive_ns: 0,
            stolen_ns: 0,
            choosing_ns: 0,
            late_ns: 0,
            is_same: true,
        };
        let jobs = [
            done(0, 2_000_000, 5_000_000),
            done(10_000_000, 10_000_000, 20_000_000),
            done(20_000_000, 30_000_000, 31_000_000),
            Done {
                task: 0,
                ..done(0, 0, 1)
            },
        ];
        TaskFigures::of(1, 10_000_000, 4, &jobs)
    }

    #[test]
    fn late_jobs_and_those_that_never_end_are_missed() {
        let figures = figures();
        assert_eq!(figures.response_ms, [5.0, 10.0, 11.0]);
        assert_eq!(figures.latency_ms, [3.0, 10.0, 1.0]);
        // One ended late, and one of four not at all.
        assert_eq!(figures.missed(), 2);
        assert_eq!(figures.response_at(0.5), Some(10.0));
        assert_eq!(figures.response_at(0.75), Some(11.0));
        assert_eq!(figures.response_at(0.99), None);
        assert_eq!(quantile(&figures.response_ms, 0.99), 11.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn a_distribution_counts_all_that_were_released() {
        let points = distribution(&figures(), 4.0);
        assert_eq!(points.first(), Some(&(0.0, 0.0)));
        assert!(points.contains(&(0.5, 25.0)) && points.contains(&(1.0, 50.0)));
        assert_eq!(points.last(), Some(&(4.0, 75.0)));
        // What is beyond the plot is not on it.
        assert_eq!(distribution(&figures(), 1.05).last(), Some(&(1.05, 50.0)));
        assert!(
            points
                .windows(2)
                .all(|w| w[0].0 <= w[1].0 && w[0].1 <= w[1].1)
        );
        assert_eq!(distribution(&TaskFigures::default(), 4.0).len(), 2);
    }

    #[test]
    fn spreads_and_differences() {
        let spread = Spread::of(&[1.0, 4.0, 1.0]);
        assert_eq!((spread.average, spread.least, spread.most), (2.0, 1.0, 4.0));
        assert_eq!(Spread::of(&[]), Spread::default());
        assert_eq!(largest_difference(&[1.0, -2.0], &[1.5, -2.0]), 0.25);
        assert!(largest_difference(&[1.0], &[]).is_infinite());
        assert!(largest_difference(&[1.0, 1.0], &[f32::NAN, 1.0]).is_nan());
    }
}
