//! One model: its curves, the engines beside it, and what is lost without each part.

use super::Options;
use super::peers::{ENGINES, Engines};
use super::results::{Ablation, Curve, ModelResult, PeerFigures, PeerResult, Variant};
use super::turns::{Entrant, Place, Turns, take_turns};
use crate::peer::{Peer, median};
use crate::{models, worker};
use anyhow::{Result, bail};
use std::path::Path;

/// The paper's smallest share of onnxruntime's peak memory for one model: 93.81 % less.
const PAPER_SHARE: (&str, f64) = ("resnet152", 0.0619);

/// What is left out, and the arguments that do so.
const WITHOUT: [(&str, &[&str]); 6] = [
    ("static memory", &["--no-static-memory"]),
    ("preloading", &["--strategy", "ondemand"]),
    ("both", &["--no-static-memory", "--strategy", "ondemand"]),
    ("cyclic", &["--no-cyclic"]),
    ("kernel choice", &["--exact"]),
    ("row bands", &["--no-bands"]),
];

/// A turn of a small model takes about so long at least: what runs right after a rest is not what runs in a row.
const LEAST_TURN_MS: f64 = 50.0;
const MOST_RUNS: usize = 20;

const THROTTLED_RUNS: usize = 2;

/// Of ablations, at most.
const ABLATION_ROUNDS: usize = 3;

/// Memory to measure at, by growing amount.
struct Budgets {
    bytes: Vec<u64>,
    paper_bytes: Option<u64>,
}

pub fn measure(
    root: &Path,
    engines: &Engines,
    name: &str,
    options: &Options,
) -> Result<ModelResult> {
    let model = models::zoo_model(root, name)?;
    let cache = root.join("target/models/packed");
    worker::calibrate(&model, &cache)?;
    let mut place = Place::new(None, &model, &cache)?;
    let mut peers = Vec::new();
    for engine in ENGINES {
        let mut started = engines.start(root, engine, &model, None)?;
        if let Ok(peer) = &mut started
            && let Err(e) = peer.run(3)
        {
            started = Err(e.to_string());
        }
        peers.push((engine, started.map(|peer| Entrant::new(peer, None))));
    }
    let (ort_peak, ort_ms) = match &mut peers[0].1 {
        Ok(entrant) => (entrant.peer.peak_bytes()?, median(&entrant.peer.run(3)?)),
        Err(e) => bail!("onnxruntime: {e}"),
    };
    let turns = Turns {
        rounds: options.rounds,
        runs_per_round: options.runs_per_round.max(runs_in(LEAST_TURN_MS, ort_ms)),
    };
    let budgets = budgets(&place, name, ort_peak, options)?;
    let rivals = peers.iter_mut().filter_map(|(_, p)| p.as_mut().ok());
    let mut curves = vec![curve(&mut place, &budgets, rivals.collect(), turns, 1)?];
    let mut results = Vec::new();
    for (engine, entrant) in peers {
        let figures = |mut entrant: Entrant| {
            Ok::<_, anyhow::Error>(PeerFigures {
                latency_ms: entrant.median_ms(),
                peak_bytes: entrant.peer.peak_bytes()?,
            })
        };
        results.push(PeerResult {
            engine: engine.into(),
            outcome: match entrant {
                Ok(entrant) => Ok(figures(entrant)?),
                Err(reason) => Err(reason),
            },
        });
    }
    let ablations = if options.ablations {
        let turns = Turns {
            rounds: turns.rounds.min(ABLATION_ROUNDS),
            ..turns
        };
        ablations(&mut place, &budgets, turns)?
    } else {
        Vec::new()
    };
    for &rate in &options.throttles {
        let mut place = Place::new(Some(rate), &model, &cache)?;
        // What limits it does not waver.
        let turns = Turns {
            rounds: 1,
            runs_per_round: THROTTLED_RUNS.max(runs_in(LEAST_TURN_MS, ort_ms)),
        };
        curves.push(curve(&mut place, &budgets, Vec::new(), turns, 2)?);
    }
    Ok(ModelResult {
        model: name.into(),
        peers: results,
        curves,
        ablations,
    })
}

fn runs_in(turn_ms: f64, run_ms: f64) -> usize {
    ((turn_ms / run_ms.max(0.1)).ceil() as usize).min(MOST_RUNS)
}

