//! One cell: a process in a group of its own, and what it says line by line.

use super::Place;
use super::clock::{Done, Runs, drive};
use super::figures::{Cell, Outcome, Spread, Start, TaskFigures};
use super::pages::Pages;
use super::prepare::Models;
use super::scheduling::Command;
use super::tasks::{Prepared, TASKS, Way};
use super::ways::{Ours, Tells, Whole};
use crate::group::Group;
use anyhow::{Context, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(Args)]
pub struct WorkerArgs {
    spec: PathBuf,
}

/// What a worker is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    pub way: Way,
    pub models: Vec<PathBuf>,
    pub inputs: Vec<PathBuf>,
    pub whole_bytes: Vec<u64>,
    /// Periods too; all the same where there are none.
    pub deadlines_ns: Vec<u64>,
    /// `None` without a limit.
    pub models_bytes: Option<u64>,
    /// For which jobs are released; `None` for some runs of each task in turns.
    pub window_ns: Option<u64>,
    pub python: Option<PathBuf>,
    pub script: PathBuf,
    /// When the process was started, since 1970.
    pub began_ns: u64,
}

impl Spec {
    pub fn running_ms(&self) -> f64 {
        now_ns().saturating_sub(self.began_ns) as f64 / 1e6
    }
}

pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Start(Start),
    Done(Done),
    Failed(String),
    End {
        released: Vec<u64>,
        major_faults: Option<u64>,
        outputs: Vec<Vec<f32>>,
    },
}

fn say(line: &Line) {
    match serde_json::to_string(line) {
        Ok(text) => println!("{text}"),
        Err(error) => eprintln!("a line cannot be written: {error}"),
    }
}

/// Runs of each task where nothing is released by a clock.
const ROUNDS: u64 = 8;

pub fn run(args: &WorkerArgs) -> Result<()> {
    let spec: Spec = serde_json::from_slice(&std::fs::read(&args.spec)?)?;
    if let Err(error) = work(&spec) {
        say(&Line::Failed(format!("{error:#}")));
    }
    Ok(())
}

fn work(spec: &Spec) -> Result<()> {
    match spec.way {
        Way::Ours => {
            let (mut ours, start) = Ours::start(spec)?;
            say(&Line::Start(start));
            let released = jobs(spec, &mut ours)?;
            end(&mut ours, released, None)
        }
        Way::Whole => {
            let (mut whole, start) = Whole::start(spec)?;
            say(&Line::Start(start));
            let released = jobs(spec, &mut whole)?;
            end(&mut whole, released, None)
        }
        Way::Pages => {
            let python = spec.python.as_ref().context("no onnxruntime")?;
            let mut pages = Pages::start(python, &spec.script, &spec.models, &spec.inputs)?;
            let start = Start {
                start_ms: spec.running_ms(),
                beside_bytes: pages.own_bytes(),
                ..Start::default()
            };
            say(&Line::Start(start));
            // As the other ways, which measure before the first release.
            for task in 0..TASKS.len() {
                pages.run(task, &[])?;
                pages.is_same(task)?;
            }
            let released = jobs(spec, &mut pages)?;
            let major_faults = pages.major_faults()?;
            end(&mut pages, released, major_faults)
        }
    }
}

impl Tells for Pages {
    fn outputs(&mut self, task: usize) -> Result<Vec<f32>> {
        Pages::outputs(self, task)
    }
}

fn end(way: &mut dyn Tells, released: Vec<u64>, major_faults: Option<u64>) -> Result<()> {
    let outputs = (0..TASKS.len()).map(|task| way.outputs(task));
    say(&Line::End {
        released,
        major_faults,
        outputs: outputs.collect::<Result<_>>()?,
    });
    Ok(())
}

fn jobs(spec: &Spec, way: &mut dyn Runs) -> Result<Vec<u64>> {
    let mut tell = |done: &Done| say(&Line::Done(*done));
    let longest_ns = spec.deadlines_ns.iter().max().copied().unwrap_or(0);
    match spec.window_ns {
        Some(ns) => {
            let window = Duration::from_nanos(ns);
            let grace = (window / 4).max(Duration::from_nanos(2 * longest_ns));
            drive(&spec.deadlines_ns, window, grace, way, &mut tell)
        }
        None => {
            // One after the other: a new round when all have run.
            for round in 0..ROUNDS {
                for task in 0..TASKS.len() {
                    let once = |way: &mut dyn Runs| -> Result<Done> {
                        let began = std::time::Instant::now();
                        let ran = way.run(task, &[0; TASKS.len()])?;
                        Ok(Done {
                            task,
                            release_ns: 0,
                            began_ns: 0,
                            ended_ns: began.elapsed().as_nanos() as u64,
                            swap_ns: ran.swap_ns,
                            drive_ns: ran.drive_ns,
                            stolen_ns: 0,
                            choosing_ns: ran.choosing_ns,
                            late_ns: 0,
                            is_same: way.is_same(task)?,
                        })
                    };
                    let done = once(way)?;
                    // The first touches memory for the first time.
                    if round > 0 {
                        tell(&done);
                    }
                }
            }
            Ok(vec![ROUNDS - 1; TASKS.len()])
        }
    }
}

