//! The run itself, in this process.
//!
//! What takes memory comes before the plan, which then knows of it; results are written after the arena is gone.

use super::super::HAS_PACKED;
use super::changing::budgets;
use super::{RunArgs, begin_anew, open, photos};
use crate::budgets::live::Live;
use crate::budgets::peak::PeakMeter;
use crate::budgets::repeat::{Budgets, End, Figures, Last, Repeat};
use crate::budgets::trace::Trace;
use crate::cgroup;
use crate::failure::{Failure, Outcome, bad};
use crate::input::{self, Inputs};
use crate::output;
use crate::printed::TextOrJson;
use crate::progress::{detail, note};
use crate::report::{Kept, Latency, OnDevice, OwnMemory, Report, median_ms, ms};
use crate::{atomic, interrupt};
use neaptide::{Budget, Bytes, Model, Plan, RunOptions, TensorInfo, memory};

/// Memory for `--trace-events`: spans, and for each step what the plan says of it.
const TRACED_BYTES: u64 = 1 << 20;
const TRACED_STEP_BYTES: u64 = 1024;
/// Runs of a trace, at most.
const MOST_TRACED: u64 = 5;

/// Runs in this process.
pub(super) fn here(args: &RunArgs, budget: Budget, own_cgroup: bool, quiet: bool) -> Outcome {
    let labels = args.labels.as_deref().map(input::labels).transpose()?;
    if args.engine.keep_activations && args.change.any() {
        return Err(bad(
            "--keep-activations is for one budget: leave out --budget-schedule and --follow",
        ));
    }
    let device_budget_bytes = args.device_budget_bytes()?;
    let (model, was_packed) = open(args, own_cgroup, quiet)?;
    if let Some(folder) = &args.output_dir {
        output::prepare(folder)?;
    }
    let labels = labels.unwrap_or_else(|| neap_picture::names_of_classes(model.metadata()));
    // What packing leaves of the process would be counted with the run, and not in the next one.
    if own_cgroup && was_packed && std::env::var_os(HAS_PACKED).is_none() {
        drop(model);
        let error = begin_anew(&[(HAS_PACKED, "1")]);
        return Err(bad(format!("the run cannot begin anew: {error}")));
    }
    memory::trim_heap();
    refuse_large_inputs(args, &model, budget, own_cgroup)?;
    let mut inputs = match loaded(args, &model, budget, own_cgroup, quiet) {
        Err(Failure::Infeasible(text)) => {
            // Where the budget is too small for the model itself, that is what matters.
            model.plan(&args.engine.options(budget))?;
            return Err(Failure::Infeasible(text));
        }
        loaded => loaded?,
    };
    let photos = inputs
        .photos
        .take()
        .filter(|p| p.files.len() > 1 || p.at_once > 1);
    if photos.is_some() && args.change.any() {
        return Err(bad(
            "several photos run within one budget: leave out --budget-schedule and --follow",
        ));
    }
    crate::commands::note_memory(&model);
    interrupt::check()?;
    let mut figures = Figures::new(args.measured_runs(), args.change.most_changes());
    let traced_steps = (args.trace_events.is_some()).then(|| model.program().steps.len() as u64);
    let tracing_bytes = traced_steps.map_or(0, |n| TRACED_BYTES + n * TRACED_STEP_BYTES);
    let mut options = RunOptions {
        reserve_bytes: figures.reserve_bytes()
            + tracing_bytes
            + photos
                .as_ref()
                .map_or(0, |p| photos::reserve_bytes(p, &model)),
        accelerator: args.accelerator(&model)?,
        device_budget_bytes,
        ..args.engine.options(budget)
    };
    args.share(&model, &mut options)?;
    let own = own_cgroup.then(|| cgroup::find().ok()).flatten();
    let mut peak = PeakMeter::new(own.clone());
    let budgets = budgets(args, &model, &mut options)?;
    let plan = model.plan(&options)?;
    if let Some(remark) = plan.cost_remark() {
        note(remark);
    }
    detail(|| planned_text(&plan));
    let random_inputs = std::mem::take(&mut inputs.made_up);
    let mut report = planned(args, &model, &options, &plan, random_inputs);
    if args.is_automatic() && args.printed.form() == TextOrJson::Text && args.json.is_none() {
        report.smallest_bytes = Some(model.bounds(&options).smallest_feasible_bytes());
        memory::trim_heap();
    }
    let infos = model.outputs();
    let (_, declared) = neaptide::declared_tensors(args.model(), &model);
    let traced = args.trace_events.as_ref().map(|_| plan.clone());
    let mut session = model.into_session(plan, &options)?;
    detail(|| "the session is open".into());
    if let Some(plan) = &traced {
        session.record_timeline(traced_runs(plan));
    }
    let mut outputs = (infos.iter())
        .map(input::zeros)
        .collect::<Result<Vec<_>, _>>()
        .map_err(bad)?;
    let repeat = Repeat {
        end: end_of(args, &budgets),
        session: &mut session,
        budgets,
        warmup: args.warmup.into(),
        own,
        peak: &mut peak,
        live: args.change.live.then(Live::new),
        trace: (args.change.trace.as_deref())
            .map(Trace::create)
            .transpose()?,
        figures: &mut figures,
    };
    let last = {
        let given: Vec<&[u8]> = inputs.tensors.iter().map(Vec::as_slice).collect();
        let mut slots: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        repeat.run(&given, &mut slots)?
    };
    if options.keep_activations && last == Last::Whole {
        report.activations = Some(Kept::all(&mut session)?);
    }
    let mut seen = match &photos {
        Some(photos) if last == Last::Whole => {
            let given: Vec<&[u8]> = inputs.tensors.iter().map(Vec::as_slice).collect();
            Some(photos::all(photos, &mut session, &given, &mut outputs)?)
        }
        _ => None,
    };
    let recorded = session.timeline().filter(|_| traced.is_some()).cloned();
    // Sizes that are known only now.
    let infos: Vec<TensorInfo> = (infos.into_iter().enumerate())
        .map(|(index, info)| TensorInfo {
            name: info.name,
            ty: session.output_type(index).clone(),
        })
        .collect();
    let mut infos = seen
        .as_mut()
        .map_or(infos, |seen| std::mem::take(&mut seen.infos));
    for (info, output) in infos.iter().zip(&mut outputs) {
        output.truncate(info.len_bytes());
    }
    round_declared(&mut infos, &mut outputs, &declared);
    let stats = session.stats();
    detail(|| format!("{} runs", stats.runs));
    drop(session);
    drop(inputs);

    note_figures(&mut report, figures, args.change.any());
    let folder = args.output_dir.as_deref().filter(|_| last == Last::Whole);
    report.outputs = output::write(folder, &infos, &outputs, &labels)?;
    if let (Some(photos), true) = (&photos, seen.is_some()) {
        report.photos = photos::judged(photos, &infos, &outputs, &labels);
    }
    if let (Some(path), Some(plan), Some(timeline)) = (&args.trace_events, traced, recorded) {
        let title = format!("measured: {}", report.model);
        atomic::write(path, |file| plan.write_trace(file, &title, &timeline))?;
    }
    if let (Some(device), Some(told)) = (options.accelerator.as_deref(), &mut report.device) {
        told.memory = OwnMemory::of(device, args.device_budget_bytes()?, &report.ledger);
        told.copied_bytes_per_run = stats.copied_bytes / stats.runs.max(1);
    }
    let peak = peak.overall();
    report.peak_memory_bytes = peak.bytes;
    report.peak_memory_source = peak.source;
    tell(&report, args, own_cgroup)?;
    interrupt::check()
}

