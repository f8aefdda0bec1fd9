//! `cargo study torch`: training beside PyTorch's, each process in a memory cgroup of its own.
//!
//! ```text
//!   PyTorch, no limit ─► its peak ─► hard limits of 50, 25 and 12.5 % of it for ours, and of 50 % for PyTorch
//!   PyTorch       | step |      |      |      |      | step |  ...
//!   ours, none    |      | step |      |      |      |      |
//!   ours, 50 %    |      |      | step |      |      |      |
//! ```
//! Figures of a network are kept in `target/torch`, so that a few can be measured at a time.

pub mod entrant;
pub mod figures;
mod page;

use crate::check::check;
use crate::kept::Kept;
use crate::peer::median;
use crate::{accuracy, models, python, worker};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use entrant::Entrant;
use figures::{Figures, Limit, Who};
use neap_store::measure_spill;
use neaptide::{DType, IoMode, TensorType};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Args)]
pub struct TorchArgs {
    /// Only these networks are measured anew; figures of others are taken as they are
    only: Vec<String>,
    /// Measured steps of each process
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Two measured steps of each process
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// A Python with PyTorch [default: one is made from scripts/requirements-torch.txt]
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// What else the machine does in the meantime, for the page
    #[arg(long, value_name = "TEXT")]
    beside: Option<String>,
    /// Write docs/training-torch.md
    #[arg(long)]
    write: bool,
}

/// A network of the zoo, and how it is trained.
struct Case {
    name: &'static str,
    batch: u32,
    optimizer: &'static str,
    parameters: u64,
    /// Text of 128 tokens, or pictures of 224 × 224.
    is_text: bool,
}

const fn pictures(name: &'static str, batch: u32, parameters: u64) -> Case {
    Case {
        name,
        batch,
        optimizer: "sgd",
        parameters,
        is_text: false,
    }
}

const CASES: [Case; 4] = [
    pictures("resnet50", 16, 25_557_032),
    pictures("resnet152", 8, 60_192_808),
    pictures("mobilenet_v2", 16, 3_504_872),
    Case {
        name: "gpt2_lm",
        batch: 4,
        optimizer: "adamw",
        parameters: 124_439_808,
        is_text: true,
    },
];

/// Our hard limits, in per cent of PyTorch's peak.
const SHARES: [f64; 3] = [50.0, 25.0, 12.5];

/// PyTorch's, beside none.
const SHARE_OF_TORCH: f64 = 50.0;

const QUICK_ROUNDS: u32 = 2;

const THREADS: &str = "2";
const RATE: &str = "0.001";

/// Moments are made by the first update, and its allocator still takes more in some steps after that.
const TORCH_WARM_UP: usize = 4;
const OWN_WARM_UP: usize = 1;

