//! One load: the same requests to every way to share, and what they had to wait.

use super::fleet::{Fleet, Served, Switch, Terms, Way};
use super::{MODEL, Place, Tier};
use crate::peer::{REST, median};
use crate::{models, storage, worker};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use swap_search::{Arrivals, Random, Request, queue_ns};

/// What the simulated study gives each model.
pub const OWN_BYTES: u64 = 192 << 20;

/// Runs of the model alone, before requests come.
const RUNS_ALONE: usize = 12;

/// Requests that are played to the times that serving took.
const REPLAYED: usize = 50_000;

/// Beyond this share of a way's capacity waiting has no end within reach.
const MOST_BUSY: f64 = 0.97;

#[derive(Clone, Copy)]
pub struct Load {
    pub tier: Tier,
    pub models: usize,
    /// Of what one model alone can do.
    pub percent: u32,
    pub seconds: f64,
    pub seed: u64,
}

/// Everything measured at one load.
#[derive(Serialize, Deserialize)]
pub struct Figures {
    pub models: usize,
    pub percent: u32,
    pub seed: u64,
    pub seconds: f64,
    /// The model alone, everything resident: median.
    pub alone_ms: f64,
    pub per_second: f64,
    pub whole_bytes: u64,
    pub storage_bytes_per_second: f64,
    pub ways: Vec<Outcome>,
}

/// One way under that load.
#[derive(Serialize, Deserialize)]
pub struct Outcome {
    pub way: Way,
    /// From arrival to result; ascending.
    pub latency_ms: Vec<f64>,
    pub served: Vec<Served>,
    /// Requests that arrived; not all are served where it takes too long.
    pub arrived: usize,
    pub memory_bytes: u64,
    pub loaded_bytes: u64,
    pub switch: Option<Switch>,
}

/// Of what processes take beside their plans, from one to the next.
const SPREAD_BYTES: u64 = 512 * 1024;

pub fn measure(place: &Place, load: Load) -> Result<Figures> {
    let onnx = models::zoo_model(&place.root, MODEL)?;
    let copy;
    let model = match load.tier {
        Tier::Storage => onnx.as_path(),
        Tier::Ram => {
            copy = RamCopy::of(&packed(place, &onnx)?)?;
            copy.0.as_path()
        }
    };
    place.calibrate(MODEL, model, load.tier)?;
    let cache = place.cache(load.tier)?;
    let mut alone = worker::start(model, &cache, &[])?;
    alone.ask("settle")?;
    let alone_ms = median(&alone.turn(RUNS_ALONE)?);
    let whole_bytes = worker::number(&alone.ready, "unlimited_high_water_bytes")?;
    let terms = Terms {
        model,
        cache: &cache,
        models: load.models,
        smallest_bytes: worker::number(&alone.ready, "smallest_feasible_bytes")? + SPREAD_BYTES,
        whole_bytes,
        own_bytes: OWN_BYTES,
    };
    let packed = worker::packed_path(&alone.ready)?;
    drop(alone);
    let per_second = 1e3 / alone_ms * f64::from(load.percent) / 100.0;
    let arrivals = Arrivals::new(load.models, per_second, load.seed);
    let within = |r: &Request| r.at_ns < load.seconds * 1e9;
    let requests: Vec<Request> = arrivals.take_while(within).collect();
    let mut ways = Vec::new();
    for way in Way::ALL {
        let mut fleet = Fleet::start(way, &terms).with_context(|| format!("{way:?}"))?;
        ways.push(play(&mut fleet, &requests, load.seconds)?);
    }
    let loaded_bytes = ways.iter().map(|w| w.loaded_bytes).max().unwrap_or(0);
    Ok(Figures {
        models: load.models,
        percent: load.percent,
        seed: load.seed,
        seconds: load.seconds,
        alone_ms,
        per_second,
        whole_bytes,
        storage_bytes_per_second: storage::turn(&packed, None, loaded_bytes, 4)?,
        ways,
    })
}

/// Serves requests one at a time, in the order in which they come; those that are still waiting a tenth of the time
/// after the last has come are left.
fn play(fleet: &mut Fleet, requests: &[Request], seconds: f64) -> Result<Outcome> {
    std::thread::sleep(REST);
    let (mut latency_ms, mut served) = (Vec::new(), Vec::new());
    let began = Instant::now();
    let limit = Duration::from_secs_f64(seconds * 1.1);
    for request in requests {
        let due = Duration::from_nanos(request.at_ns as u64);
        if began.elapsed() > limit {
            break;
        }
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        served.push(fleet.serve(request.model)?);
        latency_ms.push((began.elapsed() - due).as_secs_f64() * 1e3);
    }
    latency_ms.sort_by(f64::total_cmp);
    Ok(Outcome {
        way: fleet.way,
        latency_ms,
        served,
        arrived: requests.len(),
        memory_bytes: fleet.memory_bytes()?,
        loaded_bytes: fleet.loaded_bytes()?,
        switch: fleet.median_switch(),
    })
}

impl Outcome {
    /// Median milliseconds of a request from its turn on.
    pub fn median_service_ms(&self) -> f64 {
        median(&self.served.iter().map(|s| s.service_ms).collect::<Vec<_>>())
    }

    /// The same of requests whose model had run before, or had not.
    pub fn service_ms(&self, switched: bool) -> f64 {
        let of = self.served.iter().filter(|s| s.switched == switched);
        median(&of.map(|s| s.service_ms).collect::<Vec<_>>())
    }

