//! Who holds what: a table for people, metrics for machines.

use crate::policy::Policy;
use crate::program::{Program, Promise, State};
use std::fmt::Write;

/// The columns of [`table`].
pub const COLUMNS: &str = "    PID  STATE    DEADLINES   ON CARD      AWAY     FIXED     QUOTA   TURNS    JOBS  MISSED  WORST ms  PROGRAM";

/// A line for each program.
pub fn table(policy: &Policy) -> String {
    let mut text = String::new();
    let held: u64 = policy
        .programs()
        .values()
        .map(|p| p.resident_bytes + p.fixed_bytes)
        .sum();
    let away: u64 = policy.programs().values().map(|p| p.away_bytes).sum();
    let _ = writeln!(
        text,
        "{} programs share {}: {} on the card, {} away",
        policy.programs().len(),
        bytes(policy.memory_bytes()),
        bytes(held),
        bytes(away)
    );
    let _ = writeln!(text, "{COLUMNS}");
    for p in policy.programs().values() {
        let _ = writeln!(
            text,
            "{:>7}  {:<7}  {:<9}  {:>8}  {:>8}  {:>8}  {:>8}  {:>6}  {:>6}  {:>6}  {:>8.1}  {}",
            p.pid,
            state(p),
            promise(p),
            bytes(p.resident_bytes),
            bytes(p.away_bytes),
            bytes(p.fixed_bytes),
            if p.quota_bytes == 0 {
                "-".into()
            } else {
                bytes(p.quota_bytes)
            },
            p.counts.turns,
            p.counts.jobs,
            p.counts.misses,
            p.counts.worst_response_ns as f64 / 1e6,
            p.name
        );
    }
    text
}

fn state(program: &Program) -> &'static str {
    match program.state {
        State::Idle => "idle",
        State::Waiting => "waits",
        State::Running => "runs",
    }
}

fn promise(program: &Program) -> &'static str {
    match program.promise {
        Promise::None => "none",
        Promise::Learning => "measuring",
        Promise::Kept { .. } => "promised",
        Promise::Refused => "refused",
    }
}

fn bytes(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    match mib >= 10240.0 {
        true => format!("{:.1}GiB", mib / 1024.0),
        false => format!("{mib:.0}MiB"),
    }
}

/// For Prometheus, as text.
pub fn metrics(policy: &Policy) -> String {
    type Value = fn(&Program) -> f64;
    let each: [(&str, &str, &str, Value); 13] = [
        (
            "resident_bytes",
            "gauge",
            "Memory on the card that may leave it",
            |p| p.resident_bytes as f64,
        ),
        ("away_bytes", "gauge", "Memory that is on the host", |p| {
            p.away_bytes as f64
        }),
        (
            "fixed_bytes",
            "gauge",
            "Memory on the card that cannot leave it",
            |p| p.fixed_bytes as f64,
        ),
        ("promised", "gauge", "Whether deadlines are promised", |p| {
            f64::from(u8::from(p.is_promised()))
        }),
        ("turns_total", "counter", "Turns on the card", |p| {
            p.counts.turns as f64
        }),
        ("jobs_total", "counter", "Jobs released", |p| {
            p.counts.jobs as f64
        }),
        (
            "misses_total",
            "counter",
            "Promised jobs that ended after their deadline",
            |p| p.counts.misses as f64,
        ),
        (
            "overruns_total",
            "counter",
            "Promised jobs that ran longer than they may",
            |p| p.counts.overruns as f64,
        ),
        (
            "out_bytes_total",
            "counter",
            "Memory copied to the host",
            |p| p.counts.out_bytes as f64,
        ),
        ("in_bytes_total", "counter", "Memory copied back", |p| {
            p.counts.in_bytes as f64
        }),
        (
            "out_seconds_total",
            "counter",
            "Time of copying to the host",
            |p| p.counts.out_ns as f64 / 1e9,
        ),
        ("in_seconds_total", "counter", "Time of copying back", |p| {
            p.counts.in_ns as f64 / 1e9
        }),
        (
            "worst_hold_seconds",
            "gauge",
            "Longest from being told to yield to yielding",
            |p| p.counts.worst_hold_ns as f64 / 1e9,
        ),
    ];
    let mut text = format!(
        "# HELP neap_gpu_memory_bytes Memory of the card that programs share\n# TYPE neap_gpu_memory_bytes gauge\nneap_gpu_memory_bytes {}\n",
        policy.memory_bytes()
    );
    for (name, kind, help, value) in each {
        let _ = writeln!(
            text,
            "# HELP neap_gpu_{name} {help}\n# TYPE neap_gpu_{name} {kind}"
        );
        for program in policy.programs().values() {
            let shown = program.name.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = writeln!(
                text,
                "neap_gpu_{name}{{pid=\"{}\",program=\"{shown}\"}} {}",
                program.pid,
                value(program)
            );
        }
    }
    text
}
