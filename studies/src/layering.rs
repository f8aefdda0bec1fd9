//! Memory against delay: layers that are read one after the other as Demand Layering reads them, beside our plans.
//!
//! ```text
//!   layers    │ l0 │ l1 │ l2 │ …     whole layers in turn, each into the memory used longest ago; none stays
//!   ours      │ slices, as early as memory allows; some weights stay
//! ```
//! Source: Ji et al., *Demand Layering for Real-Time DNN Inference with Minimized Memory Usage*, RTSS 2022. There a drive feeds a
//! GPU that shares memory with the processor; here both ways compute with our kernels on the processor.

use crate::chart::{self, Line};
use crate::models;
use crate::peer::{Peer, median};
use crate::worker;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct LayeringArgs {
    /// Only these models.
    only: Vec<String>,
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Write docs/demand-layering.md and its plots.
    #[arg(long, conflicts_with = "only")]
    write: bool,
}

/// Those of the paper that the zoo has; DenseNet-201 is DenseNet-121 there.
const MODELS: [&str; 2] = ["resnet152", "densenet121"];

/// Name in the table, and strategy of the plan.
const WAYS: [(&str, &str); 2] = [("layers in turn", "odswap"), ("ours", "preload")];

/// Per cent of what a model takes with everything in memory, beside the smallest budgets of both ways.
const SHARES: [u64; 5] = [20, 35, 50, 75, 100];

/// In each turn.
const RUNS: usize = 4;

/// One model.
struct Curve {
    model: &'static str,
    /// With everything in memory.
    whole_bytes: u64,
    whole_ms: f64,
    points: Vec<Point>,
}

/// One budget. A way that does not fit has no time.
struct Point {
    budget_bytes: u64,
    ms: [Option<f64>; WAYS.len()],
}

