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
use crate::printed::{Printed, TextOrJson};
use crate::progress::note;
use clap::Args;
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
    model: PathBuf,
    /// Memory that the whole process may take: 64MiB, 25%, auto or none [default: auto]
    ///
    /// 64M is 64MiB, and a number without a unit is bytes. 25% is of what no limit takes. auto is what can be spared here: the
    /// limit of the memory cgroup, or half of what is free. A run whose budget changes, or whose model is in a device's memory,
    /// has none that is not named.
    #[arg(long, value_name = "SIZE", value_parser = crate::cgroup::limits::budget)]
    memory_budget: Option<Budget>,
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
    /// An input: a photo, a folder of photos, .wav, .npy, .npz, .bin, or a number [default: random values]
    ///
    /// Photos are .jpg, .png, .webp or .bmp; several of them run one after another. Of a .wav the rate stays. NAME may be left out where there is one
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
    #[command(flatten)]
    pub printed: Printed<TextOrJson>,
    /// The same as --format json -o FILE
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "output"])]
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

pub fn run(args: &RunArgs, quiet: bool) -> Outcome {
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
    fn model(&self) -> &Path {
        &self.model
    }

    /// As it was named, or else what can be spared here.
    fn memory_budget(&self) -> Budget {
        match self.memory_budget {
            Some(budget) => budget,
            None if self.is_automatic() => {
                limits::automatic().map_or(Budget::Unlimited, Budget::Bytes)
            }
            None => Budget::Unlimited,
        }
    }

    /// Whether the budget is what can be spared, as nothing else says it.
    fn is_automatic(&self) -> bool {
        let says = self.slower.is_some() || self.change.any() || self.enforce;
        self.memory_budget.is_none() && !says && self.device_budget.is_none()
    }

    /// In force when the session opens.
    fn first_budget(&self) -> Budget {
        let scheduled = self.change.budget_schedule.as_ref();
        let chosen = chosen().filter(|_| self.slower.is_some());
        (scheduled.and_then(Schedule::at_start).or(chosen)).unwrap_or_else(|| self.memory_budget())
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
        if matches!(self.memory_budget, Some(Budget::Percent(_))) {
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
