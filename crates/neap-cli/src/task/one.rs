//! `--one-process`: the models of a task in one engine, in turns.
//!
//! ```text
//!   open each: inputs ─► engine within the total ─► load each ─► a thread for each model: run, run, run …  ─► report
//!                                                      the total moves ─► engine
//! ```
//! They share what runs overwrite, so they need less memory than processes do, and wait for each other.

use super::file::{Member, Policy, Task};
use super::run::Settings;
use crate::cgroup::supervise::{self, Ended};
use crate::failure::{Failure, Outcome, bad};
use crate::input::{self, ImageOptions};
use crate::interrupt;
use crate::report::{Latency, median_ms, ms};
use neaptide::{
    Budget, Bytes, CancelToken, Engine, EngineLedger, EngineOptions, Error, LoadOptions,
    LoadedModel, ModelStatus, OpenOptions, OwnProcess, RunOptions, RunReport, RunRequest, Strategy,
    memory,
};
use serde::Serialize;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Stack and heap that a model's thread takes beside the engine.
const THREAD_BYTES: u64 = 256 << 10;

/// Latencies are kept of so many runs of each model, the first ones.
const KEPT_RUNS: usize = 8192;

/// How often the total, signals and the end are looked at.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug, Serialize)]
struct OneReport {
    task: String,
    total_bytes: u64,
    /// Always true; reports of processes have no such field.
    one_process: bool,
    peak_memory_bytes: u64,
    peak_memory_source: memory::PeakSource,
    /// From the first model to the last.
    loading_ms: f64,
    ledger: EngineLedger,
    models: Vec<OneModel>,
    adaptations: Vec<Moved>,
}

#[derive(Debug, Serialize)]
struct OneModel {
    name: String,
    model: String,
    urgency: f64,
    /// Of runs, without waiting for their turn.
    latency_ms: Latency,
    /// For a turn, median.
    waited_ms: f64,
    /// Of the last run's outputs, one after the other.
    outputs_blake3: String,
    /// All runs gave the same bits.
    is_steady: bool,
}

/// One change of the total.
#[derive(Debug, Serialize)]
struct Moved {
    at_s: f64,
    total_before_bytes: u64,
    total_bytes: u64,
    /// Until memory above it was given back, planning and waiting for the run that had its turn included.
    settled_ms: f64,
}

/// A model with what it is run on.
struct Job<'a> {
    member: &'a Member,
    inputs: Vec<Vec<u8>>,
    model: LoadedModel,
}

/// What a model's thread did.
#[derive(Default)]
struct Drove {
    first_ns: u64,
    ran_ns: Vec<u64>,
    waited_ns: Vec<u64>,
    outputs: Option<blake3::Hash>,
    is_steady: bool,
}

pub(super) fn run(settings: &Settings, task: &Task) -> Outcome {
    check(settings, task)?;
    let limit_bytes = totals(task).max().unwrap_or(task.total_bytes);
    match supervise::own_limit_bytes().filter(|_| settings.enforce) {
        Some(_) => here(settings, task, true),
        None if settings.enforce => enforced(settings, task, limit_bytes),
        None => here(settings, task, false),
    }
}

/// # Errors
/// What is for processes only.
fn check(settings: &Settings, task: &Task) -> Outcome {
    let policy = settings.allocate.unwrap_or(task.policy);
    if policy != Policy::Curves {
        return Err(bad("one process divides its memory by 'curves' only"));
    }
    if settings.keeps_activations {
        return Err(bad(
            "--keep-activations needs processes: others would overwrite them",
        ));
    }
    if task.strategy.is_some_and(|s| s != Strategy::Preload) {
        return Err(bad("the models of one process are planned by 'preload'"));
    }
    Ok(())
}

