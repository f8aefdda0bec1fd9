//! Runs every zoo model again and again at the smallest budget it is said to need, enforced by the
//! kernel: each run must end well, within the budget, with the same bits.

use crate::models;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The smallest budgets may be no larger than this, in MiB.
const LIMITS_MIB: [(&str, u64); 9] = [
    ("resnet152", 32),
    ("resnet50", 28),
    ("vgg19", 72),
    ("mobilenet_v2", 16),
    ("squeezenet1_1", 16),
    ("vit_b_16", 28),
    ("gpt2", 32),
    ("densenet121", 28),
    ("yolov3", 64),
];

/// Runs alternate between one thread and two.
const THREADS: [usize; 2] = [1, 2];

const ITERATIONS: &str = "2";

pub struct Options {
    /// Only these models; all of the zoo when empty.
    pub only: Vec<String>,
    pub runs: usize,
}

pub fn run(root: &Path, options: &Options) -> Result<()> {
    let neap = models::neap(root)?;
    let known = models::zoo_names();
    if let Some(unknown) = options.only.iter().find(|o| !known.contains(&o.as_str())) {
        bail!("the zoo has no '{unknown}'; it has {}", known.join(", "));
    }
    println!("model            threads  smallest MiB  limit MiB  peak MiB  runs");
    let mut failed = Vec::new();
    for name in known {
        if !options.only.is_empty() && !options.only.iter().any(|o| o == name) {
            continue;
        }
        let subject = match Subject::prepare(root, &neap, name) {
            Ok(subject) => subject,
            Err(error) => {
                println!("{name:16} FAILED: {error:#}");
                failed.push(name);
                continue;
            }
        };
        let outcome = subject.survive(options.runs);
        subject.tidy_up()?;
        for line in outcome.lines {
            println!("{line}");
        }
        if let Err(error) = outcome.result {
            println!("{name:16} FAILED: {error:#}");
            failed.push(name);
        }
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// A model packed afresh by the present build.
struct Subject<'a> {
    neap: &'a Path,
    name: &'static str,
    packed: PathBuf,
    folder: PathBuf,
}

struct Outcome {
    lines: Vec<String>,
    result: Result<()>,
}

impl Subject<'_> {
    fn prepare<'a>(root: &Path, neap: &'a Path, name: &'static str) -> Result<Subject<'a>> {
        let model = models::zoo_model(root, name)?;
        let folder = root.join("target/survive").join(name);
        fs::create_dir_all(&folder)?;
        let packed = folder.join("model.neap");
        let output = Command::new(neap)
            .args(["pack", "--quiet"])
            .arg(&model)
            .arg("-o")
            .arg(&packed)
            .output()?;
        ensure!(output.status.success(), "packing: {}", text(&output.stderr));
        Ok(Subject {
            neap,
            name,
            packed,
            folder,
        })
    }

    fn tidy_up(&self) -> Result<()> {
        fs::remove_dir_all(&self.folder).context("cannot remove the packed model")
    }

    fn survive(&self, runs: usize) -> Outcome {
        let mut lines = Vec::new();
        let result = (|| {
            let free = outputs(&self.run(2, None)?)?;
            let mut budgets = [0; THREADS.len()];
            let mut peaks = [0; THREADS.len()];
            for (budget, threads) in budgets.iter_mut().zip(THREADS) {
                *budget = self.smallest_bytes(threads)?;
            }
            let mut done = 0;
            let endured: Result<()> = (0..runs).try_for_each(|n| {
                let which = n % THREADS.len();
                let (threads, budget) = (THREADS[which], budgets[which]);
                let context = || format!("run {n}, {threads} threads, {budget} bytes");
                let report = self.run(threads, Some(budget)).with_context(context)?;
                let peak = number(&report, "peak_memory_bytes")?;
                peaks[which] = peaks[which].max(peak);
                ensure!(peak <= budget, "{}: peak {peak}", context());
                ensure!(outputs(&report)? == free, "{}: other bits", context());
                done += 1;
                Ok(())
            });
            let limit = LIMITS_MIB.iter().find(|(name, _)| *name == self.name);
            for ((threads, budget), peak) in THREADS.iter().zip(budgets).zip(peaks) {
                let limit_text = limit.map_or("-".into(), |(_, mib)| mib.to_string());
                lines.push(format!(
                    "{:16} {threads:7} {:13.2} {limit_text:>10} {:9.2} {done:5}",
                    self.name,
                    mib(budget),
                    mib(peak)
                ));
            }
            endured?;
            if let Some((_, limit_mib)) = limit {
                let worst = budgets.iter().copied().max().unwrap_or(0);
                ensure!(
                    worst <= limit_mib << 20,
                    "needs {:.2} MiB, {limit_mib} are allowed",
                    mib(worst)
                );
            }
            Ok(())
        })();
        Outcome { lines, result }
    }

    fn smallest_bytes(&self, threads: usize) -> Result<u64> {
        let output = Command::new(self.neap)
            .arg("inspect")
            .arg(&self.packed)
            .args(["--threads", &threads.to_string(), "--format", "json"])
            .output()?;
        ensure!(output.status.success(), "inspect: {}", text(&output.stderr));
        let facts: Value =
            serde_json::from_slice(&output.stdout).context("inspect --format json")?;
        number(&facts, "smallest_feasible_bytes")
    }

    /// The report of one process. With a budget the kernel enforces it.
    fn run(&self, threads: usize, budget_bytes: Option<u64>) -> Result<Value> {
        let report = self.folder.join("report.json");
        let mut command = Command::new(self.neap);
        command
            .args(["run", "--quiet"])
            .arg(&self.packed)
            .args(["--threads", &threads.to_string()])
            .args(["--iterations", ITERATIONS])
            .arg("--exact")
            .arg("--output-dir")
            .arg(self.folder.join("outputs"))
            .arg("--json")
            .arg(&report);
        if let Some(bytes) = budget_bytes {
            command.args(["--enforce", "--memory-budget", &bytes.to_string()]);
        }
        let output = command.output()?;
        // An intervention of the kernel's is an error of the command too.
        ensure!(
            output.status.success(),
            "{}: {}",
            output.status,
            text(&output.stderr)
        );
        serde_json::from_str(&fs::read_to_string(&report)?).context("the report")
    }
}

/// The files of outputs that a report of `neap run` names.
pub fn outputs(report: &Value) -> Result<Vec<Vec<u8>>> {
    let outputs = report["outputs"].as_array().context("no outputs")?;
    let read = |output: &Value| {
        let file = output["file"].as_str().context("an output has no file")?;
        fs::read(file).with_context(|| format!("cannot read {file}"))
    };
    outputs.iter().map(read).collect()
}

pub fn number(facts: &Value, key: &str) -> Result<u64> {
    facts[key]
        .as_u64()
        .with_context(|| format!("no number '{key}'"))
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1048576.0
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_string()
}
