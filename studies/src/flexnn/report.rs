//! Tables, and the page that holds them.

use super::results::{ModelResult, Point, geometric_mean};
use super::{Options, PAPER_STORAGE};
use anyhow::Result;
use std::fmt::Write as _;

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

pub fn tables(results: &[ModelResult]) -> String {
    let mut text = String::new();
    for part in [peers(results), paper_point(results), curves(results, None)] {
        text += &part;
        text += "\n";
    }
    for (rate, _) in PAPER_STORAGE {
        text += &curves(results, Some(rate));
    }
    text + &ablations(results) + &predictions(results)
}

/// No budget, beside the others.
fn peers(results: &[ModelResult]) -> String {
    let mut text = String::from(
        "| model | onnxruntime ms | OpenVINO ms | ncnn ms | no budget ms | to the fastest | peaks MiB: onnxruntime, OpenVINO, ncnn, no budget |\n\
         |---|--:|--:|--:|--:|--:|---|\n",
    );
    let mut ratios = Vec::new();
    let mut notes = Vec::new();
    for result in results {
        let Some(free) = result.curve(None).and_then(|c| c.points.last()) else {
            continue;
        };
        let mut cells = Vec::new();
        let mut peaks = Vec::new();
        for peer in &result.peers {
            match &peer.outcome {
                Ok(f) => {
                    cells.push(format!("{:.2}", f.latency_ms));
                    peaks.push(format!("{:.0}", mib(f.peak_bytes)));
                }
                Err(reason) => {
                    cells.push("none".into());
                    peaks.push("none".into());
                    notes.push(format!("{} on {}: {reason}.", peer.engine, result.model));
                }
            }
        }
        peaks.push(format!("{:.0}", mib(free.peak_bytes)));
        let ratio = result.fastest_peer().map(|(engine, f)| {
            let ratio = free.latency_ms / f.latency_ms;
            ratios.push((ratio, result.model.as_str()));
            format!("**{ratio:.2}** ({engine})")
        });
        let _ = writeln!(
            text,
            "| {} | {} | {:.2} | {} | {} |",
            result.model,
            cells.join(" | "),
            free.latency_ms,
            ratio.unwrap_or("-".into()),
            peaks.join(", ")
        );
    }
    let worst = ratios.iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let values: Vec<f64> = ratios.iter().map(|r| r.0).collect();
    if let (Some(mean), Some((ratio, model))) = (geometric_mean(&values), worst) {
        let _ = writeln!(
            text,
            "\nNo budget ÷ fastest engine: geometric mean **{mean:.2}** over {} models, worst {ratio:.2} ({model}).",
            values.len()
        );
    }
    for note in notes {
        let _ = writeln!(text, "\n{note}");
    }
    text
}

/// The paper's headline: resnet152 at 6.19 % of onnxruntime's peak.
fn paper_point(results: &[ModelResult]) -> String {
    let found = results.iter().find_map(|r| {
        let curve = r.curve(None)?;
        let point = curve.points.iter().find(|p| p.is_paper_share)?;
        Some((r, point, curve.free_ms()?))
    });
    let Some((result, point, free_ms)) = found else {
        return String::new();
    };
    format!(
        "{} at {:.1} MiB, 6.19 % of onnxruntime's peak (the paper's −93.81 %): {:.2} ms, **{:.2}** × the bound of \
         {:.2} ms, {:.2} × its own latency without a budget; peak {:.1} MiB.\n",
        result.model,
        mib(point.memory_bytes()),
        point.latency_ms,
        point.latency_ms / point.bound_ms(free_ms),
        point.bound_ms(free_ms),
        point.latency_ms / free_ms,
        mib(point.peak_bytes)
    )
}

