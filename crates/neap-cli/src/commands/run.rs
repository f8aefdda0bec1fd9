//! `neap run`: the main job.
//!
//! ```text
//!   open (pack) ─► inputs ─► plan ─► session ─► warm-up ─► measured runs ─► close ─► outputs ─► report
//! ```
//! What takes memory comes before the plan, which then knows of it; results are written after the arena
//! is gone.

use crate::args::{EngineArgs, OpenArgs};
use crate::budgets::ChangeArgs;
use crate::budgets::follow::{Follow, LimitWatch, PressureWatch, Range};
use crate::budgets::live::Live;
use crate::budgets::peak::PeakMeter;
use crate::budgets::repeat::{Budgets, End, Figures, Repeat};
use crate::budgets::schedule::Schedule;
use crate::budgets::trace::Trace;
use crate::cgroup;
use crate::cgroup::supervise::{self, Ended};
use crate::compute::{Compute, Memory};
use crate::failure::{Failure, Outcome, bad};
use crate::input::{self, ImageOptions};
use crate::output;
use crate::progress::note;
use crate::report::{Kept, Latency, OnDevice, OwnMemory, Report, median_ms, ms};
use crate::{atomic, carried, interrupt, stdout, task};
use clap::{ArgMatches, Args};
use neaptide::{
    Accelerator, Budget, Model, OpenOptions, OwnProcess, RunOptions, TensorInfo, memory,
    parse_bytes,
};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Memory for `--trace-events`: spans, and for each step what the plan says of it.
const TRACED_BYTES: u64 = 1 << 20;
const TRACED_STEP_BYTES: u64 = 1024;
/// Runs of a trace, at most.
const MOST_TRACED: u64 = 5;

#[derive(Args)]
pub struct RunArgs {
    /// An .onnx model, packed on first use, or a packed .neap
    #[arg(required_unless_present = "task")]
    model: Option<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
    /// Run the models of a task file at once, in one total of memory; see examples/tasks
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = TASK_CONFLICTS)]
    task: Option<PathBuf>,
    /// With --task, who gets how much [default: as the file says, or curves]
    #[arg(long, value_name = "POLICY")]
    allocate: Option<task::Policy>,
    /// With --task, all models in this process, in turns: they share the memory that runs overwrite
    #[arg(long)]
    one_process: bool,
    /// Memory that the whole process may take: 64MiB, 64M, bytes, 25% of what no limit takes, or none
    #[arg(long, value_name = "SIZE", default_value = "none")]
    pub memory_budget: Budget,
    /// Let the kernel enforce the budget: run in a memory cgroup with it as hard limit
    #[arg(long)]
    pub enforce: bool,
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Compute on a device instead of the processor: vulkan, or vulkan:N for the one that vulkaninfo calls GPU N. With
    /// auto, or auto:N, the processor keeps the steps that it is predicted to compute sooner
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<Compute>,
    /// Memory of the device that may be taken: the model runs in the device's own memory, and what --memory-budget leaves of
    /// the host's keeps weights for it. 'none' is all that the device has
    #[arg(long, value_name = "SIZE", requires = "device")]
    pub device_budget: Option<Budget>,
    /// The link to the device's memory as if it moved no more than so many bytes per second each way
    #[arg(long, value_name = "SIZE", requires = "device_budget", value_parser = parse_bytes, hide = true)]
    pub device_link: Option<u64>,
    /// File for an input: .npy, .npz, .bin, .jpg or .png; NAME may be left out where there is one input,
    /// and for .npz with arrays of the inputs' names [default: random values; integers from 0 to 99, or 1 where the
    /// input's name has "mask" in it, or 0 where it has "type"]
    #[arg(long = "input", value_name = "NAME=FILE")]
    pub inputs: Vec<String>,
    /// Seed of random inputs
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = crate::numbers::any::<u64>)]
    pub seed: u64,
    /// Runs before the measured ones
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = crate::numbers::any::<u32>)]
    pub warmup: u32,
    /// Measured runs [default: 1, or as long as the budget's changes take]
    #[arg(long, value_name = "N", value_parser = crate::numbers::whole::<u32>(1..=1_000_000))]
    pub iterations: Option<u32>,
    #[command(flatten)]
    pub change: ChangeArgs,
    /// Write each output to DIR as .npy, named after the model's output
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Write a report instead of the summary; '-' is standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write what happened in the first runs, warm-up included, as trace events for Perfetto
    #[arg(long, value_name = "FILE.json")]
    pub trace_events: Option<PathBuf>,
    #[command(flatten)]
    pub image: ImageOptions,
}

