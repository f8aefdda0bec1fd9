//! SwapNet's ablation on this device: the same plan's memory three ways, and what the kernel charges for each.
//!
//! ```text
//!   without copies    drive ─────────────────────────► memory of the plan, which the device imports
//!   staged            drive ──► ring ──────────copy──► the device's own memory
//!   page cache        drive ──► page cache ────copy──► memory of the plan, which the device imports
//! ```

use super::papers::{mib, timed};
use super::place::Place;
use crate::group::Group;
use crate::peer::{Peer, median};
use crate::worker;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::Path;

/// Those of its applications that fit into minutes here, each at half of what it needs beside the driver.
const NETWORKS: [&str; 2] = ["resnet101", "vgg19"];

const WAYS: [&str; 3] = ["without copies", "staged", "page cache"];

#[derive(Serialize, Deserialize)]
pub struct Found {
    rounds: u32,
    rows: Vec<Row>,
}

/// One model with the same memory for its plan, by way.
#[derive(Serialize, Deserialize)]
struct Row {
    model: String,
    arena_bytes: u64,
    weight_bytes: u64,
    ways: Vec<Way>,
}

#[derive(Serialize, Deserialize)]
struct Way {
    ms: f64,
    loaded_bytes: u64,
    /// The most that the kernel charged.
    peak_bytes: u64,
    /// What it charged after the runs: for memory of the process, for pages of files, and those of them that are mapped.
    rss_bytes: u64,
    cache_bytes: u64,
    mapped_bytes: u64,
}

pub fn measure(root: &Path, rounds: u32) -> Result<Found> {
    let rows = NETWORKS.iter().map(|name| row(root, name, rounds));
    Ok(Found {
        rounds,
        rows: rows.collect::<Result<_>>()?,
    })
}

fn row(root: &Path, name: &str, rounds: u32) -> Result<Row> {
    let place = Place::of(root, name)?;
    let free = place.started(&[])?;
    let least = worker::number(&free.ready, "smallest_feasible_bytes")?;
    let most = worker::number(&free.ready, "planned_bytes")?;
    let packed = worker::packed_path(&free.ready)?;
    drop(free);
    let budget = least.midpoint(most).to_string();
    let groups = [Group::new(None)?, Group::new(None)?, Group::new(None)?];
    let plain = place.start_in(&groups[0], &["--budget", &budget])?;
    let arena_bytes = worker::number(&plain.ready, "arena_bytes")?;
    let device = arena_bytes.to_string();
    // The host keeps no weights: what is read is copied, each time.
    let refused = place.started(&["--device-budget", &device, "--budget", "1"])?;
    let host = worker::number(&refused.ready, "smallest_bytes")?.to_string();
    drop(refused);
    let staged = ["--device-budget", &device, "--budget", &host];
    let staged = place.start_in(&groups[1], &staged)?;
    let cached = place.start_in(&groups[2], &["--budget", &budget, "--cached"])?;
    let mut peers = [plain, staged, cached];
    let mut ms = [const { Vec::new() }; WAYS.len()];
    for _ in 0..rounds {
        for (peer, ms) in peers.iter_mut().zip(&mut ms) {
            ms.push(timed(peer, 1)?);
        }
    }
    let ways = (peers.iter().zip(&ms)).zip(&groups);
    let ways = ways.map(|((peer, ms), group)| way(peer, ms, group));
    Ok(Row {
        model: name.into(),
        arena_bytes,
        weight_bytes: std::fs::metadata(packed)?.len(),
        ways: ways.collect::<Result<_>>()?,
    })
}

/// While the process lives.
fn way(peer: &Peer, ms: &[f64], group: &Group) -> Result<Way> {
    Ok(Way {
        ms: median(ms),
        loaded_bytes: worker::number(&peer.ready, "loaded_bytes_per_run")?,
        peak_bytes: group.peak_bytes()?,
        rss_bytes: group.charged_bytes("rss")?,
        cache_bytes: group.charged_bytes("cache")?,
        mapped_bytes: group.charged_bytes("mapped_file")?,
    })
}

pub fn table(found: &Found) -> String {
    let mut text = format!(
        "\n## SwapNet's memory without copies\n\n\
         Three ways to the same network. Each has the same memory for its plan, half of the way from the smallest budget to everything resident. \
         *Without copies*: storage is read past the page cache to where the device computes. *Staged*: storage is read to a ring, and copied to \
         the device's own memory, as in the paper's version without unified addressing (w/o-uni-add). *Page cache*: storage is read as files \
         usually are, and the kernel copies from its cache to where the device computes; none of the file was in the cache before. In the paper, \
         copies cost 26.3 to 50.1 % of latency, and much memory. Each process has a memory cgroup of its own, without a limit. *Peak* is the most \
         that the kernel charged it (`memory.max_usage_in_bytes`). What it charged after the runs is told by `memory.stat`: *anonymous* is \
         `rss`, *cache* is `cache`, *mapped* is `mapped_file`. Without copies, a byte that is loaded is charged once: as anonymous memory, and \
         not as cache. Medians of {} runs.\n\n\
         | network | way | plan's memory MiB | packed file MiB | loaded MiB/run | ms | slower by | peak MiB | more by | anonymous MiB | cache MiB | mapped MiB |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        found.rounds
    );
    for row in &found.rows {
        let Some(first) = row.ways.first() else {
            continue;
        };
        for (name, way) in WAYS.iter().zip(&row.ways) {
            let more = |this: f64, first: f64| format!("{:+.1} %", (this / first - 1.0) * 100.0);
            let (slower, larger) = match std::ptr::eq(way, first) {
                true => ("–".into(), "–".into()),
                false => (
                    more(way.ms, first.ms),
                    more(way.peak_bytes as f64, first.peak_bytes as f64),
                ),
            };
            let _ = writeln!(
                text,
                "| {} | {name} | {:.0} | {:.0} | {:.0} | {:.0} | {slower} | {:.0} | {larger} | {:.0} | {:.0} | {:.0} |",
                row.model,
                mib(row.arena_bytes),
                mib(row.weight_bytes),
                mib(way.loaded_bytes),
                way.ms,
                mib(way.peak_bytes),
                mib(way.rss_bytes),
                mib(way.cache_bytes),
                mib(way.mapped_bytes),
            );
        }
    }
    text
}
