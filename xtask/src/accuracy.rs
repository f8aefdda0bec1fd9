//! Every model against onnxruntime, with no budget and at its smallest feasible budget.
//!
//! For each model: the largest error relative to the output's range is at most 1e-4, the top-1
//! class is the same, and the outputs under the smallest budget equal those without one bit for
//! bit. The smallest budget is enforced by a memory cgroup where the rights are there.

use crate::models::{self, Case};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Expected results that are closer, as a share of their range, are equally good.
const TIE: f64 = 1e-6;
const TOLERANCE: f64 = 1e-4;

pub fn run(root: &Path, only: &[String]) -> Result<()> {
    let neap = models::neap(root)?;
    let python = models::python(root)?;
    let wanted = |name: &str| only.is_empty() || only.iter().any(|o| name.starts_with(o.as_str()));
    if python.is_none() {
        println!("SKIPPED: comparison with onnxruntime of zoo models (no Python environment)");
    }
    let (mut passed, mut failed) = (0, Vec::new());
    let mut judge = |case: &Case| match check(root, &neap, python.as_deref(), case, &[]) {
        Ok(line) => {
            println!("ok    {line}");
            passed += 1;
        }
        Err(error) => {
            println!("WRONG {}: {error:#}", case.name);
            failed.push(case.name.clone());
        }
    };
    let trained = models::trained(root)?;
    if trained.is_empty() {
        println!("SKIPPED: trained models (../shared/models is not there)");
    }
    trained
        .iter()
        .filter(|c| wanted(&c.name))
        .for_each(&mut judge);
    let named = |name: &&str| only.is_empty() || only.iter().any(|o| o == name);
    for name in models::zoo_names().into_iter().filter(named) {
        let visitor = models::Visitor::new(root, name)?;
        judge(&Case {
            name: name.into(),
            model: visitor.path().to_path_buf(),
            inputs: Vec::new(),
            expected: None,
        });
    }
    println!("{passed} passed, {} failed", failed.len());
    if !failed.is_empty() {
        bail!("wrong: {}", failed.join(", "));
    }
    Ok(())
}

