//! `cargo study flexnn`: memory against latency, beside other engines, on fast and slow storage, and
//! what is lost without each part of the engine. Writes `docs/flexnn.md` and its plots.
//!
//! ```text
//!   measure ──► target/flexnn/results/MODEL.json ──► report, plots
//! ```

mod measure;
pub mod peers;
mod plots;
mod report;
mod results;
mod svg;
mod turns;

use anyhow::{Context, Result};
use clap::Args;
use results::ModelResult;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

pub const MODELS: [&str; 6] = [
    "resnet152",
    "vgg19",
    "vit_b_16",
    "gpt2",
    "mobilenet_v2",
    "squeezenet1_1",
];

/// Bytes per second of the paper's devices: a Raspberry Pi 4B and a Pixel 6 Pro.
pub const PAPER_STORAGE: [(u64, &str); 2] = [
    (257_000_000, "the paper's Raspberry Pi"),
    (718_000_000, "the paper's phone"),
];

#[derive(Args)]
pub struct FlexnnArgs {
    /// Only these models
    #[arg(long)]
    only: Vec<String>,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[arg(long, default_value_t = 3)]
    runs_per_round: usize,
    /// Three budgets, two rounds, no ablations, storage only as it is
    #[arg(long)]
    quick: bool,
    /// Leave out slower storage
    #[arg(long)]
    no_throttle: bool,
    /// Leave out what is lost without each part
    #[arg(long)]
    no_ablations: bool,
    /// Write docs/flexnn.md and its plots
    #[arg(long)]
    write: bool,
    /// Measure nothing: use what was measured last
    #[arg(long)]
    kept: bool,
}

/// What to measure of a model.
pub struct Options {
    pub rounds: usize,
    pub runs_per_round: usize,
    /// Points of a curve, of which the last has no budget.
    pub budgets: usize,
    pub ablations: bool,
    pub throttles: Vec<u64>,
}

pub fn run(root: &Path, args: &FlexnnArgs) -> Result<()> {
    let wanted = |name: &&str| args.only.is_empty() || args.only.iter().any(|o| o == name);
    let names: Vec<&str> = MODELS.into_iter().filter(wanted).collect();
    let throttles = match args.quick || args.no_throttle {
        true => Vec::new(),
        false => PAPER_STORAGE.iter().map(|s| s.0).collect(),
    };
    let options = Options {
        rounds: if args.quick { 2 } else { args.rounds.max(1) },
        runs_per_round: args.runs_per_round.max(1),
        budgets: if args.quick { 3 } else { 6 },
        ablations: !(args.quick || args.no_ablations),
        throttles,
    };
    let folder = root.join("target/flexnn/results");
    fs::create_dir_all(&folder)?;
    if !args.kept {
        let engines = peers::Engines::new(root)?;
        for name in &names {
            let started = Instant::now();
            let result = measure::measure(root, &engines, name, &options).context(*name)?;
            eprintln!("{name}: {:.0} s", started.elapsed().as_secs_f64());
            fs::write(kept(&folder, name), serde_json::to_string_pretty(&result)?)?;
        }
    }
    let results: Vec<ModelResult> = names
        .iter()
        .map(|name| {
            let path = kept(&folder, name);
            let text = fs::read(&path).with_context(|| path.display().to_string())?;
            Ok(serde_json::from_slice(&text)?)
        })
        .collect::<Result<_>>()?;
    println!("{}", report::tables(&results));
    if args.write {
        let docs = root.join("docs");
        fs::write(
            docs.join("flexnn.md"),
            report::document(&results, &options)?,
        )?;
        for (name, text) in plots::all(&results) {
            fs::write(docs.join(name), text)?;
        }
        eprintln!("wrote docs/flexnn.md and its plots");
    }
    Ok(())
}

fn kept(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.json"))
}
