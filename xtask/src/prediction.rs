//! Predicted against measured latency: models × budgets, each in a process of its own that calibrates in
//! full, plans, runs, and runs again. Prints a table and the share of points within 5 %, beside how often the
//! machine itself is as steady as that.

use crate::{chart, models};
use anyhow::{Context, Result, bail};
use neaptide::{Budget, Cache, Calibration, Model, OpenOptions, RunOptions};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

pub struct Options {
    pub only: Vec<String>,
    pub write: bool,
}

const MODELS: [&str; 6] = [
    "resnet152",
    "vgg19",
    "vit_b_16",
    "gpt2",
    "mobilenet_v2",
    "squeezenet1_1",
];

/// Between the smallest feasible budget and that with everything resident.
const SHARES: [f64; 5] = [0.0, 0.1, 0.25, 0.5, 0.75];

/// A prediction is good within this share of what is measured.
const GOOD: f64 = 0.05;

/// Measured runs last about so long together, and are at least so many.
const MEASURE: Duration = Duration::from_secs(2);
const LEAST_RUNS: usize = 9;

/// The same is measured again after so long, about as long as calibration was before the first time: what
/// differs then is the machine, which no prediction can know.
const PAUSE: Duration = Duration::from_secs(3);

struct Point {
    model: String,
    budget_bytes: Option<u64>,
    loaded_bytes: u64,
    predicted_ms: f64,
    measured_ms: f64,
    /// 10th and 90th of a hundred runs.
    spread_ms: (f64, f64),
    /// The median once more.
    again_ms: f64,
}

impl Point {
    fn error(&self) -> f64 {
        self.predicted_ms / self.measured_ms - 1.0
    }

    /// How far off the first measurement would be as a prediction of the second.
    fn drift(&self) -> f64 {
        self.measured_ms / self.again_ms - 1.0
    }
}

fn is_good(error: f64) -> bool {
    error.abs() <= GOOD
}

