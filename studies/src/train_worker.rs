//! A trainer in a process of its own: it takes steps on request, over batches that files hold.
//!
//! ```text
//!   run N           {"latency_ms": […], "losses": […]}    one step for each batch, from the first again after the last
//!   states FOLDER   {"states": [{"file", "name", "role", "shape"}]}    what the last step left, as raw bytes
//!   stats           {"peak_memory_bytes": …}
//! ```

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use neaptide::{
    BatchNorm, Budget, Error, Loss, OpenOptions, OwnProcess, StateRole, TensorType, TrainCosts,
    TrainOptions, TrainStrategy, Trainer, Update, memory,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The share that a batch has in a normalisation's statistics: PyTorch's.
const BATCH_NORM_MOMENTUM: f32 = 0.1;

#[derive(Args)]
pub struct TrainWorkerArgs {
    /// With one input and the scores of classes as its first output
    model: PathBuf,
    /// Batches of the input, one after the other: raw bytes
    #[arg(long)]
    inputs: PathBuf,
    /// Their classes: 64-bit integers
    #[arg(long)]
    targets: PathBuf,
    #[arg(long)]
    optimizer: Optimizer,
    #[arg(long)]
    rate: f64,
    /// Where the first output counts classes
    #[arg(long, default_value_t = 1)]
    class_axis: usize,
    /// Names of what is trained, one a line; all parameters otherwise
    #[arg(long)]
    parameters: Option<PathBuf>,
    #[arg(long, default_value = "none")]
    budget: Budget,
    #[arg(long, default_value = "auto", value_parser = parse_strategy)]
    strategy: TrainStrategy,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// This process is alone in its memory cgroup
    #[arg(long)]
    own_cgroup: bool,
    /// For what is not in memory
    #[arg(long)]
    state_dir: PathBuf,
}

/// As scripts/torch_networks.py has them.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Optimizer {
    /// Without momentum
    Descent,
    /// With a momentum of 0.9
    Sgd,
    Adamw,
}

impl Optimizer {
    fn update(self) -> Update {
        match self {
            Optimizer::Descent => Update::Sgd {
                momentum: 0.0,
                nesterov: false,
                decay: 0.0,
            },
            Optimizer::Sgd => Update::Sgd {
                momentum: 0.9,
                nesterov: false,
                decay: 0.0,
            },
            Optimizer::Adamw => Update::AdamW {
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-6,
                decay: 0.01,
            },
        }
    }
}

fn parse_strategy(name: &str) -> Result<TrainStrategy, String> {
    match name == swap_search::SWAP_ADVISOR.name() {
        true => Ok(swap_search::SWAP_ADVISOR),
        false => name.parse(),
    }
}