/// Options and groups of options that a task's file replaces, or that are for one model.
const TASK_CONFLICTS: [&str; 17] = [
    "model",
    "memory_budget",
    "threads",
    "device",
    "device_budget",
    "device_link",
    "inputs",
    "seed",
    "warmup",
    "iterations",
    "output_dir",
    "shapes",
    "bindings",
    "size_bounds",
    "trace_events",
    "ChangeArgs",
    "ImageOptions",
];

/// `given` holds the options as they were written.
pub fn run(args: &RunArgs, given: &ArgMatches, quiet: bool) -> Outcome {
    if let Some(file) = &args.task {
        return task::run(&task::Settings {
            file,
            allocate: args.allocate,
            enforce: args.enforce,
            one_process: args.one_process,
            engine: &args.engine,
            json: args.json.as_deref(),
            open: &args.open,
            members: carried_to_members(given),
            keeps_activations: args.engine.keep_activations,
            quiet,
        });
    }
    if args.one_process {
        return Err(bad("--one-process is for several models: give --task"));
    }
    if args.allocate.is_some() {
        return Err(bad("--allocate is for several models: give --task"));
    }
    if let Some(path) = &args.change.trace {
        Trace::check_name(path)?;
    }
    if args.trace_events.is_some() && args.change.any() {
        return Err(bad(
            "--trace-events shows one plan: leave --budget-schedule and --follow away",
        ));
    }
    let ended = match supervise::own_limit_bytes().filter(|_| args.enforce) {
        Some(limit) => here(args, Budget::Bytes(limit), true, quiet),
        None if args.enforce => enforced(args, quiet),
        None => here(args, args.first_budget(), false, quiet),
    };
    match ended {
        Err(Failure::DamagedCache(damage)) => Err(again(damage)),
        ended => ended,
    }
}

/// What every member of a task is told of this command line. All other options either conflict with
/// `--task` or are the task's own.
pub(crate) fn carried_to_members(given: &ArgMatches) -> Vec<OsString> {
    let mut words = carried::words::<OpenArgs>(given);
    words.extend(carried::words::<EngineArgs>(given));
    words
}

/// Mark a process that has begun anew, and why; their values say nothing.
const BEGUN_ANEW: &str = "NEAPTIDE_BEGUN_ANEW";
const HAS_PACKED: &str = "NEAPTIDE_HAS_PACKED";

/// Begins anew as the damaged cached file is removed, so the model is packed again. Returns only where that cannot be.
fn again(damage: String) -> Failure {
    if std::env::var_os(BEGUN_ANEW).is_some() {
        return Failure::DamagedCache(damage);
    }
    note(&format!("{damage}: packing the model again"));
    let error = begin_anew(BEGUN_ANEW);
    bad(format!("{damage}; the run cannot begin anew: {error}"))
}

/// Begins anew in this process, with nothing left of what it had in memory, and with a mark. Returns only where that cannot be.
fn begin_anew(mark: &str) -> std::io::Error {
    let mut command = std::process::Command::new("/proc/self/exe");
    if let Some(name) = std::env::args_os().next() {
        command.arg0(name);
    }
    command
        .args(std::env::args_os().skip(1))
        .env(mark, "1")
        .exec()
}

impl RunArgs {
    /// There is one unless there is a task.
    fn model(&self) -> &Path {
        self.model.as_deref().unwrap_or(Path::new(""))
    }

    /// In force when the session opens.
    fn first_budget(&self) -> Budget {
        let scheduled = self.change.budget_schedule.as_ref();
        scheduled
            .and_then(Schedule::at_start)
            .unwrap_or(self.memory_budget)
    }

    /// The device, with all that it takes of this process's memory.
    fn accelerator(&self, model: &Model) -> Outcome<Option<Arc<dyn Accelerator>>> {
        let memory = Memory {
            own: self.device_budget.is_some(),
            link_bytes_per_second: self.device_link.map(|bytes| bytes as f64),
            exact: self.engine.exact,
        };
        let open = |device: Compute| device.open(model, memory);
        self.device.map(open).transpose()
    }

    /// Divides steps between the device of the options and the processor, if that is asked for.
    fn share(&self, model: &Model, options: &mut RunOptions) -> Outcome {
        match self.device {
            Some(device) => device.share(model, options),
            None => Ok(()),
        }
    }

