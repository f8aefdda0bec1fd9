//! Predicted against measured latency: models × budgets. One process for each model calibrates, plans for all
//! budgets, and lets their sessions run in turn, many rounds. A plan is predicted ahead, with what calibration
//! found, and in each round again, with what that second shows of storage and of a session that loads nothing.

mod rates;
pub mod report;
pub mod slots;

use crate::flexnn::MODELS;
use crate::models;
use anyhow::{Result, bail};
use neaptide::{Budget, Cache, Calibration, Model, OpenOptions, RunOptions};
use serde::{Deserialize, Serialize};
use slots::{Slot, Subject};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub struct Options {
    pub only: Vec<String>,
    pub rounds: u32,
    pub write: bool,
}

/// Between the smallest feasible budget and that with everything resident.
const SHARES: [f64; 5] = [0.0, 0.1, 0.25, 0.5, 0.75];

/// How long a session's turn lasts; before each, the session that shows how fast steps are has one.
const SLOT: Duration = Duration::from_millis(150);
const REFERENCE: Duration = Duration::from_millis(80);

/// A turn counts where the machine was as fast before it as after it, within this share; unless there are fewer such turns.
const STEADY: f64 = 0.05;
const LEAST_STEADY: usize = 5;

/// A prediction is good within this share of what is measured.
const GOOD: f64 = 0.05;

/// One model under one budget.
#[derive(Serialize, Deserialize)]
pub struct Point {
    model: String,
    budget_bytes: Option<u64>,
    loaded_bytes: u64,
    /// When the plan was made, from what calibration found.
    ahead_ms: f64,
    /// Turns that count.
    turns: usize,
    /// Median over turns of each turn's median, and the middle 80 % of those.
    measured_ms: f64,
    spread_ms: (f64, f64),
    /// Medians over turns: what the costs of the same seconds predict, and that as a share of what was
    /// measured in the turn.
    now_ms: f64,
    now_ratio: f64,
    /// Medians over turns of absolute errors: of what the costs of the same seconds predict, of what was predicted ahead,
    /// and of a turn's median as a prediction of the next one's.
    now_off: f64,
    ahead_off: f64,
    drift: f64,
}

