//! A task from its file to its report.

use super::file::{self, Member, Policy, Task};
use super::fleet::Fleet;
use super::message::{Done, Opened, Order, Said};
use super::one;
use super::report::{Largest, ModelReport, TaskReport, TotalChange};
use crate::args::{EngineArgs, OpenArgs};
use crate::cgroup::{self, Group, limits};
use crate::failure::{Failure, Outcome, bad};
use crate::interrupt;
use crate::printed::{Printed, TextOrJson};
use crate::progress::note;
use crate::report::{Adapted, ms};
use neap_planner::allocate::{
    AllocateError, Curve, Demand, curves, equal, largest_weighted, paper,
};
use neaptide::{Budget, Bytes, LatencyCurve, Ledger};
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

/// What the command line says beside the file.
pub struct Settings<'a> {
    pub file: &'a Path,
    pub allocate: Option<Policy>,
    pub enforce: bool,
    /// Models take turns in this process instead of having one each.
    pub one_process: bool,
    pub engine: &'a EngineArgs,
    pub printed: &'a Printed<TextOrJson>,
    pub open: &'a OpenArgs,
    /// Options of the command line that are every member's, as words.
    pub members: Vec<OsString>,
    pub keeps_activations: bool,
    pub quiet: bool,
}

pub fn run(settings: &Settings) -> Outcome {
    let mut task = file::read(settings.file)?;
    task.total_bytes = limits::bytes(task.total_bytes);
    task.schedule = task.schedule.map(limits::lowered);
    if settings.one_process || task.one_process {
        return one::run(settings, &task);
    }
    let policy = settings.allocate.unwrap_or(task.policy);
    if settings.enforce && policy == Policy::Direct {
        return Err(bad(
            "--enforce needs an allocation of the total, 'direct' is none",
        ));
    }
    if settings.keeps_activations && task.schedule.is_some() {
        return Err(bad(
            "--keep-activations is for one budget: leave out total_schedule",
        ));
    }
    let _deferred = interrupt::defer();
    // Packed once, and anything wrong with a file is said once.
    let open = settings.open.options()?;
    for (i, member) in task.members.iter().enumerate() {
        if task.members[..i].iter().all(|m| m.path != member.path) {
            crate::commands::open_member(&member.path, &open, settings.quiet)?.check_weights()?;
        }
    }
    let total_bytes = match task.schedule.as_ref().and_then(|s| s.at_start()) {
        Some(Budget::Bytes(bytes)) => bytes,
        _ => task.total_bytes,
    };
    let group = settings.enforce.then(|| group(total_bytes)).transpose()?;
    let members = task.members.iter();
    let args = members.map(|member| arguments(member, &task, &settings.members));
    let fleet = Fleet::start(args.collect(), group.as_ref())?;
    let mut running = Running {
        count: task.members.len(),
        fleet,
        group,
        policy,
        total_bytes,
    };
    let report = running.work(&task, settings);
    let report = match report {
        Ok(report) => report,
        Err(failure) => return Err(running.explained(failure)),
    };
    drop(running);
    settings.printed.report(&report, || report.summary())
}

fn group(total_bytes: u64) -> Outcome<Group> {
    cgroup::find()
        .and_then(|found| Group::create(&found, total_bytes))
        .map_err(cgroup::supervise::needs_rights)
}

/// The command line of a member's process: what all members are told, then what the file says of this one,
/// which comes last and so prevails.
fn arguments(member: &Member, task: &Task, carried: &[OsString]) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec![member.path.clone().into()];
    args.extend_from_slice(carried);
    let mut add = |name: &str, value: String| {
        args.push(format!("--{name}={value}").into());
    };
    let cpus: Vec<String> = member.cpus.iter().map(usize::to_string).collect();
    add("cpus", cpus.join(","));
    add("threads", member.threads.to_string());
    add("seed", member.seed.to_string());
    add("warmup", task.warmup.to_string());
    let time = |time: Duration| format!("{}s", time.as_secs_f64());
    match (task.runs, task.duration) {
        (None, None) => add("runs", "1".into()),
        (runs, duration) => {
            runs.into_iter().for_each(|n| add("runs", n.to_string()));
            duration.into_iter().for_each(|d| add("duration", time(d)));
        }
    }
    member
        .period
        .into_iter()
        .for_each(|p| add("period", time(p)));
    task.strategy
        .into_iter()
        .for_each(|s| add("strategy", s.name().into()));
    args.extend(task.schedule.is_some().then(|| "--prepare".into()));
    args
}

