//! One network beside ncnn on the same device.

use crate::flexnn::peers::Engines;
use crate::group::Group;
use crate::peer::{Peer, REST, median};
use crate::worker;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;

const PEER: &str = "ncnn-vulkan";
const VULKAN: &str = "--vulkan";

/// What is wanted of ncnn's peak memory.
const SHARE: u64 = 3;

/// Of one process.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Figures {
    pub latency_ms: f64,
    /// The most that the kernel charged.
    pub peak_bytes: u64,
}

#[derive(Serialize, Deserialize)]
pub struct Row {
    pub model: String,
    pub device: String,
    pub rounds: u32,
    /// Or why it cannot run the network.
    pub peer: Result<Figures, String>,
    pub free: Figures,
    /// A share of the peer's peak, or the smallest feasible budget where that is more.
    pub budget_bytes: u64,
    pub tight: Figures,
    pub loaded_bytes: u64,
}

/// A process, and its runs that count.
struct Entrant {
    peer: Peer,
    /// Removed after the process has ended.
    group: Group,
    times_ms: Vec<f64>,
}

impl Entrant {
    /// One run warms it up.
    fn new(mut peer: Peer, group: Group) -> Result<Entrant> {
        peer.run(1)?;
        Ok(Entrant {
            peer,
            group,
            times_ms: Vec::new(),
        })
    }

    /// Runs take so long that the first one after a rest is as the others.
    fn turn(&mut self) -> Result<()> {
        std::thread::sleep(REST);
        self.times_ms.extend(self.peer.run(1)?);
        Ok(())
    }

    fn figures(&self) -> Result<Figures> {
        Ok(Figures {
            latency_ms: median(&self.times_ms),
            peak_bytes: self.group.peak_bytes()?,
        })
    }
}

/// The kernel enforces the budget.
fn within(model: &Path, cache: &Path, budget_bytes: Option<u64>) -> Result<Entrant> {
    let group = Group::new(budget_bytes)?;
    let budget = budget_bytes.map_or("none".into(), |bytes| bytes.to_string());
    let command = worker::command(model, cache, &["--budget", &budget, VULKAN])?;
    let peer = Peer::start(&mut group.around(&command))?;
    let smallest = &peer.ready["smallest_bytes"];
    ensure!(smallest.is_null(), "{budget}: {smallest} bytes are needed");
    Entrant::new(peer, group)
}

pub fn measure(
    root: &Path,
    engines: &Engines,
    name: &str,
    model: &Path,
    cache: &Path,
    rounds: u32,
) -> Result<Row> {
    // Packs and converts the model, and has the driver compile what it keeps: neither is part of anybody's peak.
    drop(worker::start(model, cache, &["--budget", "none"])?);
    drop(worker::start(model, cache, &["--budget", "none", VULKAN])?);
    drop(engines.start(root, PEER, model, None)?);
    let group = Group::new(None)?;
    let mut other = match engines.start(root, PEER, model, Some(&group))? {
        Ok(peer) => Entrant::new(peer, group).map_err(|e| e.to_string()),
        Err(reason) => Err(reason),
    };
    let mut free = within(model, cache, None)?;
    let ready = &free.peer.ready;
    let smallest = worker::number(ready, "smallest_feasible_bytes")?;
    let whole = worker::number(ready, "unlimited_high_water_bytes")?;
    let device = ready["device"].as_str().context("device")?.to_owned();
    let peak = match &other {
        Ok(entrant) => entrant.group.peak_bytes()?,
        Err(_) => whole,
    };
    let budget_bytes = (peak / SHARE).max(smallest);
    let mut tight = within(model, cache, Some(budget_bytes))?;
    for _ in 0..rounds {
        if let Ok(entrant) = &mut other {
            entrant.turn()?;
        }
        free.turn()?;
        tight.turn()?;
    }
    Ok(Row {
        model: name.into(),
        device,
        rounds,
        peer: match other {
            Ok(entrant) => Ok(entrant.figures()?),
            Err(reason) => Err(reason),
        },
        free: free.figures()?,
        budget_bytes,
        tight: tight.figures()?,
        loaded_bytes: worker::number(&tight.peer.ready, "loaded_bytes_per_run")?,
    })
}