/// Every total that will be in force.
fn totals(task: &Task) -> impl Iterator<Item = u64> {
    let scheduled = task.schedule.iter().flat_map(|s| s.budgets());
    let scheduled = scheduled.filter_map(|(_, budget)| match budget {
        Budget::Bytes(bytes) => Some(bytes),
        _ => None,
    });
    scheduled.chain([first_total(task)])
}

fn first_total(task: &Task) -> u64 {
    match task.schedule.as_ref().and_then(|s| s.at_start()) {
        Some(Budget::Bytes(bytes)) => bytes,
        _ => task.total_bytes,
    }
}

/// The same command in a cgroup with the largest total as hard limit. Packing is not part of it.
fn enforced(settings: &Settings, task: &Task, limit_bytes: u64) -> Outcome {
    let open = settings.open.options()?;
    for (i, member) in task.members.iter().enumerate() {
        if task.members[..i].iter().all(|m| m.path != member.path) {
            crate::commands::open_member(&member.path, &open, settings.quiet)?.check_weights()?;
        }
    }
    match supervise::run_again(limit_bytes)? {
        Ended::Well => Ok(()),
        Ended::OutOfMemory => {
            // A total so small that not even the refusal fits into it: this process has no limit.
            loaded(settings, task, false)?;
            Err(Failure::Internal(supervise::out_of_memory(limit_bytes)))
        }
    }
}

fn here(settings: &Settings, task: &Task, own_cgroup: bool) -> Outcome {
    let _deferred = interrupt::defer();
    let (engine, jobs, loading_ms) = loaded(settings, task, own_cgroup)?;
    let (drove, adaptations) = work(&engine, task, &jobs, kept_runs(task))?;
    interrupt::check()?;
    let peak = memory::peak(own_cgroup);
    tell(
        settings,
        &OneReport {
            task: settings.file.display().to_string(),
            total_bytes: first_total(task),
            one_process: true,
            peak_memory_bytes: peak.bytes,
            peak_memory_source: peak.source,
            loading_ms,
            ledger: engine.ledger(),
            models: jobs.iter().zip(drove).map(|(j, d)| told(j, d)).collect(),
            adaptations,
        },
    )
}

/// An engine with all models, what they are run with, and how long loading took.
fn loaded<'a>(
    settings: &Settings,
    task: &'a Task,
    own_cgroup: bool,
) -> Outcome<(Engine, Vec<Job<'a>>, f64)> {
    let total_bytes = first_total(task);
    let host = Arc::new(OwnProcess { own_cgroup });
    let open = OpenOptions {
        host: host.clone(),
        ..settings.open.options()?
    };
    // Before the engine, whose budget then counts them.
    let inputs = task.members.iter().map(|m| inputs(m, &open, settings));
    let inputs = inputs.collect::<Outcome<Vec<_>>>()?;
    memory::trim_heap();
    let threads = task.members.iter().map(|m| usize::from(m.threads)).max();
    let each_bytes = THREAD_BYTES + (2 * kept_runs(task) * size_of::<u64>()) as u64;
    let default = EngineOptions::default();
    let given = settings.engine.options(Budget::Bytes(total_bytes));
    let engine = Engine::new(EngineOptions {
        run: RunOptions {
            threads: threads.unwrap_or(1),
            reserve_bytes: task.members.len() as u64 * each_bytes,
            planner: neaptide::PlanOptions {
                effort: default.run.planner.effort,
                ..given.planner
            },
            ..given
        },
        host,
        ..default
    })?;
    let began = Instant::now();
    let mut jobs = Vec::with_capacity(task.members.len());
    for (member, inputs) in task.members.iter().zip(inputs) {
        let load = LoadOptions {
            open: open.clone(),
            weight: member.urgency,
            ..LoadOptions::default()
        };
        interrupt::check()?;
        jobs.push(Job {
            model: engine.load(&member.name, &member.path, &load, &mut |_| {})?,
            member,
            inputs,
        });
    }
    Ok((engine, jobs, ms(began.elapsed().as_nanos() as u64)))
}

