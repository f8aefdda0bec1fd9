//! `neap run --device vulkan` under hard limits, and ONNX's node tests there. The device's own tests are among those of the
//! workspace.

use crate::check::check;
use crate::skips::Skips;
use crate::{accuracy, conformance, models};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Model, and the smallest budget in MiB that it is run in. The driver takes 30 MiB of it, and others may take more.
const MODEL: &str = "resnet50";
const SMALL_MIB: u64 = 60;

/// # Errors
/// When a test fails; without a driver it is skipped.
pub fn run(root: &Path, skips: &Skips) -> Result<()> {
    if !has_driver() {
        return skips.skip("Vulkan: there is no driver (see scripts/install_vulkan.sh)");
    }
    conformance::node_tests(root, &["--device", "vulkan"])?;
    let neap = neap_with_vulkan(root)?;
    let model = models::zoo_model(root, MODEL)?;
    refuses(&models::neap(root)?, &model, "vulkan", "--features vulkan")?;
    refuses(&neap, &model, "vulkan:99", "no number 99")?;
    let folder = root.join("target/vulkan");
    let whole = outputs(&neap, &model, &folder.join("whole"), None)?;
    own_memory(&neap, &model, &folder.join("own"), &whole)?;
    if !accuracy::can_enforce() {
        return skips.skip("hard limits on memory: no right to make memory cgroups");
    }
    let small = outputs(&neap, &model, &folder.join("small"), Some(SMALL_MIB))?;
    ensure!(whole == small, "other bits within {SMALL_MIB} MiB");
    Ok(())
}

/// Plans in the device's own memory: the same bits, within both budgets. The processor as a device has its memory in the
/// process's, so the process's peak says nothing here.
fn own_memory(neap: &Path, model: &Path, folder: &Path, whole: &[Vec<u8>]) -> Result<()> {
    for (host, device_mib) in [("none", 24u64), ("80MiB", 12), ("200MiB", 12)] {
        let device = format!("{device_mib}MiB");
        let budgets = ["--memory-budget", host, "--device-budget", &device];
        let (found, report) = outputs_and_report(neap, model, &folder.join(host), &budgets)?;
        ensure!(found == whole, "other bits within {budgets:?}");
        let memory = &report["device"]["memory"];
        let peak = memory["peak_bytes"].as_u64();
        let peak = peak.context("the report names no peak of the device")?;
        ensure!(
            peak <= device_mib << 20,
            "{peak} bytes of the device taken within {device}"
        );
        ensure!(
            memory["budget_bytes"] == device_mib << 20,
            "the report names another budget"
        );
    }
    let refused = Command::new(neap)
        .args([
            "run",
            "--quiet",
            "--device",
            "vulkan",
            "--device-budget",
            "64KiB",
        ])
        .arg(model)
        .output()?;
    let told = String::from_utf8_lossy(&refused.stderr);
    ensure!(
        refused.status.code() == Some(3) && told.contains("smallest feasible pair"),
        "a device's budget that is too small ended with {}: {told}",
        refused.status
    );
    Ok(())
}

fn has_driver() -> bool {
    let folders = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"];
    let has_some =
        |folder: &&str| fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some());
    folders.iter().any(has_some)
}

/// The program with the feature, beside the one without, which is built again if need be.
fn neap_with_vulkan(root: &Path) -> Result<PathBuf> {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--quiet", "--package", "neap-cli"]);
    build.args(["--package", "neap-features"]);
    build.args(["--features", "neap-cli/vulkan"]);
    check(build.current_dir(root), "neap with Vulkan")?;
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| root.join("target"), PathBuf::from);
    let folder = root.join("target/vulkan");
    fs::create_dir_all(&folder)?;
    let kept = folder.join("neap");
    // Not over a program that may be running.
    let _ = fs::remove_file(&kept);
    fs::copy(target.join("release/neap"), &kept)?;
    Ok(kept)
}

/// One line, and the exit code for bad input.
fn refuses(neap: &Path, model: &Path, device: &str, says: &str) -> Result<()> {
    let Output { status, stderr, .. } = Command::new(neap)
        .args(["run", "--quiet", "--device", device])
        .arg(model)
        .output()?;
    let told = String::from_utf8_lossy(&stderr).into_owned();
    let lines = told.lines().filter(|line| line.contains("error")).count();
    ensure!(
        status.code() == Some(2) && lines == 1 && told.contains(says),
        "--device {device} ended with {status}: {told}"
    );
    Ok(())
}

/// Runs the model and reads the outputs' bytes; with a budget under a hard limit.
fn outputs(neap: &Path, model: &Path, folder: &Path, mib: Option<u64>) -> Result<Vec<Vec<u8>>> {
    let size = mib.map(|mib| format!("{mib}MiB"));
    let options: Vec<&str> = match &size {
        Some(size) => vec!["--enforce", "--memory-budget", size],
        None => Vec::new(),
    };
    let (outputs, report) = outputs_and_report(neap, model, folder, &options)?;
    let peak = report["peak_memory_bytes"].as_u64();
    let peak = peak.context("the report names no peak")?;
    ensure!(
        mib.is_none_or(|mib| peak <= mib << 20),
        "{peak} bytes taken"
    );
    Ok(outputs)
}

fn outputs_and_report(
    neap: &Path,
    model: &Path,
    folder: &Path,
    options: &[&str],
) -> Result<(Vec<Vec<u8>>, Value)> {
    let mut command = Command::new(neap);
    command
        .args(["run", "--quiet", "--device", "vulkan", "--json", "-"])
        .arg("--output-dir")
        .arg(folder)
        .arg(model)
        .args(options);
    let output = command.output()?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("neap run --device vulkan: {told}");
    }
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let files = fs::read_dir(folder)?.map(|file| Ok(file?.path()));
    let mut files: Vec<PathBuf> = files.collect::<Result<_>>()?;
    files.sort();
    ensure!(!files.is_empty(), "no outputs");
    let outputs = files.iter().map(|file| Ok(fs::read(file)?));
    Ok((outputs.collect::<Result<_>>()?, report))
}