fn curves(results: &[ModelResult], throttle: Option<u64>) -> String {
    if !results.iter().any(|r| r.curve(throttle).is_some()) {
        return String::new();
    }
    let mut text = match throttle {
        None => "Storage as it is:\n\n".to_string(),
        Some(rate) => format!("Storage at {} MB/s:\n\n", rate / 1_000_000),
    };
    text += "| model | budget MiB | peak MiB | loaded MiB/run | storage GB/s | ms | bound ms | to the bound | to no budget | predicted ÷ measured | on demand ms |\n\
             |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
    for result in results {
        let Some(curve) = result.curve(throttle) else {
            continue;
        };
        let free_ms = curve.free_ms().unwrap_or(f64::NAN);
        for point in &curve.points {
            let same = |p: &&Point| p.budget_bytes == point.budget_bytes;
            let ondemand = curve.ondemand.iter().find(same);
            let bound_ms = point.bound_ms(free_ms);
            let _ = writeln!(
                text,
                "| {} | {}{} | {:.1} | {:.1} | {} | {:.2} | {:.2} | **{:.2}** | {:.2} | {:.2} | {} |",
                result.model,
                point
                    .budget_bytes
                    .map_or("none".into(), |b| format!("{:.1}", mib(b))),
                if point.is_paper_share {
                    " (6.19 %)"
                } else {
                    ""
                },
                mib(point.peak_bytes),
                mib(point.loaded_bytes),
                point
                    .bytes_per_second
                    .map_or("-".into(), |r| format!("{:.2}", r / 1e9)),
                point.latency_ms,
                bound_ms,
                point.latency_ms / bound_ms,
                point.latency_ms / free_ms,
                point.predicted_ms / point.latency_ms,
                ondemand.map_or("-".into(), |p| format!("{:.2}", p.latency_ms)),
            );
        }
        if let Some(resident) = &curve.resident {
            let _ = writeln!(
                text,
                "| {} | resident | {:.1} | 0.0 | - | {:.2} | {free_ms:.2} | {:.2} | {:.2} | {:.2} | - |",
                result.model,
                mib(resident.peak_bytes),
                resident.latency_ms,
                resident.latency_ms / free_ms,
                resident.latency_ms / free_ms,
                resident.predicted_ms / resident.latency_ms,
            );
        }
    }
    text + "\n"
}

fn ablations(results: &[ModelResult]) -> String {
    let Some(names) = results.iter().find_map(|r| r.ablations.first()) else {
        return String::new();
    };
    let names: Vec<&str> = names.variants.iter().map(|v| v.without.as_str()).collect();
    let mut text = String::from("| model | budget MiB | whole ms |");
    for name in &names {
        let _ = write!(text, " w/o {name} |");
    }
    text += "\n|---|--:|--:|";
    text += &"--:|".repeat(names.len());
    text += "\n";
    let mut ratios = vec![Vec::new(); names.len()];
    for result in results {
        for a in &result.ablations {
            let _ = write!(
                text,
                "| {} | {:.1} | {:.2} |",
                result.model,
                mib(a.budget_bytes),
                a.full_ms
            );
            for (variant, ratios) in a.variants.iter().zip(&mut ratios) {
                let _ = match variant.latency_ms {
                    Ok(ms) => {
                        ratios.push(ms / a.full_ms);
                        write!(text, " {:.2} × |", ms / a.full_ms)
                    }
                    Err(bytes) => write!(text, " needs {:.1} MiB |", mib(bytes)),
                };
            }
            text += "\n";
        }
    }
    text += "| geometric mean, where it runs | | |";
    for ratios in &ratios {
        let mean = geometric_mean(ratios).map_or("-".into(), |m| format!("**{m:.2}** ×"));
        let _ = write!(text, " {mean} |");
    }
    text + "\n\n"
}

fn predictions(results: &[ModelResult]) -> String {
    let curves = results
        .iter()
        .flat_map(|r| r.curves.iter().map(move |c| (r, c)));
    let mut apart: Vec<(f64, String)> = curves
        .flat_map(|(r, c)| {
            c.points.iter().map(move |p| {
                let storage = c.throttle_bytes_per_second;
                let storage =
                    storage.map_or(String::new(), |b| format!(" at {} MB/s", b / 1_000_000));
                let budget = p
                    .budget_bytes
                    .map_or("no budget".into(), |b| format!("{:.1} MiB", mib(b)));
                let apart = (p.predicted_ms / p.latency_ms - 1.0).abs();
                (apart, format!("{}, {budget}{storage}", r.model))
            })
        })
        .collect();
    apart.sort_by(|a, b| a.0.total_cmp(&b.0));
    let Some((worst, which)) = apart.last() else {
        return String::new();
    };
    let within = apart.iter().filter(|a| a.0 <= 0.05).count();
    format!(
        "Predicted latency is within 5 % of measured for {within} of {} points ({:.0} %); half of them within {:.1} %; \
         worst {:.0} % apart ({which}).\n",
        apart.len(),
        100.0 * within as f64 / apart.len() as f64,
        100.0 * apart[apart.len() / 2].0,
        100.0 * worst,
    )
}