    /// This share of the requests was done within so many milliseconds.
    pub fn within_ms(&self, share: f64) -> f64 {
        at(&self.latency_ms, share)
    }

    /// The same over many more requests at that rate; see [`replay_ms`].
    pub fn replayed_ms(&self, figures: &Figures, share: f64) -> Option<f64> {
        let models = self.way.models(figures.models);
        replay_ms(
            &self.served,
            models,
            figures.per_second,
            figures.seed,
            share,
        )
    }
}

/// Requests a second that can be served, where each takes as long as those.
pub fn capacity(served: &[Served]) -> f64 {
    let sum: f64 = served.iter().map(|s| s.service_ms).sum();
    1e3 * served.len() as f64 / sum
}

/// This share of many requests for `models` models is done within so many milliseconds, where each takes as long as
/// one of `served`, drawn at random; `None` beyond what can be served.
pub fn replay_ms(
    served: &[Served],
    models: usize,
    per_second: f64,
    seed: u64,
    share: f64,
) -> Option<f64> {
    let times = |kind: bool| -> Vec<f64> {
        let of = served.iter().filter(|s| s.switched == kind);
        of.map(|s| s.service_ms).collect()
    };
    let all: Vec<f64> = served.iter().map(|s| s.service_ms).collect();
    let mut kinds = [times(false), times(true)];
    for kind in &mut kinds {
        if kind.is_empty() {
            kind.clone_from(&all);
        }
    }
    let mean_ms = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
    let again = 1.0 / models as f64;
    let service_ms = again * mean_ms(&kinds[0]) + (1.0 - again) * mean_ms(&kinds[1]);
    // Nothing was served, or too much is asked for.
    if service_ms.is_nan() || per_second * service_ms > MOST_BUSY * 1e3 {
        return None;
    }
    let mut random = Random::new(seed, 1, 0);
    let arrivals = Arrivals::new(models, per_second, seed);
    let latencies = queue_ns(arrivals.take(REPLAYED), |switched| {
        let times = &kinds[usize::from(switched)];
        1e6 * times[random.below(times.len())]
    });
    Some(at(&latencies, share) / 1e6)
}

/// Of ascending values.
fn at(sorted: &[f64], share: f64) -> f64 {
    let index = (sorted.len() as f64 * share) as usize;
    let last = sorted.len().saturating_sub(1);
    sorted.get(index.min(last)).copied().unwrap_or(f64::NAN)
}

/// The packed form of the model.
fn packed(place: &Place, onnx: &Path) -> Result<PathBuf> {
    let options = neaptide::OpenOptions {
        cache: neaptide::Cache::Folder(place.cache(Tier::Storage)?),
        ..neaptide::OpenOptions::of_own_process()
    };
    let model = neaptide::Model::open(onnx, &options, &mut |_| {})?;
    let path = model.packed_path().context("a model without weights")?;
    Ok(path.to_path_buf())
}

/// A file in memory; gone when it is dropped.
struct RamCopy(PathBuf);

impl RamCopy {
    fn of(file: &Path) -> Result<RamCopy> {
        let folder = Path::new("/dev/shm");
        anyhow::ensure!(folder.is_dir(), "no file system in memory at /dev/shm");
        let name = format!("neaptide-sharing-{}.neap", std::process::id());
        let copy = RamCopy(folder.join(name));
        std::fs::copy(file, &copy.0).context("cannot copy the model into memory")?;
        Ok(copy)
    }
}

impl Drop for RamCopy {
    fn drop(&mut self) {
        // It is in memory only.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(per_second: f64) -> Figures {
        Figures {
            models: 4,
            percent: 50,
            seed: 1,
            seconds: 1.0,
            alone_ms: 10.0,
            per_second,
            whole_bytes: 0,
            storage_bytes_per_second: 0.0,
            ways: Vec::new(),
        }
    }

    fn outcome(way: Way, times: &[(f64, bool)]) -> Outcome {
        let served = times.iter().map(|&(service_ms, switched)| Served {
            service_ms,
            switched,
        });
        Outcome {
            way,
            latency_ms: Vec::new(),
            served: served.collect(),
            arrived: times.len(),
            memory_bytes: 0,
            loaded_bytes: 0,
            switch: None,
        }
    }

    #[test]
    fn replaying_draws_what_was_measured() {
        // One request an hour: nobody waits, and three of four switch.
        let rare = figures(1.0 / 3600.0);
        let shared = outcome(Way::TimeShared, &[(10.0, false), (30.0, true)]);
        assert_eq!(shared.replayed_ms(&rare, 0.5).map(f64::round), Some(30.0));
        assert_eq!(shared.replayed_ms(&rare, 0.2).map(f64::round), Some(10.0));
        let alone = outcome(Way::NotShared, &[(10.0, false)]);
        assert_eq!(alone.replayed_ms(&rare, 0.99).map(f64::round), Some(10.0));
    }

    #[test]
    fn what_cannot_be_served_has_no_latency() {
        let alone = outcome(Way::NotShared, &[(10.0, false)]);
        assert_eq!(alone.replayed_ms(&figures(101.0), 0.5), None);
        let busy = alone.replayed_ms(&figures(90.0), 0.99);
        assert!(busy.is_some_and(|ms| ms > 20.0), "{busy:?}");
    }
}
