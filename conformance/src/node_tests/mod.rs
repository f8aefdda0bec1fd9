//! Runs the ONNX standard's node tests as a user would: packed, planned and run in a session, once without a
//! budget and once in the smallest arena that can be planned.
//!
//! A test passes, is refused (the model cannot be opened, with a reason), or is wrong: it gives something else,
//! fails after it was opened, or panics. Wrong must not happen but for the tests that are listed as contradicting the
//! definition, which count as failed; and the committed list of passing tests must not shrink. With `--device vulkan` steps are
//! computed there, and each test must have the outcome that it has on the processor.
//!
//! ```text
//!   run ──names──► worker processes (one per processor) ──verdicts──► report
//!                  each: open ─► plan ─► session ─► run ─► compare, twice
//! ```

mod compare;
mod device_page;
mod node_test;
mod report;
mod workers;

use crate::{models, python};
use anyhow::{Context, Result, bail};
use clap::Args;
use report::Report;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;

pub use workers::serve;

#[derive(Args, Default)]
pub struct ConformanceArgs {
    /// Only tests whose name contains this.
    only: Option<String>,
    /// Only the tests of this version of the onnx package; else those of all versions that are known here.
    #[arg(long)]
    onnx: Option<String>,
    /// Exported tests of that version, instead of exporting them from the package.
    #[arg(long, requires = "onnx")]
    folder: Option<PathBuf>,
    /// Add newly passing tests to the committed list.
    #[arg(long)]
    update: bool,
    /// Write docs/node-tests.md.
    #[arg(long, conflicts_with_all = ["only", "onnx"])]
    write: bool,
    /// Compute on that: `vulkan`. The lists stay as they are, and with `--write` counts go to docs/gpu.md.
    #[arg(long, conflicts_with = "update")]
    device: Option<Device>,
}

/// What computes instead of the processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Device {
    Vulkan,
}

/// The tests of one version of the onnx package.
struct Set {
    onnx: &'static str,
    /// Under `target`, where they are exported to.
    folder: &'static str,
    /// Of what the exporter needs; `None` for the environment of the reference engine.
    requirements: Option<&'static str>,
    passing: &'static str,
    /// Tests that fail here, since their expected data contradict the operator's definition. A name and the reason in each
    /// line.
    contradicting: &'static str,
}

static SETS: [Set; 2] = [
    Set {
        onnx: "1.16.2",
        folder: "node-tests",
        requirements: None,
        passing: "conformance/passing.txt",
        contradicting: include_str!("../../contradicting.txt"),
    },
    Set {
        onnx: "1.23.2",
        folder: "node-tests-1.23.2",
        requirements: Some("scripts/requirements-node-tests.txt"),
        passing: "conformance/passing-1.23.2.txt",
        contradicting: include_str!("../../contradicting-1.23.2.txt"),
    },
];

/// What became of a test, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Outcome {
    Passed {
        /// It passed with inputs as weights, too; some tests have one input only.
        with_weights: bool,
        /// Of all steps of these models, those that a device computed.
        steps_on_device: usize,
    },
    Refused(String),
    Wrong(String),
}

/// Runs the tests that are asked for, and exports them first where that was not done.
pub fn run(root: &Path, args: &ConformanceArgs) -> Result<()> {
    let wanted = |set: &&Set| args.onnx.as_deref().is_none_or(|onnx| onnx == set.onnx);
    let sets: Vec<&Set> = SETS.iter().filter(wanted).collect();
    if sets.is_empty() {
        bail!(
            "the versions are {}",
            SETS.each_ref().map(|set| set.onnx).join(" and ")
        );
    }
    let mut reports = Vec::new();
    for set in sets {
        let folder = match &args.folder {
            Some(folder) => folder.clone(),
            None => match export(root, set)? {
                Some(folder) => folder,
                None => continue,
            },
        };
        let report = run_set(root, set, &folder, args)?;
        report.print();
        reports.push((report, set));
    }
    for (report, set) in &reports {
        let path = root.join(set.passing);
        report.compare(&path, args.only.is_some(), args.update)?;
    }
    let reports: Vec<&Report> = reports.iter().map(|(report, _)| report).collect();
    match (args.write, args.device) {
        (false, _) => {}
        (true, None) => std::fs::write(root.join("docs/node-tests.md"), report::page(&reports))?,
        (true, Some(Device::Vulkan)) => {
            let path = root.join("docs/gpu.md");
            let page = std::fs::read_to_string(&path)?;
            std::fs::write(&path, device_page::with_table(&page, &reports)?)?;
        }
    }
    Ok(())
}

fn run_set(root: &Path, set: &Set, folder: &Path, args: &ConformanceArgs) -> Result<Report> {
    let operators = operators(folder)?;
    let names = operators.keys();
    let only = args.only.as_deref();
    let names = names.filter(|name| only.is_none_or(|o| name.contains(o)));
    let outcomes = workers::run_all(root, folder, args.device, names.cloned().collect())?;
    Ok(Report::new(
        set.onnx,
        set.contradicting,
        outcomes,
        operators,
    ))
}

/// Of exported tests, as `scripts/export_node_tests.py` writes it.
const FORMAT: u64 = 4;

fn index(folder: &Path) -> Result<serde_json::Value> {
    let path = folder.join("index.json");
    let index = std::fs::read(&path).with_context(|| format!("{}", path.display()))?;
    Ok(serde_json::from_slice(&index)?)
}

/// What each test tests.
fn operators(folder: &Path) -> Result<report::Operators> {
    let index = index(folder)?;
    let tests = index["tests"].as_array().context("no tests are listed")?;
    let text = |test: &serde_json::Value, key: &str| test[key].as_str().map(str::to_owned);
    let pairs = tests.iter().map(|test| {
        let pair = text(test, "name").zip(text(test, "operator"));
        pair.context("a test is listed without its name or operator")
    });
    pairs.collect()
}

/// The tests from the Python package, exported once.
fn export(root: &Path, set: &Set) -> Result<Option<PathBuf>> {
    let folder = root.join("target").join(set.folder);
    if index(&folder).is_ok_and(|index| index["format"].as_u64() == Some(FORMAT)) {
        return Ok(Some(folder));
    }
    let python = match set.requirements {
        None => models::python(root)?,
        Some(list) => {
            let made = python::environment(root, set.folder, list)?;
            made.map(|folder| folder.join("bin/python"))
        }
    };
    let Some(python) = python else {
        println!("conformance: SKIPPED, onnx {} cannot be had", set.onnx);
        return Ok(None);
    };
    let status = Command::new(python)
        .arg(root.join("scripts/export_node_tests.py"))
        .arg(&folder)
        .stdout(std::process::Stdio::null())
        .status()?;
    if !status.success() {
        bail!("the node tests of onnx {} cannot be exported", set.onnx);
    }
    Ok(Some(folder))
}
