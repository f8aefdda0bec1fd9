//! Tables beside the paper's figures, and the page that holds them.

use super::measure::Overhead;
use super::{APPLICATIONS, Measured, WAYS};
use anyhow::Result;
use serde_json::Value;
use std::fmt::Write as _;

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or(0.0)
}

fn models(report: &Value) -> impl Iterator<Item = &Value> {
    report["models"].as_array().into_iter().flatten()
}

pub fn tables(all: &[Measured], overheads: &[Overhead]) -> String {
    let mut text = String::new();
    for measured in all {
        text += &application(measured);
    }
    text + &summary(all) + &adaptations(all) + &overhead(overheads)
}

/// Every model under every way to run it.
fn application(measured: &Measured) -> String {
    let mut text = format!(
        "## {}\n\n\
         | way | model | budget MiB | peak MiB | to direct | ms (median) | 95 % | to direct | waiting ms | predicted alone ms |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        measured.name
    );
    let direct = measured.ways.first().and_then(|w| w.as_ref().ok());
    for (way, report) in WAYS.iter().zip(&measured.ways) {
        let report = match report {
            Ok(report) => report,
            Err(reason) => {
                let _ = writeln!(text, "| {} | {reason} | | | | | | | | |", way.name);
                continue;
            }
        };
        for (i, model) in models(report).enumerate() {
            let base = direct.and_then(|d| models(d).nth(i));
            let to_direct = |of: &dyn Fn(&Value) -> f64| {
                base.map_or(String::new(), |base| {
                    format!("{:+.1} %", 100.0 * (of(model) / of(base) - 1.0))
                })
            };
            let peak = |m: &Value| number(m, "peak_memory_bytes");
            let median = |m: &Value| number(&m["latency_ms"], "median");
            let _ = writeln!(
                text,
                "| {} | {} | {:.1} | {:.1} | {} | {:.1} | {:.1} | {} | {:.1} | {:.1} |",
                way.name,
                model["name"].as_str().unwrap_or("?"),
                mib(number(model, "budget_bytes")),
                mib(peak(model)),
                to_direct(&peak),
                median(model),
                number(&model["latency_ms"], "p95"),
                to_direct(&median),
                number(model, "stall_ms"),
                number(model, "predicted_latency_ms"),
            );
        }
    }
    text + "\n"
}

/// Geometric mean over models of `of` there and in direct inference.
fn mean_ratio(report: &Value, direct: &Value, of: impl Fn(&Value) -> f64) -> f64 {
    let logs: Vec<f64> = models(report)
        .zip(models(direct))
        .map(|(m, d)| (of(m) / of(d)).ln())
        .collect();
    (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
}

fn summary(all: &[Measured]) -> String {
    let mut text = String::from(
        "## Together\n\n\
         Geometric means over an application's models, to direct inference; the slowest model; and what the\n\
         allocation was predicted to give the slowest.\n\n\
         | application | way | total MiB | peaks MiB | memory | latency | slowest ms | slowest predicted ms | the paper |\n\
         |---|---|--:|--:|--:|--:|--:|--:|---|\n",
    );
    for measured in all {
        let Some(Ok(direct)) = measured.ways.first() else {
            continue;
        };
        let paper = APPLICATIONS.iter().find(|a| a.name == measured.name);
        for (way, report) in WAYS.iter().zip(&measured.ways) {
            let Ok(report) = report else { continue };
            let memory = mean_ratio(report, direct, |m| number(m, "peak_memory_bytes"));
            let latency = mean_ratio(report, direct, |m| number(&m["latency_ms"], "median"));
            let largest = &report["largest_weighted_latency_ms"];
            let note = match (way.name, paper) {
                ("swapnet", Some(p)) => format!(
                    "memory −{}, latency +{} (+6.2 % on average)",
                    p.paper_reduction, p.paper_increase
                ),
                ("equal", _) => "latency +19.0–34.3 % to its own allocation".into(),
                _ => String::new(),
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:.0} | {:+.1} % | {:+.1} % | {:.1} | {:.1} | {note} |",
                measured.name,
                way.name,
                match way.policy {
                    "direct" => "none".into(),
                    _ => format!("{:.0}", mib(number(report, "total_bytes"))),
                },
                mib(number(report, "peak_memory_bytes")),
                100.0 * (memory - 1.0),
                100.0 * (latency - 1.0),
                number(largest, "measured"),
                number(largest, "predicted"),
            );
        }
    }
    text + "\n"
}

