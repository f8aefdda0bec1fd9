//! Strategies side by side: models × budgets × strategies, predicted and measured, in interleaved runs.
//!
//! ```text
//!   one model, one budget
//!     resident   | run |     |     |     |  no limit: how fast the model can be
//!     preload    |     | run |     |     |  ...
//!     blocks     |     |     | run |     |
//!     auto       |     |     |     | run |
//! ```
//! Each strategy lives in its own process that waits while another runs; what all of them predict, to be compared, is
//! also worked out by one process, with the same memory of its own in every plan. How long the model takes with
//! everything resident tells how fast the machine is just now: rounds in which that is not what it was right
//! after the model was calibrated count only where there are no others.

mod findings;
mod measure;
mod report;

use crate::models;
use crate::worker::Foreseen;
use anyhow::{Result, bail};
use clap::Args;
use std::path::Path;

#[derive(Args)]
pub struct StrategiesArgs {
    /// Only these models.
    only: Vec<String>,
    /// Two small models and two budgets, for a look.
    #[arg(long)]
    quick: bool,
    /// Turns of each process.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Write docs/strategies.md.
    #[arg(long, conflicts_with = "quick")]
    write: bool,
}

const MODELS: [&str; 6] = [
    "resnet50",
    "mobilenet_v2",
    "vgg19",
    "vit_b_16",
    "gpt2",
    "densenet121",
];
const QUICK_MODELS: [&str; 2] = ["resnet50", "mobilenet_v2"];

/// Those that `auto` chooses among.
const OF_AUTO: [&str; 2] = ["preload", "search"];

/// These, and baselines.
const SINGLE: [&str; 5] = ["preload", "search", "blocks", "odswap", "ondemand"];

const AUTO: &str = "auto";
const RESIDENT: &str = "resident";

/// Of what the model takes without a limit; 0 is the smallest budget in which it runs.
const SHARES: [u32; 4] = [0, 25, 50, 75];
const QUICK_SHARES: [u32; 2] = [0, 50];

/// How much is measured.
#[derive(Clone, Copy)]
struct Effort {
    shares: &'static [u32],
    rounds: usize,
    /// Of each search.
    search_generations: u32,
}

impl Effort {
    fn of(args: &StrategiesArgs) -> Effort {
        let mut effort = match args.quick {
            true => Effort {
                shares: &QUICK_SHARES,
                rounds: 2,
                search_generations: 4,
            },
            false => Effort {
                shares: &SHARES,
                rounds: 3,
                search_generations: 16,
            },
        };
        effort.rounds = args.rounds.map_or(effort.rounds, |n| n as usize);
        effort
    }
}

/// All strategies of one model under one budget.
struct Point {
    model: String,
    /// Per cent of what the model takes without a limit; 0 for the smallest feasible budget.
    share: u32,
    budget_bytes: u64,
    cells: Vec<Cell>,
    /// All strategies, planned by one process.
    foreseen: Vec<Foreseen<'static>>,
}

/// One strategy there.
struct Cell {
    strategy: &'static str,
    /// The smallest budget in bytes with which it could do, where this one is too small for it.
    outcome: Result<Figures, u64>,
}

/// What a strategy predicted and did.
#[derive(Clone, Debug, PartialEq)]
struct Figures {
    /// The strategy of the plan: `auto` takes that of another.
    chosen: String,
    predicted_ms: f64,
    predicted_stall_ms: f64,
    /// Medians.
    measured_ms: f64,
    stall_ms: f64,
    loaded_bytes: u64,
    /// The machine was as fast as when the model was calibrated.
    is_steady: bool,
}

impl Point {
    fn figures(&self, strategy: &str) -> Option<&Figures> {
        let cell = self.cells.iter().find(|c| c.strategy == strategy)?;
        cell.outcome.as_ref().ok()
    }
}

pub fn run(root: &Path, args: &StrategiesArgs) -> Result<()> {
    if let Some(name) = args.only.iter().find(|o| MODELS.iter().all(|m| m != o)) {
        bail!("no such model: {name}; there are {}", MODELS.join(", "));
    }
    let wanted = |name: &&str| match args.only.is_empty() {
        true => !args.quick || QUICK_MODELS.contains(name),
        false => args.only.iter().any(|o| o == name),
    };
    let models: Vec<&str> = MODELS.into_iter().filter(wanted).collect();
    let effort = Effort::of(args);
    for name in &models {
        models::zoo_model(root, name)?;
    }
    let mut points = Vec::new();
    for name in models {
        points.extend(measure::model(root, name, effort)?);
    }
    let tables = report::tables(&points);
    println!("{tables}");
    if args.write {
        let path = root.join("docs/strategies.md");
        std::fs::write(&path, report::page(&tables, effort)?)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}
