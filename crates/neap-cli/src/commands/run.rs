//! `neap run`: the main job.
//!
//! ```text
//!   open (pack) ─► inputs ─► plan ─► session ─► warm-up ─► measured runs ─► close ─► outputs ─► report
//! ```
//! What takes memory comes before the plan, which then knows of it; results are written after the arena
//! is gone.

use crate::args::{EngineArgs, ModelArgs};
use crate::cgroup::supervise::{self, Ended};
use crate::failure::{Failure, Outcome, bad};
use crate::input::{self, ImageOptions};
use crate::output;
use crate::progress::note;
use crate::report::{Latency, Report, median_ms, ms};
use crate::{atomic, interrupt, stdout};
use clap::Args;
use neaptide::{Budget, Model, OpenOptions, RunOptions, Session, memory};
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Memory that the whole process may take: 64MiB, 64M, bytes, 25% of what no limit takes, or none
    #[arg(long, value_name = "SIZE", default_value = "none")]
    pub memory_budget: Budget,
    /// Let the kernel enforce the budget: run in a memory cgroup with it as hard limit
    #[arg(long)]
    pub enforce: bool,
    #[command(flatten)]
    pub engine: EngineArgs,
    /// File for an input: .npy, .npz, .bin, .jpg or .png; NAME may be left out where there is one input,
    /// and for .npz with arrays of the inputs' names [default: random values]
    #[arg(long = "input", value_name = "NAME=FILE")]
    pub inputs: Vec<String>,
    /// Seed of random inputs
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Runs before the measured ones
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub warmup: u32,
    /// Measured runs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iterations: u32,
    /// Write each output to DIR as .npy, named after the model's output
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Write a report instead of the summary; '-' is standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    #[command(flatten)]
    pub image: ImageOptions,
}

pub fn run(args: &RunArgs, quiet: bool) -> Outcome {
    if !args.enforce {
        return here(args, args.memory_budget, false, quiet);
    }
    match supervise::own_limit_bytes() {
        Some(limit) => here(args, Budget::Bytes(limit), true, quiet),
        None => enforced(args, quiet),
    }
}

/// Has this command run in a cgroup of its own.
fn enforced(args: &RunArgs, quiet: bool) -> Outcome {
    let limit_bytes = match args.memory_budget {
        Budget::Bytes(bytes) => bytes,
        Budget::Unlimited => {
            return Err(bad("--enforce needs a limit: give --memory-budget SIZE"));
        }
        Budget::Percent(percent) => {
            let bounds = bounds(args, quiet)?;
            (bounds.unlimited_high_water_bytes as f64 * percent / 100.0) as u64
        }
    };
    match supervise::run_again(limit_bytes)? {
        Ended::Well => Ok(()),
        Ended::OutOfMemory => {
            // A budget so small that not even the refusal fits into it.
            let smallest_bytes = bounds(args, quiet)?.smallest_feasible_bytes;
            if limit_bytes < smallest_bytes {
                return Err(neaptide::Error::Infeasible {
                    budget_bytes: limit_bytes,
                    smallest_bytes,
                }
                .into());
            }
            Err(Failure::Internal(supervise::out_of_memory(limit_bytes)))
        }
    }
}

fn open(args: &RunArgs, quiet: bool) -> Outcome<Model> {
    let options = OpenOptions {
        shape_hints: input::shape_hints(&args.inputs),
        ..args.model.open.options()?
    };
    super::open(&args.model.model, &options, quiet)
}

fn bounds(args: &RunArgs, quiet: bool) -> Outcome<neaptide::Bounds> {
    let model = open(args, quiet)?;
    let inputs = model.inputs().iter().map(|i| i.len_bytes() as u64).sum();
    let options = RunOptions {
        reserve_bytes: inputs,
        ..args.engine.options(Budget::Unlimited)
    };
    Ok(model.bounds(&options))
}

