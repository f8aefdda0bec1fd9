//! The verdict: budgets or volumes, bounds of responses, and what would have to change.

use super::file::{Needs, Tasks};
use crate::failure::{Outcome, bad};
use neap_realtime::budgets::{
    Chosen, Streaming, chosen, most_slack, nearly_least_memory, slack_permille,
};
use neap_realtime::demand::{self, Verdict, Work};
use neap_realtime::simulate::{Actor, Scene};
use neap_realtime::{Effort, System, Task, response, theorem, volumes};

/// What was found.
pub struct Judged {
    pub admitted: bool,
    /// Whether the search was not ended before all was looked at.
    pub is_decided: bool,
    /// Why not, of the set that came nearest.
    pub verdict: Verdict,
    /// What each task has, if it is admitted; what it would need otherwise.
    pub shares: Vec<Share>,
    pub work: Vec<Work>,
    /// All times could be so many thousandths of what they are.
    pub slack_permille: Option<u64>,
    pub method: Method,
    pub changes: Vec<Change>,
    pub scene: Scene,
}

/// One task's memory, and what follows from it.
pub struct Share {
    /// In memory while it runs.
    pub memory_bytes: u64,
    /// Leaves memory between its jobs, at most.
    pub swapped_bytes: u64,
    /// Longest from release to completion; only of an admitted set.
    pub response_ns: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Budgets chosen with admission.
    Budgets,
    /// Swapping that Theorem 1 admits.
    Theorem,
    /// Swapping that processor demand admits.
    Demand,
}

/// One change that would be enough alone.
pub enum Change {
    Memory {
        bytes: u64,
    },
    AllPeriods {
        percent: u64,
    },
    Period {
        task: usize,
        period_ns: u64,
        deadline_ns: u64,
    },
    Without {
        task: usize,
    },
}

/// Periods more than so many times as long are no help.
const MOST_PERCENT: u64 = 6400;

pub fn judge(tasks: &Tasks, curves: &[Streaming]) -> Outcome<Judged> {
    match tasks.swap {
        Some(cost) => {
            let system = System {
                memory_bytes: tasks.memory_bytes,
                cost,
                tasks: tasks.tasks.iter().filter_map(plain).collect(),
            };
            system.check().map_err(bad)?;
            Ok(swapping(&system))
        }
        None => Ok(streaming(tasks, curves)),
    }
}

fn plain(task: &super::file::Task) -> Option<Task> {
    match task.needs {
        Needs::Swapped {
            memory_bytes,
            swappable_bytes,
            wcet_ns,
        } => Some(Task {
            wcet_ns,
            period_ns: task.period_ns,
            deadline_ns: task.deadline_ns,
            footprint_bytes: memory_bytes,
            swappable_bytes,
        }),
        _ => None,
    }
}

fn streaming(tasks: &Tasks, curves: &[Streaming]) -> Judged {
    let memory = tasks.memory_bytes;
    let gap = gap(curves.len());
    let effort = Effort::bounded();
    let least = |curves: &[Streaming]| nearly_least_memory(curves, gap, &effort);
    let found = most_slack(curves, memory, gap, &effort);
    let is_decided = found.is_some() || !effort.fell_short();
    let fits =
        |curves: &[Streaming], memory: u64| least(curves).is_some_and(|c| c.total_bytes <= memory);
    let admitted = found.is_some();
    // Refused: with least memory, or, where none is enough, with the shortest times.
    let shown: Chosen = match &found {
        Some((_, chosen)) => chosen.clone(),
        None => least(curves).unwrap_or_else(|| fastest(curves)),
    };
    let changes = match admitted {
        true => Vec::new(),
        false => changes(
            curves.len(),
            least(curves).map(|c| c.total_bytes),
            |change| match *change {
                Altered::Without(task) => {
                    let mut curves = curves.to_vec();
                    curves.remove(task);
                    fits(&curves, memory)
                }
                Altered::Stretched { task, percent } => {
                    let mut curves = curves.to_vec();
                    let these = curves.iter_mut().enumerate();
                    for (_, c) in these.filter(|(i, _)| task.is_none_or(|t| t == *i)) {
                        c.period_ns = stretched(c.period_ns, percent);
                        c.deadline_ns = stretched(c.deadline_ns, percent);
                    }
                    fits(&curves, memory)
                }
            },
            |task| (curves[task].period_ns, curves[task].deadline_ns),
        ),
    };
    let responses = admitted.then(|| response::bounds_ns(&shown.work));
    let shares = curves.iter().zip(&shown.points).enumerate();
    let shares = shares.map(|(i, (curve, &point))| Share {
        memory_bytes: curve.points[point].budget_bytes,
        swapped_bytes: 0,
        response_ns: responses.as_ref().map(|r| r[i]),
    });
    let actors = shown.work.iter().map(|w| Actor {
        period_ns: w.period_ns,
        deadline_ns: w.deadline_ns,
        wcet_ns: w.work_ns,
        step_ns: w.hold_ns.max(1),
        resume_ns: 0,
        volume_chunks: 0,
    });
    Judged {
        admitted,
        is_decided,
        verdict: demand::check(&shown.work),
        shares: shares.collect(),
        scene: Scene::of_actors(actors.collect()),
        slack_permille: found.map(|(permille, _)| permille),
        work: shown.work,
        method: Method::Budgets,
        changes,
    }
}

/// Of few tasks the best budgets are proven; of more, those that need up to 1 % less memory may be missed.
fn gap(tasks: usize) -> f64 {
    match tasks {
        0..=6 => 0.0,
        _ => 0.01,
    }
}

