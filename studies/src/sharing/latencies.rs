//! Table 2: one model's latency by batch, budget and strategy, in interleaved turns.

use super::{MODEL, Place, Tier};
use crate::peer::{Peer, median};
use crate::worker;
use anyhow::{Context, Result};
use neap_zoo::Batch;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The paper's memory sizes in MB, here in MiB of the whole process.
pub const BUDGETS_MIB: [u64; 5] = [64, 128, 192, 512, 640];
pub const STRATEGIES: [&str; 4] = ["resident", "preload", "search", "odswap"];

/// Rounds are begun that are likely to end within this time.
const MEASURING: Duration = Duration::from_secs(75);
const MOST_ROUNDS: usize = 5;

/// A turn lasts about so long, within these numbers of runs.
const TURN_MS: f64 = 250.0;
const MOST_RUNS: usize = 4;

/// Table 2 for one batch.
#[derive(Serialize, Deserialize)]
pub struct Table {
    pub batch: u32,
    /// No budget.
    pub free_ms: f64,
    pub free_peak_bytes: u64,
    pub rounds: usize,
    pub cells: Vec<Cell>,
}

#[derive(Serialize, Deserialize)]
pub struct Cell {
    pub budget_mib: u64,
    pub strategy: String,
    pub outcome: Outcome,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// In bytes, the smallest budget with which it could do.
    Needs(u64),
    /// The plan without a budget fits.
    Fits,
    Measured {
        median_ms: f64,
        predicted_ms: f64,
        loaded_bytes: u64,
        peak_bytes: u64,
    },
}

struct Entrant {
    /// 0 without a budget.
    budget_mib: u64,
    strategy: &'static str,
    peer: Peer,
    times_ms: Vec<f64>,
}

pub fn measure(place: &Place, batch: u32) -> Result<Table> {
    let model = model(place, batch)?;
    let cache = place.cache(Tier::Storage)?;
    place.calibrate(&format!("{MODEL}.b{batch}"), &model, Tier::Storage)?;
    let free = worker::start(&model, &cache, &[])?;
    // Prepared weights included, which only plans with room have.
    let whole_bytes = worker::number(&free.ready, "planned_bytes")?;
    let mut cells = Vec::new();
    let mut entrants = vec![Entrant::new(0, "resident", free)];
    for budget_mib in BUDGETS_MIB {
        for strategy in STRATEGIES {
            let bytes = budget_mib << 20;
            let outcome = match bytes >= whole_bytes {
                true => Outcome::Fits,
                false => {
                    let budget = bytes.to_string();
                    let arguments = ["--budget", &budget, "--strategy", strategy];
                    let peer = worker::start(&model, &cache, &arguments)?;
                    match peer.ready["smallest_bytes"].as_u64() {
                        Some(bytes) => Outcome::Needs(bytes),
                        None => {
                            entrants.push(Entrant::new(budget_mib, strategy, peer));
                            continue;
                        }
                    }
                }
            };
            cells.push(Cell {
                budget_mib,
                strategy: strategy.into(),
                outcome,
            });
        }
    }
    let began = Instant::now();
    let mut rounds = 0;
    let mut longest = Duration::ZERO;
    while rounds < MOST_ROUNDS && (rounds == 0 || began.elapsed() + longest < MEASURING) {
        let round = Instant::now();
        // Each begins a round once: what a part of the machine does at the moment is nobody's alone.
        let first = rounds % entrants.len();
        let (later, sooner) = entrants.split_at_mut(first);
        for entrant in sooner.iter_mut().chain(later) {
            entrant.turn()?;
        }
        rounds += 1;
        longest = longest.max(round.elapsed());
    }
    let mut free = entrants.remove(0);
    for mut entrant in entrants {
        let ready = &entrant.peer.ready;
        let predicted_ms = ready["predicted_latency_ms"].as_f64();
        let loaded_bytes = worker::number(ready, "loaded_bytes_per_run")?;
        cells.push(Cell {
            budget_mib: entrant.budget_mib,
            strategy: entrant.strategy.into(),
            outcome: Outcome::Measured {
                median_ms: median(&entrant.times_ms),
                predicted_ms: predicted_ms.context("predicted_latency_ms")?,
                loaded_bytes,
                peak_bytes: entrant.peer.peak_bytes()?,
            },
        });
    }
    Ok(Table {
        batch,
        free_ms: median(&free.times_ms),
        free_peak_bytes: free.peer.peak_bytes()?,
        rounds,
        cells,
    })
}

impl Entrant {
    fn new(budget_mib: u64, strategy: &'static str, peer: Peer) -> Entrant {
        Entrant {
            budget_mib,
            strategy,
            peer,
            times_ms: Vec::new(),
        }
    }

    fn turn(&mut self) -> Result<()> {
        let predicted_ms = self.peer.ready["predicted_latency_ms"].as_f64();
        let runs = TURN_MS / predicted_ms.context("predicted_latency_ms")?.max(1.0);
        let runs = (runs.ceil() as usize).clamp(1, MOST_RUNS);
        self.times_ms.extend(self.peer.turn(runs)?);
        Ok(())
    }
}

/// The model with that batch, written once.
fn model(place: &Place, batch: u32) -> Result<PathBuf> {
    if batch == 1 {
        return crate::models::zoo_model(&place.root, MODEL);
    }
    let path = place.kept.folder().join(format!("{MODEL}.b{batch}.onnx"));
    if !path.exists() {
        let options = neap_zoo::Options {
            batch: Batch::Fixed(batch),
            ..neap_zoo::Options::default()
        };
        neap_zoo::write(MODEL, &path, &options, &mut |_, _| {})?;
    }
    Ok(path)
}