/// What was heard of a worker.
pub struct Heard {
    pub start: Option<Start>,
    pub jobs: Vec<Done>,
    pub released: Option<Vec<u64>>,
    pub major_faults: Option<u64>,
    pub outputs: Vec<Vec<f32>>,
    pub outcome: Outcome,
    pub peak_bytes: u64,
    pub limit_reached: u64,
}

/// Starts a worker and listens until it ends.
pub fn listen(
    place: &Place,
    command: &Command,
    limit_bytes: Option<u64>,
    mut spec: Spec,
    name: &str,
) -> Result<Heard> {
    let group = Group::new(limit_bytes)?;
    let path = place.kept.folder().join(format!("{name}.spec"));
    spec.began_ns = now_ns();
    std::fs::write(&path, serde_json::to_vec_pretty(&spec)?)?;
    let path = path.to_str().context("a path in UTF-8")?;
    // Twice the window for a way that does not keep up, and time to begin.
    let patience = Duration::from_secs(300) + 2 * Duration::from_nanos(spec.window_ns.unwrap_or(0));
    let mut child = command
        .within(&group, patience, &["runtime-worker", path])?
        .stdout(Stdio::piped())
        .spawn()?;
    let mut heard = Heard {
        start: None,
        jobs: Vec::new(),
        released: None,
        major_faults: None,
        outputs: Vec::new(),
        outcome: Outcome::Failed("it ended without a word".into()),
        peak_bytes: 0,
        limit_reached: 0,
    };
    let stdout = child.stdout.take().context("stdout")?;
    for line in BufReader::new(stdout).lines() {
        // One that is killed may end in the middle of a line.
        let Ok(line) = serde_json::from_str::<Line>(&line?) else {
            continue;
        };
        match line {
            Line::Start(start) => heard.start = Some(start),
            Line::Done(done) => heard.jobs.push(done),
            Line::Failed(why) => heard.outcome = Outcome::Failed(why),
            Line::End {
                released,
                major_faults,
                outputs,
            } => {
                heard.released = Some(released);
                heard.major_faults = major_faults;
                heard.outputs = outputs;
                heard.outcome = Outcome::Ended;
            }
        }
    }
    let status = child.wait()?;
    heard.peak_bytes = group.peak_bytes()?;
    heard.limit_reached = group.reached()?;
    if heard.outcome != Outcome::Ended {
        if group.kills()? > 0 {
            heard.outcome = Outcome::Killed;
        } else if !status.success() {
            heard.outcome = Outcome::Failed(format!("the worker ended: {status}"));
        }
    }
    Ok(heard)
}

/// Measures one cell.
pub fn cell(
    place: &Place,
    (models, prepared, command): (&Models, &Prepared, &Command),
    (way, percent): (Way, u32),
    seconds: f64,
    name: &str,
) -> Result<Cell> {
    let deadlines_ns = prepared.deadlines_ns();
    let window_ns = (seconds * 1e9) as u64;
    let limit_bytes = prepared.limit_bytes(percent);
    let spec = Spec {
        whole_bytes: prepared.whole_bytes.clone(),
        deadlines_ns: deadlines_ns.clone(),
        models_bytes: Some(prepared.models_bytes(percent)),
        window_ns: Some(window_ns),
        ..models.spec(place, way)
    };
    let heard = listen(place, command, Some(limit_bytes), spec, name)?;
    let last_ns = heard.jobs.iter().map(|done| done.ended_ns).max();
    let until_ns = last_ns.unwrap_or(0).min(window_ns);
    let released = |task: usize, period_ns: u64| match &heard.released {
        Some(released) => released[task],
        // It was cut short: those that were there by its last word.
        None => last_ns.map_or(0, |_| until_ns.div_ceil(period_ns)),
    };
    let tasks = deadlines_ns.iter().enumerate().map(|(task, &deadline_ns)| {
        TaskFigures::of(task, deadline_ns, released(task, deadline_ns), &heard.jobs)
    });
    let us = |of: fn(&Done) -> u64| -> Vec<f64> {
        heard
            .jobs
            .iter()
            .map(|done| of(done) as f64 / 1e3)
            .collect()
    };
    let late = us(|done| done.late_ns);
    Ok(Cell {
        way,
        percent,
        limit_bytes,
        window_s: seconds,
        commit: crate::setting::commit()?,
        scheduled: command.told.clone(),
        tasks: tasks.collect(),
        choosing_us: Spread::of(&us(|done| done.choosing_ns)),
        late_us: Spread::of(&late.into_iter().filter(|&us| us > 0.0).collect::<Vec<_>>()),
        other_bits: heard.jobs.iter().filter(|done| !done.is_same).count(),
        outcome: heard.outcome,
        start: heard.start,
        peak_bytes: heard.peak_bytes,
        limit_reached: heard.limit_reached,
        major_faults: heard.major_faults,
        outputs: heard.outputs,
    })
}

/// The script that opens models in onnxruntime.
pub fn script(root: &Path) -> PathBuf {
    root.join("scripts/runtime_pages.py")
}
