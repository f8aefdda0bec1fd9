//! Several models on one machine, one request at a time: SwapAdvisor's Figure 8 and Table 2, for real.
//!
//! ```text
//!   requests ──► first come, first served ──► not shared     one model, resident
//!   (Poisson)                            ├──► divided        N sessions, total ÷ N each, streaming
//!                                        └──► time-shared    one of N resident, all others given up
//! ```
//! The total is what one model takes with everything resident. Each part (a tier of storage, a number of models, a
//! load; or a batch of Table 2) is measured in one to three minutes, all its ways one after the other under the same
//! arrivals; its figures are kept in `target/sharing`, and the page is made of all that are there. One part is
//! simulated, on the paper's device.

mod fleet;
mod latencies;
mod report;
mod serve;

use crate::kept::Kept;
use crate::{models, swapadvisor, worker};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct SharingArgs {
    /// Only these parts; their figures are measured anew, those of others taken as they are
    only: Vec<String>,
    /// Seconds for which requests arrive in each way
    #[arg(long, default_value_t = 6.0)]
    seconds: f64,
    /// Seed of arrivals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write docs/sharing.md from the figures that are there
    #[arg(long)]
    write: bool,
}

const MODEL: &str = "resnet152";

/// Where weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    Storage,
    /// A file system in memory, as a GPU's host memory is.
    Ram,
}

impl Tier {
    fn name(self) -> &'static str {
        match self {
            Tier::Storage => "storage",
            Tier::Ram => "ram",
        }
    }
}

/// What is measured in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Figure 8: this many models, at a load in per cent of what one model alone can do.
    Serving {
        tier: Tier,
        models: usize,
        percent: u32,
    },
    /// Table 2.
    Latencies { batch: u32 },
    /// Both on the paper's device, which takes no measuring.
    Simulated,
}

const MODELS: [usize; 2] = [4, 16];
const LOADS: [(Tier, &[u32]); 2] = [(Tier::Storage, &[30, 60, 80]), (Tier::Ram, &[60])];
const BATCHES: [u32; 3] = [1, 16, 64];

impl Part {
    fn all() -> Vec<Part> {
        let serving = LOADS.iter().flat_map(|&(tier, percents)| {
            percents.iter().flat_map(move |&percent| {
                MODELS.map(|models| Part::Serving {
                    tier,
                    models,
                    percent,
                })
            })
        });
        let latencies = BATCHES.map(|batch| Part::Latencies { batch });
        let simulated = std::iter::once(Part::Simulated);
        serving.chain(latencies).chain(simulated).collect()
    }

    fn name(self) -> String {
        match self {
            Part::Serving {
                tier,
                models,
                percent,
            } => format!("{}-{models}-{percent}", tier.name()),
            Part::Latencies { batch } => format!("table2-{batch}"),
            Part::Simulated => "simulated".into(),
        }
    }
}

/// The model's files, and those that measuring leaves.
struct Place {
    root: PathBuf,
    kept: Kept,
}

impl Place {
    /// Where packed models and what is known of a tier are.
    fn cache(&self, tier: Tier) -> Result<PathBuf> {
        let path = match tier {
            Tier::Storage => self.root.join("target/models/packed"),
            Tier::Ram => self.kept.folder().join("ram"),
        };
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Measures the costs of a model on a tier, once.
    fn calibrate(&self, name: &str, file: &Path, tier: Tier) -> Result<()> {
        let mark = format!("{name}.{}.calibrated", tier.name());
        let mark = self.kept.folder().join(mark);
        if !mark.exists() {
            eprintln!("calibrating {name} ({})", tier.name());
            worker::calibrate(file, &self.cache(tier)?)?;
            std::fs::write(&mark, [])?;
        }
        Ok(())
    }
}

pub fn run(root: &Path, args: &SharingArgs) -> Result<()> {
    let parts = Part::all();
    for name in &args.only {
        if parts.iter().all(|part| part.name() != *name) {
            let known: Vec<String> = parts.iter().map(|part| part.name()).collect();
            bail!("no part '{name}': {}", known.join(", "));
        }
    }
    let place = Place {
        root: root.to_path_buf(),
        kept: Kept::of(root, "sharing")?,
    };
    models::zoo_model(root, MODEL)?;
    for part in parts {
        let wanted = match args.only.is_empty() {
            true => !args.write,
            false => args.only.contains(&part.name()),
        };
        if !wanted {
            continue;
        }
        eprintln!("{}", part.name());
        match part {
            Part::Serving {
                tier,
                models,
                percent,
            } => {
                let load = serve::Load {
                    tier,
                    models,
                    percent,
                    seconds: args.seconds,
                    seed: args.seed,
                };
                let served = serve::measure(&place, load).with_context(|| part.name())?;
                eprint!("{}", report::progress(tier, &served));
                place.kept.write(&part.name(), &served)?;
            }
            Part::Latencies { batch } => {
                let table = latencies::measure(&place, batch).with_context(|| part.name())?;
                place.kept.write(&part.name(), &table)?;
            }
            Part::Simulated => {
                let simulated = swapadvisor::brief(root, &report::REPLAYED_LOADS)?;
                place.kept.write(&part.name(), &simulated)?;
            }
        }
    }
    let tables = report::tables(&place)?;
    println!("{tables}");
    if args.write {
        let path = root.join("docs/sharing.md");
        std::fs::write(&path, report::page(&tables, args)?)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}
