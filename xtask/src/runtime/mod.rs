//! `cargo xtask bench runtime`: RT-Swap's runtime experiment (Table IV, Figures 8 and 9, Table V), for real.
//!
//! ```text
//!   prepare     six models ─► packed, and as onnxruntime maps them ─► times without a limit ─► deadlines, demand
//!   cells       a way × a budget ─► a worker in a memory cgroup ─► a line for each job ─► target/runtime/CELL.json
//!   --write     what is kept ─► docs/realtime-runs.md and its plots
//! ```
//! Ways: *ours*, one engine that plans and streams; *pages*, onnxruntime over mapped weights, which the kernel evicts;
//! *whole*, RT-Swap's policy, by which a model is in memory as a whole before it runs. Each cell is a process of its own,
//! so that one that is killed is a result, and no harm to others.

mod clock;
mod figures;
mod limit;
mod pages;
mod prepare;
mod report;
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
    #[arg(long, conflicts_with = "only")]
    write: bool,
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
    ensure!(args.minutes > 0.0, "there must be some minutes");
    let place = Place {
        root: root.to_path_buf(),
        kept: Kept::of(root, "runtime")?,
    };
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
    println!("{}", report::tables(&prepared, &kept));
    if args.write {
        for (name, svg) in report::plots(&prepared, &kept) {
            std::fs::write(root.join("docs").join(name), svg)?;
        }
        let path = root.join("docs/realtime-runs.md");
        std::fs::write(&path, report::page(&prepared, &kept)?)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

const PREPARED: &str = "prepared";

fn cell_name((way, percent): (Way, u32)) -> String {
    format!("{}-{percent}", way.name())
}

fn measure(place: &Place, args: &RuntimeArgs, cells: &[(Way, u32)]) -> Result<()> {
    let command = limit::Command::new(!args.no_fifo);
    let models = prepare::models(place)?;
    let prepared = match place.kept.read::<Prepared>(PREPARED)? {
        Some(prepared) if !args.anew => prepared,
        _ => {
            let prepared = prepare::times(place, &models, &command)?;
            place.kept.write(PREPARED, &prepared)?;
            prepared
        }
    };
    let wanted =
        |cell: &&(Way, u32)| args.only.is_empty() || args.only.contains(&cell_name(**cell));
    let wanted: Vec<&(Way, u32)> = cells.iter().filter(wanted).collect();
    let seconds = args.minutes * 60.0 / wanted.len() as f64;
    let mut failed = Vec::new();
    for &&cell in &wanted {
        let name = cell_name(cell);
        eprintln!("{name}: {seconds:.0} s");
        match worker::cell(place, &models, &prepared, cell, seconds, &command) {
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
