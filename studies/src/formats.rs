//! Models in few bits beside onnxruntime: memory against their own size, time in one interleaved run.
//!
//! ```text
//!   zoo model ─► scripts/quantize.py (onnxruntime's own tools) ─► NAME.FORM.onnx
//!   others    ─► scripts/format_models.py                      ─► NAME.FORM.onnx
//!   onnxruntime   | run |     |     | run |     |  ...        with 1 and with 2 threads
//!   no budget     |     | run |     |     | run |
//! ```
//! Figures are kept in `target/formats`, so that a few models can be measured at a time; `--write` writes docs/formats.md from all
//! that are there.

use crate::check::check;
use crate::kept::Kept;
use crate::peer::{Peer, median};
use crate::{models, setting, worker};
use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Args)]
pub struct FormatsArgs {
    /// Only these, as the table names them, are measured anew; figures of others are taken as they are.
    only: Vec<String>,
    #[arg(long, default_value_t = 6)]
    rounds: u32,
    #[arg(long, default_value_t = 4)]
    runs_per_round: u32,
    /// Write docs/formats.md from the figures that are there.
    #[arg(long)]
    write: bool,
}

/// Models and the forms in which they are measured.
const CASES: [(&str, &str, Origin); 10] = [
    ("resnet50", "qdq", Origin::Zoo),
    ("resnet50", "qoperator", Origin::Zoo),
    ("mobilenet_v2", "qdq", Origin::Zoo),
    ("vit_b_16", "dynamic", Origin::Zoo),
    ("gpt2", "dynamic", Origin::Zoo),
    ("gpt2", "int4", Origin::Zoo),
    ("minilm", "int8", Origin::Package),
    ("t5", "dynamic", Origin::Package),
    ("rows12", "int4", Origin::Made),
    ("rows12", "int4a8", Origin::Made),
];

/// Where a model comes from.
#[derive(Clone, Copy, PartialEq)]
enum Origin {
    /// Written by the zoo, then quantised.
    Zoo,
    /// In few bits in a package; there is none in 32 bits.
    Package,
    /// Made by a script, in 32 bits too.
    Made,
}

const THREADS: [usize; 2] = [1, 2];

const REQUIREMENTS: &str = "scripts/requirements-formats.txt";

#[derive(Serialize, Deserialize)]
struct Row {
    model: String,
    file_bytes: u64,
    smallest_bytes: u64,
    /// Of the same network in 32 bits, where it is to be had.
    wide_smallest_bytes: Option<u64>,
    resident_bytes: u64,
    activations_bytes: u64,
    /// Milliseconds with one thread and with two.
    own_ms: [f64; 2],
    ort_ms: [f64; 2],
    predicted_ms: [f64; 2],
    runs: u32,
}

