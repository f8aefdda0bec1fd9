//! `cargo study rtswap`: RT-Swap's study of schedulability (Figure 7) beside ours, a hunt for misses, and how tight the tests
//! are. Nothing of this machine is measured. Writes `docs/realtime.md` and its plots.
//!
//! ```text
//!   Table III ──► sets ──► methods: volumes or budgets, a test ──► Figure 7
//!   sets at the edge of a test ──► simulated adversary ──► misses (none)
//! ```

mod figures;
mod hunting;
mod methods;
mod paging;
mod report;
mod workloads;

use crate::chart;
use anyhow::{Context, Result, bail};
use clap::Args;
use figures::{Figure, REDUCED, TASKS};
use hunting::{Prey, hunts, tightness};
use methods::METHODS;
use std::path::Path;

#[derive(Args)]
pub struct RtswapArgs {
    /// Hunt through a hundred million jobs
    #[arg(long)]
    long: bool,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these parts: figures, hunt, tightness
    #[arg(long)]
    only: Vec<String>,
    /// Write docs/realtime.md and its plots
    #[arg(long, conflicts_with = "only")]
    write: bool,
}

pub fn run(root: &Path, args: &RtswapArgs) -> Result<()> {
    let wants = |part: &str| args.only.is_empty() || args.only.iter().any(|p| p == part);
    let mut text = String::new();
    let mut plots: Vec<(&str, String)> = Vec::new();
    report::head(&mut text, args.seed);
    if wants("figures") {
        let (tasks, overflow_gb) = figures::by_tasks(args.seed);
        report::by_tasks(&mut text, &tasks, overflow_gb);
        let counts: Vec<f64> = TASKS.map(|n| n as f64).collect();
        plots.push(("realtime-tasks.svg", plot("tasks", &counts, &tasks)));
        let memory = figures::by_memory(args.seed);
        report::by_memory(&mut text, &memory);
        let reduced = REDUCED.map(|r| r as f64);
        plots.push((
            "realtime-memory.svg",
            plot("per cent less memory", &reduced, &memory),
        ));
        let resolution = figures::by_resolution(args.seed);
        report::by_resolution(&mut text, &resolution);
        let high: Vec<f64> = (0..=10).map(f64::from).collect();
        plots.push((
            "realtime-resolution.svg",
            plot("tasks of high resolution", &high, &resolution),
        ));
    }
    let mut wrong = 0;
    if wants("hunt") {
        let jobs = if args.long { 35_000_000 } else { 1_000_000 };
        let bags = [
            ("Theorem 1", hunts(Prey::Theorem, jobs, args.seed)),
            (
                "demand, with swapping",
                hunts(Prey::Demand, jobs, args.seed),
            ),
            ("demand, with steps", hunts(Prey::Steps, jobs, args.seed)),
            (
                "none: 2 % beyond the exact test",
                hunts(Prey::Refused, jobs.min(2_000_000), args.seed),
            ),
        ];
        wrong += bags[..3].iter().map(|(_, b)| b.misses).sum::<u64>();
        report::hunts(&mut text, &bags);
    }
    if wants("tightness") {
        let rows = [
            ("only executing", tightness(false, 2000, args.seed)),
            ("some swapped", tightness(true, 2000, args.seed)),
        ];
        wrong += rows.iter().map(|(_, t)| t.wrong).sum::<u64>();
        report::tightness(&mut text, &rows);
    }
    if wrong > 0 {
        println!("{text}");
        bail!("{wrong} deadlines were missed in sets that are admitted");
    }
    if args.write {
        let docs = root.join("docs");
        plots.push(("realtime.md", text));
        for (name, text) in plots {
            std::fs::write(docs.join(name), text)
                .with_context(|| format!("cannot write {name}"))?;
        }
    } else {
        println!("{text}");
    }
    Ok(())
}

fn plot(label: &str, points: &[f64], figure: &Figure) -> String {
    let lines: Vec<chart::Line> = METHODS
        .iter()
        .zip(&figure.admitted)
        .map(|(method, bars)| chart::Line {
            name: method.name(),
            points: points
                .iter()
                .zip(bars)
                .map(|(&x, &y)| (x, y as f64))
                .collect(),
        })
        .collect();
    chart::lines(label, "sets admitted, of 100", &lines)
}
