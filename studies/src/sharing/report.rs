//! Tables beside the paper's figures and the simulated ones, and the page that holds them.

use super::fleet::{Served, Way};
use super::latencies::{BUDGETS_MIB, Outcome as Cell, STRATEGIES, Table};
use super::serve::{Figures, OWN_BYTES, Outcome, capacity, replay_ms};
use super::{BATCHES, LOADS, MODEL, MODELS, Part, Place, SharingArgs, Tier};
use crate::swapadvisor::{Brief, Latency};
use anyhow::Result;
use std::fmt::Write as _;

/// Per cent of what one model can do.
pub const REPLAYED_LOADS: [u32; 6] = [10, 30, 50, 60, 80, 90];

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn title(way: Way) -> &'static str {
    match way {
        Way::NotShared => "not shared",
        Way::Divided => "divided",
        Way::Owned => "192 MiB each",
        Way::TimeShared => "time-shared",
        Way::TimeSharedOverlapped => "time-shared, reading beside",
    }
}

/// One part, for who waits.
pub fn progress(tier: Tier, figures: &Figures) -> String {
    let mut text = String::new();
    for outcome in &figures.ways {
        let _ = writeln!(text, "{}", line(tier, figures, outcome));
    }
    text
}

pub fn tables(place: &Place) -> Result<String> {
    Ok(serving(place)? + &latencies(place)?)
}

/// Figure 8.
fn serving(place: &Place) -> Result<String> {
    let mut lines = String::new();
    let mut switches = String::new();
    let mut all: Vec<(Tier, Figures)> = Vec::new();
    for (tier, percents) in LOADS {
        for &percent in percents {
            for models in MODELS {
                let part = Part::Serving {
                    tier,
                    models,
                    percent,
                };
                let Some(figures) = place.kept.read::<Figures>(&part.name())? else {
                    continue;
                };
                for outcome in &figures.ways {
                    let _ = writeln!(lines, "{}", line(tier, &figures, outcome));
                }
                switches += &switching(tier, &figures);
                all.push((tier, figures));
            }
        }
    }
    if all.is_empty() {
        return Ok(String::new());
    }
    Ok(format!(
        "## Several models (Figure 8)\n\n\
         ### 99th percentile of latency, to that of one model that is not shared\n\n\
         The paper, on its GPU: at most 2 × with memory divided, for 4 and 16 models, and 8 × time-shared with 16 models at\n\
         300 samples a second, about 80 % of what one model does there.\n\n{}\n\
         ### In milliseconds\n\n\
         | weights in | models | load | requests/s | way | memory MiB | served | median | 99 % | 99 % replayed | run | after a switch | reading GB/s |\n\
         |---|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|\n{lines}\n\
         ### What a switch takes when the machine is time-shared\n\n\
         Medians in milliseconds; the run itself, with weights read beside it or not, comes on top.\n\n\
         | weights in | models | load | way | giving memory up | taking it | of both, planning | reading weights |\n\
         |---|--:|--:|---|--:|--:|--:|--:|\n{switches}\n",
        comparison(place, &all)?,
    ))
}

fn line(tier: Tier, figures: &Figures, outcome: &Outcome) -> String {
    let or_none = |ms: Option<f64>| ms.map_or("–".into(), |ms| format!("{ms:.0}"));
    let models = outcome.way.models(figures.models);
    // Where nothing is time-shared each model has its own memory, and all runs are alike.
    let (run_ms, switched_ms) = match outcome.switch {
        Some(_) => (outcome.service_ms(false), Some(outcome.service_ms(true))),
        None => (outcome.median_service_ms(), None),
    };
    let replayed = outcome.replayed_ms(figures, 0.99);
    format!(
        "| {} | {models} | {} % | {:.1} | {} | {:.0} | {} of {} | {:.0} | {:.0} | {} | {} | {} | {:.2} |",
        tier.name(),
        figures.percent,
        figures.per_second,
        title(outcome.way),
        mib(outcome.memory_bytes),
        outcome.served.len(),
        outcome.arrived,
        outcome.within_ms(0.5),
        outcome.within_ms(0.99),
        or_none(replayed),
        or_none(Some(run_ms).filter(|ms| ms.is_finite())),
        or_none(switched_ms.filter(|ms| ms.is_finite())),
        figures.storage_bytes_per_second / 1e9,
    )
}