pub fn run(root: &Path, args: &FormatsArgs) -> Result<()> {
    let names = CASES.map(|(model, form, _)| format!("{model}.{form}"));
    if let Some(name) = args.only.iter().find(|o| !names.contains(o)) {
        bail!("no such model: {name}; there are {}", names.join(", "));
    }
    let kept = Kept::of(root, "formats")?;
    let mut rows: Vec<Row> = Vec::new();
    for ((model, form, origin), name) in CASES.into_iter().zip(&names) {
        let wanted = match args.only.is_empty() {
            true => !args.write,
            false => args.only.contains(name),
        };
        if wanted {
            let row = measure(root, model, form, origin, args).with_context(|| name.clone())?;
            eprintln!("{}", line(&row));
            kept.write(name, &row)?;
        }
        rows.extend(kept.read::<Row>(name)?);
    }
    let table = table(&rows);
    println!("{table}");
    if args.write {
        let path = root.join("docs/formats.md");
        std::fs::write(&path, page(&table, &rows)?)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

fn measure(
    root: &Path,
    model: &str,
    form: &str,
    origin: Origin,
    args: &FormatsArgs,
) -> Result<Row> {
    let Some(python) = models::python(root)? else {
        bail!("onnxruntime is not to be had here")
    };
    let (path, wide) = match origin {
        Origin::Zoo => {
            let wide = models::zoo_model(root, model)?;
            (quantised(root, &python, &wide, model, form)?, Some(wide))
        }
        Origin::Package => (scripted(root, &python, model, form)?, None),
        Origin::Made => {
            let wide = scripted(root, &python, model, "f32")?;
            (scripted(root, &python, model, form)?, Some(wide))
        }
    };
    let cache = root.join("target/models/packed");
    let smallest = |path: &Path| -> Result<u64> {
        let peer = worker::start(path, &cache, &["--budget", "none"])?;
        worker::number(&peer.ready, "smallest_feasible_bytes")
    };
    let mut row = Row {
        model: format!("{model}.{form}"),
        file_bytes: std::fs::metadata(&path)?.len(),
        smallest_bytes: smallest(&path)?,
        wide_smallest_bytes: wide.as_deref().map(smallest).transpose()?,
        resident_bytes: resident_bytes(root, &path, &cache)?,
        activations_bytes: activations_bytes(root, &path, &cache)?,
        own_ms: [0.0; 2],
        ort_ms: [0.0; 2],
        predicted_ms: [0.0; 2],
        runs: args.rounds * args.runs_per_round,
    };
    for (at, threads) in THREADS.into_iter().enumerate() {
        let threads = threads.to_string();
        let arguments = ["--budget", "none", "--threads", &threads];
        let mut own = worker::start(&path, &cache, &arguments)?;
        let mut ort = Peer::start(
            Command::new(&python)
                .arg(root.join("scripts/ort_bench.py"))
                .arg(&path)
                .args(["--serve", "--threads", &threads]),
        )?;
        own.run(3)?;
        ort.run(3)?;
        let (mut own_ms, mut ort_ms) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            ort_ms.extend(ort.turn(args.runs_per_round as usize)?);
            own_ms.extend(own.turn(args.runs_per_round as usize)?);
        }
        row.own_ms[at] = median(&own_ms);
        row.ort_ms[at] = median(&ort_ms);
        row.predicted_ms[at] = own.ready["predicted_latency_ms"].as_f64().unwrap_or(0.0);
    }
    Ok(row)
}

/// The zoo's model in few bits, made unless it is there.
fn quantised(root: &Path, python: &Path, wide: &Path, model: &str, form: &str) -> Result<PathBuf> {
    written(root, python, &format!("{model}.{form}"), |make, part| {
        make.arg(root.join("scripts/quantize.py")).arg(wide);
        make.arg(part).args(["--form", form]);
    })
}

/// A model that a script fetches or makes, unless it is there.
fn scripted(root: &Path, python: &Path, model: &str, form: &str) -> Result<PathBuf> {
    let name = format!("{model}.{form}");
    written(root, python, &name, |make, part| {
        make.arg(root.join("scripts/format_models.py"));
        make.arg(&name).arg(part);
    })
}

/// Has Python write a model unless it is there, with what quantising needs at hand.
fn written(
    root: &Path,
    python: &Path,
    name: &str,
    arguments: impl FnOnce(&mut Command, &Path),
) -> Result<PathBuf> {
    let path = root.join(format!("target/models/{name}.onnx"));
    if path.exists() {
        return Ok(path);
    }
    eprintln!("writing {}", path.display());
    let tools = root.join("target/formats/python");
    if !tools.exists() {
        let mut install = Command::new(python);
        install.args(["-m", "pip", "install", "--quiet"]);
        install.args(["--disable-pip-version-check", "--no-deps", "-r"]);
        install.arg(root.join(REQUIREMENTS)).arg("--target");
        check(install.arg(&tools), "installing what quantising needs")?;
    }
    std::fs::create_dir_all(root.join("target/models"))?;
    let part = path.with_extension("part");
    let mut make = Command::new(python);
    make.env("PYTHONPATH", &tools);
    arguments(&mut make, &part);
    check(&mut make, "writing a model in few bits")?;
    std::fs::rename(&part, &path)?;
    Ok(path)
}

fn activations_bytes(root: &Path, path: &Path, cache: &Path) -> Result<u64> {
    let mut inspect = Command::new(models::neap(root)?);
    inspect.args(["--quiet", "inspect", "--output", "json"]);
    let output = inspect.arg("--cache-dir").arg(cache).arg(path).output()?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let facts: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    worker::number(&facts, "activations_peak_bytes")
}

/// Peak memory of `neap run` without a budget: this benchmark's own program is larger.
fn resident_bytes(root: &Path, path: &Path, cache: &Path) -> Result<u64> {
    let report = root.join("target/formats/run.json");
    let mut run = Command::new(models::neap(root)?);
    run.args(["--quiet", "run", "--threads", "2", "--iterations", "4"]);
    run.arg("--json").arg(&report).arg("--cache-dir").arg(cache);
    let output = run.arg(path).output()?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let facts: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&report)?)?;
    worker::number(&facts, "peak_memory_bytes")
}

