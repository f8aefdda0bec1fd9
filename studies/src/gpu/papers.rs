//! What SwapAdvisor measured on a device, on this one: inference within little memory, over a link as slow beside this device's
//! computing as theirs was beside a V100's.
//!
//! ```text
//!   link = weights / (time of a run · the paper's ratio of loading all weights to a run)
//! ```

use super::place::Place;
use crate::peer::{Peer, REST, median};
use crate::worker;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::Path;
use swap_search::{Service, latencies_ns};

const SWAPADVISOR: &str = "resnet152";

/// Megabytes of the device, and seconds of the paper's Table 2 at batch 1. Above 512 nothing is loaded.
const TABLE_2: [(u64, f64); 4] = [(64, 0.024), (128, 0.022), (192, 0.018), (512, 0.017)];

/// With everything in memory; and the paper's link.
const PAPER_RUN_S: f64 = 0.017;
const PAPER_LINK: f64 = 12e9;

/// Figure 8 gives each model so much here; the paper does not say how much it gave.
const EACH_MEGABYTES: u64 = 192;
const MODELS: [usize; 2] = [4, 16];
/// Loads as shares of what one model with all its memory can do.
const LOADS: [f64; 4] = [0.2, 0.4, 0.6, 0.8];
const REQUESTS: usize = 100_000;

#[derive(Serialize, Deserialize)]
pub struct Found {
    rounds: u32,
    whole_ms: f64,
    weight_bytes: f64,
    link: f64,
    cells: Vec<Cell>,
}

/// Of Table 2.
#[derive(Serialize, Deserialize)]
struct Cell {
    megabytes: u64,
    paper_s: f64,
    measured_ms: f64,
    simulated_ms: f64,
    loaded_bytes: u64,
}

pub(super) fn timed(peer: &mut Peer, rounds: u32) -> Result<f64> {
    std::thread::sleep(REST);
    Ok(median(&peer.run(rounds as usize)?))
}

fn predicted_ms(peer: &Peer) -> Result<f64> {
    let predicted = peer.ready["predicted_latency_ms"].as_f64();
    predicted.context("predicted_latency_ms")
}

pub fn measure(root: &Path, rounds: u32) -> Result<Found> {
    let place = Place::of(root, SWAPADVISOR)?;
    let mut whole = place.start(&["--device-budget", "none"])?;
    let whole_ms = timed(&mut whole, rounds)?;
    drop(whole);
    let entry = neap_zoo::list().iter().find(|e| e.name == SWAPADVISOR);
    let weight_bytes = entry.context("not in the zoo")?.parameters as f64 * 4.0;
    let ratio = weight_bytes / PAPER_LINK / PAPER_RUN_S;
    let link = weight_bytes / (whole_ms / 1e3 * ratio);
    let rate = format!("{link:.0}");
    let mut cells = Vec::new();
    for (megabytes, paper_s) in TABLE_2 {
        let budget = (megabytes << 20).to_string();
        let mut peer = place.start(&["--device-budget", &budget, "--device-link", &rate])?;
        let cell = Cell {
            megabytes,
            paper_s,
            measured_ms: timed(&mut peer, rounds)?,
            simulated_ms: predicted_ms(&peer)?,
            loaded_bytes: worker::number(&peer.ready, "loaded_bytes_per_run")?,
        };
        eprintln!(
            "{SWAPADVISOR} in {megabytes} MB: {:.0} ms",
            cell.measured_ms
        );
        cells.push(cell);
    }
    Ok(Found {
        rounds,
        whole_ms,
        weight_bytes,
        link,
        cells,
    })
}

pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

