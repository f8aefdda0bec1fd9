//! `neap plan`: how a model would run within a budget, on this machine or one that is described: as text, as
//! JSON, as a page to look at, or as trace events.

use super::{gguf, open};
use crate::args::{CalibrateArg, EngineArgs, ModelArgs};
use crate::budgets::slower::Slower;
use crate::compute::{Compute, Memory};
use crate::device::Device;
use crate::failure::{Outcome, bad};
use crate::language;
use crate::progress::note;
use crate::report::{OnDevice, bands_text, kernels_text, ms};
use crate::{atomic, stdout};
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use neap_plan::render;
use neaptide::{Budget, Bytes, CostSource, Model, Plan, RunOptions};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write;
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
    /// Plan for another device: a description in FILE.toml, or a name such as raspberry-pi-4
    ///
    /// The names are v100-pcie, rtx3090-pcie, jetson-nx, raspberry-pi-4 and phone. Devices of this machine are named as `neap run`
    /// takes them: vulkan, vulkan:N, auto or auto:N.
    #[arg(long, value_name = "FILE|NAME", conflicts_with = "calibrate")]
    device: Option<String>,
    /// Of a language model: tokens that prompts and answers may have together [default: several]
    #[arg(long, value_name = "N", value_parser = crate::numbers::whole::<u32>(1..=1 << 20))]
    context: Option<u32>,
    /// Of a language model: in which type keys and values are kept: f32, f16 or int8
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    kv: neap_chat::CacheType,
    /// Memory of a device of this machine that may be taken, for a plan in the device's own memory
    #[arg(long, value_name = "SIZE", requires = "device")]
    device_budget: Option<Budget>,
    /// The same as --search-seed
    #[arg(long, value_name = "N", conflicts_with = "search_seed", value_parser = crate::numbers::any::<u64>)]
    seed: Option<u64>,
    /// text, json, a FILE.html to write, or a FILE.json for Perfetto
    #[arg(long, short, value_name = "FORMAT", default_value = "text", value_parser = OsStringValueParser::new().try_map(parse_format))]
    output: Format,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Clone, Debug, PartialEq)]
enum Format {
    Text,
    Json,
    Page(PathBuf),
    Trace(PathBuf),
}

/// Simulated runs; the last one, in the steady state, is shown.
const RUNS: u32 = 3;

pub fn run(args: &PlanArgs, quiet: bool) -> Outcome {
    if gguf::is_gguf(&args.model.model) {
        let as_json = match args.output {
            Format::Text => false,
            Format::Json => true,
            _ => return Err(bad("the plan of a language model is text or json")),
        };
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
        return language::plan::plan(&args.model.model, &question, as_json);
    }
    let named = args.device.as_deref();
    let here: Option<Compute> = named.and_then(|name| name.parse().ok());
    let device = named.filter(|_| here.is_none());
    let device = device.map(Device::find).transpose()?;
    if args.device_budget.is_some() && here.is_none() {
        return Err(bad("--device-budget goes with --device vulkan"));
    }
    let model = open(&args.model.model, &args.model.open.options()?, quiet)?;
    let inputs = model.inputs().iter().map(|i| i.len_bytes() as u64).sum();
    let mut options = RunOptions {
        reserve_bytes: inputs,
        costs: device.as_ref().map(|d| d.costs.clone()),
        ..args.engine.options(args.memory_budget)
    };
    if let Some(device) = here {
        open_device(device, args.device_budget, &model, &mut options)?;
    }
    options.search.seed = args.seed.unwrap_or(options.search.seed);
    if let Some(slower) = args.slower {
        options.budget = Budget::Bytes(slower.budget_bytes(&model, &options, quiet)?);
    }
    let plan = model.plan(&options)?;
    if let Some(remark) = plan.cost_remark() {
        note(remark);
    }
    let title = || {
        let model = args.model.model.file_name().unwrap_or_default().display();
        let within = plan
            .budget_bytes
            .map_or_else(|| "unlimited memory".into(), |b| Bytes(b).to_string());
        let on = device.as_ref().map(|d| format!(" on {}", d.name));
        format!("{model} within {within}{}", on.unwrap_or_default())
    };
    match &args.output {
        Format::Text => stdout::print(&text(&model, &plan, &options)),
        Format::Json => stdout::print_json(&figures(args, &model, &plan, &options)),
        Format::Page(path) => {
            let title = title();
            let timeline = plan.simulate(RUNS);
            let page = plan.page(&title, &timeline);
            atomic::write(path, |file| file.write_all(page.as_bytes()))?;
            stdout::print(&format!("{}: {title}\n", path.display()))
        }
        Format::Trace(path) => {
            let title = title();
            let (name, timeline) = (format!("predicted: {title}"), plan.simulate(RUNS));
            atomic::write(path, |file| plan.write_trace(file, &name, &timeline))?;
            stdout::print(&format!("{}: {title}\n", path.display()))
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

fn parse_format(given: OsString) -> Result<Format, String> {
    let name = given.as_encoded_bytes().to_ascii_lowercase();
    match given.to_str() {
        Some("text") => Ok(Format::Text),
        Some("json") => Ok(Format::Json),
        _ if name.ends_with(b".html") => Ok(Format::Page(given.into())),
        _ if name.ends_with(b".json") => Ok(Format::Trace(given.into())),
        _ => Err("write text, json or a file name that ends in .html or .json".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        let format = |text: &str| parse_format(text.into());
        assert_eq!(format("text"), Ok(Format::Text));
        assert_eq!(format("json"), Ok(Format::Json));
        assert_eq!(format("a/b.HTML"), Ok(Format::Page("a/b.HTML".into())));
        assert_eq!(format("t.json"), Ok(Format::Trace("t.json".into())));
        assert!(format("plan.pdf").is_err());
    }
}
