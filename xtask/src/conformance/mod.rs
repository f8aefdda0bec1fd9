//! Runs the ONNX standard's node tests as a user would: packed, planned and run in a session, once without a
//! budget and once in the smallest arena that can be planned.
//!
//! A test passes, is refused (the model cannot be opened, with a reason), or is wrong: it gives something else,
//! fails after it was opened, or panics. Wrong must not happen but for the tests of `CONTRADICTING`, which count as
//! failed; and the committed list of passing tests must not shrink.
//!
//! ```text
//!   run ──names──► worker processes (one per processor) ──verdicts──► report
//!                  each: open ─► plan ─► session ─► run ─► compare, twice
//! ```

mod compare;
mod node_test;
mod workers;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

pub use workers::serve;

const PASSING: &str = "xtask/conformance-passing.txt";

/// Tests that fail here, since their expected data contradict the operator's definition; onnxruntime gives what
/// we give. A name and the reason in each line.
const CONTRADICTING: &str = include_str!("../../conformance-contradicting.txt");

/// What became of a test, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Outcome {
    Passed {
        /// It passed with inputs as weights, too; some tests have one input only.
        with_weights: bool,
    },
    Refused(String),
    Wrong(String),
}

/// Runs all tests in `folder`, or exports them first. `update` adds newly passing tests to the list.
pub fn run(root: &Path, folder: Option<&Path>, update: bool, only: Option<&str>) -> Result<()> {
    let folder = match folder {
        Some(folder) => folder.to_path_buf(),
        None => match export(root)? {
            Some(folder) => folder,
            None => return Ok(()),
        },
    };
    let mut names = Vec::new();
    let entries = std::fs::read_dir(&folder);
    for entry in entries.with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.join("manifest.json").is_file() && only.is_none_or(|o| name.contains(o)) {
            names.push(name.into_owned());
        }
    }
    names.sort();
    let outcomes = workers::run_all(root, &folder, names)?;
    report(root, &outcomes, update, only.is_some())
}

/// Of exported tests, as `scripts/export_node_tests.py` writes it.
const FORMAT: u64 = 2;

fn format_of(folder: &Path) -> Option<u64> {
    let index = std::fs::read(folder.join("index.json")).ok()?;
    let index: serde_json::Value = serde_json::from_slice(&index).ok()?;
    index["format"].as_u64()
}

/// The tests from the Python package, exported once into `target/node-tests`.
fn export(root: &Path) -> Result<Option<PathBuf>> {
    let folder = root.join("target/node-tests");
    if format_of(&folder) == Some(FORMAT) {
        return Ok(Some(folder));
    }
    let Some(python) = crate::models::python(root)? else {
        println!("conformance: SKIPPED, the onnx package cannot be had");
        return Ok(None);
    };
    let status = Command::new(python)
        .arg(root.join("scripts/export_node_tests.py"))
        .arg(&folder)
        .stdout(std::process::Stdio::null())
        .status()?;
    if !status.success() {
        bail!("the node tests cannot be exported");
    }
    Ok(Some(folder))
}

fn report(
    root: &Path,
    outcomes: &BTreeMap<String, Outcome>,
    update: bool,
    partial: bool,
) -> Result<()> {
    let mut passed = BTreeSet::new();
    let (mut wrong, mut refused, mut differing, mut weighted) = (0, 0, 0, 0);
    for (name, outcome) in outcomes {
        let mut listed = CONTRADICTING
            .lines()
            .filter_map(|line| line.split_once(": "));
        let known = listed.find(|(contradicts, _)| contradicts == name);
        match (outcome, known) {
            (Outcome::Passed { with_weights }, None) => {
                passed.insert(name.as_str());
                weighted += usize::from(*with_weights);
            }
            (Outcome::Refused(reason), _) => {
                refused += 1;
                println!("refused {name}: {reason}");
            }
            (Outcome::Wrong(reason), Some((_, why))) => {
                differing += 1;
                println!("FAILED  {name}: {reason}: {why}");
            }
            (Outcome::Wrong(reason), None) => {
                wrong += 1;
                println!("WRONG   {name}: {reason}");
            }
            (Outcome::Passed { .. }, Some(_)) => {
                wrong += 1;
                println!("WRONG   {name}: it passes, and is listed as one that does not");
            }
        }
    }
    println!(
        "conformance: of {} tests {} pass without a budget and in the smallest arena, {weighted} of them with weights \
         too; {refused} are refused, {differing} fail as their data contradict the definition, {wrong} are wrong",
        outcomes.len(),
        passed.len(),
    );
    let path = root.join(PASSING);
    let listed = std::fs::read_to_string(&path).unwrap_or_default();
    let listed: BTreeSet<&str> = listed.lines().filter(|l| !l.is_empty()).collect();
    let lost: Vec<&str> = listed
        .iter()
        .copied()
        .filter(|n| !passed.contains(n) && (!partial || outcomes.contains_key(*n)))
        .collect();
    for name in &lost {
        println!("LOST    {name}");
    }
    if update {
        let all: Vec<&str> = listed.union(&passed).copied().collect();
        std::fs::write(&path, all.join("\n") + "\n")?;
    }
    if wrong > 0 || !lost.is_empty() {
        bail!(
            "{wrong} tests are wrong, {} that passed before do not",
            lost.len()
        );
    }
    Ok(())
}