fn switching(tier: Tier, figures: &Figures) -> String {
    let mut text = String::new();
    for outcome in &figures.ways {
        if let Some(switch) = outcome.switch {
            let reading = match outcome.way {
                Way::TimeShared => format!("{:.1}", switch.reading_ms),
                _ => "beside the run".into(),
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} % | {} | {:.1} | {:.1} | {:.1} | {reading} |",
                tier.name(),
                figures.models,
                figures.percent,
                title(outcome.way),
                switch.giving_up_ms,
                switch.taking_ms,
                switch.planning_ms,
            );
        }
    }
    text
}

/// 99th percentiles to that of one model that is not shared, replayed with what all parts of a tier measured; and
/// simulated on the paper's device.
fn comparison(place: &Place, all: &[(Tier, Figures)]) -> Result<String> {
    let mut text = String::from("| weights in | | models |");
    for percent in REPLAYED_LOADS {
        let _ = write!(text, " {percent} % |");
    }
    text += "\n|---|---|--:|";
    REPLAYED_LOADS.iter().for_each(|_| text += "--:|");
    text += "\n";
    for tier in LOADS.map(|(tier, _)| tier) {
        let of = |way: Way, models: Option<usize>| -> Vec<Served> {
            let parts = all
                .iter()
                .filter(|(t, f)| *t == tier && models.is_none_or(|models| models == f.models));
            let outcomes = parts.flat_map(|(_, f)| &f.ways).filter(|o| o.way == way);
            outcomes.flat_map(|o| o.served.iter().copied()).collect()
        };
        let alone = of(Way::NotShared, None);
        let at = |served: &[Served], models: usize, percent: u32| {
            let per_second = capacity(&alone) * f64::from(percent) / 100.0;
            replay_ms(served, models, per_second, 1, 0.99)
        };
        let ways = Way::ALL.into_iter().skip(1);
        for (way, models) in ways.flat_map(|way| MODELS.map(|models| (way, models))) {
            let served = of(way, Some(models));
            if served.is_empty() {
                continue;
            }
            let _ = write!(text, "| {} | {} | {models} |", tier.name(), title(way));
            for percent in REPLAYED_LOADS {
                text += &ratio(at(&served, models, percent), at(&alone, 1, percent));
            }
            text += "\n";
        }
    }
    let simulated = place.kept.read::<Brief>(&Part::Simulated.name())?;
    let simulated = simulated.map_or(Vec::new(), |s| s.serving);
    let Some((alone, others)) = simulated.split_first() else {
        return Ok(text);
    };
    for serving in others {
        let _ = write!(text, "| simulated | {} | {} |", serving.way, serving.models);
        for (&ns, &alone) in serving.p99_ns.iter().zip(&alone.p99_ns) {
            text += &ratio(ns, alone);
        }
        text += "\n";
    }
    Ok(text)
}

/// A cell.
fn ratio(a: Option<f64>, b: Option<f64>) -> String {
    match (a, b) {
        (Some(a), Some(b)) => format!(" {:.2} × |", a / b),
        _ => " – |".into(),
    }
}

/// Table 2.
fn latencies(place: &Place) -> Result<String> {
    let mut lines = String::new();
    let simulated = place.kept.read::<Brief>(&Part::Simulated.name())?;
    let simulated = simulated.map_or(Vec::new(), |s| s.latencies);
    for batch in BATCHES {
        let part = Part::Latencies { batch };
        let Some(table) = place.kept.read::<Table>(&part.name())? else {
            continue;
        };
        let _ = writeln!(
            lines,
            "| {batch} | none | {:.1} ms, {:.0} MiB | | | | {} | | | |",
            table.free_ms,
            mib(table.free_peak_bytes),
            table.rounds,
        );
        for budget_mib in BUDGETS_MIB {
            let _ = write!(lines, "| {batch} | {budget_mib} |");
            for strategy in STRATEGIES {
                let is = |c: &&super::latencies::Cell| {
                    c.budget_mib == budget_mib && c.strategy == strategy
                };
                let cell = table.cells.iter().find(is).map(|cell| &cell.outcome);
                let _ = match cell {
                    Some(Cell::Needs(bytes)) => {
                        write!(lines, " N/A (from {:.0} MiB) |", mib(*bytes))
                    }
                    Some(Cell::Fits) => write!(lines, " as none |"),
                    Some(Cell::Measured {
                        median_ms,
                        loaded_bytes,
                        peak_bytes,
                        ..
                    }) => write!(
                        lines,
                        " {:.2} × ({median_ms:.0} ms, {:.0} MiB, {:.0} loaded) |",
                        median_ms / table.free_ms,
                        mib(*peak_bytes),
                        mib(*loaded_bytes),
                    ),
                    None => write!(lines, " |"),
                };
            }
            let is = |l: &&Latency| l.batch == batch && l.megabytes == budget_mib;
            let cells = match simulated.iter().find(is) {
                Some(latency) => elsewhere(latency, &simulated),
                None => " | | ".into(),
            };
            let _ = writeln!(lines, " {} |{cells}|", table.rounds);
        }
    }
    if lines.is_empty() {
        return Ok(lines);
    }
    Ok(format!(
        "## One model (Table 2)\n\n\
         Median latency to that without a budget, and in brackets itself, the process's peak and what each run loads\n\
         (MiB). *As none*: the plan without a budget fits, transformed weights included. *N/A*: some step's\n\
         activations and weights do not fit, however they are cut; more samples have larger activations, and nothing here\n\
         splits a batch. A batch of 64 takes seconds a run, so its medians are of few. Simulated are the two searches on the\n\
         paper's device, as shares of memory without end; the paper's figures are shares of its own with 640 MB.\n\n\
         | batch | budget MiB | {} | rounds | simulated, pools | simulated, placed | the paper |\n\
         |--:|--:|---|---|---|---|--:|---|---|---|\n{lines}",
        STRATEGIES.join(" | "),
    ))
}

