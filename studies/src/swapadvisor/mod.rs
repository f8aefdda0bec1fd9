//! `cargo study swapadvisor`: the search on the networks of the SwapAdvisor paper, in simulation on its
//! device. Writes `docs/swapadvisor.md`.
//!
//! ```text
//!   zoo, shapes only ──► dataflow on a V100 ──► search, placed, ODSwap, ideal ──► tables beside the paper's
//! ```

mod real;
mod report;
mod studies;
mod training;

use anyhow::{Context, Result};
use clap::Args;
use neap_ir::Graph;
use neap_zoo::Batch;
use neaptide::CostProfile;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use swap_search::{Dataflow, Device, Parallel};

#[derive(Args)]
pub struct SwapadvisorArgs {
    /// Millions of operators that each search over inference scans: 4 are 8,000 genomes of a network of 500 operators;
    /// searches over training scan a quarter
    #[arg(long, default_value_t = 4)]
    effort: u64,
    /// Only these parts: networks, large, figure7, ablations, table2, figure8
    #[arg(long)]
    only: Vec<String>,
    /// Run steps of training for real, of networks of about a tenth of the sizes in a tenth of the memory; --only names networks
    #[arg(long)]
    real: bool,
    /// Measured steps of each process, with --real
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// What else the machine does in the meantime, for the page of --real
    #[arg(long, value_name = "TEXT", requires = "real")]
    beside: Option<String>,
    /// Write docs/swapadvisor.md, or with --real docs/swapadvisor-real.md
    #[arg(long)]
    write: bool,
}

/// The paper's device. What it computes is fitted to the paper's own times of ResNet-152 with 16 GB
/// (Table 2: 17, 40 and 123 ms at batch 1, 16 and 64): 20 TFLOP/s (more than its peak:
/// 3×3 convolutions run as Winograd) and 29.5 µs for each operator; 900 GB/s is the data sheet's.
pub fn v100() -> CostProfile {
    CostProfile {
        flops_per_second: 20e12,
        memory_bytes_per_second: 900e9,
        compute_overhead_ns: 29_500,
        ..CostProfile::default()
    }
}

pub const LINK: Device = Device::V100;

/// Plot of what searches have found over time.
const CONVERGENCE: &str = "docs/swapadvisor-search.svg";

/// Two threads, as many as the machine has cores.
pub struct Threads(pub usize);

impl Parallel for Threads {
    fn for_each(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.0 {
                scope.spawn(|| {
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        if i >= count {
                            return;
                        }
                        job(i);
                    }
                });
            }
        });
    }
}

/// A zoo network without weights.
fn opened(root: &Path, name: &str, batch: u32) -> Result<Graph> {
    let folder = root.join("target/swapadvisor");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{name}.b{batch}.onnx"));
    // Written each time: there are no weights to write.
    let options = neap_zoo::Options {
        batch: Batch::Fixed(batch),
        shapes_only: true,
        ..neap_zoo::Options::default()
    };
    neap_zoo::write(name, &path, &options, &mut |_, _| {})
        .with_context(|| format!("cannot write {name}"))?;
    Ok(neap_onnx::open(&path, &neap_onnx::OpenOptions::default())?)
}

/// A zoo network's inference, as a dataflow on the paper's device.
pub fn network(root: &Path, name: &str, batch: u32) -> Result<Dataflow> {
    let graph = opened(root, name, batch)?;
    swap_search::of_graph(&graph, &v100()).with_context(|| name.to_owned())
}

/// What other pages show of this one, found with less effort.
#[derive(Serialize, Deserialize)]
pub struct Brief {
    /// Figure 8.
    pub serving: Vec<Serving>,
    /// Table 2.
    pub latencies: Vec<Latency>,
}

/// Simulated 99th percentiles of latency of one way to share.
#[derive(Serialize, Deserialize)]
pub struct Serving {
    pub way: String,
    pub models: usize,
    /// By load; `None` where it is more than can be served.
    pub p99_ns: Vec<Option<f64>>,
}

/// One cell of Table 2.
#[derive(Serialize, Deserialize)]
pub struct Latency {
    pub batch: u32,
    pub megabytes: u64,
    /// `None` where it could not run.
    pub paper_s: Option<f64>,
    pub ideal_ns: f64,
    pub pooled_ns: Option<f64>,
    pub placed_ns: Option<f64>,
}

/// Figure 8 at these per cents of what one model alone can do, and Table 2.
pub fn brief(root: &Path, percents: &[u32]) -> Result<Brief> {
    // Forward passes that small are found long before.
    let effort = studies::Effort { operators: 500_000 };
    let at = |most: f64| {
        percents
            .iter()
            .map(|&p| most * f64::from(p) / 100.0)
            .collect()
    };
    let curves = studies::figure_8_at(root, effort, at)?.curves.into_iter();
    let cells = studies::table_2(root, effort)?.into_iter();
    Ok(Brief {
        serving: curves
            .map(|curve| Serving {
                way: curve.way.into(),
                models: curve.models,
                p99_ns: curve.points.into_iter().map(|(_, ns)| ns).collect(),
            })
            .collect(),
        latencies: cells
            .map(|cell| Latency {
                batch: cell.batch,
                megabytes: cell.megabytes,
                paper_s: cell.paper_s,
                ideal_ns: cell.ideal_ns,
                pooled_ns: cell.both.pooled_ns(),
                placed_ns: cell.both.placed_ns(),
            })
            .collect(),
    })
}

pub fn run(root: &Path, args: &SwapadvisorArgs) -> Result<()> {
    if args.real {
        let beside = args.beside.as_deref();
        return real::run(root, &args.only, args.rounds, beside, args.write);
    }
    let mut text = String::new();
    let effort = studies::Effort {
        operators: args.effort * 1_000_000,
    };
    let wants = |part: &str| args.only.is_empty() || args.only.iter().any(|p| p == part);
    report::head(&mut text, args.effort);
    if wants("networks") {
        report::networks(&mut text, &training::networks(root)?);
    }
    if wants("large") {
        let rows = training::large(root, effort.of_training())?;
        report::large(&mut text, &rows);
        if args.write {
            std::fs::write(root.join(CONVERGENCE), report::convergence(&rows))?;
        }
    }
    if wants("ablations") {
        report::ablations(&mut text, &training::ablations(root, effort.of_training())?);
    }
    if wants("figure7") {
        report::figure_7(&mut text, &training::figure_7(root, effort.of_training())?);
    }
    if wants("table2") {
        report::table_2(&mut text, &studies::table_2(root, effort)?);
    }
    if wants("figure8") {
        report::figure_8(&mut text, &studies::figure_8(root, effort)?);
    }
    if args.write {
        std::fs::write(root.join("docs/swapadvisor.md"), text)?;
    } else {
        println!("{text}");
    }
    Ok(())
}