struct Running {
    count: usize,
    fleet: Fleet,
    group: Option<Group>,
    policy: Policy,
    total_bytes: u64,
}

/// What is known of the members' latencies, and how the total is divided by it.
struct Allocator<'a> {
    task: &'a Task,
    policy: Policy,
    curves: Vec<Curve>,
    demands: Vec<Demand>,
    /// The smallest budgets together, part by part.
    smallest: Ledger,
}

impl Allocator<'_> {
    fn divide(&self, policy: Policy, total_bytes: u64) -> Result<Vec<u64>, AllocateError> {
        match policy {
            Policy::Curves => curves(&self.curves, total_bytes),
            Policy::Slowdown => {
                let relative: Vec<Curve> = self.curves.iter().map(Curve::relative).collect();
                curves(&relative, total_bytes)
            }
            Policy::Paper => paper(&self.demands, total_bytes),
            Policy::Equal => equal(&self.demands, total_bytes),
            Policy::Direct => Ok(self.demands.iter().map(|d| d.memory_bytes).collect()),
        }
    }

    /// The budgets of all members.
    fn budgets(&self, total_bytes: u64) -> Outcome<Vec<u64>> {
        self.divide(self.policy, total_bytes).map_err(|error| {
            let AllocateError::Infeasible { least_bytes } = error;
            let each = self.task.members.iter().zip(&self.demands);
            let each: Vec<String> = each
                .map(|(m, d)| format!("{} {}", m.name, Bytes(d.least_bytes)))
                .collect();
            Failure::Infeasible(format!(
                "the total of {} cannot be met: the smallest feasible budgets are {} ({least_bytes} bytes) \
                 together: {}; {}",
                Bytes(total_bytes),
                Bytes(least_bytes),
                each.join(", "),
                self.smallest
            ))
        })
    }

    fn predicted_ms(&self, budgets: &[u64]) -> Option<f64> {
        largest_weighted(&self.curves, budgets).map(|ns| ns / 1e6)
    }
}

impl Running {
    fn work(&mut self, task: &Task, settings: &Settings) -> Outcome<TaskReport> {
        let all: Vec<usize> = (0..self.count).collect();
        if !settings.quiet {
            note(&format!("planning for {} models", self.count));
        }
        // One at a time: where costs are estimated, nobody else computes or reads meanwhile.
        let mut heard = Vec::new();
        for &index in &all {
            self.fleet.tell(index, &Order::Curve);
            heard.extend(self.answers(&[index], |said| match said {
                Said::Curve(curve) => Some(curve),
                _ => None,
            })?);
        }
        let (allocator, bounds) = self.allocator(task, heard)?;
        let budgets = allocator.budgets(self.total_bytes)?;
        for (_, total) in task.schedule.iter().flat_map(|s| s.budgets()) {
            if let Budget::Bytes(bytes) = total {
                allocator.budgets(bytes)?;
            }
        }
        for (index, &bytes) in budgets.iter().enumerate() {
            self.fleet.tell(index, &Order::Open(bytes));
        }
        let opened = self.answers(&all, |said| match said {
            Said::Opened(opened) => Some(*opened),
            _ => None,
        })?;
        all.iter().for_each(|&i| self.fleet.tell(i, &Order::Go));
        let mut course = Course {
            began: Instant::now(),
            budgets: budgets.clone(),
            done: (0..self.count).map(|_| None).collect(),
            adapted: (0..self.count).map(|_| Vec::new()).collect(),
            changes: Vec::new(),
        };
        let first_total_bytes = self.total_bytes;
        self.follow(task, &allocator, &mut course)?;
        self.report(
            task,
            settings,
            &allocator,
            first_total_bytes,
            &bounds,
            opened,
            course,
        )
    }