fn end_of(args: &RunArgs, budgets: &Budgets) -> End {
    let runs = args.measured_runs();
    let of_budgets = match (budgets, runs) {
        (Budgets::Schedule(schedule), None) => Some(schedule.end()),
        _ => None,
    };
    End {
        runs: runs.map(u64::from),
        after: args.change.duration.or(of_budgets),
        with_last_budget: args.change.duration.is_none(),
    }
}

/// The inputs, with as much memory for photos as the budget leaves.
fn loaded(
    args: &RunArgs,
    model: &Model,
    budget: Budget,
    own_cgroup: bool,
    quiet: bool,
) -> Outcome<Inputs> {
    let decode_limit_bytes = match budget {
        Budget::Bytes(bytes) => Some(bytes.saturating_sub(memory::current_bytes(own_cgroup))),
        _ => None,
    };
    let settings = input::Settings {
        given: &args.inputs,
        image: &args.image,
        seed: args.seed,
        decode_limit_bytes,
    };
    let inputs = input::load(model, &settings)?;
    if !quiet {
        inputs.remarks.iter().for_each(|remark| note(remark));
    }
    Ok(inputs)
}

/// What is known before anything runs.
fn planned(
    args: &RunArgs,
    model: &Model,
    options: &RunOptions,
    plan: &Plan,
    random_inputs: Vec<String>,
) -> Report {
    Report {
        model: args.model().display().to_string(),
        graph_digest: model.digest().into(),
        random_inputs,
        remarks: model.remarks().to_vec(),
        threads: options.threads,
        strategy: plan.execution().strategy.clone(),
        memory_budget_bytes: plan.budget_bytes,
        peak_memory_bytes: 0,
        peak_memory_source: memory::PeakSource::VmHwm,
        planned_high_water_bytes: plan.high_water_bytes(),
        lower_bound_bytes: plan.lower_bound_bytes(),
        arena_bytes: plan.execution().memory_bytes(),
        base_overhead_bytes: plan.base_overhead_bytes(),
        ledger: plan.ledger,
        resident_weight_bytes: plan.verdict().resident_bytes,
        packed_in_memory: model.is_packed_in_memory(),
        prepared_weight_bytes: plan.execution().prepared_bytes(plan.workload()),
        loaded_bytes_per_run: 0,
        stored_bytes_per_run: plan.verdict().stored_bytes_per_run,
        kernels: plan.kernels(),
        bands: plan.bands(),
        device: (options.accelerator.as_deref()).map(|device| OnDevice::of(device, plan)),
        stall_ms: 0.0,
        predicted_latency_ms: ms(plan.prediction.latency_ns),
        latency_ms: Latency::default(),
        processor_ms_per_run: 0.0,
        energy_mj_per_run: None,
        smallest_bytes: None,
        outputs: Vec::new(),
        photos: None,
        activations: None,
        adaptations: None,
    }
}

