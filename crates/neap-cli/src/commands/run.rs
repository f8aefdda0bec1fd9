//! `neap run`: the main job.
//!
//! ```text
//!   open (pack) ─► inputs ─► plan ─► session ─► warm-up ─► measured runs ─► close ─► outputs ─► report
//! ```

mod changing;
mod enforced;
mod here;
mod photos;

use super::HAS_PACKED;
use crate::args::{EngineArgs, OpenArgs};
use crate::budgets::ChangeArgs;
use crate::budgets::schedule::Schedule;
use crate::budgets::slower::Slower;
use crate::budgets::trace::Trace;
use crate::cgroup::{limits, supervise};
use crate::compute::{Compute, Memory};
use crate::failure::{Failure, Outcome, bad};
use crate::input::{self, ImageOptions};
use crate::progress::note;
use crate::{carried, task};
use clap::{ArgMatches, Args};
use enforced::enforced;
use here::here;
use neaptide::{Accelerator, Budget, Model, OpenOptions, OwnProcess, RunOptions, parse_bytes};
pub use photos::Judged;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Args)]
pub struct RunArgs {
    /// An .onnx model, packed on first use, or a packed .neap
    #[arg(required_unless_present = "task")]
    model: Option<PathBuf>,
    /// Run the models of a task file at once, in one total of memory; see examples/tasks
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = TASK_CONFLICTS)]
    task: Option<PathBuf>,
    /// With --task, who gets how much [default: as the file says, or curves]
    #[arg(long, value_name = "POLICY")]
    allocate: Option<task::Policy>,
    /// With --task, all models in this process, in turns: they share the memory that runs overwrite
    #[arg(long)]
    one_process: bool,
    /// Memory that the whole process may take: 64MiB, 25%, auto or none
    ///
    /// 64M is 64MiB, and a number without a unit is bytes. 25% is of what no limit takes. auto is what can be spared here: the
    /// limit of the memory cgroup, or half of what is free.
    #[arg(long, value_name = "SIZE", default_value = "none", value_parser = crate::cgroup::limits::budget)]
    pub memory_budget: Budget,
    /// The smallest budget that is at most so much slower than the fastest, such as 10%
    ///
    /// Budgets from the smallest to all of the model's memory are compared by their predicted times.
    #[arg(long, value_name = "SHARE", conflicts_with_all = ["memory_budget", "budget_schedule", "follow", "device_budget"])]
    pub slower: Option<Slower>,
    /// Let the kernel enforce the budget, as the limit of a memory cgroup
    #[arg(long)]
    pub enforce: bool,
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
    /// An input: a photo, a folder of photos, .npy, .npz, .bin, or a number [default: random values]
    ///
    /// Photos are .jpg, .png, .webp or .bmp; several of them run one after another. NAME may be left out where there is one
    /// input, and for .npz with arrays of the inputs' names. Random integers are from 0 to 99, or 1 where the input's name has
    /// "mask" in it, or 0 where it has "type".
    #[arg(long = "input", value_name = "NAME=FILE")]
    pub inputs: Vec<OsString>,
    /// Names of the classes, for the largest values of outputs: a JSON list, or one in a line [default: those in the model]
    #[arg(long, value_name = "FILE")]
    pub labels: Option<PathBuf>,
    /// Seed of random inputs
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = crate::numbers::any::<u64>)]
    pub seed: u64,
    /// Runs before the measured ones
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = crate::numbers::any::<u32>)]
    pub warmup: u32,
    /// Measured runs [default: 1, or as long as the budget's changes take]
    #[arg(long, value_name = "N", value_parser = crate::numbers::whole::<u32>(1..=1_000_000))]
    pub iterations: Option<u32>,
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
    open: OpenArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub image: ImageOptions,
}

/// Options and groups of options that a task's file replaces, or that are for one model.
const TASK_CONFLICTS: [&str; 19] = [
    "model",
    "memory_budget",
    "slower",
    "threads",
    "device",
    "device_budget",
    "device_link",
    "inputs",
    "labels",
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
    args.image.check(&args.inputs)?;
    if let Some(path) = &args.change.trace {
        Trace::check_name(path)?;
    }
    if args.trace_events.is_some() && args.change.any() {
        return Err(bad(
            "--trace-events shows one plan: leave --budget-schedule and --follow away",
        ));
    }
    let ended = match (supervise::own_limit_bytes(), args.slower) {
        (Some(limit), _) if args.enforce => here(args, Budget::Bytes(limit), true, quiet),
        (_, Some(slower)) if chosen().is_none() => choose(args, slower, quiet),
        _ if args.enforce => enforced(args, quiet),
        _ => here(args, args.first_budget(), false, quiet),
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

/// Marks a process that has begun anew with the budget that `--slower` chose, in bytes.
const CHOSEN: &str = "NEAPTIDE_CHOSEN_BUDGET";

fn chosen() -> Option<Budget> {
    let bytes = std::env::var(CHOSEN).ok()?.parse().ok()?;
    Some(Budget::Bytes(bytes))
}

/// Begins anew with the budget that `--slower` asks for: the plans that it was chosen from leave nothing in memory.
fn choose(args: &RunArgs, slower: Slower, quiet: bool) -> Outcome {
    let (model, options, _) = opened(args, quiet)?;
    let bytes = limits::bytes(slower.budget_bytes(&model, &options, quiet)?);
    let error = begin_anew(&[(CHOSEN, &bytes.to_string()), (HAS_PACKED, "1")]);
    Err(bad(format!("the run cannot begin anew: {error}")))
}

/// Marks a process that has begun anew, as a cached file was damaged; the value says nothing.
const BEGUN_ANEW: &str = "NEAPTIDE_BEGUN_ANEW";

/// Begins anew as the damaged cached file is removed, so the model is packed again. Returns only where that cannot be.
fn again(damage: String) -> Failure {
    if std::env::var_os(BEGUN_ANEW).is_some() {
        return Failure::DamagedCache(damage);
    }
    note(&format!("{damage}: packing the model again"));
    let error = begin_anew(&[(BEGUN_ANEW, "1")]);
    bad(format!("{damage}; the run cannot begin anew: {error}"))
}

/// Begins anew in this process, with nothing left of what it had in memory, and with marks. Returns only where that cannot be.
pub(super) fn begin_anew(marks: &[(&str, &str)]) -> std::io::Error {
    let mut command = std::process::Command::new("/proc/self/exe");
    if let Some(name) = std::env::args_os().next() {
        command.arg0(name);
    }
    command
        .args(std::env::args_os().skip(1))
        .envs(marks.iter().copied())
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
        let chosen = chosen().filter(|_| self.slower.is_some());
        (scheduled.and_then(Schedule::at_start).or(chosen)).unwrap_or(self.memory_budget)
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

/// The model, and whether it had to be packed.
fn open(args: &RunArgs, own_cgroup: bool, quiet: bool) -> Outcome<(Model, bool)> {
    input::check_names(&args.inputs, args.model())?;
    let bound = &args.open.bindings;
    let hints = input::hints(args.model(), bound, &args.inputs, &args.image);
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