    /// Of the device, in bytes; `None` for all that it has, or none of its own.
    fn device_budget_bytes(&self) -> Outcome<Option<u64>> {
        let Some(budget) = self.device_budget else {
            return Ok(None);
        };
        if self.change.any() {
            return Err(bad(
                "--device-budget is for one budget: leave out --budget-schedule and --follow",
            ));
        }
        if matches!(self.memory_budget, Budget::Percent(_)) {
            return Err(bad(
                "--device-budget goes with --memory-budget as a size: percentages are of a process that holds everything",
            ));
        }
        match budget {
            Budget::Bytes(bytes) => Ok(Some(bytes)),
            Budget::Unlimited => Ok(None),
            budget => Err(bad(format!("--device-budget {budget}: write a size"))),
        }
    }

    /// `None` when something else says how long to run.
    fn measured_runs(&self) -> Option<u32> {
        let open = self.change.any() || self.change.duration.is_some();
        self.iterations.or((!open).then_some(1))
    }
}

/// Where budgets come from; the options' budget becomes the first of them. Refuses budgets that
/// cannot be met before anything runs.
fn budgets(args: &RunArgs, model: &Model, options: &mut RunOptions) -> Outcome<Budgets> {
    if !args.change.any() {
        return Ok(Budgets::Fixed);
    }
    let bounds = model.bounds(options);
    // Without slack: the size may be one that another process named, with slack of its own.
    let needed_bytes = bounds.needed.total_bytes();
    let check = |budget_bytes: u64, what: &dyn std::fmt::Display| {
        if budget_bytes >= needed_bytes {
            return Ok(());
        }
        let error = neaptide::Error::infeasible(budget_bytes, bounds.smallest);
        Err(Failure::Infeasible(format!("{what}: {error}")))
    };
    if let Some(schedule) = &args.change.budget_schedule {
        let schedule = schedule.in_bytes(|budget| model.budget_bytes(budget, options));
        for (time, budget) in schedule.budgets() {
            if let Budget::Bytes(bytes) = budget {
                check(
                    bytes,
                    &format_args!("--budget-schedule at {}s", time.as_secs_f64()),
                )?;
            }
        }
        return Ok(Budgets::Schedule(schedule));
    }
    let most_bytes = model.budget_bytes(options.budget, options).unwrap_or(
        // Everything resident, and what this command sets aside.
        bounds.unlimited_high_water_bytes() + options.reserve_bytes,
    );
    check(most_bytes, &"--follow")?;
    let least_bytes = match args.change.min_budget {
        Some(bytes) if bytes >= needed_bytes => bytes,
        _ => bounds.smallest_feasible_bytes().min(most_bytes),
    };
    // Without a budget the most is what the model can use, and that may be less than what was named.
    let least_bytes = match options.budget {
        Budget::Unlimited => least_bytes.min(most_bytes),
        _ if least_bytes > most_bytes => {
            return Err(bad("--min-budget is above --memory-budget"));
        }
        _ => least_bytes,
    };
    let range = Range {
        least_bytes,
        most_bytes,
    };
    let budgets = match args.change.follow {
        Some(Follow::Cgroup) => {
            let found = cgroup::find().map_err(|e| bad(format!("--follow cgroup: {e}")))?;
            let watch = LimitWatch::new(found, range);
            options.budget = Budget::Bytes(watch.budget_bytes());
            Budgets::Limit(watch)
        }
        _ => {
            let found = cgroup::find().ok();
            let watch = PressureWatch::new(found.as_ref(), range, most_bytes)
                .map_err(|e| bad(format!("--follow psi: {e}")))?;
            options.budget = Budget::Bytes(most_bytes);
            Budgets::Pressure(watch)
        }
    };
    Ok(budgets)
}

/// Has this command run in a cgroup of its own.
fn enforced(args: &RunArgs, quiet: bool) -> Outcome {
    let schedule = args.change.budget_schedule.iter();
    if let Some((_, budget)) = schedule
        .flat_map(Schedule::budgets)
        .find(|(_, budget)| *budget == Budget::Unlimited)
    {
        return Err(bad(format!(
            "--enforce needs sizes in --budget-schedule, '{budget}' is none"
        )));
    }
    let limit_bytes = match args.first_budget() {
        Budget::Bytes(bytes) => Some(bytes),
        budget => {
            let (model, options, _) = opened(args, quiet)?;
            model.budget_bytes(budget, &options)
        }
    };
    let Some(limit_bytes) = limit_bytes else {
        return Err(bad("--enforce needs a limit: give --memory-budget SIZE"));
    };
    match supervise::run_again(limit_bytes)? {
        Ended::Well => Ok(()),
        Ended::OutOfMemory => out_of_memory(args, limit_bytes, quiet),
    }
}