/// Runs a model with these options of `neap`, without a budget and at its smallest.
///
/// # Errors
/// When something is wrong with its outputs or its memory.
pub fn check(
    root: &Path,
    neap: &Path,
    python: Option<&Path>,
    case: &Case,
    options: &[&str],
) -> Result<String> {
    let work = root.join("target/accuracy").join(&case.name);
    fs::create_dir_all(&work)?;
    let cache = root.join("target/models/packed");
    let mut inputs = case.inputs.clone();
    let mut expected = case.expected.iter().cloned().collect::<Vec<_>>();
    if let (Some(python), None) = (python, &case.expected) {
        (inputs, expected) = reference(root, python, case, &work)?;
    }
    let run = |budget: &str, enforce: bool, exact: bool| -> Result<Value> {
        let folder = if budget == "none" { "none" } else { "small" };
        let folder = work.join(format!("{folder}{}", if exact { "-exact" } else { "" }));
        let report = work.join("report.json");
        let mut command = Command::new(neap);
        command
            .arg("run")
            .arg(&case.model)
            .args(["--threads", "2", "--memory-budget", budget])
            .args(options);
        command
            .arg("--cache-dir")
            .arg(&cache)
            .arg("--output-dir")
            .arg(&folder)
            .arg("--json")
            .arg(&report);
        for input in &inputs {
            command.arg("--input").arg(input);
        }
        if enforce {
            command.arg("--enforce");
        }
        if exact {
            command.arg("--exact");
        }
        let output = command.output()?;
        if !output.status.success() {
            bail!(
                "neap run at {budget}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(serde_json::from_str(&fs::read_to_string(&report)?)?)
    };
    let free = [run("none", false, false)?, run("none", false, true)?];
    let inspect = Command::new(neap)
        .arg("inspect")
        .arg(&case.model)
        .arg("--cache-dir")
        .arg(&cache)
        .args(["--threads", "2", "--format", "json"])
        .args(options)
        .output()?;
    let inspect: Value =
        serde_json::from_slice(&inspect.stdout).context("neap inspect --format json")?;
    let smallest = inspect["smallest_feasible_bytes"]
        .as_u64()
        .context("no smallest_feasible_bytes")?;
    let budget = smallest.to_string();
    let small = [
        run(&budget, can_enforce(), false)?,
        run(&budget, can_enforce(), true)?,
    ];
    for (a, b) in pairs(&output_files(&free[1])?, &output_files(&small[1])?)? {
        if fs::read(a)? != fs::read(b)? {
            bail!("{} differs between no budget and the smallest", a.display());
        }
    }
    let mut worst = 0.0f64;
    for report in free.iter().chain(&small) {
        let mut ours = output_files(report)?;
        if case.expected.is_some() {
            // Of the first output only is it known.
            ours.truncate(1);
        }
        if expected.is_empty() {
            continue;
        }
        for (ours, theirs) in pairs(&ours, &expected)? {
            worst = worst.max(compare(ours, theirs)?);
        }
    }
    let peaks = small.iter().filter_map(|r| r["peak_memory_bytes"].as_u64());
    let peak = peaks.max().unwrap_or(0);
    if peak > smallest {
        bail!("peak {peak} exceeds the budget {smallest}");
    }
    let mib = |bytes: u64| bytes as f64 / 1048576.0;
    Ok(format!(
        "{:32} smallest {:7.2} MiB, peak {:7.2} MiB ({}), error {}",
        case.name,
        mib(smallest),
        mib(peak),
        small[0]["peak_memory_source"].as_str().unwrap_or("?"),
        if expected.is_empty() {
            "not compared".into()
        } else {
            format!("{worst:.1e}")
        },
    ))
}

/// Inputs and outputs of onnxruntime, computed once and kept.
fn reference(
    root: &Path,
    python: &Path,
    case: &Case,
    work: &Path,
) -> Result<(Vec<String>, Vec<PathBuf>)> {
    let description = work.join("reference.json");
    if !description.exists() {
        let output = Command::new(python)
            .arg(root.join("scripts/reference.py"))
            .arg(&case.model)
            .arg("--seed-inputs")
            .arg(work.join("inputs"))
            .arg("--output-dir")
            .arg(work.join("expected"))
            .output()?;
        if !output.status.success() {
            bail!(
                "onnxruntime: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        fs::write(&description, &output.stdout)?;
    }
    let described: Value = serde_json::from_str(&fs::read_to_string(&description)?)?;
    let list = |key: &str| described[key].as_array().cloned().unwrap_or_default();
    let inputs = list("inputs")
        .iter()
        .filter_map(|i| Some(format!("{}={}", i["name"].as_str()?, i["file"].as_str()?)))
        .collect();
    let outputs = list("outputs")
        .iter()
        .filter_map(|o| Some(PathBuf::from(o["file"].as_str()?)))
        .collect();
    Ok((inputs, outputs))
}

fn output_files(report: &Value) -> Result<Vec<PathBuf>> {
    let outputs = report["outputs"].as_array();
    let outputs = outputs.filter(|o| !o.is_empty());
    outputs
        .context("report has no outputs")?
        .iter()
        .map(|o| {
            Ok(PathBuf::from(
                o["file"].as_str().context("output has no file")?,
            ))
        })
        .collect()
}

/// Each output beside its counterpart; an error where one is missing.
fn pairs<'a>(
    ours: &'a [PathBuf],
    theirs: &'a [PathBuf],
) -> Result<impl Iterator<Item = (&'a PathBuf, &'a PathBuf)>> {
    if ours.len() != theirs.len() {
        bail!("{} outputs instead of {}", ours.len(), theirs.len());
    }
    Ok(ours.iter().zip(theirs))
}

/// Largest error relative to the expected output's range; an error when it is too large or the
/// top-1 class differs.
pub fn compare(ours: &Path, theirs: &Path) -> Result<f64> {
    let (a, b) = (floats(ours)?, floats(theirs)?);
    relative_error(&a, &b).map_err(|e| anyhow::anyhow!("{}: {e}", ours.display()))
}

/// As [`compare`], of the elements. Infinities and NaNs must be where they are expected.
fn relative_error(a: &[f64], b: &[f64]) -> Result<f64> {
    if a.len() != b.len() {
        bail!("{} elements, expected {}", a.len(), b.len());
    }
    let finite = b.iter().filter(|y| y.is_finite());
    let (low, high) = finite.fold((f64::MAX, f64::MIN), |(l, h), &y| (l.min(y), h.max(y)));
    let range = (high - low).max(f64::MIN_POSITIVE);
    let mut error = 0.0f64;
    for (i, (&x, &y)) in a.iter().zip(b).enumerate() {
        if x.is_finite() && y.is_finite() {
            error = error.max((x - y).abs() / range);
        } else if x != y && !(x.is_nan() && y.is_nan()) {
            bail!("element {i} is {x}, expected {y}");
        }
    }
    if error > TOLERANCE {
        bail!("relative error {error:.2e} exceeds {TOLERANCE:.0e}");
    }
    let top = |x: &[f64]| {
        x.iter()
            .enumerate()
            .max_by(|p, q| p.1.total_cmp(q.1))
            .map(|(i, _)| i)
    };
    // Of a mask several pixels may be as good as 1.
    let is_tie = |(p, q): (usize, usize)| (b[p] - b[q]).abs() <= TIE * range;
    if top(a) != top(b) && !top(a).zip(top(b)).is_some_and(is_tie) {
        bail!("top-1 is {:?}, expected {:?}", top(a), top(b));
    }
    Ok(error)
}

fn floats(path: &Path) -> Result<Vec<f64>> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    let file = npyz::NpyFile::new(&bytes[..])?;
    let values: Vec<f32> = file
        .into_vec()
        .with_context(|| format!("{} is not float32", path.display()))?;
    Ok(values.into_iter().map(f64::from).collect())
}

/// Memory cgroups can be made here.
pub fn can_enforce() -> bool {
    let probe =
        Path::new("/sys/fs/cgroup/memory").join(format!("neap-probe-{}", std::process::id()));
    let made = fs::create_dir(&probe).is_ok();
    if made {
        let _ = fs::remove_dir(&probe);
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_number_is_an_error() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        assert_eq!(relative_error(&[1.0, nan], &[1.0, nan]).unwrap(), 0.0);
        assert_eq!(relative_error(&[1.0, -inf], &[1.0, -inf]).unwrap(), 0.0);
        for (ours, theirs) in [(nan, 1.0), (1.0, nan), (inf, 1.0), (1.0, inf), (inf, -inf)] {
            let error = relative_error(&[0.0, ours], &[0.0, theirs]).unwrap_err();
            assert!(error.to_string().contains("element 1"), "{error}");
        }
        assert!(relative_error(&[1.0, 2.0], &[1.0, 3.0]).is_err());
        assert!(relative_error(&[1.0], &[1.0, 3.0]).is_err());
    }

    #[test]
    fn a_missing_output_is_an_error() {
        let paths = |n: usize| vec![PathBuf::from("y.npy"); n];
        assert_eq!(pairs(&paths(2), &paths(2)).unwrap().count(), 2);
        assert!(pairs(&paths(1), &paths(2)).is_err());
        assert!(output_files(&serde_json::json!({ "outputs": [] })).is_err());
    }
}