/// Runs in this process.
fn here(args: &RunArgs, budget: Budget, own_cgroup: bool, quiet: bool) -> Outcome {
    if let Some(folder) = &args.output_dir {
        output::prepare(folder)?;
    }
    let model = open(args, quiet)?;
    memory::trim_heap();
    let inputs = input::load(
        &model.inputs(),
        &input::Settings {
            given: &args.inputs,
            image: &args.image,
            seed: args.seed,
            decode_limit_bytes: match budget {
                Budget::Bytes(bytes) => {
                    Some(bytes.saturating_sub(memory::current_bytes(own_cgroup)))
                }
                _ => None,
            },
        },
    )?;
    if !quiet {
        inputs.remarks.iter().for_each(|remark| note(remark));
    }
    interrupt::check()?;
    let mut measured = Measured::with_capacity(args.iterations as usize);
    let options = RunOptions {
        own_cgroup,
        ..args.engine.options(budget)
    };
    let plan = model.plan(&options)?;
    let mut report = Report {
        model: args.model.model.display().to_string(),
        graph_digest: model.digest().into(),
        threads: options.threads,
        strategy: plan.execution.strategy.clone(),
        memory_budget_bytes: plan.budget_bytes,
        peak_memory_bytes: 0,
        peak_memory_source: memory::PeakSource::VmHwm,
        planned_high_water_bytes: plan.high_water_bytes(),
        lower_bound_bytes: plan.lower_bound_bytes(),
        arena_bytes: plan.execution.arena_bytes,
        base_overhead_bytes: plan.base_overhead_bytes,
        resident_weight_bytes: plan.verdict.resident_bytes,
        loaded_bytes_per_run: 0,
        bands: plan.bands(),
        stall_ms: 0.0,
        predicted_latency_ms: ms(plan.prediction.latency_ns),
        latency_ms: Latency::default(),
        outputs: Vec::new(),
    };
    let infos = model.outputs();
    let mut session = model.into_session(plan, &options)?;
    let outputs = measured.run(&mut session, &inputs.tensors, args)?;
    drop((session, inputs));

    report.latency_ms = Latency::of(measured.first_ns, &mut measured.latency_ns);
    report.stall_ms = median_ms(&mut measured.stall_ns);
    measured.loaded_bytes.sort_unstable();
    report.loaded_bytes_per_run = measured.loaded_bytes[measured.loaded_bytes.len() / 2];
    report.outputs = output::write(args.output_dir.as_deref(), &infos, &outputs)?;
    let peak = memory::peak(own_cgroup);
    report.peak_memory_bytes = peak.bytes;
    report.peak_memory_source = peak.source;
    tell(&report, args, own_cgroup)
}

fn tell(report: &Report, args: &RunArgs, enforced: bool) -> Outcome {
    match &args.json {
        None => stdout::print(&report.summary(enforced)),
        Some(path) if path.as_os_str() == "-" => stdout::print_json(report),
        Some(path) => {
            let text = stdout::json(report)?;
            atomic::write(path, |file| writeln!(file, "{text}"))
        }
    }
}

/// Figures of the measured runs, in memory set aside before.
struct Measured {
    first_ns: u64,
    latency_ns: Vec<u64>,
    stall_ns: Vec<u64>,
    loaded_bytes: Vec<u64>,
}

impl Measured {
    fn with_capacity(runs: usize) -> Measured {
        Measured {
            first_ns: 0,
            latency_ns: Vec::with_capacity(runs),
            stall_ns: Vec::with_capacity(runs),
            loaded_bytes: Vec::with_capacity(runs),
        }
    }

    /// Warms up, measures, and returns the outputs of the last run.
    fn run(
        &mut self,
        session: &mut Session,
        inputs: &[Vec<u8>],
        args: &RunArgs,
    ) -> Outcome<Vec<Vec<u8>>> {
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let mut outputs: Vec<Vec<u8>> = session
            .outputs()
            .iter()
            .map(|o| vec![0; o.len_bytes()])
            .collect();
        let mut slots: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        for index in 0..u64::from(args.warmup) + u64::from(args.iterations) {
            let before = session.stats();
            let started = Instant::now();
            session.run(&inputs, &mut slots)?;
            let latency_ns = started.elapsed().as_nanos() as u64;
            let after = session.stats();
            if index == 0 {
                self.first_ns = latency_ns;
            }
            if index >= u64::from(args.warmup) {
                self.latency_ns.push(latency_ns);
                self.stall_ns.push(after.stall_ns - before.stall_ns);
                self.loaded_bytes
                    .push(after.loaded_bytes - before.loaded_bytes);
            }
        }
        Ok(outputs)
    }
}
