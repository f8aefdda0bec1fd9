//! `neap run` in a process of its own, so that its peak memory is its own.

use crate::cgroup::supervise;
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::progress::detail;
use serde::Deserialize;
use std::ffi::OsString;
use std::io::Read;
use std::process::{Command, Stdio};

/// What `bench` and `demo` need of a report.
#[derive(Deserialize)]
pub struct Figures {
    pub memory_budget_bytes: Option<u64>,
    pub peak_memory_bytes: u64,
    pub peak_memory_source: String,
    pub planned_high_water_bytes: u64,
    pub loaded_bytes_per_run: u64,
    pub stall_ms: f64,
    pub predicted_latency_ms: f64,
    pub processor_ms_per_run: f64,
    pub energy_mj_per_run: Option<f64>,
    pub latency_ms: Latency,
    pub outputs: Vec<Output>,
    /// What the run had to say of the model.
    #[serde(default)]
    pub remarks: Vec<String>,
}

#[derive(Deserialize)]
pub struct Latency {
    pub median: f64,
    pub p95: f64,
    pub min: f64,
    pub max: f64,
}

#[derive(Deserialize)]
pub struct Output {
    pub file: Option<String>,
}

/// How a run ended that did not end well.
pub struct Ended {
    pub failure: Failure,
    /// What it said on standard error, when that was kept from the user.
    pub said: String,
}

/// Runs `neap run ARGS --json -`. Standard error is the user's, or collected.
pub fn run(args: &[OsString], collect_errors: bool) -> Outcome<Result<Figures, Ended>> {
    let broken = |what: &str| Failure::Internal(format!("a run of its own {what}"));
    detail(|| {
        let words: Vec<_> = args.iter().map(|word| word.to_string_lossy()).collect();
        format!("starting neap run {}", words.join(" "))
    });
    let mut child = Command::new("/proc/self/exe")
        .arg("run")
        .args(args)
        .args(["--json", "-"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(if collect_errors {
            Stdio::piped()
        } else {
            Stdio::inherit()
        })
        .spawn()
        .map_err(|e| broken(&format!("cannot be started: {e}")))?;
    let (mut report, mut said) = (String::new(), String::new());
    let status = interrupt::with_child(child.id(), || {
        // Both at once: a pipe that nobody reads fills up, and stops who writes to it.
        let (out, err) = (child.stdout.take(), child.stderr.take());
        std::thread::scope(|scope| {
            let said = &mut said;
            let errors = scope.spawn(move || err.map_or(Ok(0), |mut err| err.read_to_string(said)));
            out.map_or(Ok(0), |mut out| out.read_to_string(&mut report))?;
            errors.join().expect("reading does not panic")
        })?;
        child.wait()
    })
    .map_err(|e| broken(&format!("was lost: {e}")))?;
    if let Err(failure) = supervise::ended(status) {
        interrupt::check()?;
        let error = said.lines().rfind(|line| line.starts_with("neap: error"));
        let said = error
            .or(said.lines().last())
            .unwrap_or_default()
            .to_string();
        return Ok(Err(Ended { failure, said }));
    }
    let figures = serde_json::from_str(&report)
        .map_err(|e| broken(&format!("gave no readable report: {e}")))?;
    Ok(Ok(figures))
}
