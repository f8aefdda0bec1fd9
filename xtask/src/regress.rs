//! `cargo xtask regress NEAP`: this `neap` beside that of the last release, in turns of one run: ratios of time, memory and
//! the processors' time.
//!
//! ```text
//!   each network × budget:  old new old new …   ─► medians ─► new / old
//! ```
//! A machine's speed moves from minute to minute. What both are measured in turns hardly does.

use crate::models;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Convolutions of all kinds, and a transformer.
const NETWORKS: [&str; 4] = ["mobilenet_v2", "resnet50", "vit_b_16", "gpt2"];

const BUDGETS: [&str; 2] = ["none", "25%"];

/// Keys of a report, and what they are called.
const FIGURES: [(&str, &str); 3] = [
    ("/latency_ms/median", "time"),
    ("/peak_memory_bytes", "memory"),
    ("/processor_ms_per_run", "processors"),
];

#[derive(clap::Args)]
pub struct RegressArgs {
    /// The `neap` of the last release
    neap: PathBuf,
    /// Only these networks of the zoo
    only: Vec<String>,
    /// Turns of each
    #[arg(long, default_value_t = 7)]
    turns: usize,
    /// Runs of one turn
    #[arg(long, default_value_t = 10)]
    iterations: usize,
    /// The most that time or memory may be of the old one's
    #[arg(long, default_value_t = 1.1)]
    most: f64,
}

pub fn run(root: &Path, args: &RegressArgs) -> Result<()> {
    ensure!(
        args.turns > 0 && args.iterations > 0,
        "there is nothing to measure"
    );
    let new = models::neap(root)?;
    let mut slower = Vec::new();
    println!(
        "new / old, medians of {} turns, at most {}",
        args.turns, args.most
    );
    println!(
        "{:16} {:>6} {:>8} {:>8} {:>10}",
        "network", "budget", "time", "memory", "processors"
    );
    for name in NETWORKS {
        if !args.only.is_empty() && !args.only.iter().any(|only| only == name) {
            continue;
        }
        let model = models::Visitor::new(root, name)?;
        for budget in BUDGETS {
            let mut reports = [Vec::new(), Vec::new()];
            for turn in 0..args.turns {
                // Who is first in a turn changes: what the other leaves behind is the same for both.
                for at in [turn % 2, 1 - turn % 2] {
                    let neap = [&args.neap, &new][at];
                    reports[at].push(measured(neap, model.path(), budget, args.iterations)?);
                }
            }
            let ratios = FIGURES.map(|(key, _)| ratio(&reports, key));
            let text = ratios.map(|ratio| ratio.map_or("-".into(), |r| format!("{r:.3}")));
            println!(
                "{name:16} {budget:>6} {:>8} {:>8} {:>10}",
                text[0], text[1], text[2]
            );
            for ((_, what), ratio) in FIGURES.iter().zip(ratios).take(2) {
                if ratio.is_none_or(|ratio| ratio > args.most) {
                    slower.push(format!("{what} of {name} with budget {budget}"));
                }
            }
        }
    }
    match slower.is_empty() {
        true => Ok(()),
        false => bail!(
            "more than {} of the old one's: {}",
            args.most,
            slower.join(", ")
        ),
    }
}

fn measured(neap: &Path, model: &Path, budget: &str, iterations: usize) -> Result<Value> {
    let mut run = Command::new(neap);
    run.args(["--quiet", "run"]).arg(model);
    run.args(["--memory-budget", budget, "--warmup", "2", "--json", "-"]);
    run.args(["--iterations", &iterations.to_string()]);
    let output = run
        .output()
        .with_context(|| format!("cannot start {}", neap.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{}: {}",
        neap.display(),
        said.trim()
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Of the medians, new to old; `None` where one of them does not report it.
fn ratio(reports: &[Vec<Value>; 2], key: &str) -> Option<f64> {
    let [old, new] = reports.each_ref().map(|reports| {
        let values = reports.iter().map(|report| report.pointer(key)?.as_f64());
        median(values.collect::<Option<Vec<_>>>()?)
    });
    Some(new? / old.filter(|&old| old > 0.0)?)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some(values[last / 2].midpoint(values[values.len() / 2]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ratios_are_of_medians() {
        let reports = |values: &[f64]| -> Vec<Value> {
            values
                .iter()
                .map(|v| json!({"latency_ms": {"median": v}}))
                .collect()
        };
        let of = |old: &[f64], new: &[f64]| ratio(&[reports(old), reports(new)], FIGURES[0].0);
        assert_eq!(of(&[10.0, 100.0, 12.0], &[18.0, 6.0, 5.0]), Some(0.5));
        assert_eq!(of(&[1.0, 3.0], &[4.0]), Some(2.0));
        assert_eq!(of(&[], &[1.0]), None);
        assert_eq!(of(&[0.0], &[1.0]), None);
        assert_eq!(
            ratio(&[reports(&[1.0]), reports(&[1.0])], FIGURES[1].0),
            None
        );
    }
}
