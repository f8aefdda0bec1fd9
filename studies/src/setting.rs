//! What a measured page was made on: processor, drive and commit.

use crate::bench::machine;
use crate::storage;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Less would not tell a drive's rate.
const READ_BYTES: u64 = 256 << 20;

/// Processor and instruction set, the rate of the drive under the repository, and the commit.
pub fn setting() -> Result<String> {
    Ok(format!("{}, commit {}", place()?, commit()?))
}

/// Processor and drive alone, for figures that are measured one by one.
pub fn place() -> Result<String> {
    let drive = match drive_bytes_per_second(&crate::root())? {
        Some(rate) => format!("a drive of {:.1} GB/s", rate / 1e9),
        None => "a drive that was not measured".into(),
    };
    Ok(format!("{}, {drive}", machine()?))
}

/// With the engine's own requests; `None` where nothing is packed yet.
fn drive_bytes_per_second(root: &Path) -> Result<Option<f64>> {
    let Ok(entries) = std::fs::read_dir(root.join("target/models/packed")) else {
        return Ok(None);
    };
    let mut largest: Option<(u64, PathBuf)> = None;
    for entry in entries {
        let entry = entry?;
        let bytes = entry.metadata()?.len();
        let is_packed = entry.path().extension().is_some_and(|e| e == "neap");
        if is_packed && largest.as_ref().is_none_or(|(most, _)| bytes > *most) {
            largest = Some((bytes, entry.path()));
        }
    }
    let Some((_, path)) = largest else {
        return Ok(None);
    };
    storage::turn(&path, None, READ_BYTES, 1).map(Some)
}

/// Short; with a mark where the code differs from it.
pub fn commit() -> Result<String> {
    let root = crate::root();
    let git = |args: &[&str]| -> Result<String> {
        let output = Command::new("git").current_dir(&root).args(args).output();
        let output = output.context("git cannot be run")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=10", "HEAD"])?;
    let changed = git(&[
        "status",
        "--porcelain",
        "--",
        "crates",
        "xtask",
        "Cargo.lock",
    ])?;
    Ok(match changed.is_empty() {
        true => commit,
        false => format!("{commit} with changes"),
    })
}
