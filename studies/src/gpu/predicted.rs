//! Predicted against measured latency on the device: plans in the host's memory, and in the device's own.

use crate::prediction::slots::Subject;
use crate::prediction::{Point, Turn, point};
use crate::vulkan_device::device;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use neaptide::{Budget, Cache, Error, Model, OpenOptions, Plan, RunOptions};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a turn is meant to take, and its runs that count.
const SLOT: Duration = Duration::from_millis(800);
const RUNS: RangeInclusive<u32> = 1..=9;

#[derive(Args)]
pub struct WorkerArgs {
    name: String,
    model: PathBuf,
    #[arg(long)]
    cache_dir: PathBuf,
    #[arg(long)]
    turns: u32,
    /// Plans are in the device's own memory, and all weights in the host's.
    #[arg(long)]
    own_memory: bool,
    /// Calibrate the device by the model first.
    #[arg(long)]
    calibrate: bool,
}

/// Of one network.
#[derive(Serialize, Deserialize)]
pub struct Found {
    pub turns: u32,
    /// Just before: what is predicted ahead counts with that.
    pub calibrated: bool,
    /// Budgets are of the process.
    pub host: Vec<Point>,
    /// Budgets are of the device.
    pub own: Vec<Point>,
}

pub fn measure(
    name: &str,
    model: &Path,
    cache: &Path,
    (turns, calibrate): (u32, bool),
) -> Result<Found> {
    let points = |more: &[&str]| -> Result<Vec<Point>> {
        let output = Command::new(std::env::current_exe()?)
            .args(["vulkan-worker", name])
            .arg(model)
            .arg("--cache-dir")
            .arg(cache)
            .args(["--turns", &turns.to_string()])
            .args(more)
            .output()?;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}", told.trim());
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    let first: &[&str] = if calibrate { &["--calibrate"] } else { &[] };
    Ok(Found {
        turns,
        calibrated: calibrate,
        host: points(first)?,
        own: points(&["--own-memory"])?,
    })
}

/// Measures one model in one of the memories and prints its points.
///
/// # Errors
/// When there is no device, or the model cannot be run on it.
pub fn work(args: &WorkerArgs) -> Result<()> {
    let open = OpenOptions {
        cache: Cache::Folder(args.cache_dir.clone()),
        ..OpenOptions::of_own_process()
    };
    let model = Model::open(&args.model, &open, &mut |_| {})?;
    let options = RunOptions {
        threads: 2,
        accelerator: Some(device(&model, args.own_memory, None)?),
        spill_dir: Some(args.cache_dir.clone()),
        ..RunOptions::default()
    };
    if args.calibrate {
        model.calibrate(&options)?;
    }
    let planned = match args.own_memory {
        true => of_device(&model, &options)?,
        false => of_process(&model, &options)?,
    };
    drop(model);
    let mut subjects = Vec::new();
    for (budget_bytes, plan, options) in planned {
        let mut subject = Subject::open(&args.model, &open, plan, &options)?;
        subject.budget_bytes = budget_bytes;
        subjects.push(subject);
    }
    let resident = subjects.len() - 1;
    let mut turns = Vec::new();
    let mut take = |at: usize| -> Result<()> {
        let slot = subjects[at].recorded(SLOT, RUNS)?;
        turns.push(Turn { at, slot });
        Ok(())
    };
    for _ in 0..args.turns {
        take(resident)?;
        (0..resident).try_for_each(&mut take)?;
    }
    take(resident)?;
    let points: Vec<Point> = (0..subjects.len())
        .map(|at| point(&args.name, &subjects, &turns, at))
        .collect();
    println!("{}", serde_json::to_string(&points)?);
    Ok(())
}

/// A budget, the plan for it, and how it is run.
type Planned = (Option<u64>, Plan, RunOptions);

/// The smallest budget of the process and 1 MiB, half of the way from there to everything resident, and none. All plans
/// come first: what sessions hold would count against the budgets of others.
fn of_process(model: &Model, options: &RunOptions) -> Result<Vec<Planned>> {
    let least = model.bounds(options).needed.total_bytes() + (1 << 20);
    let most = model.plan(options)?.high_water_bytes().max(least);
    let sized = [least, least.midpoint(most)].map(Budget::Bytes);
    let mut planned = Vec::new();
    for budget in sized.into_iter().chain([Budget::Unlimited]) {
        let options = RunOptions {
            budget,
            ..options.clone()
        };
        let plan = model.plan(&options)?;
        planned.push((plan.budget_bytes, plan, options));
    }
    Ok(planned)
}

/// The same of the device's memory; the host keeps all weights.
fn of_device(model: &Model, options: &RunOptions) -> Result<Vec<Planned>> {
    let within = |bytes: Option<u64>| RunOptions {
        device_budget_bytes: bytes,
        ..options.clone()
    };
    let whole = model.plan(options)?;
    let most = whole.ledger.device.context("a plan without a device")?;
    let least = match model.plan(&within(Some(1))) {
        Err(Error::Infeasible { parts, .. }) => parts.device.context("no smallest pair")?,
        Err(error) => return Err(error.into()),
        Ok(_) => bail!("a plan in one byte of the device"),
    };
    let (least, most) = (least.total_bytes(), most.total_bytes());
    let mut planned = Vec::new();
    for bytes in [least, least.midpoint(most.max(least))] {
        let options = within(Some(bytes));
        planned.push((Some(bytes), model.plan(&options)?, options));
    }
    planned.push((None, whole, options.clone()));
    Ok(planned)
}
