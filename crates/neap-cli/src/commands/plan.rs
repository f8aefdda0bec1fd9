//! `neap plan`: how a model would run within a budget, on this machine or one that is described: as text, as
//! JSON, as a page to look at, or as trace events.

use super::{gguf, open};
use crate::args::{CalibrateArg, EngineArgs, ModelArgs};
use crate::budgets::slower::Slower;
use crate::compute::{Compute, Memory};
use crate::device::Device;
use crate::failure::{Outcome, bad};
use crate::language;
use crate::printed::Printed;
use crate::progress::{detail, note};
use crate::report::{OnDevice, bands_text, kernels_text, ms};
use crate::{atomic, stdout};
use clap::{Args, ValueEnum};
use neap_plan::render;
use neaptide::{Budget, Bytes, CostSource, Model, Plan, RunOptions};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;

#[derive(Args)]
pub struct PlanArgs {
    /// Memory that the whole process may take: 64MiB, 25%, auto or none
    ///
    /// 64M is 64MiB, and a number without a unit is bytes. 25% is of what no limit takes. auto is what can be spared here.
    #[arg(long, value_name = "SIZE", default_value = "none", value_parser = crate::cgroup::limits::any_budget)]
    memory_budget: Budget,
    /// The smallest budget that is at most so much slower than the fastest, such as 10%
    ///
    /// Budgets from the smallest to all of the model's memory are compared by their predicted times.
    #[arg(long, value_name = "SHARE", conflicts_with_all = ["memory_budget", "device_budget"])]
    slower: Option<Slower>,
    /// Plan for another machine: a description in FILE.toml, or a name such as raspberry-pi-4
    ///
    /// The names are v100-pcie, rtx3090-pcie, jetson-nx, raspberry-pi-4 and phone.
    #[arg(long, value_name = "FILE|NAME", conflicts_with_all = ["calibrate", "device"])]
    machine: Option<String>,
    /// Compute on a device of this machine instead of the processor: vulkan, vulkan:N, auto or auto:N, as `neap run` takes it
    #[arg(long, value_name = "DEVICE", conflicts_with = "calibrate")]
    device: Option<Compute>,
    /// Of a language model: tokens that prompts and answers may have together [default: several]
    #[arg(long, value_name = "N", value_parser = crate::numbers::whole::<u32>(1..=1 << 20))]
    context: Option<u32>,
    /// Of a language model: in which type keys and values are kept: f32, f16 or int8
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    kv: neap_chat::CacheType,
    /// Memory of a device of this machine that may be taken, for a plan in the device's own memory
    #[arg(long, value_name = "SIZE", requires = "device")]
    device_budget: Option<Budget>,
    #[command(flatten)]
    printed: Printed<Format>,
    /// Write what is predicted as trace events for Perfetto
    #[arg(long, value_name = "FILE.json")]
    trace_events: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
    /// A page to look at
    Html,
}

/// Simulated runs; the last one, in the steady state, is shown.
const RUNS: u32 = 3;

pub fn run(args: &PlanArgs, quiet: bool) -> Outcome {
    if gguf::is_gguf(&args.model.model) {
        if args.printed.form() == Format::Html || args.trace_events.is_some() {
            return Err(bad("the plan of a language model is text or json"));
        }
        if args.slower.is_some() {
            return Err(bad(
                "--slower is for ONNX models: of a language model, the plan shows all budgets",
            ));
        }
        let question = language::plan::Question {
            budget: args.memory_budget,
            context: args.context,
            cache: args.kv,
            threads: args.engine.threads(),
            is_measured: args.engine.calibrate != CalibrateArg::Off,
        };
        return match language::plan::choices(&args.model.model, &question)? {
            (choices, _) if args.printed.form() == Format::Json => {
                args.printed.print_json(&choices)
            }
            (_, text) => args.printed.print(&text),
        };
    }
    let machine = args.machine.as_deref().map(Device::find).transpose()?;
    let model = open(&args.model.model, &args.model.open.options()?, quiet)?;
    let inputs = model.inputs().iter().map(|i| i.len_bytes() as u64).sum();
    let mut options = RunOptions {
        reserve_bytes: inputs,
        costs: machine.as_ref().map(|d| d.costs.clone()),
        ..args.engine.options(args.memory_budget)
    };
    if let Some(device) = args.device {
        open_device(device, args.device_budget, &model, &mut options)?;
    }
    if let Some(slower) = args.slower {
        options.budget = Budget::Bytes(slower.budget_bytes(&model, &options, quiet)?);
    }
    let plan = model.plan(&options)?;
    if let Some(remark) = plan.cost_remark() {
        note(remark);
    }
    detail(|| format!("planned in {:.1} ms", ms(plan.planning_ns)));
    let title = || {
        let model = args.model.model.file_name().unwrap_or_default().display();
        let within = plan
            .budget_bytes
            .map_or_else(|| "unlimited memory".into(), |b| Bytes(b).to_string());
        let on = machine.as_ref().map(|d| format!(" on {}", d.name));
        format!("{model} within {within}{}", on.unwrap_or_default())
    };
    let printed = &args.printed;
    if let Some(path) = &args.trace_events {
        let (name, timeline) = (format!("predicted: {}", title()), plan.simulate(RUNS));
        atomic::write(path, |file| plan.write_trace(file, &name, &timeline))?;
        if printed.file().is_none() && printed.form() == Format::Text {
            return stdout::print(&format!("{}: {}\n", path.display(), title()));
        }
    }
    match printed.form() {
        Format::Text => printed.print(&text(&model, &plan, &options)),
        Format::Json => printed.print_json(&figures(args, &model, &plan, &options)),
        Format::Html => {
            let page = plan.page(&title(), &plan.simulate(RUNS));
            printed.print(&page)?;
            match printed.file() {
                Some(path) => stdout::print(&format!("{}: {}\n", path.display(), title())),
                None => Ok(()),
            }
        }
    }
}