fn kept_runs(task: &Task) -> usize {
    task.runs.map_or(KEPT_RUNS, |n| n as usize).min(KEPT_RUNS)
}

fn inputs(member: &Member, open: &OpenOptions, settings: &Settings) -> Outcome<Vec<Vec<u8>>> {
    let model = crate::commands::open_member(&member.path, open, settings.quiet)?;
    model.check_weights()?;
    let inputs = input::load(
        &model,
        &input::Settings {
            given: &[],
            image: &ImageOptions::default(),
            seed: member.seed,
            decode_limit_bytes: None,
        },
    )?;
    Ok(inputs.tensors)
}

/// Runs all models until each is done; the total moves as the schedule says.
fn work(
    engine: &Engine,
    task: &Task,
    jobs: &[Job],
    kept: usize,
) -> Outcome<(Vec<Drove>, Vec<Moved>)> {
    // Also while this thread waits for a run, to change the total.
    let token = CancelToken::new().or_when(|| interrupt::noted().is_some());
    let began = Instant::now();
    std::thread::scope(|scope| {
        let drivers: Vec<_> = jobs
            .iter()
            .map(|job| {
                let token = &token;
                scope.spawn(move || {
                    let drove = drive(engine, task, job, kept, token);
                    if drove.is_err() {
                        // The others are of no use then.
                        token.cancel();
                    }
                    drove
                })
            })
            .collect();
        let mut moved = Ok(Vec::new());
        let mut schedule = task.schedule.clone();
        schedule.iter_mut().for_each(|s| {
            s.due(Duration::ZERO);
        });
        let mut total_bytes = first_total(task);
        while !drivers.iter().all(|d| d.is_finished()) {
            let due = schedule.as_mut().and_then(|s| s.due(began.elapsed()));
            if let (Some(Budget::Bytes(bytes)), Ok(list)) = (due, &mut moved) {
                match change(engine, began, total_bytes, bytes) {
                    Ok(change) => list.push(change),
                    Err(failure) => {
                        token.cancel();
                        moved = Err(failure);
                    }
                }
                total_bytes = bytes;
            }
            std::thread::sleep(LOOK);
        }
        let ended = drivers.into_iter().map(|driver| {
            let ended = driver.join();
            ended.unwrap_or_else(|payload| std::panic::resume_unwind(payload))
        });
        let (drove, failed): (Vec<_>, Vec<_>) = ended.partition(Result::is_ok);
        interrupt::check()?;
        let moved = moved?;
        // One that was cancelled is not the reason.
        let mut failed: Vec<Error> = failed.into_iter().filter_map(Result::err).collect();
        failed.sort_by_key(|error| matches!(error, Error::Cancelled));
        match failed.into_iter().next() {
            Some(error) => Err(error.into()),
            None => Ok((drove.into_iter().flatten().collect(), moved)),
        }
    })
}

fn change(engine: &Engine, began: Instant, before: u64, total_bytes: u64) -> Outcome<Moved> {
    let started = Instant::now();
    engine.set_budget(Budget::Bytes(total_bytes))?;
    Ok(Moved {
        at_s: (started - began).as_secs_f64(),
        total_before_bytes: before,
        total_bytes,
        settled_ms: ms(started.elapsed().as_nanos() as u64),
    })
}

