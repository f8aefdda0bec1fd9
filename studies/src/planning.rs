//! How long planning takes, and how good the plans are: every zoo model × budgets.
//!
//! Times are those of [`Model::plan`], from a budget to a checked plan: the first one of a process, and, with less effort,
//! one for a budget that changes, to which the layouts of plans before it are known (`again`) or not. Predicted latencies are the planner's own, at fixed arenas and costs, so that two
//! versions of it can be compared: `--save` what one says, then `--against` it with the other.

use crate::models;
use anyhow::{Context, Result};
use clap::Args;
use neap_planner::{Effort, PlanOptions, Planner, Strategy};
use neap_sim::{STEADY_RUNS, Simulator, Work};
use neaptide::{
    BandMode, Budget, Cache, Calibration, CostProfile, Model, OpenOptions, RunOptions, Workload,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Args)]
pub struct PlanningArgs {
    /// Only these zoo models.
    only: Vec<String>,
    /// Plans of each budget; the fastest counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Write predicted latencies to a file.
    #[arg(long)]
    save: Option<PathBuf>,
    /// Compare predicted latencies with those of a file.
    #[arg(long)]
    against: Option<PathBuf>,
    /// Predicted latencies only.
    #[arg(long, conflicts_with = "no_latencies")]
    no_times: bool,
    /// Times only.
    #[arg(long)]
    no_latencies: bool,
    /// Not the first plan of a process, which takes more effort.
    #[arg(long)]
    quick: bool,
}

/// Budgets between the smallest feasible one and that with everything resident.
const SHARES: [f64; 8] = [0.0, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9];
const THREADS: usize = 2;
const EFFORTS: [Effort; 2] = [Effort::Quick, Effort::Thorough];

/// A kind of plan whose making is timed.
struct Kind {
    name: &'static str,
    effort: Effort,
    /// Plans were made before.
    knows: bool,
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "again",
        effort: Effort::Quick,
        knows: true,
    },
    Kind {
        name: "anew",
        effort: Effort::Quick,
        knows: false,
    },
    Kind {
        name: "first",
        effort: Effort::Thorough,
        knows: false,
    },
];