pub fn run(root: &Path, options: &Options) -> Result<()> {
    let mut points: Vec<Point> = Vec::new();
    for name in MODELS {
        if !options.only.is_empty() && options.only.iter().all(|o| o != name) {
            continue;
        }
        let model = models::zoo_model(root, name)?;
        let output = Command::new(std::env::current_exe()?)
            .args(["prediction-worker", name])
            .arg(&model)
            .arg("--cache-dir")
            .arg(root.join("target/models/packed"))
            .args(["--rounds", &options.rounds.to_string()])
            .output()?;
        if !output.status.success() {
            bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let found: Vec<Point> = serde_json::from_slice(&output.stdout)?;
        for point in &found {
            eprintln!("{}", report::line(point));
        }
        points.extend(found);
    }
    if points.is_empty() {
        bail!("no such model: {MODELS:?}");
    }
    println!("{}", report::table(&points));
    if options.write {
        report::write(root, &points, options.rounds)?;
    }
    Ok(())
}

/// Measures one model and prints its points.
pub fn worker(name: &str, path: &Path, cache: &Path, rounds: u32) -> Result<()> {
    let open = OpenOptions {
        cache: Cache::Folder(cache.into()),
        ..OpenOptions::of_own_process()
    };
    let model = Model::open(path, &open, &mut |_| {})?;
    let options = RunOptions {
        threads: 2,
        calibration: Calibration::Auto,
        ..Default::default()
    };
    model.calibrate(&options)?;
    // All plans first: what sessions hold would count against the budgets of others.
    let bounds = model.bounds(&options);
    let (least, most) = (
        bounds.smallest_feasible_bytes() + (1 << 20),
        bounds.unlimited_high_water_bytes(),
    );
    let sized = SHARES
        .map(|share| Budget::Bytes(least + ((most.saturating_sub(least)) as f64 * share) as u64));
    let mut planned = Vec::new();
    for budget in sized.into_iter().chain([Budget::Unlimited]) {
        let options = RunOptions {
            budget,
            ..options.clone()
        };
        planned.push((model.plan(&options)?, options));
    }
    // The measure of computing: everything in memory, as it is stored.
    let stored = RunOptions {
        prepared_weights: false,
        ..options
    };
    planned.push((model.plan(&stored)?, stored));
    let mut subjects: Vec<Subject> = planned
        .into_iter()
        .map(|(plan, options)| Subject::open(path, &open, plan, &options))
        .collect::<Result<_>>()?;
    let resident = subjects.len() - 1;
    let mut turns = Vec::new();
    for _ in 0..rounds {
        for at in 0..resident {
            turns.push(Turn::take(&mut subjects, resident, REFERENCE)?);
            turns.push(Turn::take(&mut subjects, at, SLOT)?);
        }
    }
    turns.push(Turn::take(&mut subjects, resident, REFERENCE)?);
    let points: Vec<Point> = (0..resident)
        .map(|at| point(name, &subjects, &turns, at))
        .collect();
    println!("{}", serde_json::to_string(&points)?);
    Ok(())
}

/// Who ran, and what was seen.
pub struct Turn {
    pub at: usize,
    pub slot: Slot,
}

impl Turn {
    fn take(subjects: &mut [Subject], at: usize, time: Duration) -> Result<Turn> {
        let slot = subjects[at].slot(time)?;
        Ok(Turn { at, slot })
    }
}

/// What turns show of one of the sessions; the last one loads nothing, and ran twice at least.
pub fn point(name: &str, subjects: &[Subject], turns: &[Turn], at: usize) -> Point {
    let (subject, resident) = (&subjects[at], subjects.len() - 1);
    let mut seen = Vec::new();
    for (i, turn) in turns.iter().enumerate().filter(|(_, t)| t.at == at) {
        // What was seen last before, and first after it.
        let near = |wanted: &dyn Fn(&Turn) -> bool| -> Vec<&Slot> {
            let before = turns[..i].iter().rev().find(|t| wanted(t));
            let after = turns[i + 1..].iter().find(|t| wanted(t));
            before.into_iter().chain(after).map(|t| &t.slot).collect()
        };
        let computing = near(&|t| t.at == resident);
        let mut moved = turn.slot.groups.clone();
        if moved.len() < rates::LEAST_GROUPS {
            let loading = near(&|t| t.at != at && !t.slot.groups.is_empty());
            moved.extend(loading.iter().flat_map(|slot| &slot.groups));
        }
        let costs = rates::costs_now(subject, (&subjects[resident], &computing), &moved);
        let ns = neap_sim::predict(&subject.workload, &subject.execution, &costs).latency_ns;
        let speeds: Vec<u64> = computing.iter().map(|s| s.step_ns.iter().sum()).collect();
        let changed = speeds[0] as f64 / speeds[speeds.len() - 1] as f64 - 1.0;
        seen.push(Seen {
            is_steady: changed.abs() <= STEADY,
            measured_ms: turn.slot.median_ms(),
            predicted_ms: ns as f64 / 1e6,
        });
    }
    let drifts = seen.windows(2);
    let drifts = drifts.map(|w| (w[0].measured_ms / w[1].measured_ms - 1.0).abs());
    let drift = at_share(drifts.collect(), 0.5);
    if seen.iter().filter(|s| s.is_steady).count() >= LEAST_STEADY {
        seen.retain(|s| s.is_steady);
    }
    let all = |of: &dyn Fn(&Seen) -> f64| -> Vec<f64> { seen.iter().map(of).collect() };
    let measured = all(&|s| s.measured_ms);
    let off = |predicted_ms: f64, s: &Seen| (predicted_ms / s.measured_ms - 1.0).abs();
    let ratios = all(&|s| s.predicted_ms / s.measured_ms);
    let predicted = all(&|s| s.predicted_ms);
    Point {
        model: name.into(),
        budget_bytes: subject.budget_bytes,
        loaded_bytes: subject.execution.loads.iter().map(|l| l.bytes).sum(),
        ahead_ms: subject.planned_ms,
        turns: seen.len(),
        drift,
        spread_ms: (
            at_share(measured.clone(), 0.1),
            at_share(measured.clone(), 0.9),
        ),
        measured_ms: at_share(measured, 0.5),
        now_ms: at_share(predicted, 0.5),
        now_ratio: at_share(ratios, 0.5),
        now_off: at_share(all(&|s| off(s.predicted_ms, s)), 0.5),
        ahead_off: at_share(all(&|s| off(subject.planned_ms, s)), 0.5),
    }
}

/// One turn of a session.
struct Seen {
    is_steady: bool,
    measured_ms: f64,
    predicted_ms: f64,
}

fn at_share(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share).round() as usize]
}