/// What measured runs took, and where the budget may change, how it did.
fn note_figures(report: &mut Report, mut figures: Figures, may_change: bool) {
    report.latency_ms = Latency {
        runs: figures.runs,
        ..Latency::of(figures.first_ns, &mut figures.latency_ns)
    };
    if let Some(cost) = figures.cost {
        let runs = figures.runs.max(1) as f64;
        report.processor_ms_per_run = rounded(cost.processor_ns as f64 / 1e6 / runs);
        let energy_mj = |uj: u64| rounded(uj as f64 / 1e3 / runs);
        report.energy_mj_per_run = cost.energy_uj.map(energy_mj);
    }
    report.stall_ms = median_ms(&mut figures.stall_ns);
    figures.loaded_bytes.sort_unstable();
    report.loaded_bytes_per_run = figures.loaded_bytes[figures.loaded_bytes.len() / 2];
    if may_change {
        // The largest that was ever in force.
        let later = figures.adaptations.iter().map(|a| a.budget_bytes);
        report.memory_budget_bytes = later.fold(report.memory_budget_bytes, |most, budget| {
            most.zip(budget).map(|(a, b)| a.max(b))
        });
        report.adaptations = Some(figures.adaptations);
    }
}

/// To thousandths.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn planned_text(plan: &Plan) -> String {
    format!(
        "planned in {:.1} ms: {}, {} weights stay, predicted {:.2} ms a run",
        ms(plan.planning_ns),
        plan.ledger,
        Bytes(plan.verdict().resident_bytes),
        ms(plan.prediction.latency_ns)
    )
}

/// Inputs of less are made before anything is refused: any refusal takes as much.
const SMALL_INPUTS_BYTES: u64 = 1 << 20;

/// Inputs that do not fit into the budget are not even made.
fn refuse_large_inputs(args: &RunArgs, model: &Model, budget: Budget, own_cgroup: bool) -> Outcome {
    let Budget::Bytes(budget_bytes) = budget else {
        return Ok(());
    };
    let inputs = model.inputs();
    let inputs_bytes: u64 = inputs.iter().map(|i| i.len_bytes() as u64).sum();
    let held_bytes = memory::current_bytes(own_cgroup);
    let fits = held_bytes.saturating_add(inputs_bytes) <= budget_bytes;
    if fits || inputs_bytes < SMALL_INPUTS_BYTES {
        return Ok(());
    }
    let options = RunOptions {
        reserve_bytes: inputs_bytes,
        ..args.engine.options(budget)
    };
    // It refuses, and says what would be enough.
    model.plan(&options)?;
    Ok(())
}

/// As many runs as there is memory set aside for, but enough to see a steady state.
fn traced_runs(plan: &Plan) -> usize {
    let actions = plan.execution().computes.len() + 3 * plan.execution().loads.len();
    let run_bytes = (actions * size_of::<neap_plan::Span>()) as u64;
    (TRACED_BYTES / 2 / run_bytes.max(1)).clamp(1, MOST_TRACED) as usize
}

fn tell(report: &Report, args: &RunArgs, enforced: bool) -> Outcome {
    let printed = args.printed.or_json(args.json.as_deref());
    printed.report(report, || report.summary(enforced))
}

/// Outputs that the model declares as half floats are rounded to them.
fn round_declared(infos: &mut [TensorInfo], outputs: &mut [Vec<u8>], declared: &[TensorInfo]) {
    for ((info, output), declared) in infos.iter_mut().zip(outputs).zip(declared) {
        let dtype = declared.ty.dtype;
        if neaptide::is_half(dtype) && info.ty.dtype != dtype {
            let mut halves = vec![0; output.len() / 2];
            neaptide::round_to_halves(dtype, output, &mut halves);
            *output = halves;
            info.ty.dtype = dtype;
        }
    }
}