/// One model's runs, one after the other.
fn drive(
    engine: &Engine,
    task: &Task,
    job: &Job,
    kept: usize,
    token: &CancelToken,
) -> Result<Drove, Error> {
    let given: Vec<&[u8]> = job.inputs.iter().map(Vec::as_slice).collect();
    let infos = job.model.outputs();
    let mut outputs: Vec<Vec<u8>> = infos.iter().map(|o| vec![0; o.len_bytes()]).collect();
    let request = RunRequest {
        cancel: Some(token.clone()),
        ..RunRequest::default()
    };
    let mut drove = Drove {
        is_steady: true,
        ran_ns: Vec::with_capacity(kept),
        waited_ns: Vec::with_capacity(kept),
        ..Drove::default()
    };
    let mut once = |drove: &mut Drove| -> Result<RunReport, Error> {
        let mut slots: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        let report = engine.run_as(&request, &job.model, &given, &mut slots)?;
        if drove.first_ns == 0 {
            drove.first_ns = report.ran_ns;
        }
        let mut hasher = blake3::Hasher::new();
        for (index, output) in outputs.iter().enumerate() {
            let actual = report.outputs.get(index);
            let own_bytes = actual.map_or(output.len(), |ty| ty.len_bytes());
            hasher.update(&output[..own_bytes]);
        }
        let digest = hasher.finalize();
        drove.is_steady &= drove.outputs.is_none_or(|before| before == digest);
        drove.outputs = Some(digest);
        Ok(report)
    };
    for _ in 0..task.warmup {
        once(&mut drove)?;
    }
    let began = Instant::now();
    let mut count = 0u64;
    loop {
        let released = Instant::now();
        let report = once(&mut drove)?;
        count += 1;
        if drove.ran_ns.len() < kept {
            drove.ran_ns.push(report.ran_ns);
            drove.waited_ns.push(report.waited_ns);
        }
        let enough = task.runs.map(|runs| count >= runs.into());
        let long = task.duration.map(|duration| began.elapsed() >= duration);
        if enough.unwrap_or(false) || long.unwrap_or(enough.is_none()) {
            return Ok(drove);
        }
        let rest = job.member.period.unwrap_or_default();
        let due = released + rest;
        while Instant::now() < due && !token.is_cancelled() {
            std::thread::sleep(LOOK.min(due - Instant::now().min(due)));
        }
    }
}

fn told(job: &Job, mut drove: Drove) -> OneModel {
    OneModel {
        name: job.member.name.clone(),
        model: job.member.path.display().to_string(),
        urgency: job.member.urgency,
        latency_ms: Latency::of(drove.first_ns, &mut drove.ran_ns),
        waited_ms: median_ms(&mut drove.waited_ns),
        outputs_blake3: drove
            .outputs
            .map_or(String::new(), |o| o.to_hex().to_string()),
        is_steady: drove.is_steady,
    }
}

fn tell(settings: &Settings, report: &OneReport) -> Outcome {
    settings.printed.report(report, || report.summary())
}

impl OneReport {
    fn summary(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "total       {}: {} peak, {} planned: {} shared, {} resident weights",
            Bytes(self.total_bytes),
            Bytes(self.peak_memory_bytes),
            Bytes(self.ledger.parts.total_bytes()),
            Bytes(self.ledger.shared_bytes),
            Bytes(self.ledger.resident_bytes),
        );
        let statuses = &self.ledger.models;
        for model in &self.models {
            let status = statuses.iter().find(|s| s.name == model.name);
            let _ = writeln!(text, "{}", model.line(status));
        }
        for change in &self.adaptations {
            let _ = writeln!(
                text,
                "at {:.2} s   {} to {}: settled after {:.2} ms",
                change.at_s,
                Bytes(change.total_before_bytes),
                Bytes(change.total_bytes),
                change.settled_ms,
            );
        }
        text
    }
}

impl OneModel {
    fn line(&self, status: Option<&ModelStatus>) -> String {
        let Latency {
            median, p95, runs, ..
        } = self.latency_ms;
        let (resident, predicted_ns) =
            status.map_or((0, 0), |s| (s.resident_bytes, s.predicted_latency_ns));
        format!(
            "{:<11} {} resident; {median:.2} ms (median of {runs} runs, 95 % within {p95:.2}) after waiting {:.2}; \
             predicted {:.2} ms",
            self.name,
            Bytes(resident),
            self.waited_ms,
            ms(predicted_ns),
        )
    }
}
