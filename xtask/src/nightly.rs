//! What takes longer than a change may: random tests with seeds that were never drawn, and a soak.
//!
//! ```text
//!   tests   the suite, once, with new seeds of its random tests; tests that every change leaves out, such as every network
//!           of the zoo that has weights on Vulkan
//!   soak    --runs N in all, of several models in turn; each process under a hard limit of the kernel's, while its
//!           budget goes up and down at random; at the end of each, the same bits as without a budget
//!   graphs  --graphs N graphs that nobody thought of, beside onnxruntime and the standard's reference: without a budget, within
//!           half of what each takes, and within the smallest (scripts/fuzz_graphs.py)
//!   data    trainings on real data, under hard limits: accuracy and peaks
//!   studies the tests of studies/, a workspace of its own
//!   torch   the Python package with PyTorch; training compared with PyTorch's
//! ```
//! Everything is drawn from one number, which is printed first and with whatever fails:
//! `cargo xtask nightly --seed N` does the same again.

use crate::check::check;
use crate::{accuracy, models, python, real_data, survive};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// With convolutions of all kinds, concatenations in place, and Winograd.
const MODELS: [&str; 4] = ["squeezenet1_1", "mobilenet_v2", "densenet121", "resnet50"];

const PARTS: [&str; 6] = ["tests", "soak", "graphs", "data", "studies", "torch"];

/// Runs of one process.
const RUNS_OF_ONE: u64 = 100;

/// Budgets of one process, and the longest that one holds.
const CHANGES: u64 = 12;
const MOST_HELD_MS: u64 = 400;

/// Seeds of tests are shifted up (`neap_testing::seed`).
const SEED_MASK: u64 = (1 << 40) - 1;

#[derive(clap::Args)]
pub struct NightlyArgs {
    /// Runs of the soak, all models together
    #[arg(long, default_value_t = 10_000)]
    pub runs: u64,
    /// Graphs that are compared
    #[arg(long, default_value_t = 2_000)]
    pub graphs: u64,
    /// What everything is drawn from [default: the time]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Only this part: tests, soak, graphs, data, studies or torch
    #[arg(long)]
    pub part: Option<String>,
    /// A Python with PyTorch [default: one is made from scripts/requirements-torch.txt]
    #[arg(long, value_name = "FILE")]
    pub python: Option<PathBuf>,
}

pub fn run(root: &Path, args: &NightlyArgs) -> Result<()> {
    let part = args.part.as_deref();
    if let Some(unknown) = part.filter(|part| !PARTS.contains(part)) {
        bail!(
            "there is no part '{unknown}': the parts are {}",
            PARTS.join(", ")
        );
    }
    let seed = match args.seed {
        Some(seed) => seed,
        None => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
            now.as_nanos() as u64
        }
    } & SEED_MASK;
    println!("seed {seed}");
    let again =
        |part: &str| format!("cargo xtask nightly --part {part} --seed {seed} does it again");
    let wanted = |name: &str| part.is_none_or(|part| part == name);
    if wanted("tests") {
        tests(root, seed).with_context(|| again("tests"))?;
    }
    if wanted("soak") {
        let runs = format!("{} --runs {}", again("soak"), args.runs);
        soak(root, seed, args.runs).with_context(|| runs)?;
    }
    if wanted("graphs") {
        graphs(root, seed, args.graphs)?;
    }
    if wanted("data") {
        real_data::run(root)?;
    }
    if wanted("studies") {
        studies(root)?;
    }
    if wanted("torch") {
        python::torch(root, args.python.as_deref())?;
    }
    Ok(())
}

fn tests(root: &Path, seed: u64) -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(["nextest", "run", "--release", "--workspace"])
        .args(["--no-fail-fast", "--status-level", "slow"])
        .args(["--run-ignored", "all"])
        .env("PROPTEST_RNG_SEED", seed.to_string())
        .env("NEAP_SEED", seed.to_string())
        .env("NEAP_SOAK", "60")
        .env("NEAP_WHOLE_ZOO", "1")
        .current_dir(root)
        .status()
        .context("cannot start cargo nextest")?;
    ensure!(status.success(), "tests with new seeds: {status}");
    Ok(())
}

fn studies(root: &Path) -> Result<()> {
    let mut tests = Command::new(env!("CARGO"));
    tests.args(["test", "--release", "--quiet", "--locked", "--workspace"]);
    tests.args([
        "--manifest-path",
        "studies/Cargo.toml",
        "--target-dir",
        "target",
    ]);
    check(tests.current_dir(root), "tests of studies")
}

fn soak(root: &Path, seed: u64, runs: u64) -> Result<()> {
    ensure!(
        accuracy::can_enforce(),
        "a soak needs the right to make memory cgroups"
    );
    let neap = models::neap(root)?;
    let folder = root.join("target/nightly");
    fs::create_dir_all(&folder)?;
    let mut subjects = Vec::new();
    for name in MODELS {
        subjects.push(Subject::prepare(root, &neap, &folder, name)?);
    }
    let mut random = Random(seed);
    let (mut done, mut processes) = (0, 0);
    while done < runs {
        let subject = &mut subjects[(processes % MODELS.len() as u64) as usize];
        let setting = Setting::draw(&mut random, subject, RUNS_OF_ONE.min(runs - done));
        subject
            .endure(&setting)
            .with_context(|| format!("{}, after {done} runs: {setting}", subject.name))?;
        done += setting.runs;
        processes += 1;
    }
    for subject in &subjects {
        println!(
            "{:16} {:6} runs, {:5} changes of the budget, peaks at most {:.1} % of the limit",
            subject.name, subject.runs, subject.changes, subject.worst_percent
        );
    }
    println!("{done} runs in {processes} processes: the same bits, and within the limit");
    Ok(())
}