fn line(row: &Row) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let sum = row.file_bytes + row.activations_bytes;
    let wide = match row.wide_smallest_bytes {
        Some(bytes) => format!("{:.1}", mib(bytes)),
        None => "–".into(),
    };
    let mut text = format!(
        "| {} | {:.1} | {:.1} | {wide} | {:.1} | {:.2} |",
        row.model,
        mib(row.file_bytes),
        mib(row.smallest_bytes),
        mib(row.resident_bytes),
        row.resident_bytes as f64 / sum as f64,
    );
    for at in 0..THREADS.len() {
        let _ = write!(
            text,
            " {:.2} | {:.2} | **{:.2}** | {:.2} |",
            row.ort_ms[at],
            row.own_ms[at],
            row.own_ms[at] / row.ort_ms[at],
            row.predicted_ms[at],
        );
    }
    text
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| model | file MiB | smallest MiB | smallest of f32 MiB | resident MiB | × (file + activations) | onnxruntime ms, 1 thread | ms | ratio | predicted ms | onnxruntime ms, 2 threads | ms | ratio | predicted ms |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in rows {
        let _ = writeln!(text, "{}", line(row));
    }
    text
}

fn page(table: &str, rows: &[Row]) -> Result<String> {
    let runs = rows.iter().map(|row| row.runs).min().unwrap_or(0);
    Ok(format!(
        "# Models in few bits\n\n\
         How much memory and time do quantised models take? This table has networks of the zoo as onnxruntime's own tools\n\
         quantise them, two models that PyPI packages carry and a row of products, beside onnxruntime on the same file.\n\n{table}\n\
         - *Smallest*: the smallest budget of the file, and that of the same network in 32 bits.\n\
         - *Resident*: peak memory of `neap run` with no budget and two threads, and as a multiple of the file and the most activations at once.\n\
         - *ms*: medians of at least {runs} runs with no budget. The engines take turns; the first run of a turn is not counted.\n\
         - *Predicted*: by the plan, with nothing calibrated.\n\
         - *qdq*, *qoperator*: 8 bits, a scale for each channel of weights. *dynamic*: weights in 8 bits, activations\n\
         quantised when they are known. *int8*: weights in 8 bits, computed in floats. *int4*: weights in 4 bits, blocks of 32.\n\
         *int4a8*: the same, where the file allows activations in 8 bits (accuracy level 4).\n\
         - *minilm* and *t5* are encoders, with one text of 128 tokens. *rows12* is one row times twelve matrices of 2048 × 2048.\n\n\
         Made by `cargo study formats`, then `cargo study formats --write`, on {}.\n",
        setting::setting()?,
    ))
}
