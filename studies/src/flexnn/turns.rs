//! Processes that take turns on one storage.
//!
//! ```text
//!   onnxruntime   | run |     |     |      |     | run |  ...
//!   budget 1      |     | run |     |      |     |     |
//!   storage       |     |     | as many bytes as it loads
//!   budget 2      |     |     |     | run  |     |     |
//! ```

use super::results::Point;
use crate::peer::{Peer, median};
use crate::worker;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// What is read per run to measure throttled storage, at most.
const MOST_THROTTLED_BYTES: u64 = 32 << 20;

/// A model on storage of some speed.
pub struct Place {
    reader: Peer,
    throttle: Option<u64>,
    model: PathBuf,
    /// Packed models and the calibration.
    cache: PathBuf,
}

/// One of the processes.
pub struct Entrant {
    pub peer: Peer,
    pub times_ms: Vec<f64>,
    budget_bytes: Option<u64>,
    /// Storage is measured after its turns.
    is_bounded: bool,
    rates: Vec<f64>,
}

/// How often.
#[derive(Clone, Copy)]
pub struct Turns {
    pub rounds: usize,
    pub runs_per_round: usize,
}

impl Place {
    /// `throttle` in bytes per second.
    pub fn new(throttle: Option<u64>, model: &Path, cache: &Path) -> Result<Place> {
        let throttling = throttle_arguments(throttle);
        let mut arguments: Vec<&str> = throttling.iter().map(String::as_str).collect();
        arguments.push("--reader");
        Ok(Place {
            reader: worker::start(model, cache, &arguments)?,
            throttle,
            model: model.to_path_buf(),
            cache: cache.to_path_buf(),
        })
    }

    pub fn throttle_bytes_per_second(&self) -> Option<u64> {
        self.throttle
    }

    /// Starts the engine here; its process may say that the budget is too small.
    pub fn start(&self, budget_bytes: Option<u64>, arguments: &[&str]) -> Result<Peer> {
        let budget = budget_bytes.map_or("none".into(), |b| b.to_string());
        let throttling = throttle_arguments(self.throttle);
        let mut all = vec!["--budget", budget.as_str()];
        all.extend(throttling.iter().map(String::as_str));
        all.extend(arguments);
        worker::start(&self.model, &self.cache, &all)
    }

    fn rate(&mut self, mut bytes_per_run: u64, runs: usize) -> Result<f64> {
        if self.throttle.is_some() {
            // Its rate does not depend on how much is read.
            bytes_per_run = bytes_per_run.min(MOST_THROTTLED_BYTES);
        }
        let answer = self.reader.ask(&format!("read {bytes_per_run} {runs}"))?;
        let rate = answer["bytes_per_second"].as_f64();
        rate.context("bytes_per_second")
    }
}

fn throttle_arguments(throttle: Option<u64>) -> Vec<String> {
    throttle.map_or(Vec::new(), |rate| {
        vec!["--throttle".into(), rate.to_string()]
    })
}

impl Entrant {
    pub fn new(peer: Peer, budget_bytes: Option<u64>) -> Entrant {
        Entrant {
            peer,
            times_ms: Vec::new(),
            budget_bytes,
            is_bounded: false,
            rates: Vec::new(),
        }
    }

    /// With storage measured beside it.
    pub fn bounded(peer: Peer, budget_bytes: Option<u64>) -> Entrant {
        Entrant {
            is_bounded: true,
            ..Entrant::new(peer, budget_bytes)
        }
    }

    pub fn median_ms(&self) -> f64 {
        median(&self.times_ms)
    }

    pub fn point(&mut self) -> Result<Point> {
        let predicted = self.peer.ready["predicted_latency_ms"].as_f64();
        Ok(Point {
            budget_bytes: self.budget_bytes,
            peak_bytes: self.peer.peak_bytes()?,
            latency_ms: self.median_ms(),
            predicted_ms: predicted.context("predicted_latency_ms")?,
            loaded_bytes: worker::number(&self.peer.ready, "loaded_bytes_per_run")?,
            bytes_per_second: (!self.rates.is_empty()).then(|| median(&self.rates)),
            is_paper_share: false,
        })
    }
}

/// Lets all of them run, one after the other, round after round.
pub fn take_turns(place: &mut Place, entrants: &mut [&mut Entrant], turns: Turns) -> Result<()> {
    for _ in 0..turns.rounds {
        for entrant in &mut *entrants {
            let times = entrant.peer.turn(turns.runs_per_round)?;
            entrant.times_ms.extend(times);
            if entrant.is_bounded {
                let bytes = worker::number(&entrant.peer.ready, "loaded_bytes_per_run")?;
                if bytes > 0 {
                    let rate = place.rate(bytes, turns.runs_per_round)?;
                    entrant.rates.push(rate);
                }
            }
        }
    }
    Ok(())
}
