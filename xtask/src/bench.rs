//! Side by side with onnxruntime: latency in one interleaved run, peak memory, storage bandwidth.
//!
//! ```text
//!   onnxruntime      | run |     |     | run |     |     |  ...
//!   neap, no budget  |     | run |     |     | run |     |  ...
//!   neap, 25 %       |     |     | run |     |     | run |  ...
//! ```
//! Each engine lives in its own process that waits while another runs. `25 %` is a quarter of
//! onnxruntime's own peak memory, or the smallest feasible budget where that is more.

use crate::models;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

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
    tight_peak: u64,
    loaded: u64,
    predicted_ms: f64,
    bandwidth: f64,
}

pub fn run(root: &Path, options: &Options) -> Result<()> {
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
    let ort_peak = ort.ask("stats")?["peak_memory_bytes"]
        .as_u64()
        .context("onnxruntime's peak")?;
    let worker = |budget: &str| -> Result<(Peer, Value)> {
        let me = std::env::current_exe()?;
        let mut peer = Peer::start(
            Command::new(me)
                .arg("bench-worker")
                .arg(&model)
                .arg("--budget")
                .arg(budget)
                .arg("--cache-dir")
                .arg(&cache),
        )?;
        let ready = peer.ready.take().unwrap_or_default();
        Ok((peer, ready))
    };
    let (mut free, ready) = worker("none")?;
    let smallest = ready["smallest_feasible_bytes"]
        .as_u64()
        .context("smallest_feasible_bytes")?;
    let packed = ready["packed_path"]
        .as_str()
        .context("packed_path")?
        .to_string();
    let budget = (ort_peak / 4).max(smallest);
    let (mut tight, ready) = worker(&budget.to_string())?;
    for peer in [&mut free, &mut tight] {
        peer.run(3)?;
    }
    let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
    let mut rates = Vec::new();
    for _ in 0..options.rounds {
        for (peer, times) in [
            (&mut ort, &mut a),
            (&mut free, &mut b),
            (&mut tight, &mut c),
        ] {
            // Threads of the engine before may still spin, waiting for work; they sleep after this.
            std::thread::sleep(Duration::from_millis(100));
            times.extend(peer.run(options.runs_per_round)?);
        }
        let (mode, request, depth) = (neaptide::IoMode::Auto, 512 << 10, 16);
        let rate =
            neaptide::measure_bandwidth(Path::new(&packed), mode, request, depth, 128 << 20)?;
        rates.push(rate.bytes_per_second());
    }
    let peak = |peer: &mut Peer| -> Result<u64> {
        peer.ask("stats")?["peak_memory_bytes"]
            .as_u64()
            .context("peak_memory_bytes")
    };
    Ok(Row {
        model: name.into(),
        ort_ms: median(&mut a),
        ort_peak,
        free_ms: median(&mut b),
        free_peak: peak(&mut free)?,
        budget,
        tight_ms: median(&mut c),
        tight_peak: peak(&mut tight)?,
        loaded: ready["loaded_bytes_per_run"].as_u64().unwrap_or(0),
        predicted_ms: ready["predicted_latency_ms"].as_f64().unwrap_or(0.0),
        bandwidth: median(&mut rates),
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A process that answers `run N` and `stats` with a line of JSON each.
struct Peer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    ready: Option<Value>,
}

impl Peer {
    fn start(command: &mut Command) -> Result<Peer> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().context("stdin")?;
        let stdout = BufReader::new(child.stdout.take().context("stdout")?);
        let mut peer = Peer {
            child,
            stdin,
            stdout,
            ready: None,
        };
        peer.ready = Some(peer.answer()?);
        Ok(peer)
    }

    fn ask(&mut self, question: &str) -> Result<Value> {
        writeln!(self.stdin, "{question}")?;
        self.stdin.flush()?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            bail!("a worker ended: {}", self.child.wait()?);
        }
        let value: Value = serde_json::from_str(&line)?;
        match value["error"].as_str() {
            Some(error) => bail!("{error}"),
            None => Ok(value),
        }
    }

    fn run(&mut self, times: usize) -> Result<Vec<f64>> {
        let value = self.ask(&format!("run {times}"))?;
        Ok(value["latency_ms"]
            .as_array()
            .context("latency_ms")?
            .iter()
            .filter_map(Value::as_f64)
            .collect())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn line(row: &Row) -> String {
    let mib = |bytes: u64| bytes as f64 / 1048576.0;
    let io_ms = row.loaded as f64 / row.bandwidth * 1e3;
    let bound = row.free_ms.max(io_ms);
    format!(
        "| {} | {:.2} | {:.2} | **{:.2}** | {:.0} | {:.0} | {:.1} | {:.2} | {:.1} | {:.2} | {:.2} | **{:.2}** | {:.2} |",
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
        row.predicted_ms,
    )
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| model | onnxruntime ms | no budget ms | ratio | onnxruntime peak MiB | no budget peak MiB | budget MiB | peak MiB | loaded MiB/run | budget ms | bound ms | ratio to bound | predicted ms |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
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

fn document(table: &str, options: &Options) -> Result<String> {
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
    Ok(format!(
        "# Benchmarks\n\n\
         Made by `cargo xtask bench --write`. Two threads on {family}, {isa}; medians of {} runs per engine,\n\
         taken in turn in one interleaved run ({} rounds of {}). onnxruntime 1.31.0 on the CPU with all\n\
         optimisations, its peak memory as `VmHWM`.\n\n\
         *No budget*: everything resident. *Budget*: a quarter of onnxruntime's peak memory (or the smallest\n\
         feasible budget where that is more). *Bound*: the larger of the latency with no budget and the bytes\n\
         loaded per run divided by the storage bandwidth, which is measured in every round (median).\n\
         Engines rest between turns, so that no waiting thread of one takes time from another.\n\n{table}",
        options.rounds * options.runs_per_round,
        options.rounds,
        options.runs_per_round,
    ))
}

/// The other side of [`Peer`] for this project: one session, run on request.
pub fn worker(model: &Path, budget: &str, cache: &Path) -> Result<()> {
    let open = neaptide::OpenOptions {
        cache: neaptide::Cache::Folder(cache.into()),
        ..Default::default()
    };
    let model = neaptide::Model::open(model, &open, &mut |_| {})?;
    let options = neaptide::RunOptions {
        budget: budget.parse().map_err(anyhow::Error::msg)?,
        threads: 2,
        ..Default::default()
    };
    let bounds = model.bounds(&options);
    let packed_path = model.packed_path().display().to_string();
    let plan = model.plan(&options)?;
    let ready = json!({
        "ready": true,
        "smallest_feasible_bytes": bounds.smallest_feasible_bytes,
        "packed_path": packed_path,
        "loaded_bytes_per_run": plan.verdict.loaded_bytes_per_run,
        "predicted_latency_ms": plan.prediction.latency_ns as f64 / 1e6,
    });
    let mut session = model.into_session(plan, &options)?;
    let inputs: Vec<Vec<u8>> = session.inputs().iter().map(|i| sample(&i.ty)).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let mut outputs: Vec<Vec<u8>> = session
        .outputs()
        .iter()
        .map(|o| vec![0; o.len_bytes()])
        .collect();
    println!("{ready}");
    for line in std::io::stdin().lines() {
        let line = line?;
        let answer = match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["run", times] => {
                let mut latency = Vec::new();
                for _ in 0..times.parse::<usize>()? {
                    let mut views: Vec<&mut [u8]> =
                        outputs.iter_mut().map(Vec::as_mut_slice).collect();
                    let started = std::time::Instant::now();
                    session.run(&inputs, &mut views)?;
                    latency.push(started.elapsed().as_secs_f64() * 1e3);
                }
                json!({ "latency_ms": latency })
            }
            ["stats"] => json!({ "peak_memory_bytes": neaptide::memory::peak(false).bytes }),
            ["quit"] => break,
            _ => json!({ "error": format!("unknown command: {line}") }),
        };
        println!("{answer}");
    }
    Ok(())
}

/// Some input: values between 0 and 1, or small token ids.
pub fn sample(ty: &neaptide::TensorType) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    match ty.dtype {
        neaptide::DType::F32 => (0..ty.elements())
            .flat_map(|_| (next() as f32 / 16_777_216.0).to_le_bytes())
            .collect(),
        neaptide::DType::I64 => (0..ty.elements())
            .flat_map(|_| i64::from(next() % 1000).to_le_bytes())
            .collect(),
        _ => vec![0; ty.len_bytes()],
    }
}