fn adaptations(all: &[Measured]) -> String {
    let mut text = String::from(
        "## When the total moves\n\n\
         *Adapting* is dividing the total anew, finding the plan (made when the task began, or now), and giving memory\n\
         back or taking it, the slowest model that shrinks and the slowest that grows one after the other, while all others\n\
         go on running. Weights that become resident are read beside the next run. *Settled* includes waiting for runs to\n\
         end. The paper's adaptations take 64 and 74 ms, without reading.\n\n\
         | application | to MiB | adapting ms | allocating | shrinking | growing | read beside the next runs MiB | settled ms |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for measured in all {
        for change in measured.moving["adaptations"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let ms = |key: &str| number(change, key);
            let _ = writeln!(
                text,
                "| {} | {:.0} | **{:.1}** | {:.2} | {:.1} | {:.1} | {:.1} | {:.0} |",
                measured.name,
                mib(number(change, "total_bytes")),
                ms("adapting_ms"),
                ms("allocating_ms"),
                ms("shrinking_ms"),
                ms("growing_ms"),
                mib(number(change, "read_bytes")),
                ms("settled_ms"),
            );
        }
    }
    text + "\n"
}

fn overhead(overheads: &[Overhead]) -> String {
    let mut text = String::from(
        "## Smallest budgets, and what is kept beside weights\n\n\
         Budgets are of whole processes. The paper's skeletons take 0.01–0.06 MB, intermediate results 0.12–12.5 MB,\n\
         strategy tables 0.5–3.43 MB; its smallest budget for VGG 19 is set by the first fully connected layer\n\
         (392 MB), as that of blocks is here.\n\n\
         | model | weights MiB | smallest, slices MiB | smallest, blocks MiB | activations MiB | tables KiB |\n\
         |---|--:|--:|--:|--:|--:|\n",
    );
    for o in overheads {
        let _ = writeln!(
            text,
            "| {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} |",
            o.model,
            mib(o.weight_bytes as f64),
            mib(o.smallest_slices_bytes as f64),
            mib(o.smallest_blocks_bytes as f64),
            mib(o.activation_bytes as f64),
            o.tables_bytes as f64 / 1024.0,
        );
    }
    text
}

pub fn page(tables: &str, seconds: f64) -> Result<String> {
    Ok(format!(
        "# Several models in one total of memory\n\n\
         Made by `cargo study swapnet --write`. SwapNet's three applications (`examples/tasks`) with the zoo's\n\
         models on {}, two processors; one thread for each model, {seconds} s for each way to run\n\
         them.\n\n\
         - *direct*: every model wholly in memory, no total (the paper's DInf).\n\
         - *curves*: slices and resident weights (`preload`), memory divided so that the slowest model is as fast as\n\
         its and the others' predicted latencies allow.\n\
         - *slowdown*: the same, so that the model that loses most to direct inference loses as little as can be.\n\
         - *swapnet*: whole layers in blocks, two at a time, memory by Equation 1.\n\
         - *equal*: the same with equal memory for all (the paper's w/o-pat-sch).\n\
         - *by channel*: slices of channels one after another, each read when it is due (as the paper's DCha).\n\n\
         Memory is that of whole processes (`VmHWM`), with nothing counted twice: the paper's direct inference also\n\
         holds a copy in the page cache, and another for the GPU, so that its savings to it are larger. More models\n\
         than processors run here, and all share one storage device; predictions are of a model that is alone.\n\n\
         {tables}",
        crate::setting::setting()?,
    ))
}