pub fn document(results: &[ModelResult], options: &Options) -> Result<String> {
    let machine = crate::setting::setting()?;
    let (rounds, runs) = (options.rounds, options.runs_per_round);
    let throttled: Vec<String> = PAPER_STORAGE
        .iter()
        .filter(|(rate, _)| results.iter().any(|r| r.curve(Some(*rate)).is_some()))
        .map(|(rate, device)| {
            let megabytes = rate / 1_000_000;
            format!("![Latency by memory at {megabytes} MB/s: {device}](flexnn-curves-{megabytes}.svg)\n\n{}", curves(results, Some(*rate)))
        })
        .collect();
    let throttled = match throttled.is_empty() {
        true => "Not measured.\n\n".to_string(),
        false => throttled.concat(),
    };
    Ok(format!(
        "# Memory against latency\n\n\
         Made by `cargo study flexnn --write`. Two threads on {machine}; medians of {} runs or more, taken in turn by\n\
         processes that wait for each other ({rounds} rounds of {runs}, more of small models; before each turn a rest and\n\
         one run that is not counted).\n\n\
         - *Memory* is that of the whole process. The other engines have no limit; their peak is `VmHWM`, with Python and\n\
           numpy in it. They compute in f32 with two threads, and their outputs are compared with onnxruntime's first.\n\
         - *Budgets* go from the smallest feasible one up in equal ratios; the last is none, everything resident.\n\
         - *Bound*: the larger of the engine's own latency without a budget and the bytes loaded per run divided by the\n\
           bandwidth of storage. That is measured in every round, after the same rest, by reading as many bytes as the\n\
           round's runs load (at least 32 MiB), in the engine's own request size and depth: a drive may give more\n\
           for a moment than it does for long.\n\
         - *On demand* loads a step's weights when the step before is done and keeps none (no figure where it needs more than that budget); *resident* loads all once.\n\n\
         ## No budget, and storage as it is\n\n\
         ![Latency by memory](flexnn-curves.svg)\n\n\
         {}\n{}\n{}\
         ## Slower storage\n\n\
         The engine's own throttle: a source that reports loads no earlier than a drive of that rate would end them, one\n\
         after the other from when they were submitted (`ThrottledSource`). The kernel's limits for control groups count in\n\
         slices of a tenth of a second, in which a small model's weights come at full speed. One round; plans know the rate.\n\n\
         {throttled}\
         ## Without each part\n\n\
         The same budgets without a part of the engine, as multiples of the whole engine's latency.\n\n\
         - *static memory* (as in the paper): buffers lie where an allocator puts them that takes the lowest free place as\n\
           each comes into use and knows nothing of what follows, and weights have memory of their own beside them. No call\n\
           to an allocator is made while running, so that what shows is memory lost, not time in `malloc`.\n\
         - *preloading* (as in the paper): on demand. *both*: neither.\n\
         - *cyclic*: no loads for the next run while one runs.\n\
         - *kernel choice*: the same kernels under every budget (`--exact`). *row bands*: every layer whole.\n\n\
         ![Latency without each part](flexnn-ablation.svg)\n\n\
         {}\
         ## Predicted and measured\n\n\
         Each model is [calibrated](calibration.md) in full before its turns. A plan is predicted when it is made, up to minutes before it is\n\
         measured, and machine and drive change their speed meanwhile; how good predictions are beside that: [the same\n\
         seconds](prediction.md).\n\n\
         ![Predicted and measured latency](flexnn-predicted.svg)\n\n\
         {}",
        rounds * runs,
        peers(results),
        paper_point(results),
        curves(results, None),
        ablations(results),
        predictions(results),
    ))
}
