//! A small model, small data, and a watcher.

use neap_ir::update::Update;
use neap_train::{
    DataOptions, DataSet, Engine, Event, LossKind, ModelOptions, RateDecay, Recipe, TrainOptions,
    Watch,
};
use neap_zoo::Batch;
use std::path::{Path, PathBuf};

pub const ADAM: Update = Update::AdamW {
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    decay: 0.01,
};

/// `mlp_28` in a folder.
pub fn model(folder: &Path) -> PathBuf {
    let path = folder.join("mlp.onnx");
    let options = neap_zoo::Options {
        batch: Batch::Dynamic,
        ..neap_zoo::Options::default()
    };
    neap_zoo::write("mlp_28", &path, &options, &mut |_, _| {}).unwrap();
    path
}

pub fn model_options(batch: usize) -> ModelOptions {
    ModelOptions {
        batch,
        shapes: Default::default(),
        loss: LossKind::CrossEntropy {
            label_smoothing: 0.0,
        },
        update: ADAM,
        freeze: Vec::new(),
        lora: None,
        batch_norm: neap_autodiff::BatchNorm::Given,
        clip: None,
        classes: None,
        seed: 5,
        start: std::env::temp_dir().join(format!("neap-start-{}.onnx", std::process::id())),
    }
}

pub fn data_options() -> DataOptions {
    DataOptions {
        picture: Default::default(),
        augmentation: Default::default(),
        validation_share: 0.1,
        limit: None,
        seed: 3,
    }
}

pub fn digits(recipe: &Recipe, count: usize) -> DataSet {
    neap_train::digits(&recipe.sample, &data_options(), count).unwrap()
}

pub fn options(folder: &Path, name: &str, epochs: u64) -> TrainOptions {
    TrainOptions {
        epochs,
        seed: 5,
        rate: 2e-3,
        warm_up: 3,
        decay: RateDecay::Constant,
        patience: None,
        keep_best: false,
        augments: true,
        checkpoint: folder.join(format!("{name}.checkpoint")),
        checkpoint_every: None,
        resume: false,
        overwrite: false,
        rate_is_given: true,
        output: folder.join(format!("{name}.onnx")),
        log: Some(folder.join(format!("{name}.jsonl"))),
        log_every: 1,
        page: Some(folder.join(format!("{name}.html"))),
        settings: Vec::new(),
    }
}

pub fn engine(recipe: &Recipe, folder: &Path) -> Engine {
    Engine {
        recipe: recipe.clone(),
        budget: neaptide::Budget::Unlimited,
        micro_batch: neaptide::MicroBatch::Whole,
        strategy: neaptide::TrainStrategy::Auto,
        threads: 1,
        host: std::sync::Arc::new(neaptide::Embedded),
        seed: 0,
        reserve_bytes: 0,
        largest: None,
        folder: folder.into(),
        costs: neaptide::TrainCosts::BuiltIn,
    }
}

/// Stops after some steps; 0 never.
#[derive(Default)]
pub struct Watcher {
    pub stop_at: u64,
    pub step: u64,
    pub validations: usize,
    pub stopped_early: bool,
}

impl Watch for Watcher {
    fn event(&mut self, event: &Event) {
        match event {
            Event::Step(figures) => self.step = figures.step,
            Event::Validating { .. } => self.validations += 1,
            Event::StoppedEarly { .. } => self.stopped_early = true,
            _ => {}
        }
    }

    fn should_stop(&self) -> bool {
        self.stop_at > 0 && self.step >= self.stop_at
    }

    fn peak_bytes(&self) -> u64 {
        0
    }
}