pub fn run(args: &TrainWorkerArgs) -> Result<()> {
    // Read before the trainer is planned, which counts what the process holds.
    let data = Data {
        inputs: read(&args.inputs)?,
        targets: read(&args.targets)?,
    };
    let started = Instant::now();
    let trainer = match open(args)? {
        Ok(trainer) => trainer,
        Err(Error::Infeasible { smallest_bytes, .. }) => {
            println!(
                "{}",
                json!({ "infeasible": true, "smallest_bytes": smallest_bytes })
            );
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let summary = trainer.summary();
    let ready = json!({
        "ready": true,
        "planned_bytes": summary.high_water_bytes,
        "ledger": trainer.ledger(),
        "strategy": summary.strategy.name(),
        "stored_bytes": summary.stored_bytes,
        "loaded_bytes": summary.loaded_bytes,
        "recomputed_flops": summary.recomputed_flops,
        "predicted_ms": summary.predicted_ns as f64 / 1e6,
        "opened_s": started.elapsed().as_secs_f64(),
    });
    serve(args, trainer, &data, &ready)
}

fn open(args: &TrainWorkerArgs) -> Result<neaptide::Result<Trainer>> {
    let wanted: Option<BTreeSet<String>> = match &args.parameters {
        Some(path) => {
            let text = String::from_utf8(read(path)?)?;
            Some(text.lines().map(String::from).collect())
        }
        None => None,
    };
    let update = args.optimizer.update();
    let update_of = |name: &str, _: &TensorType| {
        let is_wanted = wanted.as_ref().is_none_or(|names| names.contains(name));
        is_wanted.then_some(update)
    };
    let host = Arc::new(OwnProcess {
        own_cgroup: args.own_cgroup,
    });
    let open = OpenOptions {
        host,
        ..OpenOptions::default()
    };
    let options = TrainOptions {
        loss: Loss::CrossEntropy {
            class_axis: args.class_axis,
            label_smoothing: 0.0,
            ignore_index: None,
        },
        batch_norm: BatchNorm::Batch {
            momentum: BATCH_NORM_MOMENTUM,
        },
        budget: args.budget,
        strategy: args.strategy,
        costs: TrainCosts::Measured,
        threads: args.threads,
        state_dir: Some(args.state_dir.clone()),
        ..TrainOptions::default()
    };
    Ok(Trainer::open(&args.model, &open, &options, &update_of))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Batches one after the other.
struct Data {
    inputs: Vec<u8>,
    targets: Vec<u8>,
}

impl Data {
    /// How many batches there are.
    fn count(&self, trainer: &Trainer) -> Result<usize> {
        let [input] = trainer.inputs() else {
            anyhow::bail!("the model has {} inputs, not one", trainer.inputs().len());
        };
        let sizes = [
            (self.inputs.len(), input.len_bytes()),
            (self.targets.len(), trainer.target().len_bytes()),
        ];
        let [inputs, targets] = sizes.map(|(all, one)| (all / one, all % one));
        ensure!(
            inputs == targets && inputs.1 == 0 && inputs.0 > 0,
            "inputs and targets are not as many whole batches: {sizes:?}"
        );
        Ok(inputs.0)
    }

    /// Input and target of a batch.
    fn batch(&self, number: usize, trainer: &Trainer) -> (&[u8], &[u8]) {
        let (input, target) = (
            trainer.inputs()[0].len_bytes(),
            trainer.target().len_bytes(),
        );
        (
            &self.inputs[number * input..][..input],
            &self.targets[number * target..][..target],
        )
    }
}

fn serve(args: &TrainWorkerArgs, mut trainer: Trainer, data: &Data, ready: &Value) -> Result<()> {
    let batches = data.count(&trainer)?;
    let mut next = 0;
    println!("{ready}");
    for line in std::io::stdin().lines() {
        let line = line?;
        let answer = match line.split_once(' ').unwrap_or((&line, "")) {
            ("run", steps) => {
                let (mut latency, mut losses) = (Vec::new(), Vec::new());
                for _ in 0..steps.parse::<usize>()? {
                    let (input, target) = data.batch(next % batches, &trainer);
                    next += 1;
                    let started = Instant::now();
                    losses.push(trainer.step(&[input], target, args.rate)?);
                    latency.push(started.elapsed().as_secs_f64() * 1e3);
                }
                json!({ "latency_ms": latency, "losses": losses })
            }
            ("states", folder) => write_states(&mut trainer, Path::new(folder))?,
            ("stats", _) => {
                json!({ "peak_memory_bytes": memory::peak(args.own_cgroup).bytes })
            }
            ("quit", _) => break,
            _ => json!({ "error": format!("unknown command: {line}") }),
        };
        println!("{answer}");
    }
    Ok(())
}

/// Each state in a file of its number.
fn write_states(trainer: &mut Trainer, folder: &Path) -> Result<Value> {
    fs::create_dir_all(folder)?;
    let mut told = Vec::new();
    for (number, state) in trainer.states().to_vec().into_iter().enumerate() {
        let path = folder.join(format!("{number}.bin"));
        let mut file = BufWriter::new(File::create(&path)?);
        let mut written = Ok(());
        trainer.read(number, &mut |bytes| {
            if written.is_ok() {
                written = file.write_all(bytes);
            }
        })?;
        written?;
        file.flush()?;
        told.push(json!({
            "file": path,
            "name": state.name,
            "role": match state.role {
                StateRole::Parameter => "parameter",
                StateRole::Frozen => "frozen",
                StateRole::Moment => "moment",
                StateRole::RunningStatistic => "statistic",
            },
            "shape": state.ty.shape,
        }));
    }
    Ok(json!({ "states": told }))
}
