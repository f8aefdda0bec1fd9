//! Side by side with onnxruntime: latency in one interleaved run, peak memory, storage bandwidth.
//!
//! ```text
//!   onnxruntime      | run |     |     | run |     |     |  ...
//!   neap, no budget  |     | run |     |     | run |     |  ...
//!   neap, 25 %       |     |     | run |     |     | run |  ...
//! ```
//! and *overlapped*: no budget, while as many bytes are read beside each run as the budget makes it load.
//! Each engine lives in its own process that waits while another runs. `25 %` is a quarter of
//! onnxruntime's own peak memory, or the smallest feasible budget where that is more.

use crate::models;
use crate::peer::{Peer, median};
use crate::{storage, worker};
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

pub struct Options {
    pub only: Vec<String>,
    pub rounds: usize,
    pub runs_per_round: usize,
    pub write: bool,
}

/// One model's figures.
struct Row {
    model: String,
    ort_ms: f64,
    ort_peak: u64,
    free_ms: f64,
    free_peak: u64,
    budget: u64,
    tight_ms: f64,
    overlapped_ms: f64,
    tight_peak: u64,
    loaded: u64,
    predicted_ms: f64,
    bandwidth: f64,
}

pub fn run(root: &Path, options: &Options) -> Result<()> {
    models::forget_calibration(root)?;
    let Some(python) = models::python(root)? else {
        bail!("onnxruntime is not to be had here")
    };
    let mut rows = Vec::new();
    for name in models::zoo_names() {
        if options.only.is_empty() || options.only.iter().any(|o| name == *o) {
            let row = measure(root, &python, name, options).with_context(|| name.to_string())?;
            eprintln!("{}", line(&row));
            rows.push(row);
        }
    }
    let table = table(&rows);
    println!("{table}");
    if options.write {
        let path = root.join("docs/benchmarks.md");
        std::fs::write(&path, document(&table, options)?)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

fn measure(root: &Path, python: &Path, name: &str, options: &Options) -> Result<Row> {
    let model = models::zoo_model(root, name)?;
    let cache = root.join("target/models/packed");
    let mut ort = Peer::start(
        Command::new(python)
            .arg(root.join("scripts/ort_bench.py"))
            .arg(&model)
            .args(["--serve", "--threads", "2"]),
    )?;
    ort.run(3)?;
    let ort_peak = ort.peak_bytes()?;
    let start = |budget: &str| worker::start(&model, &cache, &["--budget", budget]);
    let mut free = start("none")?;
    let smallest = worker::number(&free.ready, "smallest_feasible_bytes")?;
    let packed = worker::packed_path(&free.ready)?;
    let budget = (ort_peak / 4).max(smallest);
    let mut tight = start(&budget.to_string())?;
    let loaded = worker::number(&tight.ready, "loaded_bytes_per_run")?;
    let beside = ["--beside", &loaded.to_string()];
    let mut overlapped = worker::start(&model, &cache, &beside)?;
    for peer in [&mut free, &mut tight, &mut overlapped] {
        peer.run(3)?;
    }
    let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
    let mut both = Vec::new();
    let mut rates = Vec::new();
    for _ in 0..options.rounds {
        for (peer, times) in [
            (&mut ort, &mut a),
            (&mut free, &mut b),
            (&mut tight, &mut c),
            (&mut overlapped, &mut both),
        ] {
            times.extend(peer.turn(options.runs_per_round)?);
        }
        rates.push(storage::turn(
            &packed,
            None,
            loaded,
            options.runs_per_round,
        )?);
    }
    Ok(Row {
        model: name.into(),
        ort_ms: median(&a),
        ort_peak,
        free_ms: median(&b),
        free_peak: free.peak_bytes()?,
        budget,
        tight_ms: median(&c),
        overlapped_ms: median(&both),
        tight_peak: tight.peak_bytes()?,
        loaded,
        predicted_ms: tight.ready["predicted_latency_ms"].as_f64().unwrap_or(0.0),
        bandwidth: median(&rates),
    })
}

fn line(row: &Row) -> String {
    let mib = |bytes: u64| bytes as f64 / 1048576.0;
    let io_ms = row.loaded as f64 / row.bandwidth * 1e3;
    let bound = row.free_ms.max(io_ms);
    format!(
        "| {} | {:.2} | {:.2} | **{:.2}** | {:.0} | {:.0} | {:.1} | {:.2} | {:.1} | {:.2} | {:.2} | **{:.2}** | {:.2} | **{:.2}** | {:.2} |",
        row.model,
        row.ort_ms,
        row.free_ms,
        row.free_ms / row.ort_ms,
        mib(row.ort_peak),
        mib(row.free_peak),
        mib(row.budget),
        mib(row.tight_peak),
        mib(row.loaded),
        row.tight_ms,
        bound,
        row.tight_ms / bound,
        row.overlapped_ms,
        row.tight_ms / row.overlapped_ms,
        row.predicted_ms,
    )
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| model | onnxruntime ms | no budget ms | ratio | onnxruntime peak MiB | no budget peak MiB | budget MiB | peak MiB | loaded MiB/run | budget ms | bound ms | ratio to bound | overlapped ms | ratio to overlapped | predicted ms |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in rows {
        let _ = writeln!(text, "{}", line(row));
    }
    let rates: Vec<f64> = rows.iter().map(|r| r.bandwidth / 1e9).collect();
    let (low, high) = rates
        .iter()
        .fold((f64::MAX, 0.0f64), |(l, h), &r| (l.min(r), h.max(r)));
    let _ = writeln!(
        text,
        "\nStorage bandwidth measured in the same run: {low:.2}-{high:.2} GB/s."
    );
    text
}

/// Processor and instruction set.
pub fn machine() -> Result<String> {
    let cpu = std::fs::read_to_string("/proc/cpuinfo")?;
    let field = |key: &str| {
        cpu.lines()
            .find(|l| l.starts_with(key))
            .and_then(|l| l.split(": ").nth(1))
            .unwrap_or("?")
            .to_string()
    };
    let family = format!(
        "{} (family {}, model {})",
        field("model name"),
        field("cpu family"),
        field("model\t")
    );
    let isa = if cpu.contains("avx512f") {
        "AVX-512"
    } else {
        "AVX2"
    };
    Ok(format!("{family}, {isa}"))
}

fn document(table: &str, options: &Options) -> Result<String> {
    let machine = crate::setting::setting()?;
    Ok(format!(
        "# Benchmarks\n\n\
         Made by `cargo study networks --write`. Two threads on {machine}; medians of {} runs per engine,\n\
         taken in turn in one interleaved run ({} rounds of {}). onnxruntime 1.31.0 on the CPU with all\n\
         optimisations, its peak memory as `VmHWM`.\n\n\
         *No budget*: everything resident. *Budget*: a quarter of onnxruntime's peak memory (or the smallest\n\
         feasible budget where that is more). *Bound*: the larger of the latency with no budget and the bytes\n\
         loaded per run divided by the storage bandwidth, which is measured in every round (median) by reading\n\
         as many bytes as the round's runs do, after the same rest: a drive may be faster for a moment.\n\
         *Overlapped*: everything resident, while a thread reads as many bytes beside each run, which is done\n\
         when both are and in which nothing waits for anything: what perfect overlap takes on this machine,\n\
         where reading takes processor time, memory bandwidth and interrupts from computing.\n\
         Engines rest between turns, so that no waiting thread of one takes time from another; the first run\n\
         of a turn is not counted. Nothing is calibrated: plans count with the estimate that a new user's do.\n\n{table}",
        options.rounds * options.runs_per_round,
        options.rounds,
        options.runs_per_round,
    ))
}
