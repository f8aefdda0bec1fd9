//! Processes that run one model under one budget, each by another strategy, in turn.

use super::{AUTO, Cell, Effort, Figures, Point, RESIDENT, SINGLE};
use crate::models;
use crate::peer::{Peer, REST, median};
use crate::worker::{self, Foreseen};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// A turn lasts about so long, within these numbers of runs.
const TURN_MS: f64 = 120.0;
const LEAST_RUNS: usize = 2;
const MOST_RUNS: usize = 16;

/// The machine is as fast as it was when the resident model takes as long within this share.
const STEADY: f64 = 0.05;

/// A model is calibrated so often at most.
const MOST_CALIBRATIONS: usize = 2;

/// Where a model's workers find what they need.
struct Place {
    model: PathBuf,
    cache: PathBuf,
    search_generations: String,
}

impl Place {
    fn start(&self, strategy: &str, budget: &str) -> Result<Peer> {
        let arguments = [&self.planning(budget)[..], &["--strategy", strategy]].concat();
        worker::start(&self.model, &self.cache, &arguments)
            .with_context(|| format!("{strategy} within {budget}"))
    }

    fn planning<'a>(&'a self, budget: &'a str) -> [&'a str; 4] {
        let generations = &self.search_generations;
        ["--budget", budget, "--search-generations", generations]
    }

    /// What one process predicts of all strategies.
    fn foresee(&self, budget_bytes: u64) -> Result<Vec<Foreseen<'static>>> {
        let budget = budget_bytes.to_string();
        let strategies: Vec<&str> = SINGLE.into_iter().chain([AUTO]).collect();
        let arguments = self.planning(&budget);
        worker::compare(&self.model, &self.cache, &arguments, &strategies)
    }
}

/// One strategy's process, or the budget that it would need.
struct Entrant {
    strategy: &'static str,
    peer: Result<Peer, u64>,
    rounds: Vec<Round>,
}

struct Round {
    runs: Vec<Run>,
    is_steady: bool,
}

#[derive(Clone, Copy)]
struct Run {
    latency_ms: f64,
    stall_ms: f64,
}

fn median_ms(runs: &[Run]) -> f64 {
    median(&runs.iter().map(|run| run.latency_ms).collect::<Vec<_>>())
}

/// Calibrates the model and measures it under each budget.
pub fn model(root: &Path, name: &str, effort: Effort) -> Result<Vec<Point>> {
    let place = Place {
        model: models::zoo_model(root, name)?,
        cache: root.join("target/models/packed"),
        search_generations: effort.search_generations.to_string(),
    };
    let (mut resident, calibrated_ms) = calibrated(&place)?;
    let ready = resident
        .ready()
        .context("everything is resident without a limit")?;
    let smallest_bytes = worker::number(ready, "smallest_feasible_bytes")?;
    let whole_bytes = worker::number(ready, "unlimited_high_water_bytes")?;
    let mut points = Vec::new();
    for &share in effort.shares {
        let budget_bytes = match share {
            0 => smallest_bytes,
            share => whole_bytes / 100 * u64::from(share),
        };
        if budget_bytes < smallest_bytes {
            continue;
        }
        let mut entrants = Vec::new();
        for strategy in SINGLE.into_iter().chain([AUTO]) {
            entrants.push(Entrant::start(&place, strategy, Some(budget_bytes))?);
        }
        resident.rounds.clear();
        for _ in 0..effort.rounds {
            let runs = resident.turn()?;
            let is_steady = (median_ms(&runs) / calibrated_ms - 1.0).abs() <= STEADY;
            resident.rounds.push(Round { runs, is_steady });
            for entrant in &mut entrants {
                let runs = entrant.turn()?;
                entrant.rounds.push(Round { runs, is_steady });
            }
        }
        let cells = std::iter::once(&resident).chain(&entrants);
        let point = Point {
            model: name.into(),
            share,
            budget_bytes,
            cells: cells.map(Entrant::cell).collect::<Result<_>>()?,
            foreseen: place.foresee(budget_bytes)?,
        };
        eprintln!("{}", super::report::progress(&point));
        points.push(point);
    }
    Ok(points)
}

