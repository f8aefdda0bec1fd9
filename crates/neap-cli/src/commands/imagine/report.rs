//! What pictures took.

use super::Job;
use crate::meter::Cost;
use neaptide::memory::{Peak, PeakSource};
use neaptide::{Bytes, Ledger};
use serde::Serialize;
use std::time::Duration;

/// What `--json` writes.
#[derive(Serialize)]
pub struct Report {
    model: String,
    pictures: Vec<Picture>,
    width: usize,
    height: usize,
    scheduler: String,
    steps: usize,
    guidance: f64,
    threads: usize,
    memory_budget_bytes: Option<u64>,
    peak_memory_bytes: u64,
    peak_memory_source: PeakSource,
    seconds: f64,
    /// Of all processors together.
    processor_seconds: f64,
    /// Of the machine's processors, other programs included; `None` where they do not count it, or not for this user.
    energy_joules: Option<f64>,
    networks: Vec<Ran>,
}

#[derive(Serialize)]
struct Picture {
    file: String,
    seed: u64,
}

/// What one network took, in the order in which they had their turns.
#[derive(Serialize)]
pub struct Ran {
    pub network: &'static str,
    pub weight_bytes: u64,
    pub resident_weight_bytes: u64,
    pub planned_high_water_bytes: u64,
    pub predicted_ms_per_run: f64,
    pub runs: u64,
    /// By all runs together, weights that stay among them.
    pub read_bytes: u64,
    /// From opening to closing.
    pub seconds: f64,
    pub ledger: Ledger,
}

impl Report {
    pub fn new(
        job: &Job<'_>,
        networks: Vec<Ran>,
        peak: Peak,
        took: Duration,
        cost: Cost,
    ) -> Report {
        let files = job.outputs.iter().map(|path| path.display().to_string());
        let pictures = files.zip(job.seeds());
        Report {
            model: job.folder.path().display().to_string(),
            pictures: pictures
                .map(|(file, seed)| Picture { file, seed })
                .collect(),
            width: job.size.width,
            height: job.size.height,
            scheduler: job.kind.to_string(),
            steps: job.sampler.timesteps().len(),
            guidance: job.guidance,
            threads: job.engine.run.threads,
            memory_budget_bytes: match job.engine.run.budget {
                neaptide::Budget::Bytes(bytes) => Some(bytes),
                _ => None,
            },
            peak_memory_bytes: peak.bytes,
            peak_memory_source: peak.source,
            seconds: took.as_secs_f64(),
            processor_seconds: cost.processor_ns as f64 / 1e9,
            energy_joules: cost.energy_uj.map(|uj| uj as f64 / 1e6),
            networks,
        }
    }

    /// One line.
    pub fn text(&self) -> String {
        let read: u64 = self.networks.iter().map(|n| n.read_bytes).sum();
        let unet = self.networks.iter().find(|n| n.network == "unet");
        let per_step = unet.map_or(0.0, |n| n.seconds / n.runs.max(1) as f64);
        let what = match self.pictures.as_slice() {
            [one] => one.file.clone(),
            all => format!("{} pictures", all.len()),
        };
        format!(
            "{what}: {}x{} in {:.1} s, {per_step:.2} s a step of {}, {} read; peak {}",
            self.width,
            self.height,
            self.seconds,
            self.scheduler,
            Bytes(read),
            Bytes(self.peak_memory_bytes)
        )
    }
}
