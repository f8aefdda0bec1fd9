//! `neap train`: a model learns from data, within a memory budget.

use crate::advice;
use crate::cgroup::supervise::{self, Ended};
use crate::destination::Destination;
use crate::failure::{Failure, Outcome, bad};
use crate::interrupt;
use crate::progress::note;
use crate::stdout;
use crate::training::{Follower, LearningArgs};
use clap::Args;
use neap_train::{DataSet, Engine, Recipe, Summary, TrainError, TrainOptions, memory_bytes};
use neap_zoo::Batch;
use neaptide::{Budget, Bytes, Need, OwnProcess, TrainCosts, memory};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Digits that --demo draws to train on.
const DEMO_SAMPLES: usize = 4000;
const DEMO_NETWORK: &str = "cnn_28";
const DEMO_OUTPUT: &str = "digits";

#[derive(Args)]
pub struct TrainArgs {
    /// The .onnx model to begin with; its first dimension is the batch
    #[arg(required_unless_present = "demo")]
    model: Option<PathBuf>,
    /// What to learn: a folder of IDX files, of pictures by class (.jpg, .png, .webp, .bmp), or of tokens; or .npz, .npy or .bin
    #[arg(long, value_name = "PATH", required_unless_present = "demo")]
    data: Option<PathBuf>,
    /// Make a small network and let it learn digits that are drawn by this program: needs no files
    #[arg(long, conflicts_with_all = ["model", "data"])]
    demo: bool,
    /// The trained model; its weights go beside it as .safetensors
    #[arg(
        long,
        short,
        value_name = "FILE.onnx",
        required_unless_present = "demo"
    )]
    output: Option<PathBuf>,
    /// Memory that the whole process may take: 300MiB, auto or none
    ///
    /// 300M is 300MiB, and a number without a unit is bytes. auto is what can be spared here.
    #[arg(long, value_name = "SIZE", default_value = "none", value_parser = crate::cgroup::limits::budget)]
    memory_budget: Budget,
    /// Let the kernel enforce the budget, as the limit of a memory cgroup
    #[arg(long)]
    enforce: bool,
    /// Threads that compute [default: all processors]
    #[arg(long, value_name = "N", value_parser = crate::numbers::whole::<u16>(1..=256))]
    threads: Option<u16>,
    /// Shape of the input with the batch, such as x=64x3x96x96, where the model leaves more than that open
    #[arg(long = "shape", value_name = "NAME=SHAPE", value_parser = crate::args::parse_shape)]
    shapes: Vec<(String, Vec<usize>)>,
    /// Where parameters and activations go that are not in memory [default: beside the output]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    learning: LearningArgs,
}

pub fn run(args: &TrainArgs, quiet: bool) -> Outcome {
    let limit = match args.memory_budget {
        Budget::Unlimited => None,
        Budget::Bytes(bytes) => Some(bytes),
        budget => {
            return Err(bad(format!(
                "--memory-budget {budget}: a training takes a size or none"
            )));
        }
    };
    let own = supervise::own_limit_bytes().filter(|_| args.enforce);
    match (own, limit) {
        (None, None) if args.enforce => {
            Err(bad("--enforce needs a limit: give --memory-budget SIZE"))
        }
        (None, Some(limit)) if args.enforce => match supervise::run_again(limit)? {
            Ended::Well => Ok(()),
            Ended::OutOfMemory => {
                // A budget so small that not even the refusal fits into it: this process has no limit.
                begun(args, false, true)?.engine.trainer()?;
                Err(Failure::Internal(supervise::out_of_memory(limit)))
            }
        },
        (own, _) => here(args, own.is_some(), quiet),
    }
}

/// All that a training begins with.
struct Begun {
    output: PathBuf,
    engine: Engine,
    data: DataSet,
    training: TrainOptions,
}

fn begun(args: &TrainArgs, own_cgroup: bool, quiet: bool) -> Outcome<Begun> {
    let output = (args.output.clone())
        .unwrap_or_else(|| demo_output(args.learning.resumes() || args.learning.overwrites()));
    let output = Destination::file(&output)?;
    let is_onnx = |p: &Path| {
        p.extension()
            .is_some_and(|e| e.eq_ignore_ascii_case("onnx"))
    };
    if !is_onnx(&output) {
        return Err(bad(format!("{} does not end in .onnx", output.display())));
    }
    let folder = match output.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let model = match &args.model {
        Some(model) => model.clone(),
        None => demo_model(&output)?,
    };
    if model
        .extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("neap"))
    {
        let model = model.display();
        return Err(bad(format!(
            "{model} is packed: training begins with the .onnx"
        )));
    }
    if same_file(&model, &output) {
        return Err(bad(
            "the trained model needs another name than the one it begins with",
        ));
    }
    if let Some(folder) = args.state_dir.as_ref().filter(|folder| !folder.is_dir()) {
        let folder = folder.display();
        return Err(bad(format!(
            "--state-dir {folder}: there is no such folder"
        )));
    }
    if !folder.is_dir() {
        let (output, folder) = (output.display(), folder.display());
        return Err(bad(format!(
            "cannot write {output}: there is no folder {folder}"
        )));
    }
    let mut start = output.file_stem().unwrap_or_default().to_os_string();
    start.push(".start.onnx");
    let options = args.learning.model(
        args.shapes.iter().cloned().collect::<BTreeMap<_, _>>(),
        output.with_file_name(start),
    )?;
    let tokens = args.data.as_deref().is_some_and(neap_train::are_tokens);
    let recipe = Recipe::new(&model, &options, tokens)?;
    let data = open_data(args, &recipe)?;
    if !quiet {
        let remarks = recipe.start.remarks.iter().chain(&data.remarks);
        remarks.for_each(|remark| note(remark));
    }
    let told = args
        .data
        .as_ref()
        .map_or("drawn".into(), |p| p.display().to_string());
    let training = args.learning.training(&output, told)?;
    if !quiet {
        note(&format!(
            "{}: {} parameters in {} tensors are trained{}",
            super::file_name(&model),
            recipe.trained_elements,
            recipe.trained.len(),
            match recipe.frozen {
                0 => String::new(),
                frozen => format!(", {frozen} tensors stay as they are"),
            }
        ));
    }
    memory::trim_heap();
    let batch = recipe.batch;
    let engine = Engine {
        reserve_bytes: memory_bytes(&recipe.sample, batch) + data.decoding_bytes(),
        largest: data.largest.clone(),
        recipe,
        budget: args.memory_budget,
        micro_batch: args.learning.micro_batch(),
        strategy: args.learning.strategy(),
        threads: args.threads.map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            usize::from,
        ),
        host: Arc::new(OwnProcess { own_cgroup }),
        seed: args.learning.seed(),
        folder: args.state_dir.clone().unwrap_or(folder),
        // Where everything may stay in memory there is nothing to choose.
        costs: match args.memory_budget {
            Budget::Unlimited => TrainCosts::BuiltIn,
            _ => TrainCosts::Measured,
        },
    };
    Ok(Begun {
        output,
        engine,
        data,
        training,
    })
}