pub fn run(root: &Path, args: &TorchArgs) -> Result<()> {
    let known = CASES.map(|case| case.name);
    if let Some(name) = args.only.iter().find(|o| !known.contains(&o.as_str())) {
        bail!("no such network: {name}; there are {}", known.join(", "));
    }
    ensure!(
        accuracy::can_enforce(),
        "hard limits need the right to make memory cgroups"
    );
    let kept = Kept::of(root, "torch")?;
    let place = Place {
        root,
        folder: kept.folder(),
        python: python::with_torch(root, args.python.as_deref())?,
        rounds: match args.quick {
            true => QUICK_ROUNDS,
            false => args.rounds,
        },
        beside: args.beside.clone(),
    };
    // What PyTorch maps of its files lies in the page cache then, and is charged to no group that is measured.
    let mut import = Command::new(&place.python);
    check(import.args(["-c", "import torch"]), "importing PyTorch")?;
    let mut all: Vec<Figures> = Vec::new();
    for case in &CASES {
        if args.only.is_empty() || args.only.iter().any(|o| o == case.name) {
            let figures = place.measure(case).with_context(|| case.name.to_owned())?;
            eprintln!("{}", page::table(std::slice::from_ref(&figures)));
            kept.write(case.name, &figures)?;
        }
        all.extend(kept.read::<Figures>(case.name)?);
    }
    println!("{}", page::table(&all));
    if args.write {
        let path = root.join("docs/training-torch.md");
        std::fs::write(&path, page::page(&all, &crate::setting::setting()?))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

struct Place<'a> {
    root: &'a Path,
    /// For data and what is not in memory.
    folder: &'a Path,
    python: PathBuf,
    rounds: u32,
    beside: Option<String>,
}

/// One batch, as raw bytes.
struct Data {
    inputs: PathBuf,
    targets: PathBuf,
}

impl Place<'_> {
    fn measure(&self, case: &Case) -> Result<Figures> {
        let data = self.data(case)?;
        let options = neap_zoo::Options {
            batch: neap_zoo::Batch::Fixed(case.batch),
            ..neap_zoo::Options::default()
        };
        let stem = format!("{}.batch{}", case.name, case.batch);
        let model = models::zoo_model_as(self.root, case.name, &stem, &options)?;
        let torch = |limit| Entrant::start(Who::PyTorch, limit, &self.torch(case, &data));
        let mut free = torch(None)?;
        free.warm_up(TORCH_WARM_UP)?;
        let peak_bytes = free.peak_bytes()?.context("PyTorch does not run here")?;
        let ready = free.ready().context("PyTorch ended")?;
        let version = ready["version"].as_str().context("version")?.to_owned();
        ensure!(
            ready["parameters"].as_u64() == Some(case.parameters),
            "PyTorch's network has {} parameters, the zoo's {}",
            ready["parameters"],
            case.parameters
        );
        let limit = |percent: f64| {
            // Whole pages, as the kernel has it.
            let bytes = (peak_bytes as f64 * percent / 100.0) as u64 / 4096 * 4096;
            Some(Limit { percent, bytes })
        };
        let mut half = torch(limit(SHARE_OF_TORCH))?;
        half.warm_up(TORCH_WARM_UP)?;
        let mut entrants = vec![free, half];
        for limit in [None].into_iter().chain(SHARES.map(limit)) {
            let command = self.own(case, &model, &data, limit)?;
            let mut entrant = Entrant::start(Who::Ours, limit, &command)?;
            entrant.warm_up(OWN_WARM_UP)?;
            entrants.push(entrant);
        }
        let mut drive = Vec::new();
        for _ in 0..self.rounds {
            for entrant in &mut entrants {
                entrant.turn()?;
            }
            drive.push(measure_spill(self.folder, IoMode::Auto)?.both);
        }
        let mut losses = entrants[2..].iter().filter_map(Entrant::losses);
        let first = losses.next().context("ours does not run without a limit")?;
        ensure!(losses.all(|l| l == first), "limits change our losses");
        let rows = entrants.into_iter().map(Entrant::row);
        Ok(Figures {
            name: match case.is_text {
                true => format!("{}, {} × 128", case.name, case.batch),
                false => format!("{}, {}", case.name, case.batch),
            },
            version,
            rounds: self.rounds,
            beside: self.beside.clone(),
            drive: Some(median(&drive)),
            rows: rows.collect::<Result<_>>()?,
        })
    }

    fn torch(&self, case: &Case, data: &Data) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(self.root.join("scripts/torch_bench.py"));
        command.arg(case.name).arg(case.batch.to_string());
        common(case, data, &mut command);
        command
    }

    fn own(&self, case: &Case, model: &Path, data: &Data, limit: Option<Limit>) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("train-worker").arg(model).arg("--own-cgroup");
        command.arg("--state-dir").arg(self.folder);
        if case.is_text {
            command.args(["--class-axis", "2"]);
        }
        if let Some(limit) = limit {
            command.args(["--budget", &limit.bytes.to_string()]);
        }
        common(case, data, &mut command);
        Ok(command)
    }

    /// Noise, and some class of the first thousand for each sample or token.
    fn data(&self, case: &Case) -> Result<Data> {
        let batch = case.batch as usize;
        let (input, target) = match case.is_text {
            true => {
                let tokens = TensorType::new(DType::I64, &[batch, 128]);
                (tokens.clone(), tokens)
            }
            false => (
                TensorType::new(DType::F32, &[batch, 3, 224, 224]),
                TensorType::new(DType::I64, &[batch]),
            ),
        };
        let write = |what: &str, ty: &TensorType| -> Result<PathBuf> {
            let path = self.folder.join(format!("{}.{what}", case.name));
            std::fs::write(&path, worker::sample(ty))?;
            Ok(path)
        };
        Ok(Data {
            inputs: write("inputs", &input)?,
            targets: write("targets", &target)?,
        })
    }
}

/// Arguments that both take.
fn common(case: &Case, data: &Data, command: &mut Command) {
    command.arg("--inputs").arg(&data.inputs);
    command.arg("--targets").arg(&data.targets);
    command.args(["--optimizer", case.optimizer, "--rate", RATE]);
    command.args(["--threads", THREADS]);
}
