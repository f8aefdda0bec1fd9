//! The engine's own worker process in benchmarks: one session, run on request.

use crate::beside::Beside;
use crate::peer::Peer;
use anyhow::{Context, Result};
use clap::Args;
use neaptide::{
    BandMode, Error, IoMode, Model, PlanOptions, RunOptions, SearchEffort, StrategyChoice,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Args)]
pub struct WorkerArgs {
    model: PathBuf,
    #[arg(long, default_value = "none")]
    budget: String,
    #[arg(long)]
    cache_dir: PathBuf,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// `auto`, or the name of one.
    #[arg(long, default_value = "preload", value_parser = parse_strategy)]
    strategy: StrategyChoice,
    /// Each search ends after so many generations, and not by the clock.
    #[arg(long)]
    search_generations: Option<u32>,
    #[arg(long)]
    no_cyclic: bool,
    #[arg(long)]
    no_static_memory: bool,
    #[arg(long)]
    no_bands: bool,
    #[arg(long)]
    exact: bool,
    /// Compute on Vulkan, in the host's memory.
    #[arg(long)]
    vulkan: bool,
    /// Compute in so much of the device's own memory; 'none' is all that it has.
    #[arg(long, requires = "vulkan")]
    device_budget: Option<neaptide::Budget>,
    /// The link to that as if it moved no more than so many bytes per second each way.
    #[arg(long, requires = "device_budget")]
    device_link: Option<u64>,
    /// Read the packed file by the page cache, which the kernel charges, too.
    #[arg(long)]
    cached: bool,
    /// Storage as if it gave no more than so many bytes per second.
    #[arg(long)]
    throttle: Option<u64>,
    /// Read so many bytes of the packed file beside each run, which is done when both are.
    #[arg(long, default_value = "0")]
    beside: u64,
    /// Measure the model's costs for later plans, and end.
    #[arg(long)]
    calibrate: bool,
    /// Plan by each of these strategies, tell what is predicted, and end.
    #[arg(long, value_delimiter = ',', value_parser = parse_strategy)]
    compare: Vec<StrategyChoice>,
    /// Read the packed file on request, and do nothing else.
    #[arg(long)]
    reader: bool,
}

fn parse_strategy(name: &str) -> Result<StrategyChoice, String> {
    match name {
        "auto" => Ok(StrategyChoice::Auto),
        name => baselines::by_name(name).map(StrategyChoice::Only),
    }
}

/// A worker that is not started yet; `arguments` are those of [`WorkerArgs`].
pub fn command(model: &Path, cache: &Path, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bench-worker").arg(model);
    command.arg("--cache-dir").arg(cache).args(arguments);
    Ok(command)
}

/// Starts a worker.
pub fn start(model: &Path, cache: &Path, arguments: &[&str]) -> Result<Peer> {
    Peer::start(&mut command(model, cache, arguments)?)
}

/// Lets a worker calibrate.
pub fn calibrate(model: &Path, cache: &Path) -> Result<()> {
    to_end(command(model, cache, &["--calibrate"])?, "calibration").map(drop)
}

/// Has one process plan by each of these strategies, with the same memory of its own in each plan. `arguments` are
/// those of [`WorkerArgs`].
pub fn compare<'s>(
    model: &Path,
    cache: &Path,
    arguments: &[&str],
    strategies: &[&'s str],
) -> Result<Vec<Foreseen<'s>>> {
    let list = strategies.join(",");
    let arguments = [arguments, &["--compare", &list]].concat();
    let said = to_end(command(model, cache, &arguments)?, "planning")?;
    let found: Vec<Value> = serde_json::from_str(&said)?;
    anyhow::ensure!(found.len() == strategies.len(), "planning said: {said}");
    let foreseen = |(&strategy, found): (&&'s str, &Value)| Foreseen {
        strategy,
        chosen: found["strategy"].as_str().unwrap_or_default().into(),
        latency_ns: found["latency_ns"].as_u64(),
    };
    Ok(strategies.iter().zip(&found).map(foreseen).collect())
}