/// A cell of Table 2 in simulation, and in the paper.
fn elsewhere(latency: &Latency, all: &[Latency]) -> String {
    let cell = |seconds: Option<f64>, of: f64| match seconds {
        Some(seconds) => format!(" {:.2} × ({:.0} ms) ", seconds / of, seconds * 1e3),
        None => " N/A ".into(),
    };
    let seconds = |ns: Option<f64>| ns.map(|ns| ns / 1e9);
    let ideal_s = latency.ideal_ns / 1e9;
    let same = all.iter().filter(|l| l.batch == latency.batch);
    let papers_best_s = same.filter_map(|l| l.paper_s).fold(f64::INFINITY, f64::min);
    [
        cell(seconds(latency.pooled_ns), ideal_s),
        cell(seconds(latency.placed_ns), ideal_s),
        cell(latency.paper_s, papers_best_s),
    ]
    .join("|")
}

pub fn page(tables: &str, args: &SharingArgs) -> Result<String> {
    Ok(format!(
        "# Sharing a machine\n\n\
         Made by `cargo study sharing` and `--write`: SwapAdvisor's Figure 8 and Table 2 for real, with {MODEL} at\n\
         batch 1 (Table 2 at others, too) and two threads on {}. [SwapAdvisor's search](swapadvisor.md) has both in\n\
         simulation on the paper's device.\n\n\
         Requests arrive as a Poisson process (seed {}) for {} s, each for a model drawn at random, and are served one at\n\
         a time, first come first served, by processes that wait for each other. *Load* is the rate of requests as a share of what\n\
         one resident model can do, measured right before. All ways of one part get the same requests, one way after the\n\
         other.\n\n\
         - *not shared*: one model with everything resident, whichever is asked for.\n\
         - *divided*: each of N models has its N-th part of the memory that one takes with everything resident, keeps\n\
           its session open, and streams the rest of its weights in every run.\n\
         - *192 MiB each*: what the simulated study gives each model ({:.0} MiB in all for 16).\n\
         - *time-shared*: the model that is asked for gets all memory; before, the one that had it gives it up. Then its\n\
           weights are read, then it runs (the paper's baseline).\n\
         - *time-shared, reading beside*: the same with weights read beside the run, as it needs them: what this engine\n\
           does by itself after any change of its budget.\n\n\
         Memory is that of whole processes together (`VmHWM`; with time-sharing what they hold between two requests, as\n\
         their peaks never come together). Weights lie on the drive, or in a file system in memory (*ram*: the paper's are in\n\
         the host's). All models are one file under direct I/O, which keeps nothing of it.\n\n\
         *99 % replayed* is that of 50,000 requests at the same rate, each of which takes as long as one that was\n\
         measured, drawn at random (where the machine is time-shared, from those that found their model resident, or did not); a\n\
         few seconds have too few requests for a 99th percentile. The first table replays what all parts of a tier\n\
         measured together. `–`: more than the way can serve. *Reading* is what storage gives within the part, in the\n\
         engine's requests.\n\n\
         {tables}",
        crate::setting::setting()?,
        args.seed,
        args.seconds,
        mib(16 * OWN_BYTES),
    ))
}