    /// One answer of each of `members`; what others say meanwhile is nothing that is waited for.
    fn answers<T>(
        &mut self,
        members: &[usize],
        wanted: impl Fn(Said) -> Option<T>,
    ) -> Outcome<Vec<T>> {
        let mut answers: Vec<Option<T>> = members.iter().map(|_| None).collect();
        while answers.iter().any(Option::is_none) {
            let Some((index, said)) = self.fleet.hear(None)? else {
                continue;
            };
            if let (Some(at), Some(answer)) =
                (members.iter().position(|&m| m == index), wanted(said))
            {
                answers[at] = Some(answer);
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// From curves to allocations; Equation 1's budgets are added to the curves, so that its plans are
    /// known, too.
    fn allocator<'a>(
        &mut self,
        task: &'a Task,
        mut heard: Vec<LatencyCurve>,
    ) -> Outcome<(Allocator<'a>, Vec<LatencyCurve>)> {
        let bounds = heard.clone();
        let demands: Vec<Demand> = heard
            .iter()
            .zip(&task.members)
            .map(|(curve, member)| Demand {
                least_bytes: curve.smallest.total_bytes(),
                memory_bytes: curve.points.last().map_or(0, |p| p.budget_bytes),
                latency_ns: curve.points.last().map_or(0, |p| p.latency_ns),
                urgency: member.urgency,
            })
            .collect();
        let later = task.schedule.iter().flat_map(|s| s.budgets());
        let later = later.filter_map(|(_, b)| match b {
            Budget::Bytes(bytes) => Some(bytes),
            _ => None,
        });
        let totals: Vec<u64> = std::iter::once(self.total_bytes).chain(later).collect();
        let all: Vec<usize> = (0..self.count).collect();
        let by_paper: Vec<Vec<u64>> = totals
            .iter()
            .filter_map(|&total| paper(&demands, total).ok())
            .collect();
        for &index in &all {
            let budgets = by_paper.iter().map(|budgets| budgets[index]).collect();
            self.fleet.tell(index, &Order::Points(budgets));
        }
        let more = self.answers(&all, |said| match said {
            Said::Curve(curve) => Some(curve),
            _ => None,
        })?;
        for (curve, more) in heard.iter_mut().zip(more) {
            curve.points.extend(more.points);
        }
        let curves: Option<Vec<Curve>> = heard
            .iter()
            .zip(&task.members)
            .map(|(curve, member)| {
                let points = curve
                    .points
                    .iter()
                    .filter(|p| p.budget_bytes >= curve.smallest.total_bytes());
                let points = points.map(|p| (p.budget_bytes, p.latency_ns));
                Curve::new(points.collect(), member.urgency)
            })
            .collect();
        let curves = curves.ok_or_else(|| Failure::Internal("a model has no curve".into()))?;
        let allocator = Allocator {
            task,
            policy: self.policy,
            curves,
            demands,
            smallest: bounds
                .iter()
                .fold(Ledger::default(), |sum, curve| sum.plus(&curve.smallest)),
        };
        Ok((allocator, bounds))
    }

    /// Until all members are done; the total moves as the schedule says.
    fn follow(&mut self, task: &Task, allocator: &Allocator, course: &mut Course) -> Outcome {
        let mut schedule = task.schedule.clone();
        // What holds from the start is in force.
        schedule.iter_mut().for_each(|s| {
            s.due(Duration::ZERO);
        });
        while course.done.iter().any(Option::is_none) {
            let now = course.began.elapsed();
            if let Some(Budget::Bytes(bytes)) = schedule.as_mut().and_then(|s| s.due(now)) {
                self.adapt(allocator, course, bytes)?;
                continue;
            }
            let next = schedule
                .as_ref()
                .and_then(|s| s.budgets().find(|(at, _)| *at > now));
            let until = next.map(|(at, _)| course.began + at);
            if let Some((index, said)) = self.fleet.hear(until)? {
                course.take(index, said);
            }
        }
        Ok(())
    }

    /// Another total: those that give memory up go first.
    fn adapt(&mut self, allocator: &Allocator, course: &mut Course, total_bytes: u64) -> Outcome {
        let started = Instant::now();
        let budgets = allocator.budgets(total_bytes)?;
        let allocating_ns = started.elapsed().as_nanos() as u64;
        let mut change = TotalChange {
            at_s: course.began.elapsed().as_secs_f64(),
            total_before_bytes: self.total_bytes,
            total_bytes,
            allocating_ms: ms(allocating_ns),
            shrinking_ms: 0.0,
            growing_ms: 0.0,
            read_bytes: 0,
            adapting_ms: 0.0,
            settled_ms: 0.0,
            budgets_bytes: budgets.clone(),
        };
        if total_bytes > self.total_bytes {
            self.limit(total_bytes)?;
        }
        for growing in [false, true] {
            let moved = (0..self.count).filter(|&i| match growing {
                false => budgets[i] < course.budgets[i],
                true => budgets[i] > course.budgets[i],
            });
            let mut waiting: Vec<usize> = moved.filter(|&i| !self.fleet.is_done(i)).collect();
            for &index in &waiting {
                self.fleet.tell(index, &Order::Budget(budgets[index]));
            }
            let mut slowest_ms = 0.0f64;
            while !waiting.is_empty() {
                let Some((index, said)) = self.fleet.hear(None)? else {
                    continue;
                };
                match &said {
                    Said::Adapted(adapted) => {
                        slowest_ms = slowest_ms.max(adapted.total_ms);
                        change.read_bytes += adapted.read_bytes;
                        course.budgets[index] = budgets[index];
                    }
                    Said::Refused(smallest_bytes) => note(&format!(
                        "{}: {} is not enough any more, {} would be: its budget stays",
                        allocator.task.members[index].name,
                        Bytes(budgets[index]),
                        Bytes(*smallest_bytes)
                    )),
                    Said::Done(_) => {}
                    Said::Curve(_) | Said::Opened(_) => continue,
                }
                waiting.retain(|&i| i != index);
                course.take(index, said);
            }
            *(if growing {
                &mut change.growing_ms
            } else {
                &mut change.shrinking_ms
            }) = slowest_ms;
        }
        if total_bytes < self.total_bytes {
            self.limit(total_bytes)?;
        }
        self.total_bytes = total_bytes;
        change.adapting_ms = change.allocating_ms + change.shrinking_ms + change.growing_ms;
        change.settled_ms = ms(started.elapsed().as_nanos() as u64);
        course.changes.push(change);
        Ok(())
    }

    fn limit(&self, total_bytes: u64) -> Outcome {
        let group = self.group.as_ref();
        group.map_or(Ok(()), |g| {
            g.set_limit(total_bytes).map_err(Failure::Internal)
        })
    }

    fn report(
        &self,
        task: &Task,
        settings: &Settings,
        allocator: &Allocator,
        total_bytes: u64,
        bounds: &[LatencyCurve],
        opened: Vec<Opened>,
        course: Course,
    ) -> Outcome<TaskReport> {
        let done: Vec<Done> = course.done.into_iter().flatten().collect();
        let budgets: Vec<u64> = opened.iter().map(|o| o.budget_bytes).collect();
        let weighted = done.iter().zip(&task.members);
        let measured = weighted
            .map(|(d, m)| d.latency_ms.median * m.urgency)
            .fold(0.0, f64::max);
        let of = |policy| {
            let budgets = allocator.divide(policy, total_bytes).ok()?;
            allocator.predicted_ms(&budgets)
        };
        let counted = self.group.as_ref().and_then(Group::peak_bytes);
        let (peak_memory_bytes, peak_memory_source) = match counted {
            Some((bytes, source)) => (bytes, source),
            None => (
                done.iter().map(|d| d.peak_memory_bytes).sum(),
                "sum_of_vm_hwm",
            ),
        };
        let models = task
            .members
            .iter()
            .zip(bounds)
            .zip(opened)
            .zip(done)
            .zip(course.adapted);
        Ok(TaskReport {
            task: settings.file.display().to_string(),
            total_bytes,
            allocate: self.policy,
            budgets_bytes: budgets.iter().sum(),
            peak_memory_bytes,
            peak_memory_source,
            largest_weighted_latency_ms: Largest {
                measured,
                predicted: allocator.predicted_ms(&budgets).unwrap_or(0.0),
                predicted_curves: of(Policy::Curves),
                predicted_paper: of(Policy::Paper),
                predicted_equal: of(Policy::Equal),
            },
            models: models
                .map(
                    |((((member, bounds), opened), done), adaptations)| ModelReport {
                        name: member.name.clone(),
                        model: member.path.display().to_string(),
                        urgency: member.urgency,
                        threads: member.threads,
                        cpus: member.cpus.clone(),
                        share: opened.budget_bytes as f64 / total_bytes as f64,
                        smallest_feasible_bytes: bounds.smallest.total_bytes(),
                        unlimited_bytes: bounds.unlimited_bytes,
                        opened,
                        done,
                        adaptations,
                    },
                )
                .collect(),
            adaptations: course.changes,
        })
    }

    /// A member that the kernel killed cannot say why.
    fn explained(&self, failure: Failure) -> Failure {
        match &self.group {
            Some(group) if group.oom_kills() > 0 => {
                Failure::Internal(cgroup::supervise::out_of_memory(self.total_bytes))
            }
            _ => failure,
        }
    }
}

/// What happens while members run.
struct Course {
    began: Instant,
    budgets: Vec<u64>,
    done: Vec<Option<Done>>,
    adapted: Vec<Vec<Adapted>>,
    changes: Vec<TotalChange>,
}

impl Course {
    fn take(&mut self, index: usize, said: Said) {
        match said {
            Said::Done(done) => self.done[index] = Some(*done),
            Said::Adapted(adapted) => self.adapted[index].push(*adapted),
            Said::Curve(_) | Said::Opened(_) | Said::Refused(_) => {}
        }
    }
}