pub fn run(root: &Path, options: &Options) -> Result<()> {
    let mut points = Vec::new();
    for name in MODELS {
        if !options.only.is_empty() && options.only.iter().all(|o| o != name) {
            continue;
        }
        let model = models::zoo_model(root, name)?;
        let bounds = ask(root, &model, "bounds")?;
        let bytes = |key: &str| bounds[key].as_u64().context("bounds");
        let (least, most) = (bytes("smallest_bytes")?, bytes("unlimited_bytes")?);
        let sized = SHARES.map(|share| Some(least + ((most - least) as f64 * share) as u64));
        for budget in sized.into_iter().chain([None]) {
            let text = budget.map_or("none".into(), |b| b.to_string());
            let answer = ask(root, &model, &text).with_context(|| format!("{name} {text}"))?;
            let ms = |key: &str| answer[key].as_f64().context("latency");
            let point = Point {
                model: name.into(),
                budget_bytes: budget,
                loaded_bytes: answer["loaded_bytes"].as_u64().unwrap_or(0),
                predicted_ms: ms("predicted_ms")?,
                measured_ms: ms("measured_ms")?,
                spread_ms: (ms("low_ms")?, ms("high_ms")?),
                again_ms: ms("again_ms")?,
            };
            eprintln!("{}", line(&point));
            points.push(point);
        }
    }
    if points.is_empty() {
        bail!("no such model: {MODELS:?}");
    }
    let table = table(&points);
    println!("{table}");
    if options.write {
        let path = root.join("docs/prediction.md");
        std::fs::write(&path, page(&table)?)?;
        eprintln!("wrote {}", path.display());
        let path = root.join("docs/prediction.svg");
        let dots: Vec<chart::Dot> = points
            .iter()
            .map(|p| chart::Dot {
                series: &p.model,
                x: p.measured_ms,
                y: p.predicted_ms,
            })
            .collect();
        std::fs::write(&path, chart::agreement(&dots, GOOD))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

fn page(table: &str) -> Result<String> {
    Ok(format!(
        "# Predicted and measured latency\n\n\
         Made by `cargo xtask bench prediction --write`. Two threads on {}. Every point is a process of its own, which\n\
         [calibrates](calibration.md) in full within its budget, plans, and runs for {} s. Budgets: the smallest feasible one, {}\n\
         of the way to that with everything resident, and none. *Measured* is the median; beside it the range of the middle 80 % of runs.\n\
         *Again*: the same session measured once more, {} s later. What that differs by is the machine's doing, and no\n\
         prediction can know it.\n\n\
         ![Predicted and measured latency](prediction.svg)\n\n{table}",
        crate::bench::machine()?,
        MEASURE.as_secs(),
        SHARES[1..]
            .iter()
            .map(|s| format!("{:.0} %", s * 100.0))
            .collect::<Vec<_>>()
            .join(", "),
        PAUSE.as_secs(),
    ))
}

/// A process that measures one point.
fn ask(root: &Path, model: &Path, budget: &str) -> Result<Value> {
    let output = Command::new(std::env::current_exe()?)
        .arg("prediction-worker")
        .arg(model)
        .args(["--budget", budget])
        .arg("--cache-dir")
        .arg(root.join("target/models/packed"))
        .output()?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Prints one point, or with `bounds` for a budget, the range of budgets.
pub fn worker(model: &Path, budget: &str, cache: &Path) -> Result<()> {
    let open = OpenOptions {
        cache: Cache::Folder(cache.into()),
        ..Default::default()
    };
    let model = Model::open(model, &open, &mut |_| {})?;
    let mut options = RunOptions {
        threads: 2,
        calibration: Calibration::Full,
        ..Default::default()
    };
    let inputs: Vec<Vec<u8>> = (model.inputs().iter())
        .map(|i| crate::worker::sample(&i.ty))
        .collect();
    if budget == "bounds" {
        // Calibration takes some memory of its own.
        options.reserve_bytes = 2 << 20;
        let bounds = model.bounds(&options);
        println!(
            "{}",
            json!({
                "smallest_bytes": bounds.smallest_feasible_bytes,
                "unlimited_bytes": bounds.unlimited_high_water_bytes,
            })
        );
        return Ok(());
    }
    options.budget = budget.parse::<Budget>().map_err(anyhow::Error::msg)?;
    let plan = model.plan(&options)?;
    let predicted_ms = plan.prediction.latency_ns as f64 / 1e6;
    let loaded_bytes = plan.verdict.loaded_bytes_per_run;
    let mut session = model.into_session(plan, &options)?;
    let views: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let mut outputs: Vec<Vec<u8>> = (session.outputs().iter())
        .map(|o| vec![0; o.len_bytes()])
        .collect();
    let mut measure = || -> Result<Vec<f64>> {
        let mut latency = Vec::new();
        let began = Instant::now();
        let warmup = 3;
        while latency.len() < LEAST_RUNS + warmup || began.elapsed() < MEASURE {
            let mut slots: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            let started = Instant::now();
            session.run(&views, &mut slots)?;
            latency.push(started.elapsed().as_secs_f64() * 1e3);
        }
        latency.drain(..warmup);
        latency.sort_by(f64::total_cmp);
        Ok(latency)
    };
    let at = |latency: &[f64], share: f64| latency[((latency.len() - 1) as f64 * share) as usize];
    let first = measure()?;
    std::thread::sleep(PAUSE);
    let again = measure()?;
    println!(
        "{}",
        json!({
            "predicted_ms": predicted_ms,
            "loaded_bytes": loaded_bytes,
            "measured_ms": at(&first, 0.5),
            "low_ms": at(&first, 0.1),
            "high_ms": at(&first, 0.9),
            "again_ms": at(&again, 0.5),
        })
    );
    Ok(())
}

fn line(p: &Point) -> String {
    let mib = |bytes: u64| bytes as f64 / 1048576.0;
    let percent = |error: f64| {
        let mark = if is_good(error) { "" } else { "**" };
        format!("{mark}{:+.1} %{mark}", error * 100.0)
    };
    format!(
        "| {} | {} | {:.1} | {:.2} | {:.2} | {:.2}-{:.2} | {} | {:.2} | {} |",
        p.model,
        p.budget_bytes
            .map_or("none".into(), |b| format!("{:.1}", mib(b))),
        mib(p.loaded_bytes),
        p.predicted_ms,
        p.measured_ms,
        p.spread_ms.0,
        p.spread_ms.1,
        percent(p.error()),
        p.again_ms,
        percent(p.drift()),
    )
}

fn table(points: &[Point]) -> String {
    let mut text = String::from(
        "| model | budget MiB | loaded MiB/run | predicted ms | measured ms | 80 % of runs | off by | again ms | first off by |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for point in points {
        let _ = writeln!(text, "{}", line(point));
    }
    let share = |errors: &mut Vec<f64>| {
        let good = errors.iter().filter(|e| is_good(**e)).count();
        errors.sort_by(f64::total_cmp);
        format!(
            "{good} of {} within {:.0} % ({:.0} %); half of them within {:.1} %",
            errors.len(),
            GOOD * 100.0,
            good as f64 / errors.len() as f64 * 100.0,
            errors[errors.len() / 2] * 100.0
        )
    };
    let mut errors: Vec<f64> = points.iter().map(|p| p.error().abs()).collect();
    let mut drifts: Vec<f64> = points.iter().map(|p| p.drift().abs()).collect();
    let _ = writeln!(
        text,
        "\nPredictions: {}.\nThe first measurement as a prediction of the second: {}.",
        share(&mut errors),
        share(&mut drifts)
    );
    text
}