pub fn tables(found: &Found) -> String {
    let mut text = format!(
        "\n## SwapAdvisor's Table 2, on this device\n\n\
         {SWAPADVISOR} at batch 1 in the device's own memory; the host keeps all weights. With everything there a run takes {:.0} ms. The link is \
         throttled to {:.0} MB/s: to load all weights ({:.0} MB) takes as many runs as in the paper. Batches of 16 and 64 would take minutes a \
         run. *Simulated* is the plan's own prediction. All are multiples of a run with everything in memory. Medians of {} runs.\n\n\
         | memory MB | the paper | measured | simulated | measured ms | simulated ms | loaded MiB/run |\n|--:|--:|--:|--:|--:|--:|--:|\n",
        found.whole_ms,
        found.link / 1e6,
        found.weight_bytes / 1e6,
        found.rounds,
    );
    for cell in &found.cells {
        let _ = writeln!(
            text,
            "| {} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} | {:.0} |",
            cell.megabytes,
            cell.paper_s / PAPER_RUN_S,
            cell.measured_ms / found.whole_ms,
            cell.simulated_ms / found.whole_ms,
            cell.measured_ms,
            cell.simulated_ms,
            mib(cell.loaded_bytes),
        );
    }
    text += &serving(found);
    text
}

/// Figure 8: a queue is played over measured times.
fn serving(found: &Found) -> String {
    let mut text = format!(
        "\n## SwapAdvisor's Figure 8, over times of this device\n\n\
         99th percentile of latency, in runs with everything in memory. Requests arrive at random, each for one of the models, and are \
         played over the times measured above ({REQUESTS} requests): a run within {EACH_MEGABYTES} MB, or a run with everything in memory \
         and, where another model ran before, loading all weights over the throttled link. Loads are shares of what one model alone can \
         do. `–`: more than can be served. Requests are single images, in the paper batches of 16. The paper: SwapAdvisor at most twice as \
         slow as not shared, time-sharing 8 times with 16 models.\n\n| |",
    );
    for load in LOADS {
        let _ = write!(text, " {load} |");
    }
    text += "\n|---|";
    text += &"--:|".repeat(LOADS.len());
    text.push('\n');
    let within = found.cells.iter().find(|c| c.megabytes == EACH_MEGABYTES);
    let swapped_ms = within.map_or(f64::NAN, |cell| cell.measured_ms);
    let switch_ms = found.weight_bytes / found.link * 1e3;
    let mut ways = vec![("not shared", 1, found.whole_ms, 0.0)];
    for models in MODELS {
        ways.push(("within its memory", models, swapped_ms, 0.0));
        ways.push(("time-shared", models, found.whole_ms, switch_ms));
    }
    for (way, models, run_ms, switch_ms) in ways {
        let plural = if models == 1 { "" } else { "s" };
        let _ = write!(text, "| {way}, {models} model{plural} |");
        for load in LOADS {
            let told = p99_ms(models, [run_ms, switch_ms], load / found.whole_ms)
                .map_or("–".into(), |ms| format!("{:.1}", ms / found.whole_ms));
            let _ = write!(text, " {told} |");
        }
        text.push('\n');
    }
    text
}

/// `None` where waiting has no end. Arrivals are per millisecond.
fn p99_ms(models: usize, [run_ms, switch_ms]: [f64; 2], arrivals: f64) -> Option<f64> {
    let mean_ms = run_ms + switch_ms * (1.0 - 1.0 / models as f64);
    let service = Service {
        models,
        run_ns: run_ms * 1e6,
        switch_ns: switch_ms * 1e6,
    };
    (arrivals * mean_ms < 0.99).then(|| {
        let all = latencies_ns(&service, arrivals * 1e3, REQUESTS, 1);
        all[all.len() * 99 / 100] / 1e6
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_loaded_between_models_makes_requests_wait() {
        let alone = p99_ms(1, [10.0, 0.0], 1e-4).expect("served");
        assert!((alone - 10.0).abs() < 1e-3, "{alone}");
        let shared = p99_ms(4, [10.0, 12.0], 0.02).expect("served");
        let own = p99_ms(4, [11.0, 0.0], 0.02).expect("served");
        assert!(shared > own, "{shared} {own}");
        assert_eq!(p99_ms(4, [10.0, 12.0], 0.06), None);
    }
}
