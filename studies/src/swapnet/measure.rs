//! Runs applications and keeps their reports; works out what planning keeps in memory.

use super::{Application, Measured, WAYS};
use crate::{lab, models};
use anyhow::{Context, Result, bail};
use neaptide::{Budget, Cache, Model, OpenOptions, RunOptions, Strategy};
use serde_json::Value;
use std::path::Path;

/// Seconds that the application runs with a total that moves: beyond the last change.
const MOVING_SECONDS: f64 = 4.0;

/// The models of all applications.
const MODELS: [&str; 4] = ["yolov3", "fcn_resnet101", "vgg19", "resnet101"];

/// Measures the models once, by themselves, so that plans and allocations know them.
pub fn calibrate(root: &Path) -> Result<()> {
    let mark = root.join("target/swapnet/calibration.json");
    if mark.exists() {
        return Ok(());
    }
    eprintln!("calibrating");
    let mut command = lab::neap()?;
    command.arg("profile");
    for model in MODELS {
        command.arg(models::zoo_model(root, model)?);
    }
    let output = command
        .args([
            "--threads",
            "1",
            "--quiet",
            "--output",
            "json",
            "--cache-dir",
        ])
        .arg(root.join("target/models/packed"))
        .output()?;
    if !output.status.success() {
        bail!("neap profile: {}", String::from_utf8_lossy(&output.stderr));
    }
    std::fs::write(&mark, output.stdout)?;
    Ok(())
}

pub fn application(root: &Path, application: &Application, seconds: f64) -> Result<Measured> {
    for model in application.models {
        models::zoo_model(root, model)?;
    }
    let template = root.join(format!("examples/tasks/{}.toml", application.name));
    let template = std::fs::read_to_string(&template)
        .with_context(|| format!("cannot read {}", template.display()))?;
    let text = without(&template, &["allocate", "duration", "total_schedule"]);
    let text = text.replace(
        "../../target/models",
        &root.join("target/models").display().to_string(),
    );
    let task = |policy: &str, strategy: &str, seconds: f64, more: &str| {
        format!(
            "allocate = '{policy}'\nstrategy = '{strategy}'\nduration = '{seconds}s'\n{more}{text}"
        )
    };
    let mut ways = Vec::new();
    for way in &WAYS {
        eprintln!("{}: {}", application.name, way.name);
        let text = task(way.policy, way.strategy, seconds, "");
        ways.push(run(root, &text)?);
    }
    eprintln!("{}: the total moves", application.name);
    let schedule = format!("total_schedule = '{}'\n", application.schedule);
    let moving = run(root, &task("curves", "preload", MOVING_SECONDS, &schedule))?;
    Ok(Measured {
        name: application.name.into(),
        ways,
        moving: moving.map_err(|e| anyhow::anyhow!(e))?,
    })
}

/// A task file without some of its keys, which come before the first model.
fn without(text: &str, keys: &[&str]) -> String {
    let is_key = |line: &&str| {
        let key = line.split('=').next().unwrap_or_default().trim();
        keys.contains(&key)
    };
    let lines: Vec<&str> = text.lines().filter(|line| !is_key(line)).collect();
    lines.join("\n") + "\n"
}

/// The report, or the line that says why the total is too small.
fn run(root: &Path, task: &str) -> Result<Result<Value, String>> {
    let file = root.join("target/swapnet/task.toml");
    std::fs::write(&file, task)?;
    let output = lab::neap()?
        .arg("run")
        .arg("--task")
        .arg(&file)
        .args(["--json", "-", "--quiet", "--cache-dir"])
        .arg(root.join("target/models/packed"))
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Ok(Ok(serde_json::from_slice(&output.stdout)?)),
        Some(3) => Ok(Err(said.trim().to_string())),
        _ => bail!("neap run --task: {said}"),
    }
}

/// What one model's planning keeps or needs beside weights.
pub struct Overhead {
    pub model: &'static str,
    pub weight_bytes: u64,
    /// One past the highest byte of activations and workspaces.
    pub activation_bytes: u64,
    /// The model information table and a curve of 16 points.
    pub tables_bytes: u64,
    pub smallest_slices_bytes: u64,
    pub smallest_blocks_bytes: u64,
}

pub fn overheads(root: &Path) -> Result<Vec<Overhead>> {
    let models = ["yolov3", "fcn_resnet101", "vgg19", "resnet101"];
    models
        .into_iter()
        .map(|name| overhead(root, name))
        .collect()
}

fn overhead(root: &Path, name: &'static str) -> Result<Overhead> {
    let path = models::zoo_model(root, name)?;
    let open = OpenOptions {
        cache: Cache::Folder(root.join("target/models/packed")),
        ..OpenOptions::of_own_process()
    };
    let model = Model::open(&path, &open, &mut |_| {})?;
    let options = RunOptions {
        threads: 1,
        ..RunOptions::default()
    };
    let smallest = |strategy| {
        let options = RunOptions {
            strategy,
            budget: Budget::Bytes(1),
            ..options.clone()
        };
        match model.plan(&options) {
            Err(neaptide::Error::Infeasible { smallest_bytes, .. }) => Ok(smallest_bytes),
            Err(error) => bail!(error),
            Ok(_) => bail!("a plan in one byte"),
        }
    };
    let plan = model.plan(&RunOptions {
        budget: Budget::Percent(50.0),
        ..options.clone()
    })?;
    let buffers = plan
        .workload()
        .buffers
        .iter()
        .zip(&plan.execution().buffers);
    let steps = plan
        .workload()
        .steps
        .iter()
        .zip(&plan.execution().workspaces);
    let ends = buffers.map(|(b, at)| at.offset + b.bytes);
    let ends = ends.chain(steps.map(|(s, at)| at.offset + s.workspace_bytes));
    let layers = baselines::blocks::get_layers(plan.workload(), &plan.costs);
    let tables = size_of_val(layers.as_slice()) + 16 * size_of::<neaptide::CurvePoint>();
    Ok(Overhead {
        model: name,
        weight_bytes: model.weight_bytes(),
        activation_bytes: ends.max().unwrap_or(0),
        tables_bytes: tables as u64,
        smallest_slices_bytes: smallest(Strategy::Preload.into())?,
        smallest_blocks_bytes: smallest(baselines::BLOCKS.into())?,
    })
}
