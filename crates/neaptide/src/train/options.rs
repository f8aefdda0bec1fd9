//! What is trained, by what, and in how much memory.

use crate::budget::Budget;
use crate::train::{StepCosts, TrainStrategy};
use neap_autodiff::{BatchNorm, Clip, Loss};
use neap_kernels::simd::Isa;
use neap_store::IoMode;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// How a model is trained, but for which of its parameters are.
#[derive(Debug, Clone)]
pub struct TrainOptions {
    /// Which of the model's outputs the loss compares with the target.
    pub result: usize,
    pub loss: Loss,
    pub batch_norm: BatchNorm,
    pub clip: Option<Clip>,
    /// What is trained beside weights that stay as they are.
    pub adapters: Option<Adapters>,
    /// How many samples of a batch go through the model at a time.
    pub micro_batch: MicroBatch,
    /// What becomes of activations for which there is no room.
    pub strategy: TrainStrategy,
    /// What plans are chosen by. Costs change no result.
    pub costs: TrainCosts,
    /// Whether each step hands the result out too ([`Trainer::result`](crate::Trainer::result)).
    pub keep_result: bool,
    /// Draws of dropouts: the same for the same seed and step. Adapters begin by it, too.
    pub seed: u64,
    /// Of the process or of the engine, as for [`RunOptions::budget`](crate::RunOptions::budget). A percentage is of what
    /// the same training takes without a limit.
    pub budget: Budget,
    pub threads: usize,
    /// Which vector instructions compute; anything but the default is for tests and comparison.
    pub isa: Isa,
    pub io: IoMode,
    /// Storage as if it gave no more than so many bytes per second; for comparison.
    pub throttle_bytes_per_second: Option<u64>,
    /// Memory the caller will still take while the trainer lives, beside what the process holds already.
    pub reserve_bytes: u64,
    /// Where parameters, moments and activations go that are not in memory; by default beside the model.
    pub state_dir: Option<PathBuf>,
}

/// Low-rank adapters: beside each of some weights a product of two small matrices (Hu et al., *LoRA*, ICLR 2022). They are
/// parameters named as the weight with `/lora_A` and `/lora_B` behind, so it is said of them, too, how each is updated; a weight
/// itself stays as it is where nothing is said of it. A begins as random numbers and B as zeros, so that the first step's
/// results are the model's.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapters {
    pub rank: usize,
    /// What adapters give is multiplied by this over the rank.
    pub alpha: f32,
    /// By name: weights of matrix products, and of convolutions of one group.
    pub weights: BTreeSet<String>,
}

impl Adapters {
    /// What adapters give is multiplied by.
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank.max(1) as f32
    }
}

/// Where the costs come from by which plans are chosen.
#[derive(Debug, Clone, Default)]
pub enum TrainCosts {
    /// Those of a modest machine: the same plan wherever it is made.
    #[default]
    BuiltIn,
    /// The drive is measured, and two steps with zeros are taken before the first one; then it is planned anew. Where the budget has
    /// no room for that, built-in costs count.
    Measured,
    /// As another trainer of the same model found them ([`Trainer::costs`](crate::Trainer::costs)).
    Known(StepCosts),
}

/// A batch may be seen in parts, one after the other, whose gradients are added; parameters are updated once, by the mean
/// over the parts. Batch normalisations go by the statistics of each part. Results have the same bits for parts of the
/// same size, under every budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MicroBatch {
    /// All at a time.
    #[default]
    Whole,
    /// So many, of which the batch is a multiple.
    Samples(usize),
    /// As many as the budget has room for.
    Auto,
}

impl Default for TrainOptions {
    /// Cross-entropy over axis 1 of the first output, the model's statistics in batch normalisations, no limit.
    fn default() -> TrainOptions {
        TrainOptions {
            result: 0,
            loss: Loss::CrossEntropy {
                class_axis: 1,
                label_smoothing: 0.0,
                ignore_index: None,
            },
            batch_norm: BatchNorm::Given,
            clip: None,
            adapters: None,
            micro_batch: MicroBatch::Whole,
            strategy: TrainStrategy::Auto,
            costs: TrainCosts::BuiltIn,
            keep_result: false,
            seed: 0,
            budget: Budget::Unlimited,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            isa: Isa::detect(),
            io: IoMode::Auto,
            throttle_bytes_per_second: None,
            reserve_bytes: 0,
            state_dir: None,
        }
    }
}