pub fn run(root: &Path, args: &LayeringArgs) -> Result<()> {
    if let Some(name) = args.only.iter().find(|o| !MODELS.contains(&o.as_str())) {
        bail!("no such model: {name}; there are {}", MODELS.join(", "));
    }
    let mut curves = Vec::new();
    for model in MODELS {
        if args.only.is_empty() || args.only.iter().any(|o| o == model) {
            curves.push(measure(root, model, args.rounds).with_context(|| model.to_owned())?);
        }
    }
    let tables = tables(&curves);
    println!("{tables}");
    if args.write {
        for curve in &curves {
            std::fs::write(plot_path(root, curve.model), plot(curve))?;
        }
        let path = root.join("docs/demand-layering.md");
        std::fs::write(&path, page(&tables, args.rounds)?)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

fn measure(root: &Path, model: &'static str, rounds: u32) -> Result<Curve> {
    let path = models::zoo_model(root, model)?;
    let cache = root.join("target/models/packed");
    worker::calibrate(&path, &cache)?;
    let start = |strategy: &str, budget: &str| {
        let arguments = ["--strategy", strategy, "--budget", budget];
        worker::start(&path, &cache, &arguments)
            .with_context(|| format!("{strategy} within {budget}"))
    };
    let mut whole = start("preload", "none")?;
    let whole_bytes = worker::number(&whole.ready, "unlimited_high_water_bytes")?;
    let smallest_bytes = worker::number(&whole.ready, "smallest_feasible_bytes")?;
    let mut budgets = vec![smallest_bytes];
    let of_layers = start(WAYS[0].1, &smallest_bytes.to_string())?;
    budgets.extend(of_layers.ready["smallest_bytes"].as_u64());
    drop(of_layers);
    budgets.extend(SHARES.map(|share| whole_bytes / 100 * share));
    budgets.retain(|&bytes| bytes >= smallest_bytes);
    budgets.sort_unstable();
    let mut points = Vec::new();
    let mut whole_times = Vec::new();
    for budget_bytes in budgets {
        let mut entrants: Vec<(Peer, Vec<f64>)> = Vec::new();
        for (_, strategy) in WAYS {
            let mut peer = start(strategy, &budget_bytes.to_string())?;
            if fits(&peer) {
                peer.run(2)?;
            }
            entrants.push((peer, Vec::new()));
        }
        for _ in 0..rounds {
            whole_times.extend(whole.turn(RUNS)?);
            for (peer, times) in &mut entrants {
                if fits(peer) {
                    times.extend(peer.turn(RUNS)?);
                }
            }
        }
        let mut ms = [None; WAYS.len()];
        for (ms, (_, times)) in ms.iter_mut().zip(&entrants) {
            *ms = (!times.is_empty()).then(|| median(times));
        }
        eprintln!("{model} within {:.1} MiB: {ms:.1?} ms", mib(budget_bytes));
        points.push(Point { budget_bytes, ms });
    }
    ensure!(!whole_times.is_empty(), "nothing was measured");
    Ok(Curve {
        model,
        whole_bytes,
        whole_ms: median(&whole_times),
        points,
    })
}

fn fits(peer: &Peer) -> bool {
    peer.ready["smallest_bytes"].is_null()
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn tables(curves: &[Curve]) -> String {
    curves.iter().map(table).collect::<Vec<_>>().join("\n")
}

fn table(curve: &Curve) -> String {
    let mut text = format!(
        "## {}\n\nWith everything in memory: {:.1} MiB, {:.2} ms.\n\n\
         | budget MiB | less memory | {} ms | more delay | {} ms | more delay |\n|--:|--:|--:|--:|--:|--:|\n",
        curve.model,
        mib(curve.whole_bytes),
        curve.whole_ms,
        WAYS[0].0,
        WAYS[1].0,
    );
    for point in &curve.points {
        let less = 100.0 * (1.0 - point.budget_bytes as f64 / curve.whole_bytes as f64);
        let _ = write!(text, "| {:.1} | {less:.1} % |", mib(point.budget_bytes));
        for ms in point.ms {
            let _ = match ms {
                Some(ms) => write!(
                    text,
                    " {ms:.2} | {:.1} % |",
                    100.0 * (ms / curve.whole_ms - 1.0)
                ),
                None => write!(text, " does not fit | – |"),
            };
        }
        text += "\n";
    }
    text
}

fn plot(curve: &Curve) -> String {
    let points = |way: usize| {
        let points = curve.points.iter();
        points
            .filter_map(|p| Some((mib(p.budget_bytes), p.ms[way]?)))
            .collect()
    };
    let lines: Vec<Line> = (0..WAYS.len())
        .map(|way| Line {
            name: WAYS[way].0,
            points: points(way),
        })
        .collect();
    chart::lines("memory of the process, MiB", "milliseconds", &lines)
}

fn plot_path(root: &Path, model: &str) -> PathBuf {
    root.join(format!("docs/demand-layering-{model}.svg"))
}

fn page(tables: &str, rounds: u32) -> Result<String> {
    let setting = crate::setting::setting()?;
    let mut page = format!(
        "# Memory against delay, beside Demand Layering\n\n\
         Made by `cargo study layering --write`. Two threads; {setting}; medians of {} runs of processes that take turns.\n\n\
         Demand Layering (Ji et al., RTSS 2022) reads each layer from a drive while layers before it are computed, and keeps none. On a \
         board whose GPU shares the processor's memory it takes 96.5 % less memory at 14.8 % more delay, and 88.4 % less at less than 1 ms \
         more, by its authors. Where memory is left it reads further ahead, which is how it trades memory for delay.\n\n\
         | way | |\n|---|---|\n\
         | {} | its idea on our kernels: whole layers in the order of use, each into the memory used longest ago; as far ahead as memory \
         allows; none stays (`odswap` of `studies/baselines`) |\n\
         | {} | slices of layers as early as memory allows, and some weights stay (`--strategy preload`) |\n\n\
         Budgets are of the whole process. Each reads by direct I/O. No plan is faster than the drive for what it must read: that decides at \
         small budgets, and is why weights that stay are worth more than reading further ahead.\n\n{tables}",
        rounds as usize * RUNS,
        WAYS[0].0,
        WAYS[1].0,
    );
    for model in MODELS {
        let _ = write!(page, "\n![{model}](demand-layering-{model}.svg)\n");
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_that_does_not_fit_has_no_time() {
        let point = |budget_bytes, layers| Point {
            budget_bytes,
            ms: [layers, Some(15.0)],
        };
        let curve = Curve {
            model: "m",
            whole_bytes: 100 << 20,
            whole_ms: 10.0,
            points: vec![point(10 << 20, None), point(50 << 20, Some(20.0))],
        };
        let table = table(&curve);
        assert!(
            table.contains("| 10.0 | 90.0 % | does not fit | – | 15.00 | 50.0 % |"),
            "{table}"
        );
        assert!(
            table.contains("| 50.0 | 50.0 % | 20.00 | 100.0 % | 15.00 | 50.0 % |"),
            "{table}"
        );
        // The first way has one point, and so no line from corner to corner.
        assert_eq!(plot(&curve).matches("<polyline").count(), 2);
    }
}