fn here(args: &TrainArgs, own_cgroup: bool, quiet: bool) -> Outcome {
    let _deferred = interrupt::defer();
    let Begun {
        output,
        engine,
        data,
        training,
    } = begun(args, own_cgroup, quiet)?;
    let mut follower = Follower::new(quiet, own_cgroup);
    let ended = neap_train::train(&engine, &data, &training, &mut follower);
    let summary = match ended {
        Err(TrainError::Interrupted) => {
            if !quiet {
                let path = training.checkpoint.display();
                note(&format!(
                    "{path} holds what was learned; --resume goes on with it"
                ));
            }
            interrupt::check()?;
            return Err(Failure::Internal("the training stopped by itself".into()));
        }
        ended => ended?,
    };
    stdout::print(&said(&output, &summary, own_cgroup))
}

fn open_data(args: &TrainArgs, recipe: &Recipe) -> Outcome<DataSet> {
    let options = args.learning.data()?;
    let data = match &args.data {
        Some(path) => neap_train::open_data(path, &recipe.sample, &options)?,
        None => {
            let count = options.limit.unwrap_or(DEMO_SAMPLES);
            neap_train::digits(&recipe.sample, &options, count)?
        }
    };
    Ok(data)
}

/// The demo's default name, or the next one where a training is kept that nobody asked to go on with.
fn demo_output(resumes: bool) -> PathBuf {
    let is_taken = |output: &Path| {
        let mut checkpoint = output.as_os_str().to_os_string();
        checkpoint.push(".checkpoint");
        Path::new(&checkpoint).exists()
    };
    let names = (2..).map(|number| PathBuf::from(format!("{DEMO_OUTPUT}-{number}.onnx")));
    let mut names = std::iter::once(PathBuf::from(format!("{DEMO_OUTPUT}.onnx"))).chain(names);
    names
        .find(|name| resumes || !is_taken(name))
        .expect("some number is free")
}

/// Writes the demo's network beside its output, under a name that no other file is likely to have.
fn demo_model(output: &Path) -> Outcome<PathBuf> {
    let mut name = output.file_stem().unwrap_or_default().to_os_string();
    name.push(".untrained.onnx");
    let path = Destination::file(&output.with_file_name(name))?;
    let options = neap_zoo::Options {
        batch: Batch::Dynamic,
        ..neap_zoo::Options::default()
    };
    neap_zoo::write(DEMO_NETWORK, &path, &options, &mut |_, _| {})?;
    Ok(path)
}

fn same_file(a: &Path, b: &Path) -> bool {
    let real = |p: &Path| p.canonicalize().ok();
    real(a).is_some_and(|a| Some(a) == real(b))
}

fn said(output: &Path, summary: &Summary, own_cgroup: bool) -> String {
    let epoch = &summary.epoch;
    let accuracy =
        |of: Option<f32>| of.map_or(String::new(), |a| format!(", accuracy {:.2} %", 100.0 * a));
    let figures = match epoch.validation_loss {
        Some(loss) => format!(
            "validation loss {loss:.4}{}",
            accuracy(epoch.validation_accuracy)
        ),
        None => format!(
            "loss {:.4}{}",
            epoch.train_loss,
            accuracy(epoch.train_accuracy)
        ),
    };
    format!(
        "{}: {} steps, epoch {}, {figures}; peak {}\n",
        output.display(),
        summary.steps,
        epoch.epoch,
        Bytes(memory::peak(own_cgroup).bytes)
    )
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Failure {
        match error {
            TrainError::Infeasible(text) => Failure::Infeasible(text),
            // It has no other of these options.
            TrainError::Unbound { text, need } if matches!(need, Need::Shape { .. }) => {
                bad(advice::with_option(&text, &need))
            }
            TrainError::Defect(text) => Failure::Internal(text),
            error => bad(error),
        }
    }
}
