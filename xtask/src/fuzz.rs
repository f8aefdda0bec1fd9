//! Coverage-guided fuzzing: builds the targets of `fuzz/` with the flags that libFuzzer needs, and runs each for
//! its share of the time.
//!
//! ```text
//!   fuzz/corpus/TARGET      inputs that reached something new; kept from run to run
//!   fuzz/artifacts          inputs that failed
//! ```
//! A failing input is run again with `cargo xtask fuzz --target TARGET --input FILE`.

use crate::checked;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGETS: [&str; 3] = ["onnx", "packed", "plan"];

/// Coverage as libFuzzer reads it, in every crate.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table";

/// An input that takes longer is a failure.
const TIMEOUT_SECONDS: u32 = 60;

const MEMORY_LIMIT_MIB: u32 = 4096;

#[derive(clap::Args)]
pub struct FuzzArgs {
    /// For how long, all targets together
    #[arg(long, default_value_t = 10.0)]
    pub minutes: f64,
    /// Only this target: onnx, packed or plan
    #[arg(long)]
    pub target: Option<String>,
    /// Run this input alone
    #[arg(long, requires = "target")]
    pub input: Option<PathBuf>,
}

pub fn run(root: &Path, args: &FuzzArgs) -> Result<()> {
    let targets = targets(args.target.as_deref())?;
    ensure!(
        checked::has_sanitizer(root)?,
        "this toolchain has no AddressSanitizer"
    );
    let folder = build(root)?;
    let scratch = Scratch::new()?;
    if let (Some(input), [target]) = (&args.input, &targets[..]) {
        let status = scratch.command(&folder.join(target)).arg(input).status()?;
        ensure!(status.success(), "{}: {status}", input.display());
        return Ok(());
    }
    let seconds = (args.minutes * 60.0 / targets.len() as f64).ceil() as u64;
    let mut failed = Vec::new();
    for target in targets {
        match fuzz(root, &scratch, &folder.join(target), target, seconds) {
            Ok(inputs) => println!("{target}: {inputs} inputs in {seconds} s, none failed"),
            Err(error) => {
                println!("{target}: {error:#}");
                failed.push(target);
            }
        }
    }
    ensure!(failed.is_empty(), "failing inputs of {}", failed.join(", "));
    Ok(())
}

fn targets(only: Option<&str>) -> Result<Vec<&'static str>> {
    let wanted = |name: &&str| only.is_none_or(|only| only == *name);
    let targets: Vec<&str> = TARGETS.into_iter().filter(wanted).collect();
    if let (true, Some(unknown)) = (targets.is_empty(), only) {
        let known = TARGETS.join(", ");
        bail!("there is no fuzz target '{unknown}': the targets are {known}");
    }
    Ok(targets)
}

/// A folder in memory for the targets' files, named after this process.
struct Scratch(PathBuf);

impl Scratch {
    const PARENT: &str = "/dev/shm";
    const PREFIX: &str = "neap-fuzz-";

    /// Removes those of processes that were ended before they could.
    fn new() -> Result<Scratch> {
        for entry in fs::read_dir(Self::PARENT)?.flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|n| n.strip_prefix(Self::PREFIX));
            let owner = owner.and_then(|pid| pid.parse::<u32>().ok());
            if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let name = format!("{}{}", Self::PREFIX, std::process::id());
        let folder = Path::new(Self::PARENT).join(name);
        fs::create_dir_all(&folder)?;
        Ok(Scratch(folder))
    }

    /// A target that puts its files there.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("NEAP_FUZZ_SCRATCH", &self.0);
        command
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The folder of the built targets.
fn build(root: &Path) -> Result<PathBuf> {
    let target_dir = root.join("target/fuzz");
    let status = Command::new(env!("CARGO"))
        .args([
            "build",
            "--release",
            "--locked",
            "--target",
            checked::TARGET,
        ])
        .current_dir(root.join("fuzz"))
        .env("CARGO_TARGET_DIR", &target_dir)
        .env("RUSTC_BOOTSTRAP", "1")
        .env(
            "RUSTFLAGS",
            format!("{COVERAGE} {} --cfg fuzzing", checked::SANITIZE),
        )
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "the targets do not build: {status}");
    Ok(target_dir.join(checked::TARGET).join("release"))
}

/// Runs one target and says how many inputs it took.
fn fuzz(root: &Path, scratch: &Scratch, program: &Path, target: &str, seconds: u64) -> Result<u64> {
    let corpus = root.join("fuzz/corpus").join(target);
    let artifacts = root.join("fuzz/artifacts");
    fs::create_dir_all(&corpus)?;
    fs::create_dir_all(&artifacts)?;
    let seeded = scratch
        .command(program)
        .env("NEAP_FUZZ_SEEDS", &corpus)
        .output()?;
    ensure!(
        seeded.status.success(),
        "no seeds: {}",
        String::from_utf8_lossy(&seeded.stderr)
    );
    let log = artifacts.join(format!("{target}.log"));
    let status = scratch
        .command(program)
        .arg(&corpus)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={TIMEOUT_SECONDS}"))
        .arg(format!("-rss_limit_mb={MEMORY_LIMIT_MIB}"))
        .arg(format!(
            "-artifact_prefix={}/{target}-",
            artifacts.display()
        ))
        .args(["-print_final_stats=1", "-max_len=65536"])
        .stdout(std::process::Stdio::null())
        .stderr(fs::File::create(&log)?)
        .status()?;
    let said = fs::read(&log)?;
    let said = String::from_utf8_lossy(&said);
    if !status.success() {
        let tail: Vec<&str> = said.lines().rev().take(40).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        bail!(
            "{status}; the end of {}:\n{}",
            log.display(),
            tail.join("\n")
        );
    }
    let executed = said
        .lines()
        .find_map(|l| l.strip_prefix("stat::number_of_executed_units:"));
    let executed = executed.context("no statistics")?.trim();
    Ok(executed.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_is_unknown_is_named() {
        assert_eq!(targets(None).expect("all").len(), TARGETS.len());
        assert_eq!(targets(Some("plan")).expect("one"), ["plan"]);
        let error = targets(Some("plna")).expect_err("none").to_string();
        assert!(
            error.contains("'plna'") && error.contains("onnx"),
            "{error}"
        );
    }

    #[test]
    fn files_of_dead_processes_go() {
        // Of a process that has ended.
        let mut ended = Command::new("true").spawn().expect("starts");
        ended.wait().expect("ends");
        let left = Path::new(Scratch::PARENT).join(format!("{}{}", Scratch::PREFIX, ended.id()));
        fs::create_dir_all(left.join("files")).expect("made");
        let scratch = Scratch::new().expect("made");
        assert!(!left.exists() && scratch.0.exists());
        let own = scratch.0.clone();
        drop(scratch);
        assert!(!own.exists());
    }
}