/// After the kernel ended the run. This process has no limit: what takes much memory the first time only is done here, and the run
/// begins again, as it would if it were asked for once more.
fn out_of_memory(args: &RunArgs, limit_bytes: u64, quiet: bool) -> Outcome {
    let (model, options, was_packed) = opened(args, quiet)?;
    if was_packed && let Ended::Well = supervise::run_again(limit_bytes)? {
        return Ok(());
    }
    // A budget so small that not even the refusal fits into it.
    let smallest = model.bounds(&options).smallest;
    if limit_bytes < smallest.total_bytes() {
        return Err(neaptide::Error::infeasible(limit_bytes, smallest).into());
    }
    // Drivers take much memory to compile kernels the first time, and keep what they have compiled.
    if args.device.is_some()
        && !was_packed
        && let Ended::Well = supervise::run_again(limit_bytes)?
    {
        return Ok(());
    }
    Err(Failure::Internal(supervise::out_of_memory(limit_bytes)))
}

/// The model, and whether it had to be packed.
fn open(args: &RunArgs, own_cgroup: bool, quiet: bool) -> Outcome<(Model, bool)> {
    let hints = input::hints(&args.inputs);
    let options = OpenOptions {
        host: Arc::new(OwnProcess { own_cgroup }),
        shape_hints: hints.shapes,
        value_hints: hints.values,
        ..args.open.options()?
    };
    let (model, was_packed) = super::open_or_pack(args.model(), &options, quiet)?;
    model.check_weights()?;
    Ok((model, was_packed))
}

/// The model and its options before anything is loaded, and whether it had to be packed.
fn opened(args: &RunArgs, quiet: bool) -> Outcome<(Model, RunOptions, bool)> {
    let (model, was_packed) = open(args, false, quiet)?;
    let inputs = model.inputs().iter().map(|i| i.len_bytes() as u64).sum();
    let mut options = RunOptions {
        reserve_bytes: inputs,
        accelerator: args.accelerator(&model)?,
        device_budget_bytes: args.device_budget_bytes()?,
        ..args.engine.options(Budget::Unlimited)
    };
    args.share(&model, &mut options)?;
    Ok((model, options, was_packed))
}