/// What is predicted of a strategy's plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Foreseen<'s> {
    pub strategy: &'s str,
    /// The plan's own: `auto` takes that of another.
    pub chosen: String,
    /// `None` where the budget is too small for it.
    pub latency_ns: Option<u64>,
}

/// What a worker says that ends by itself.
fn to_end(mut command: Command, what: &str) -> Result<String> {
    let output = command.output()?;
    let problem = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{what}: {}", problem.trim());
    Ok(String::from_utf8(output.stdout)?)
}

pub fn number(ready: &Value, key: &str) -> Result<u64> {
    ready[key].as_u64().with_context(|| key.to_string())
}

pub fn packed_path(ready: &Value) -> Result<PathBuf> {
    let path = ready["packed_path"].as_str().context("packed_path")?;
    Ok(PathBuf::from(path))
}

pub fn run(args: &WorkerArgs) -> Result<()> {
    let open = neaptide::OpenOptions {
        cache: neaptide::Cache::Folder(args.cache_dir.clone()),
        ..neaptide::OpenOptions::of_own_process()
    };
    let model = Model::open(&args.model, &open, &mut |_| {})?;
    if args.reader {
        let packed = model.packed_path().context("a model without weights")?;
        return crate::storage::reader(packed, args.throttle);
    }
    let accelerator = match args.vulkan {
        true => Some(crate::vulkan_device::device(
            &model,
            args.device_budget.is_some(),
            args.device_link,
        )?),
        false => None,
    };
    let device_budget_bytes = match args.device_budget {
        Some(neaptide::Budget::Bytes(bytes)) => Some(bytes),
        _ => None,
    };
    let options = RunOptions {
        accelerator,
        device_budget_bytes,
        budget: args.budget.parse().map_err(anyhow::Error::msg)?,
        threads: args.threads,
        strategy: args.strategy,
        search: match args.search_generations {
            None => SearchEffort::default(),
            Some(generations) => SearchEffort {
                seconds: f64::INFINITY,
                generations,
                ..Default::default()
            },
        },
        planner: PlanOptions {
            cyclic: !args.no_cyclic,
            static_memory: !args.no_static_memory,
            ..Default::default()
        },
        bands: match args.no_bands {
            true => BandMode::Off,
            false => BandMode::Auto,
        },
        exact: args.exact,
        io: match args.cached {
            true => IoMode::Cached,
            false => IoMode::Auto,
        },
        throttle_bytes_per_second: args.throttle,
        // The model may lie in memory.
        spill_dir: Some(args.cache_dir.clone()),
        ..Default::default()
    };
    if args.calibrate {
        model.calibrate(&options)?;
        return Ok(());
    }
    if !args.compare.is_empty() {
        return plan_all(&model, options, &args.compare);
    }
    match serve(model, &options, args.beside) {
        Err(e) => match e.downcast_ref::<Error>() {
            Some(Error::Infeasible { smallest_bytes, .. }) => {
                println!(
                    "{}",
                    json!({ "infeasible": true, "smallest_bytes": smallest_bytes })
                );
                Ok(())
            }
            _ => Err(e),
        },
        done => done,
    }
}

fn plan_all(model: &Model, options: RunOptions, strategies: &[StrategyChoice]) -> Result<()> {
    // As the workers that run hold them.
    let inputs = model.inputs().iter().map(|i| i.len_bytes() as u64).sum();
    let options = RunOptions {
        reserve_bytes: inputs,
        ..options
    };
    let plans = model.plans(&options, strategies)?.into_iter();
    let found: Result<Vec<Value>> = plans
        .map(|plan| match plan {
            Ok(plan) => Ok(json!({
                "strategy": plan.execution().strategy,
                "latency_ns": plan.prediction.latency_ns,
            })),
            Err(Error::Infeasible { .. }) => Ok(json!({})),
            Err(e) => Err(e.into()),
        })
        .collect();
    println!("{}", Value::Array(found?));
    Ok(())
}