/// The built-in machine, and one with a fast drive that reports reads together.
fn machines() -> [(&'static str, CostProfile); 2] {
    let fast = CostProfile {
        flops_per_second: 200e9,
        storage_bytes_per_second: 3e9,
        group_bytes: 2 << 20,
        ..CostProfile::default()
    };
    [("small", CostProfile::default()), ("fast", fast)]
}

/// Predicted latency in nanoseconds, by model, program and kernels, machine, effort and budget.
type Latencies = BTreeMap<String, u64>;

pub fn run(root: &Path, args: &PlanningArgs) -> Result<()> {
    let mut latencies = Latencies::new();
    let mut slowest = [0.0f64; KINDS.len()];
    for name in models::zoo_names() {
        if !args.only.is_empty() && args.only.iter().all(|o| o != name) {
            continue;
        }
        let open = OpenOptions {
            cache: Cache::Folder(root.join("target/models/packed")),
            ..OpenOptions::of_own_process()
        };
        let path = models::zoo_model(root, name)?;
        let open = || Model::open(&path, &open, &mut |_| {});
        let model = open()?;
        if !args.no_times {
            for (machine, costs) in machines() {
                for (kind, slowest) in KINDS.iter().zip(&mut slowest) {
                    if args.quick && kind.effort != Effort::Quick {
                        continue;
                    }
                    let known = kind.knows.then_some(&model);
                    let times = times_ms(known, &open, kind.effort, &costs, args.rounds)
                        .with_context(|| name.to_string())?;
                    let text: Vec<String> = times.iter().map(|ms| format!("{ms:5.1}")).collect();
                    println!(
                        "{name:14} {machine:5} {:5} {} ms",
                        kind.name,
                        text.join(" ")
                    );
                    *slowest = times.iter().fold(*slowest, |a, &b| a.max(b));
                }
            }
        }
        if !args.no_latencies {
            predict(name, &model, &mut latencies)?;
        }
    }
    if !args.no_times {
        println!(
            "simulating {ACTIONS} computes and as many loads: {:.2} ms",
            simulating_ms(args.rounds)
        );
        for (kind, ms) in KINDS.iter().zip(slowest) {
            println!("slowest {}: {ms:.1} ms", kind.name);
        }
    }
    if let Some(path) = &args.save {
        std::fs::write(path, serde_json::to_vec_pretty(&latencies)?)?;
    }
    if let Some(path) = &args.against {
        let old: Latencies = serde_json::from_slice(&std::fs::read(path)?)?;
        compare(&old, &latencies);
    }
    Ok(())
}

/// Of a graph of that many nodes.
const ACTIONS: u32 = 10_000;

/// Time in which the simulator brings a large plan to its steady state.
fn simulating_ms(rounds: usize) -> f64 {
    let loads: Vec<_> = (0..ACTIONS)
        .map(|i| match i.checked_sub(8) {
            Some(after) => (64 << 10, 0, after),
            None => (64 << 10, 1, ACTIONS - 8 + i),
        })
        .collect();
    let computes: Vec<_> = (0..ACTIONS)
        .map(|i| Work {
            ns: 10_000 + u64::from(i % 97) * 1_000,
            needs: i + 1,
            reads: false,
        })
        .collect();
    let mut simulator = Simulator::default();
    let costs = CostProfile::default();
    let times = (0..rounds.max(1)).map(|_| {
        let started = Instant::now();
        let found = simulator.play((&costs).into(), &loads, &computes, STEADY_RUNS, |_| {});
        std::hint::black_box(found);
        started.elapsed().as_secs_f64() * 1e3
    });
    times.fold(f64::MAX, f64::min)
}

/// Planning times by budget, of a model that is known or of one that is opened for each plan.
fn times_ms(
    known: Option<&Model>,
    open: &dyn Fn() -> neaptide::Result<Model>,
    effort: Effort,
    costs: &CostProfile,
    rounds: usize,
) -> Result<Vec<f64>> {
    let mut options = RunOptions {
        threads: THREADS,
        costs: Some(costs.clone()),
        ..RunOptions::default()
    };
    options.planner.effort = effort;
    let opened = open()?;
    let model = known.unwrap_or(&opened);
    // What the process takes without its arena is what it takes after a plan was made, beside as many models as then.
    let another = known.is_none().then(open).transpose()?;
    model.plan(&options)?;
    let bounds = model.bounds(&options);
    drop(another);
    let (least, most) = (
        bounds.smallest_feasible_bytes(),
        bounds.unlimited_high_water_bytes(),
    );
    let mut times = Vec::new();
    for share in SHARES {
        let budget = least + ((most - least) as f64 * share) as u64;
        options.budget = Budget::Bytes(budget);
        let mut best = f64::MAX;
        for _ in 0..rounds.max(1) {
            let plan = match known {
                Some(model) => model.plan(&options),
                None => open()?.plan(&options),
            };
            best = best.min(plan?.planning_ns as f64 / 1e6);
        }
        times.push(best);
    }
    Ok(times)
}

fn predict(name: &str, model: &Model, latencies: &mut Latencies) -> Result<()> {
    let fastest = model.plan(&RunOptions {
        threads: THREADS,
        calibration: Calibration::Off,
        // Those are added to a plan when it is made.
        prepared_weights: false,
        ..RunOptions::default()
    })?;
    let direct = model.workloads(THREADS, BandMode::Auto);
    let workloads = std::iter::once(("fastest", &fastest.workload))
        .chain(["direct", "bands"].into_iter().zip(&direct));
    for (kind, workload) in workloads {
        for (machine, costs) in machines() {
            for effort in EFFORTS {
                let options = PlanOptions {
                    effort,
                    ..PlanOptions::default()
                };
                let predicted = predicted_ns(workload, &costs, options)?;
                for (share, ns) in SHARES.iter().zip(predicted) {
                    latencies.insert(format!("{name} {kind} {machine} {effort:?} {share}"), ns);
                }
            }
        }
    }
    Ok(())
}

fn predicted_ns(
    workload: &Workload,
    costs: &CostProfile,
    options: PlanOptions,
) -> Result<Vec<u64>> {
    let planner = Planner::with_options(workload, options);
    let (least, most) = (
        planner.smallest_feasible_bytes(),
        planner.unlimited_high_water_bytes(),
    );
    let predicted = SHARES.iter().map(|share| {
        let arena = least + (most.saturating_sub(least) as f64 * share) as u64;
        let planned = planner.plan(arena, Strategy::Preload, costs)?;
        neap_plan::validate(workload, &planned.plan)?;
        Ok(planned.prediction.latency_ns)
    });
    predicted.collect()
}

fn compare(old: &Latencies, new: &Latencies) {
    let pairs = new
        .iter()
        .filter_map(|(key, &ns)| Some((key, *old.get(key)?, ns)));
    let ratios: Vec<(f64, &String)> = pairs
        .map(|(key, old, new)| (new as f64 / old.max(1) as f64, key))
        .collect();
    for (ratio, key) in ratios.iter().filter(|(r, _)| (r - 1.0).abs() > 0.005) {
        println!("{key}: {:+.2} %", (ratio - 1.0) * 100.0);
    }
    let mean = ratios.iter().map(|(r, _)| r.ln()).sum::<f64>() / ratios.len().max(1) as f64;
    let worst = ratios.iter().map(|(r, _)| *r).fold(0.0, f64::max);
    println!(
        "{} plans compared: {} slower, {} faster, geometric mean {:+.3} %, worst {:+.2} %",
        ratios.len(),
        ratios.iter().filter(|(r, _)| *r > 1.0).count(),
        ratios.iter().filter(|(r, _)| *r < 1.0).count(),
        (mean.exp() - 1.0) * 100.0,
        (worst - 1.0) * 100.0
    );
}