/// Runs in this process.
fn here(args: &RunArgs, budget: Budget, own_cgroup: bool, quiet: bool) -> Outcome {
    if let Some(folder) = &args.output_dir {
        output::prepare(folder)?;
    }
    if args.engine.keep_activations && args.change.any() {
        return Err(bad(
            "--keep-activations is for one budget: leave out --budget-schedule and --follow",
        ));
    }
    let device_budget_bytes = args.device_budget_bytes()?;
    let (model, was_packed) = open(args, own_cgroup, quiet)?;
    // What packing leaves of the process would be counted with the run, and not in the next one.
    if own_cgroup && was_packed && std::env::var_os(HAS_PACKED).is_none() {
        drop(model);
        let error = begin_anew(HAS_PACKED);
        return Err(bad(format!("the run cannot begin anew: {error}")));
    }
    memory::trim_heap();
    refuse_large_inputs(args, &model, budget, own_cgroup)?;
    let mut inputs = input::load(
        &model,
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
    super::note_memory(&model);
    interrupt::check()?;
    let measured_runs = args.measured_runs();
    let mut figures = Figures::new(measured_runs, args.change.most_changes());
    let traced_steps = (args.trace_events.is_some()).then(|| model.program().steps.len() as u64);
    let tracing_bytes = traced_steps.map_or(0, |n| TRACED_BYTES + n * TRACED_STEP_BYTES);
    let mut options = RunOptions {
        reserve_bytes: figures.reserve_bytes() + tracing_bytes,
        accelerator: args.accelerator(&model)?,
        device_budget_bytes,
        ..args.engine.options(budget)
    };
    args.share(&model, &mut options)?;
    let own = if own_cgroup {
        cgroup::find().ok()
    } else {
        None
    };
    let mut peak = PeakMeter::new(own.clone());
    let budgets = budgets(args, &model, &mut options)?;
    let plan = model.plan(&options)?;
    if let Some(remark) = plan.cost_remark() {
        note(remark);
    }
    let mut report = Report {
        model: args.model().display().to_string(),
        graph_digest: model.digest().into(),
        random_inputs: std::mem::take(&mut inputs.made_up),
        threads: options.threads,
        strategy: plan.execution.strategy.clone(),
        memory_budget_bytes: plan.budget_bytes,
        peak_memory_bytes: 0,
        peak_memory_source: memory::PeakSource::VmHwm,
        planned_high_water_bytes: plan.high_water_bytes(),
        lower_bound_bytes: plan.lower_bound_bytes(),
        arena_bytes: plan.execution.memory_bytes(),
        base_overhead_bytes: plan.base_overhead_bytes(),
        ledger: plan.ledger,
        resident_weight_bytes: plan.verdict.resident_bytes,
        packed_in_memory: model.is_packed_in_memory(),
        prepared_weight_bytes: plan.execution.prepared_bytes(&plan.workload),
        loaded_bytes_per_run: 0,
        stored_bytes_per_run: plan.verdict.stored_bytes_per_run,
        kernels: plan.kernels(),
        bands: plan.bands(),
        device: (options.accelerator.as_deref()).map(|device| OnDevice::of(device, &plan)),
        stall_ms: 0.0,
        predicted_latency_ms: ms(plan.prediction.latency_ns),
        latency_ms: Latency::default(),
        outputs: Vec::new(),
        activations: None,
        adaptations: None,
    };
    let infos = model.outputs();
    let traced = args.trace_events.as_ref().map(|_| plan.clone());
    let mut session = model.into_session(plan, &options)?;
    if let Some(plan) = &traced {
        session.record_timeline(traced_runs(plan));
    }
    let mut outputs = (infos.iter())
        .map(input::zeros)
        .collect::<Result<Vec<_>, _>>()
        .map_err(bad)?;
    let repeat = Repeat {
        end: End {
            runs: measured_runs.map(u64::from),
            after: args.change.duration.or(match (&budgets, measured_runs) {
                (Budgets::Schedule(schedule), None) => Some(schedule.end()),
                _ => None,
            }),
        },
        session: &mut session,
        budgets,
        warmup: args.warmup.into(),
        own,
        peak: &mut peak,
        live: args.change.live.then(Live::new),
        trace: args
            .change
            .trace
            .as_deref()
            .map(Trace::create)
            .transpose()?,
        figures: &mut figures,
    };
    let given: Vec<&[u8]> = inputs.tensors.iter().map(Vec::as_slice).collect();
    let mut slots: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    repeat.run(&given, &mut slots)?;
    if options.keep_activations {
        report.activations = Some(Kept::all(&mut session)?);
    }
    let recorded = session.timeline().filter(|_| traced.is_some()).cloned();
    // Sizes that are known only now.
    let infos: Vec<TensorInfo> = (infos.into_iter().enumerate())
        .map(|(index, info)| TensorInfo {
            name: info.name,
            ty: session.output_type(index).clone(),
        })
        .collect();
    for (info, output) in infos.iter().zip(&mut outputs) {
        output.truncate(info.len_bytes());
    }
    let copied_bytes = session.stats().copied_bytes;
    let runs = session.stats().runs;
    drop((session, given));
    drop(inputs);

    report.latency_ms = Latency {
        runs: figures.runs,
        ..Latency::of(figures.first_ns, &mut figures.latency_ns)
    };
    report.stall_ms = median_ms(&mut figures.stall_ns);
    figures.loaded_bytes.sort_unstable();
    report.loaded_bytes_per_run = figures.loaded_bytes[figures.loaded_bytes.len() / 2];
    report.outputs = output::write(args.output_dir.as_deref(), &infos, &outputs)?;
    if args.change.any() {
        // The largest that was ever in force.
        let later = figures.adaptations.iter().map(|a| a.budget_bytes);
        report.memory_budget_bytes = later.fold(report.memory_budget_bytes, |most, budget| {
            most.zip(budget).map(|(a, b)| a.max(b))
        });
        report.adaptations = Some(figures.adaptations);
    }
    if let (Some(path), Some(plan), Some(timeline)) = (&args.trace_events, traced, recorded) {
        let title = format!("measured: {}", report.model);
        atomic::write(path, |file| plan.write_trace(file, &title, &timeline))?;
    }
    if let (Some(device), Some(told)) = (options.accelerator.as_deref(), &mut report.device) {
        told.memory = OwnMemory::of(device, args.device_budget_bytes()?, &report.ledger);
        told.copied_bytes_per_run = copied_bytes / runs.max(1);
    }
    let peak = peak.overall();
    report.peak_memory_bytes = peak.bytes;
    report.peak_memory_source = peak.source;
    tell(&report, args, own_cgroup)?;
    interrupt::check()
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
fn traced_runs(plan: &neaptide::Plan) -> usize {
    let actions = plan.execution.computes.len() + 3 * plan.execution.loads.len();
    let run_bytes = (actions * size_of::<neap_plan::Span>()) as u64;
    (TRACED_BYTES / 2 / run_bytes.max(1)).clamp(1, MOST_TRACED) as usize
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