/// Each graph has a number of its own, which is printed where it differs.
fn graphs(root: &Path, seed: u64, count: u64) -> Result<()> {
    let python = models::python(root)?.context("no Python environment")?;
    let mut fuzz = Command::new(python);
    fuzz.arg(root.join("scripts/fuzz_graphs.py"));
    fuzz.arg("--neap").arg(models::neap(root)?);
    fuzz.args(["--seed", &seed.to_string()]);
    fuzz.args(["--graphs", &count.to_string()]);
    fuzz.arg("--keep").arg(root.join("target/nightly/graphs"));
    check(&mut fuzz, "graphs at random")
}

/// A packed model, what it computes without a budget, and what has been asked of it.
struct Subject<'a> {
    neap: &'a Path,
    name: &'static str,
    packed: PathBuf,
    folder: PathBuf,
    expected: Vec<Vec<u8>>,
    smallest_bytes: u64,
    largest_bytes: u64,
    runs: u64,
    changes: u64,
    worst_percent: f64,
}

/// How one process runs.
struct Setting {
    threads: u64,
    runs: u64,
    /// Milliseconds from the start, and bytes.
    budgets: Vec<(u64, u64)>,
}

impl Setting {
    fn draw(random: &mut Random, subject: &Subject, runs: u64) -> Setting {
        let (least, most) = (subject.smallest_bytes, subject.largest_bytes);
        let mut at_ms = 0;
        let budgets = (0..CHANGES).map(|_| {
            // Often the smallest, where there is least to spare.
            let bytes = match random.below(3) {
                0 => least,
                _ => least + random.below(most - least + 1),
            };
            let budget = (at_ms, bytes);
            at_ms += 1 + random.below(MOST_HELD_MS);
            budget
        });
        Setting {
            budgets: budgets.collect(),
            threads: 1 + random.below(2),
            runs,
        }
    }

    fn schedule(&self) -> String {
        let entries = self
            .budgets
            .iter()
            .map(|(ms, bytes)| format!("{ms}ms:{bytes}"));
        entries.collect::<Vec<_>>().join(",")
    }

    fn most_bytes(&self) -> u64 {
        self.budgets
            .iter()
            .map(|&(_, bytes)| bytes)
            .max()
            .unwrap_or(0)
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Setting { threads, runs, .. } = self;
        write!(
            f,
            "--threads {threads} --iterations {runs} --budget-schedule {}",
            self.schedule()
        )
    }
}

impl<'a> Subject<'a> {
    fn prepare(
        root: &Path,
        neap: &'a Path,
        folder: &Path,
        name: &'static str,
    ) -> Result<Subject<'a>> {
        let folder = folder.join(name);
        fs::create_dir_all(&folder)?;
        let mut subject = Subject {
            neap,
            name,
            packed: folder.join("model.neap"),
            folder,
            expected: Vec::new(),
            smallest_bytes: 0,
            largest_bytes: 0,
            runs: 0,
            changes: 0,
            worst_percent: 0.0,
        };
        let model = models::zoo_model(root, name)?;
        let mut pack = Command::new(neap);
        pack.args(["pack", "--quiet"])
            .arg(model)
            .arg("-o")
            .arg(&subject.packed);
        finished(&mut pack)?;
        let report = subject.run(&["--threads", "2"])?;
        subject.expected = survive::outputs(&report)?;
        subject.largest_bytes = survive::number(&report, "peak_memory_bytes")?;
        for threads in ["1", "2"] {
            let mut inspect = Command::new(neap);
            inspect.arg("inspect").arg(&subject.packed);
            let facts = finished(inspect.args(["--threads", threads, "--format", "json"]))?;
            let facts: Value = serde_json::from_slice(&facts).context("inspect --format json")?;
            let bytes = survive::number(&facts, "smallest_feasible_bytes")?;
            subject.smallest_bytes = subject.smallest_bytes.max(bytes);
        }
        ensure!(
            subject.smallest_bytes < subject.largest_bytes,
            "{name}: nothing to vary"
        );
        Ok(subject)
    }

    /// One process under a hard limit; what the kernel ends is an error of the command.
    fn endure(&mut self, setting: &Setting) -> Result<()> {
        let (threads, runs) = (setting.threads.to_string(), setting.runs.to_string());
        let schedule = setting.schedule();
        let report = self.run(&[
            "--enforce",
            "--threads",
            &threads,
            "--iterations",
            &runs,
            "--budget-schedule",
            &schedule,
        ])?;
        let limit = setting.most_bytes();
        let peak = survive::number(&report, "peak_memory_bytes")?;
        ensure!(peak <= limit, "a peak of {peak} bytes, {limit} are allowed");
        ensure!(survive::outputs(&report)? == self.expected, "other bits");
        self.runs += setting.runs;
        self.changes += setting.budgets.len() as u64 - 1;
        self.worst_percent = self.worst_percent.max(100.0 * peak as f64 / limit as f64);
        Ok(())
    }

    fn run(&self, options: &[&str]) -> Result<Value> {
        let report = self.folder.join("report.json");
        let mut command = Command::new(self.neap);
        command
            .args(["run", "--quiet", "--exact"])
            .arg(&self.packed)
            .args(options);
        command.arg("--output-dir").arg(self.folder.join("outputs"));
        finished(command.arg("--json").arg(&report))?;
        serde_json::from_str(&fs::read_to_string(&report)?).context("the report")
    }
}

/// Standard output of a command that ends well.
fn finished(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output.stdout)
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % limit
    }
}