fn fastest(curves: &[Streaming]) -> Chosen {
    let each = curves.iter().map(|c| {
        let points = c.points.iter().enumerate();
        points.min_by_key(|(_, p)| p.work_ns).map_or(0, |(i, _)| i)
    });
    chosen(curves, &each.collect::<Vec<usize>>())
}

fn swapping(system: &System) -> Judged {
    let found = assigned(system);
    let admitted = found.is_some();
    let (volumes, method) = found.unwrap_or_else(|| {
        let most = (0..system.tasks.len()).map(|i| system.swappable_chunks(i));
        (most.collect(), Method::Demand)
    });
    let work = demand::of_swapping(system, &volumes);
    let changes = match admitted {
        true => Vec::new(),
        false => changes(
            system.tasks.len(),
            memory_needed(system),
            |change| {
                let mut system = system.clone();
                match *change {
                    Altered::Without(task) => {
                        system.tasks.remove(task);
                    }
                    Altered::Stretched { task, percent } => {
                        let these = system.tasks.iter_mut().enumerate();
                        for (_, t) in these.filter(|(i, _)| task.is_none_or(|t| t == *i)) {
                            t.period_ns = stretched(t.period_ns, percent);
                            t.deadline_ns = stretched(t.deadline_ns, percent);
                        }
                    }
                }
                assigned(&system).is_some()
            },
            |task| (system.tasks[task].period_ns, system.tasks[task].deadline_ns),
        ),
    };
    // Theorem 1 may admit what takes too long to look at otherwise.
    let demanded = demand::check(&work);
    let responses = admitted.then(|| match demanded.is_admitted() {
        true => response::bounds_ns(&work),
        false => work.iter().map(|w| w.deadline_ns).collect(),
    });
    let shares = (0..volumes.len()).map(|i| Share {
        memory_bytes: system.footprint_chunks(i) * system.cost.chunk_bytes,
        swapped_bytes: volumes[i] * system.cost.chunk_bytes,
        response_ns: responses.as_ref().map(|r| r[i]),
    });
    let drawn = system.volumes_fit(&volumes);
    Judged {
        admitted,
        is_decided: true,
        verdict: match drawn {
            true => demanded,
            false => Verdict::Undecided,
        },
        shares: shares.collect(),
        slack_permille: admitted.then(|| slack_permille(&work)),
        scene: match drawn {
            true => Scene::of_swapping(system, &volumes),
            false => Scene::of_actors(Vec::new()),
        },
        work,
        method,
        changes,
    }
}

/// Volumes that one of the tests admits, the paper's first.
fn assigned(system: &System) -> Option<(Vec<u64>, Method)> {
    if system.tasks.is_empty() {
        return Some((Vec::new(), Method::Theorem));
    }
    let by_theorem = volumes::smallest_for_chunk(system).filter(|v| theorem::admits(system, v));
    by_theorem
        .map(|v| (v, Method::Theorem))
        .or_else(|| volumes::by_demand(system).map(|v| (v, Method::Demand)))
}

/// The least memory, in chunks, with which the system is admitted.
fn memory_needed(system: &System) -> Option<u64> {
    let with = |chunks: u64| System {
        memory_bytes: chunks * system.cost.chunk_bytes,
        ..system.clone()
    };
    let all: u64 = (0..system.tasks.len())
        .map(|i| system.footprint_chunks(i))
        .sum();
    assigned(&with(all))?;
    let (mut low, mut high) = (0, all);
    while high - low > 1 {
        let middle = (low + high) / 2;
        match assigned(&with(middle)) {
            Some(_) => high = middle,
            None => low = middle,
        }
    }
    Some(high * system.cost.chunk_bytes)
}

/// A set of tasks that is a little different.
enum Altered {
    Without(usize),
    /// Periods and deadlines of one task, or of all.
    Stretched {
        task: Option<usize>,
        percent: u64,
    },
}

fn stretched(ns: u64, percent: u64) -> u64 {
    (u128::from(ns) * u128::from(percent)).div_ceil(100) as u64
}

/// Each change that is enough alone, as small as can be.
fn changes(
    count: usize,
    memory_bytes: Option<u64>,
    is_admitted: impl Fn(&Altered) -> bool,
    times_ns: impl Fn(usize) -> (u64, u64),
) -> Vec<Change> {
    let mut changes: Vec<Change> = memory_bytes
        .map(|bytes| Change::Memory { bytes })
        .into_iter()
        .collect();
    let smallest = |task: Option<usize>| {
        let at = |percent| is_admitted(&Altered::Stretched { task, percent });
        if !at(MOST_PERCENT) {
            return None;
        }
        let (mut low, mut high) = (100, MOST_PERCENT);
        while high - low > 1 {
            let middle = (low + high) / 2;
            match at(middle) {
                true => high = middle,
                false => low = middle,
            }
        }
        Some(high)
    };
    changes.extend(smallest(None).map(|percent| Change::AllPeriods { percent }));
    for task in 0..count {
        let (period_ns, deadline_ns) = times_ns(task);
        changes.extend(smallest(Some(task)).map(|percent| Change::Period {
            task,
            period_ns: stretched(period_ns, percent),
            deadline_ns: stretched(deadline_ns, percent),
        }));
    }
    for task in (0..count).filter(|_| count > 1) {
        if is_admitted(&Altered::Without(task)) {
            changes.push(Change::Without { task });
        }
    }
    changes
}