/// The model with everything resident, and how long it takes right after it was calibrated. Once more where
/// that is not what calibration says: then the machine's speed changed meanwhile.
fn calibrated(place: &Place) -> Result<(Entrant, f64)> {
    let mut attempts = 0;
    loop {
        worker::calibrate(&place.model, &place.cache)?;
        let mut resident = Entrant::start(place, RESIDENT, None)?;
        let measured_ms = median_ms(&resident.turn()?);
        let ready = resident.ready().context("a plan without a limit")?;
        let predicted_ms = number(ready, "predicted_latency_ms")?;
        attempts += 1;
        if (predicted_ms / measured_ms - 1.0).abs() <= STEADY || attempts == MOST_CALIBRATIONS {
            return Ok((resident, measured_ms));
        }
        eprintln!("calibrated as {predicted_ms:.2} ms, measured {measured_ms:.2} ms: once more");
    }
}

impl Entrant {
    fn start(place: &Place, strategy: &'static str, budget_bytes: Option<u64>) -> Result<Entrant> {
        let budget = budget_bytes.map_or("none".into(), |b| b.to_string());
        let peer = place.start(strategy, &budget)?;
        Ok(Entrant {
            strategy,
            peer: match peer.ready["smallest_bytes"].as_u64() {
                Some(bytes) => Err(bytes),
                None => Ok(peer),
            },
            rounds: Vec::new(),
        })
    }

    fn ready(&self) -> Option<&serde_json::Value> {
        self.peer.as_ref().ok().map(|peer| &peer.ready)
    }

    /// A rest, a run that is not counted, and as many that are as the plan's latency suggests; as
    /// [`Peer::turn`]. None of a strategy that cannot do.
    fn turn(&mut self) -> Result<Vec<Run>> {
        let Ok(peer) = &mut self.peer else {
            return Ok(Vec::new());
        };
        let predicted_ms = number(&peer.ready, "predicted_latency_ms")?;
        let runs = (TURN_MS / predicted_ms.max(0.1)).ceil() as usize;
        let runs = runs.clamp(LEAST_RUNS, MOST_RUNS);
        std::thread::sleep(REST);
        let answer = peer.ask(&format!("run {}", runs + 1))?;
        let list = |key: &str| -> Result<Vec<f64>> {
            let list = answer[key].as_array().with_context(|| key.to_string())?;
            Ok(list.iter().filter_map(serde_json::Value::as_f64).collect())
        };
        let (latency_ms, stall_ms) = (list("latency_ms")?, list("stall_ms")?);
        let counted = latency_ms.into_iter().zip(stall_ms).skip(1);
        let run = |(latency_ms, stall_ms)| Run {
            latency_ms,
            stall_ms,
        };
        Ok(counted.map(run).collect())
    }

    fn cell(&self) -> Result<Cell> {
        let outcome = match &self.peer {
            Err(bytes) => Err(*bytes),
            Ok(peer) => Ok(self.figures(peer)?),
        };
        Ok(Cell {
            strategy: self.strategy,
            outcome,
        })
    }

    fn figures(&self, peer: &Peer) -> Result<Figures> {
        let is_steady = self.rounds.iter().any(|round| round.is_steady);
        let counted = self.rounds.iter().filter(|r| r.is_steady || !is_steady);
        let runs: Vec<Run> = counted.flat_map(|r| r.runs.iter().copied()).collect();
        let of = |value: fn(&Run) -> f64| median(&runs.iter().map(value).collect::<Vec<_>>());
        let chosen = peer.ready["strategy"].as_str().context("strategy")?;
        Ok(Figures {
            chosen: chosen.into(),
            predicted_ms: number(&peer.ready, "predicted_latency_ms")?,
            predicted_stall_ms: number(&peer.ready, "predicted_stall_ms")?,
            measured_ms: of(|run| run.latency_ms),
            stall_ms: of(|run| run.stall_ms),
            loaded_bytes: worker::number(&peer.ready, "loaded_bytes_per_run")?,
            is_steady,
        })
    }
}

fn number(ready: &serde_json::Value, key: &str) -> Result<f64> {
    ready[key].as_f64().with_context(|| key.to_string())
}
