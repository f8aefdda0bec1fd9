//! What each strategy of training takes: its smallest budget, and what a step is predicted to take in less memory than all.
//!
//! ```text
//! cargo run --release -p neaptide --example training_strategies -- MODEL BATCH [lora=RANK] [SHARE..]
//! ```
//! `MODEL` is an image classifier of the zoo, or `gpt2_lm` with 64 tokens for each sample. With `lora=RANK` adapters of all
//! matrices of products are trained, and nothing else. Each `SHARE` is one of the memory that keeps everything, in percent.
//! Nothing is trained here, and no weight is ever read. Budgets are of the engine, so that the table does
//! not depend on the process.

use neap_autodiff::{WeightForm, adaptable};
use neaptide::{
    Adapters, BatchNorm, Budget, Error, Loss, OpenOptions, StepSummary, TensorType, TrainOptions,
    TrainStrategy, Trainer, Update,
};
use std::path::PathBuf;
use std::time::Instant;

const TOKENS: usize = 64;
const MIB: f64 = (1u64 << 20) as f64;

struct Case {
    path: PathBuf,
    open: OpenOptions,
    is_text: bool,
    adapters: Option<Adapters>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, batch, rest @ ..] = &arguments[..] else {
        return Err("usage: training_strategies MODEL BATCH [lora=RANK] [SHARE..]".into());
    };
    let batch: usize = batch.parse()?;
    let rank = rest.first().and_then(|first| first.strip_prefix("lora="));
    let shares = &rest[usize::from(rank.is_some())..];
    let shares: Vec<u64> = shares.iter().map(|s| s.parse()).collect::<Result<_, _>>()?;
    let folder = std::env::temp_dir().join("training_strategies");
    std::fs::create_dir_all(&folder)?;
    let is_text = name.starts_with("gpt2");
    let case = Case {
        path: folder.join(format!("{name}-{batch}.onnx")),
        open: OpenOptions::default(),
        is_text,
        adapters: None,
    };
    let zoo = neap_zoo::Options {
        free_size: is_text,
        batch: neap_zoo::Batch::Fixed(batch as u32),
        shapes_only: true,
        ..neap_zoo::Options::default()
    };
    neap_zoo::write(name, &case.path, &zoo, &mut |_, _| {})?;
    let mut case = case;
    if is_text {
        let shape = vec![batch, TOKENS];
        case.open.shapes.insert("input_ids".into(), shape);
    }
    if let Some(rank) = rank {
        case.adapters = Some(case.adapters_of_matrices(rank.parse()?)?);
    }
    let keeps = case.smallest(TrainStrategy::Keep)?;
    println!(
        "{name}, batch {batch}: all of it takes {:.0} MiB\n",
        keeps as f64 / MIB
    );
    println!("| strategy | smallest budget, MiB |");
    println!("|---|--:|");
    for strategy in TrainStrategy::ALL {
        let bytes = case.smallest(strategy)?;
        println!("| {strategy} | {:.0} |", bytes as f64 / MIB);
    }
    println!(
        "\n| budget, MiB | strategy | predicted, ms | stored and loaded, MiB | computed again, GFLOP | planned in, s |"
    );
    println!("|--:|---|--:|--:|--:|--:|");
    for share in shares {
        let bytes = keeps * share / 100;
        for strategy in TrainStrategy::ALL {
            let started = Instant::now();
            let found = match case.plan(strategy, Budget::Engine(bytes)) {
                Ok(found) => found,
                Err(Error::Infeasible { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            let which = match strategy == found.strategy {
                true => strategy.to_string(),
                false => format!("{strategy}: {}", found.strategy),
            };
            println!(
                "| {:.0} | {which} | {:.1} | {:.0} | {:.1}{} | {:.1} |",
                bytes as f64 / MIB,
                found.predicted_ns as f64 / 1e6,
                (found.stored_bytes + found.loaded_bytes) as f64 / MIB,
                found.recomputed_flops as f64 / 1e9,
                if found.is_proven { ", proven" } else { "" },
                started.elapsed().as_secs_f64(),
            );
        }
    }
    Ok(())
}

impl Case {
    fn adapters_of_matrices(&self, rank: usize) -> Result<Adapters, neaptide::OnnxError> {
        let open = neap_onnx::OpenOptions {
            shapes: self.open.shapes.clone(),
            ..neap_onnx::OpenOptions::default()
        };
        let graph = neap_onnx::open(&self.path, &open)?;
        let matrices = adaptable(&graph).into_iter();
        let matrices = matrices.filter(|(_, form)| *form != WeightForm::Convolution);
        Ok(Adapters {
            rank,
            alpha: rank as f32,
            weights: matrices.map(|(v, _)| graph.value(v).name.clone()).collect(),
        })
    }

    fn plan(&self, strategy: TrainStrategy, budget: Budget) -> neaptide::Result<StepSummary> {
        let options = TrainOptions {
            budget,
            strategy,
            loss: Loss::CrossEntropy {
                class_axis: if self.is_text { 2 } else { 1 },
                label_smoothing: 0.0,
                ignore_index: None,
            },
            batch_norm: match self.is_text {
                true => BatchNorm::Given,
                false => BatchNorm::Batch { momentum: 0.1 },
            },
            threads: 2,
            adapters: self.adapters.clone(),
            ..TrainOptions::default()
        };
        let update = match self.is_text {
            true => Update::AdamW {
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
                decay: 0.01,
            },
            false => Update::Sgd {
                momentum: 0.9,
                nesterov: false,
                decay: 0.0,
            },
        };
        let is_trained = |name: &str| self.adapters.is_none() || name.contains("/lora_");
        let update_of = |name: &str, _: &TensorType| is_trained(name).then_some(update);
        Trainer::preview(&self.path, &self.open, &options, &update_of)
    }

    fn smallest(&self, strategy: TrainStrategy) -> neaptide::Result<u64> {
        match self.plan(strategy, Budget::Engine(1)) {
            Err(Error::Infeasible { smallest_bytes, .. }) => Ok(smallest_bytes),
            Ok(found) => Ok(found.high_water_bytes),
            Err(error) => Err(error),
        }
    }
}
