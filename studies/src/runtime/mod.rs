//! `cargo study runtime`: RT-Swap's runtime experiment (Table IV, Figures 8 and 9, Table V), for real.
//!
//! ```text
//!   prepare     six models ─► packed, and as onnxruntime maps them ─► times without a limit ─► deadlines, demand
//!   cells       a way × a budget ─► a worker in a memory cgroup ─► a line for each job ─► target/runtime/CELL.json
//!   --soak      ours alone, for long, whatever else the machine does ─► target/runtime/soak-PERCENT.json
//!   --write     what is kept ─► docs/realtime-runs.md and its plots
//! ```
//! Ways: *ours*, one engine that plans and streams; *pages*, onnxruntime over mapped weights, which the kernel evicts;
//! *whole*, RT-Swap's policy, by which a model is in memory as a whole before it runs. Each cell is a process of its own,
//! so that one that is killed is a result, and no harm to others.

mod clock;
mod figures;
mod pages;
mod prepare;
mod report;
mod scheduling;
mod soak;
mod tasks;
mod ways;
mod worker;

pub use worker::{WorkerArgs, run as work};

use crate::kept::Kept;
use anyhow::{Result, bail, ensure};
use clap::Args;
use figures::Cell;
use std::path::{Path, PathBuf};
use tasks::{PERCENTS, Prepared, Way};

#[derive(Args)]
pub struct RuntimeArgs {
    /// Only these cells, such as ours-96; those of others stay as they are
    only: Vec<String>,
    /// For how long jobs are released, in all cells together; beginning them takes a few minutes more
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Scheduled as all other processes are, on all processors
    #[arg(long)]
    no_fifo: bool,
    /// Measure times without a limit, and so deadlines, anew
    #[arg(long)]
    anew: bool,
    /// Measure nothing; write docs/realtime-runs.md and its plots from what is kept
    #[arg(long, conflicts_with_all = ["only", "soak"])]
    write: bool,
    /// Only our way, at one budget, for so many minutes: a section of its own on the page
    #[arg(long, value_name = "MINUTES", conflicts_with_all = ["only", "minutes", "anew"])]
    soak: Option<f64>,
    /// Memory demanded above the budget of --soak
    #[arg(long, default_value_t = 96, requires = "soak")]
    percent: u32,
    /// What else the machine does in the meantime, for the page
    #[arg(long, value_name = "TEXT", requires = "soak")]
    beside: Option<String>,
}

/// What all cells need.
struct Place {
    root: PathBuf,
    kept: Kept,
}

pub fn run(root: &Path, args: &RuntimeArgs) -> Result<()> {
    let cells: Vec<(Way, u32)> = (PERCENTS.iter())
        .flat_map(|&percent| Way::ALL.map(|way| (way, percent)))
        .collect();
    for name in &args.only {
        if cells.iter().all(|&cell| cell_name(cell) != *name) {
            let known: Vec<String> = cells.iter().map(|&cell| cell_name(cell)).collect();
            bail!("no cell '{name}': {}", known.join(", "));
        }
    }
    let minutes = args.soak.unwrap_or(args.minutes);
    ensure!(minutes > 0.0, "there must be some minutes");
    let place = Place {
        root: root.to_path_buf(),
        kept: Kept::of(root, "runtime")?,
    };
    if args.soak.is_some() {
        return soak::measure(&place, args, minutes);
    }
    if !args.write {
        measure(&place, args, &cells)?;
    }
    let Some(prepared) = place.kept.read::<Prepared>(PREPARED)? else {
        bail!("nothing is kept of this machine: run it without --write first");
    };
    let kept = cells.iter().map(|&cell| place.kept.read(&cell_name(cell)));
    let kept: Vec<Option<Cell>> = kept.collect::<Result<_>>()?;
    let kept = kept.into_iter().flatten();
    let kept: Vec<Cell> = kept.filter(|cell| cell.is_of(&prepared)).collect();
    if !kept.is_empty() {
        println!("{}", report::tables(&prepared, &kept));
    }
    if args.write {
        write(&place, &prepared, &kept)?;
    }
    Ok(())
}

/// The page and its plots. Where no cell is kept here, the page stays as it is but for its section of a long run; where no
/// long run is kept here, that section does.
fn write(place: &Place, prepared: &Prepared, kept: &[Cell]) -> Result<()> {
    let docs = place.root.join("docs");
    let path = docs.join("realtime-runs.md");
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let long = match soak::kept(place)? {
        Some(soaked) => soaked.section(),
        None if kept.is_empty() => {
            bail!("nothing is kept of this machine: run it without --write first")
        }
        None => soak::section_of(&before).to_owned(),
    };
    let page = match kept.is_empty() {
        true => before,
        false => report::page(prepared, kept)?,
    };
    let page = soak::with_section(&page, &long)?;
    for (name, svg) in report::plots(prepared, kept) {
        std::fs::write(docs.join(name), svg)?;
    }
    std::fs::write(&path, page)?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

const PREPARED: &str = "prepared";

fn cell_name((way, percent): (Way, u32)) -> String {
    format!("{}-{percent}", way.name())
}

fn measure(place: &Place, args: &RuntimeArgs, cells: &[(Way, u32)]) -> Result<()> {
    let command = scheduling::Command::new(!args.no_fifo);
    let models = prepare::models(place)?;
    let prepared = prepared(place, &models, &command, args.anew)?;
    let wanted =
        |cell: &&(Way, u32)| args.only.is_empty() || args.only.contains(&cell_name(**cell));
    let wanted: Vec<&(Way, u32)> = cells.iter().filter(wanted).collect();
    let seconds = args.minutes * 60.0 / wanted.len() as f64;
    let mut failed = Vec::new();
    for &&cell in &wanted {
        let name = cell_name(cell);
        eprintln!("{name}: {seconds:.0} s");
        let all = (&models, &prepared, &command);
        match worker::cell(place, all, cell, seconds, &name) {
            Ok(done) => {
                eprintln!("{}", report::progress(&prepared, &done));
                place.kept.write(&name, &done)?;
            }
            // Of the experiment, not of the way: others may still be had.
            Err(error) => {
                eprintln!("{name} FAILED: {error:#}");
                failed.push(name);
            }
        }
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// What was found without a limit, once for all cells; or now.
fn prepared(
    place: &Place,
    models: &prepare::Models,
    command: &scheduling::Command,
    is_anew: bool,
) -> Result<Prepared> {
    if let Some(prepared) = place.kept.read::<Prepared>(PREPARED)?.filter(|_| !is_anew) {
        return Ok(prepared);
    }
    let prepared = prepare::times(place, models, command)?;
    place.kept.write(PREPARED, &prepared)?;
    Ok(prepared)
}