fn serve(model: Model, options: &RunOptions, beside_bytes: u64) -> Result<()> {
    // What the caller holds is part of the process, and of what plans count.
    let inputs: Vec<Vec<u8>> = (model.inputs().iter())
        .map(|input| sample_of(&input.name, &input.ty))
        .collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let bounds = model.bounds(options);
    let packed = model.packed_path().context("a model without weights")?;
    let packed_path = packed.display().to_string();
    let plan = model.plan(options)?;
    let ready = json!({
        "ready": true,
        "smallest_feasible_bytes": bounds.smallest_feasible_bytes(),
        "unlimited_high_water_bytes": bounds.unlimited_high_water_bytes(),
        "planned_bytes": plan.high_water_bytes(),
        "packed_path": packed_path,
        "strategy": plan.execution().strategy,
        "arena_bytes": plan.ledger.arena_bytes,
        "device": options.accelerator.as_ref().map(|device| device.name()),
        "loaded_bytes_per_run": plan.verdict().loaded_bytes_per_run,
        "predicted_latency_ms": plan.prediction.latency_ns as f64 / 1e6,
        "predicted_stall_ms": plan.prediction.stall_ns as f64 / 1e6,
    });
    let mut session = model.into_session(plan, options)?;
    let mut outputs: Vec<Vec<u8>> = session
        .outputs()
        .iter()
        .map(|o| vec![0; o.len_bytes()])
        .collect();
    let mut beside = match beside_bytes {
        0 => None,
        bytes => Some(Beside::start(Path::new(&packed_path), bytes)?),
    };
    println!("{ready}");
    for line in std::io::stdin().lines() {
        let line = line?;
        let answer = match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["run", times] => {
                let (mut latency, mut stall) = (Vec::new(), Vec::new());
                for _ in 0..times.parse::<usize>()? {
                    let mut views: Vec<&mut [u8]> =
                        outputs.iter_mut().map(Vec::as_mut_slice).collect();
                    let waited_ns = session.stats().stall_ns;
                    let started = std::time::Instant::now();
                    let reading = beside.as_mut().map(Beside::read).transpose()?;
                    session.run(&inputs, &mut views)?;
                    if let Some(reading) = reading {
                        reading.wait()?;
                    }
                    latency.push(started.elapsed().as_secs_f64() * 1e3);
                    stall.push((session.stats().stall_ns - waited_ns) as f64 / 1e6);
                }
                json!({ "latency_ms": latency, "stall_ms": stall })
            }
            ["budget", bytes] => {
                let started = std::time::Instant::now();
                let done = session.set_budget(bytes.parse().map_err(anyhow::Error::msg)?)?;
                json!({
                    "ms": started.elapsed().as_secs_f64() * 1e3,
                    "planning_ms": done.planning_ns as f64 / 1e6,
                })
            }
            // Reads what the plan keeps resident before anything runs.
            ["settle"] => {
                let started = std::time::Instant::now();
                session.settle()?;
                json!({ "ms": started.elapsed().as_secs_f64() * 1e3 })
            }
            ["stats"] => json!({
                "peak_memory_bytes": neaptide::memory::peak(false).bytes,
                "memory_bytes": neaptide::memory::counted_bytes(false),
            }),
            ["quit"] => break,
            _ => json!({ "error": format!("unknown command: {line}") }),
        };
        println!("{answer}");
    }
    Ok(())
}

/// Some input; as `scripts/neap_reference.py` has it, all of a mask is in, and there is one type of tokens.
fn sample_of(name: &str, ty: &neaptide::TensorType) -> Vec<u8> {
    if ty.dtype != neaptide::DType::I64 || !(name.contains("mask") || name.contains("type")) {
        return sample(ty);
    }
    let value = i64::from(name.contains("mask"));
    value.to_le_bytes().repeat(ty.elements())
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