/// The device, with all that it takes of this process's memory.
fn open_device(
    device: Compute,
    budget: Option<Budget>,
    model: &Model,
    options: &mut RunOptions,
) -> Outcome {
    let memory = Memory {
        own: budget.is_some(),
        exact: options.exact,
        ..Memory::default()
    };
    options.accelerator = Some(device.open(model, memory)?);
    options.device_budget_bytes = match budget {
        None | Some(Budget::Unlimited) => None,
        Some(Budget::Bytes(bytes)) => Some(bytes),
        Some(other) => return Err(bad(format!("--device-budget {other}: write a size"))),
    };
    device.share(model, options)
}

fn text(model: &Model, plan: &Plan, options: &RunOptions) -> String {
    let bounds = model.bounds(options);
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{label:<11} {value}");
    };
    line(
        "budget",
        plan.budget_bytes.map_or_else(
            || "none".into(),
            |bytes| format!("{} for the whole process", Bytes(bytes)),
        ),
    );
    line(
        "process",
        format!(
            "{} planned = {}; lower bound {}",
            Bytes(plan.high_water_bytes()),
            plan.ledger,
            Bytes(plan.lower_bound_bytes())
        ),
    );
    let (smallest, whole) = (
        bounds.smallest_feasible_bytes(),
        bounds.unlimited_high_water_bytes(),
    );
    let possible = match smallest < whole {
        true => format!(
            "from {} (smallest feasible budget) to {} (everything resident)",
            Bytes(smallest),
            Bytes(whole)
        ),
        false => format!(
            "{} with everything resident; named budgets begin at {}, see packing in the guide",
            Bytes(whole),
            Bytes(smallest)
        ),
    };
    line("possible", possible);
    if let Some(device) = options.accelerator.as_deref() {
        line("device", OnDevice::of(device, plan).text());
    }
    if plan.kernels().keys().any(|&kernel| kernel != "direct") {
        line("kernels", kernels_text(&plan.kernels()));
    }
    if plan.bands().chains > 0 {
        line("row bands", bands_text(plan.bands()));
    }
    if plan.bands().strips > 0 {
        line("strips", format!("{} parts of layers", plan.bands().strips));
    }
    line(
        "predicted",
        format!(
            "{:.2} ms per run, {:.2} ms of it waiting for weights, by {}; planned in {:.1} ms",
            ms(plan.prediction.latency_ns),
            ms(plan.prediction.stall_ns),
            source_text(plan.cost_source()),
            ms(plan.planning_ns)
        ),
    );
    let verdict = plan.verdict();
    let moved = verdict.loaded_bytes_per_run + verdict.stored_bytes_per_run;
    if moved > 0 {
        line(
            "bound",
            format!(
                "{:.2} ms per run: the longer of computing, {:.2} ms, and moving {}, {:.2} ms",
                ms(plan.bound_ns()),
                ms(plan.prediction.compute_ns),
                Bytes(moved),
                ms(plan.moving_ns())
            ),
        );
    }
    let timeline = plan.simulate(RUNS);
    text + &render::text(plan.workload(), plan.execution(), Some(&timeline))
}

fn source_text(source: CostSource) -> &'static str {
    match source {
        CostSource::Given => "the description of a device",
        CostSource::BuiltIn => "built-in estimates",
        CostSource::Estimated => "quick estimates (neap profile measures)",
        CostSource::Cached => "earlier measurements",
        CostSource::Measured => "measurements",
    }
}

/// The figures of a run's report that are known before it, and the plan itself.
fn figures(args: &PlanArgs, model: &Model, plan: &Plan, options: &RunOptions) -> Value {
    let bounds = model.bounds(options);
    json!({
        "model": args.model.model.display().to_string(),
        "graph_digest": model.digest(),
        "threads": options.threads,
        "strategy": plan.execution().strategy,
        "memory_budget_bytes": plan.budget_bytes,
        "planned_high_water_bytes": plan.high_water_bytes(),
        "lower_bound_bytes": plan.lower_bound_bytes(),
        "smallest_feasible_bytes": bounds.smallest_feasible_bytes(),
        "unlimited_high_water_bytes": bounds.unlimited_high_water_bytes(),
        "arena_bytes": plan.execution().memory_bytes(),
        "base_overhead_bytes": plan.base_overhead_bytes(),
        "ledger": plan.ledger,
        "resident_weight_bytes": plan.verdict().resident_bytes,
        "prepared_weight_bytes": plan.execution().prepared_bytes(plan.workload()),
        "loaded_bytes_per_run": plan.verdict().loaded_bytes_per_run,
        "stored_bytes_per_run": plan.verdict().stored_bytes_per_run,
        "stall_ms": ms(plan.prediction.stall_ns),
        "predicted_latency_ms": ms(plan.prediction.latency_ns),
        "compute_ms": ms(plan.prediction.compute_ns),
        "moving_ms": ms(plan.moving_ns()),
        "bound_ms": ms(plan.bound_ns()),
        "calibration": plan.cost_source(),
        "planning_ms": ms(plan.planning_ns),
        "kernels": plan.kernels(),
        "bands": plan.bands(),
        "device": options.accelerator.as_deref().map(|device| OnDevice::of(device, plan)),
        "steps": plan.workload().steps.iter().map(|s| &s.name).collect::<Vec<_>>(),
        "plan": plan.execution(),
    })
}