/// From the smallest feasible budget up, in equal ratios.
fn budgets(place: &Place, name: &str, ort_peak_bytes: u64, options: &Options) -> Result<Budgets> {
    let peer = place.start(None, &[])?;
    let smallest = worker::number(&peer.ready, "smallest_feasible_bytes")?;
    let whole = worker::number(&peer.ready, "unlimited_high_water_bytes")?;
    let steps = options.budgets.max(2) - 1;
    let ratio = whole.max(smallest) as f64 / smallest as f64;
    let at = |i: usize| (smallest as f64 * ratio.powf(i as f64 / steps as f64)) as u64;
    // Everything resident is measured without a limit.
    let mut bytes: Vec<u64> = (0..steps).map(at).collect();
    let (model, share) = PAPER_SHARE;
    let paper_bytes = (name == model).then_some((ort_peak_bytes as f64 * share) as u64);
    bytes.extend(paper_bytes.filter(|&b| b > smallest));
    bytes.sort_unstable();
    Ok(Budgets { bytes, paper_bytes })
}

/// Latency by budget, beside every `ondemand_every`th on-demand, all resident, and `rivals`.
fn curve(
    place: &mut Place,
    budgets: &Budgets,
    rivals: Vec<&mut Entrant>,
    turns: Turns,
    ondemand_every: usize,
) -> Result<Curve> {
    let some = || budgets.bytes.iter().copied().map(Some);
    let mut planned = Vec::new();
    for budget in some().chain([None]) {
        planned.push(Entrant::bounded(ready(place.start(budget, &[])?)?, budget));
    }
    let mut ondemand = Vec::new();
    for budget in some().step_by(ondemand_every) {
        // It needs a little more than plans that may store activations.
        if let Ok(peer) = ready(place.start(budget, &["--strategy", "ondemand"])?) {
            ondemand.push(Entrant::new(peer, budget));
        }
    }
    let peer = place.start(None, &["--strategy", "resident"])?;
    let mut resident = Entrant::new(ready(peer)?, None);
    let mut all = rivals;
    all.extend(planned.iter_mut());
    all.extend(ondemand.iter_mut());
    all.push(&mut resident);
    take_turns(place, &mut all, turns)?;
    let points = |entrants: Vec<Entrant>| -> Result<Vec<_>> {
        let mut points = Vec::new();
        for mut entrant in entrants {
            let mut point = entrant.point()?;
            point.is_paper_share =
                point.budget_bytes.is_some() && point.budget_bytes == budgets.paper_bytes;
            points.push(point);
        }
        Ok(points)
    };
    Ok(Curve {
        throttle_bytes_per_second: place.throttle_bytes_per_second(),
        points: points(planned)?,
        ondemand: points(ondemand)?,
        resident: Some(resident.point()?),
    })
}

/// A worker that must have a plan.
fn ready(peer: Peer) -> Result<Peer> {
    match peer.ready["smallest_bytes"].as_u64() {
        Some(bytes) => bail!("a budget is too small, {bytes} bytes are needed"),
        None => Ok(peer),
    }
}

/// The second-smallest budget and one in the middle, whole and without each part.
fn ablations(place: &mut Place, budgets: &Budgets, turns: Turns) -> Result<Vec<Ablation>> {
    let even = budgets.bytes.iter().copied();
    let even: Vec<u64> = even.filter(|&b| Some(b) != budgets.paper_bytes).collect();
    let mut chosen = vec![even[even.len().min(2) - 1], even[even.len() * 2 / 3]];
    chosen.dedup();
    let mut out = Vec::new();
    for budget in chosen {
        let mut full = Entrant::new(ready(place.start(Some(budget), &[])?)?, Some(budget));
        let mut without = Vec::new();
        for (name, arguments) in WITHOUT {
            let peer = place.start(Some(budget), arguments)?;
            let least = peer.ready["smallest_bytes"].as_u64();
            without.push((name, least.map_or(Ok(Entrant::new(peer, None)), Err)));
        }
        let mut all = vec![&mut full];
        all.extend(without.iter_mut().filter_map(|(_, e)| e.as_mut().ok()));
        take_turns(place, &mut all, turns)?;
        out.push(Ablation {
            budget_bytes: budget,
            full_ms: full.median_ms(),
            variants: (without.into_iter())
                .map(|(name, entrant)| Variant {
                    without: name.into(),
                    latency_ms: entrant.map(|e| e.median_ms()),
                })
                .collect(),
        });
    }
    Ok(out)
}
