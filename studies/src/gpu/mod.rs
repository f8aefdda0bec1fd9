//! `cargo study vulkan`: networks on Vulkan beside ncnn's, and predicted against measured latency there.
//!
//! ```text
//!   ncnn             | run |     |     | run |  ...       in turn, each a process of its own
//!   no budget        |     | run |     |     |
//!   a third          |     |     | run |     |            a third of ncnn's peak memory, where that is feasible
//!
//!   nothing loaded   | runs |      |      | runs |  ...    in turn, in one process: in the host's memory, and another one in
//!   budgets          |      | runs | runs |      |         the device's own
//! ```
//! Figures of each network are kept in `target/gpu`; `--write` makes docs/gpu-figures.md of all that are there.

mod beside;
mod papers;
mod place;
mod predicted;
mod report;
mod swapnet;

use crate::flexnn::peers::Engines;
use crate::kept::Kept;
use crate::models;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::Path;
use std::time::Instant;

pub use predicted::{WorkerArgs, work};

#[derive(Args)]
pub struct GpuArgs {
    /// Only these networks are measured anew; figures of others are taken as they are.
    only: Vec<String>,
    /// Turns of each process beside ncnn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Turns of each session whose latency is predicted
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    turns: u32,
    /// Let each network calibrate the device first, which takes some dozens of runs; later plans count with that, too
    #[arg(long)]
    calibrate: bool,
    /// Leave ncnn out, and keep what was measured beside it
    #[arg(long)]
    no_peer: bool,
    /// Leave predictions out, and keep what was measured of them
    #[arg(long, conflicts_with = "no_peer")]
    no_predictions: bool,
    /// Measure what papers have instead: SwapAdvisor's Table 2 and Figure 8, SwapNet's memory without copies, beside
    /// copies and the page cache
    #[arg(long, conflicts_with_all = ["only", "write"])]
    papers: bool,
    /// Write docs/gpu-figures.md from the figures that are there
    #[arg(long)]
    write: bool,
}

/// The names of their figures.
const PAPERS: &str = "papers";
const SWAPNET: &str = "swapnet";

const NETWORKS: [&str; 5] = [
    "squeezenet1_1",
    "mobilenet_v2",
    "resnet50",
    "vit_b_16",
    "vgg19",
];

/// # Errors
/// When there is no device, or a network cannot be run on it.
pub fn run(root: &Path, args: &GpuArgs) -> Result<()> {
    if let Some(name) = args.only.iter().find(|o| !NETWORKS.contains(&o.as_str())) {
        bail!("no such network: {name}; there are {}", NETWORKS.join(", "));
    }
    let kept = Kept::of(root, "gpu")?;
    let wanted = |name: &str| match args.only.is_empty() {
        true => !args.write && !args.papers,
        false => args.only.iter().any(|o| o == name),
    };
    let names: Vec<&str> = NETWORKS.into_iter().filter(|name| wanted(name)).collect();
    if !names.is_empty() {
        let engines = match args.no_peer {
            true => None,
            false => Some(Engines::new(root)?),
        };
        for name in names {
            let begun = Instant::now();
            measure(root, name, engines.as_ref(), &kept, args).with_context(|| name.to_owned())?;
            eprintln!("{name}: {:.0} s", begun.elapsed().as_secs_f64());
        }
    }
    if args.papers {
        let begun = Instant::now();
        kept.write(SWAPNET, swapnet::measure(root, args.rounds)?)?;
        kept.write(PAPERS, papers::measure(root, args.rounds)?)?;
        eprintln!("papers: {:.0} s", begun.elapsed().as_secs_f64());
    }
    let (mut rows, mut points) = (Vec::new(), Vec::new());
    for name in NETWORKS {
        rows.extend(kept.read::<beside::Row>(&format!("{name}.beside"))?);
        let found: Option<predicted::Found> = kept.read(&format!("{name}.predicted"))?;
        points.extend(found);
    }
    let mut tables = report::tables(&rows, &points);
    let found: Option<papers::Found> = kept.read(PAPERS)?;
    if let Some(found) = found {
        tables += &papers::tables(&found);
    }
    let found: Option<swapnet::Found> = kept.read(SWAPNET)?;
    if let Some(found) = found {
        tables += &swapnet::table(&found);
    }
    println!("{tables}");
    if args.write {
        let path = root.join("docs/gpu-figures.md");
        std::fs::write(&path, report::page(&tables, &rows, &points)?)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

fn measure(
    root: &Path,
    name: &str,
    engines: Option<&Engines>,
    kept: &Kept,
    args: &GpuArgs,
) -> Result<()> {
    let model = models::zoo_model(root, name)?;
    let cache = root.join("target/models/packed");
    if let Some(engines) = engines {
        let row = beside::measure(root, engines, name, &model, &cache, args.rounds)?;
        eprintln!("{}", report::beside_line(&row));
        kept.write(&format!("{name}.beside"), &row)?;
    }
    if !args.no_predictions {
        let found = predicted::measure(name, &model, &cache, (args.turns, args.calibrate))?;
        kept.write(&format!("{name}.predicted"), &found)?;
    }
    Ok(())
}
