//! Options of a training as they are written, and what they mean.

use crate::failure::{Outcome, bad};
use crate::input::ImageOptions;
use clap::{Args, ValueEnum};
use neap_picture::{Recipe, Resize};
use neap_train::{
    Augmentation, DataOptions, LoraOptions, LossKind, ModelOptions, RateDecay, TrainOptions,
};
use neaptide::{BatchNorm, Clip, MicroBatch, TrainStrategy, Update};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The share that batches have in a normalisation's statistics, as PyTorch's.
const MOMENTUM: f32 = 0.1;

/// What is learned, and how.
#[derive(Args, Clone)]
#[command(next_help_heading = "Learning")]
pub struct LearningArgs {
    /// What the model's first output is compared with its target by
    #[arg(long, value_name = "LOSS", default_value = "cross-entropy")]
    loss: LossArg,
    /// With cross-entropy, the share that is spread over all classes
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = crate::numbers::from_zero_f32)]
    label_smoothing: f32,
    /// How parameters are moved
    #[arg(long, value_name = "NAME", default_value = "adamw")]
    optimizer: OptimizerArg,
    /// Learning rate [default: 3e-4 with adamw, else 0.01]
    #[arg(long, value_name = "RATE", value_parser = crate::numbers::from_zero)]
    lr: Option<f64>,
    /// What becomes of the learning rate after the warm-up, until the last step
    #[arg(long, value_name = "HOW", default_value = "constant")]
    lr_decay: RateDecayArg,
    /// Steps in which the learning rate rises
    #[arg(long, value_name = "STEPS", default_value_t = 0, value_parser = crate::numbers::any::<u64>)]
    warm_up: u64,
    /// With sgd
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, value_parser = crate::numbers::from_zero)]
    momentum: f64,
    /// Of parameters with two axes or more [default: 0.01 with adamw, else 0]
    #[arg(long, value_name = "RATE", value_parser = crate::numbers::from_zero)]
    weight_decay: Option<f64>,
    /// Samples of a step
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = crate::numbers::whole::<u32>(1..=65_536))]
    pub batch: u32,
    /// Samples of a step that go through the model at a time, of which the batch is a multiple; or auto: as many as the
    /// budget has room for [default: the batch]
    #[arg(long, value_name = "N", value_parser = parse_micro_batch)]
    micro_batch: Option<MicroBatch>,
    /// What becomes of activations that the budget has no room for. All give the same bits
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = crate::strategies::listed::<StrategyArg>())]
    strategy: StrategyArg,
    /// Give the model a new last layer of so many classes
    #[arg(long, value_name = "N", value_parser = crate::numbers::whole::<u32>(2..=16_777_216))]
    classes: Option<u32>,
    /// Passes over the data
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = crate::numbers::whole::<u32>(1..=4_294_967_295))]
    epochs: u32,
    /// Leave parameters with such names as they are; * is anything
    #[arg(long, value_name = "PATTERN")]
    freeze: Vec<String>,
    /// Leave all parameters as they are, and train two matrices of this rank beside each weight of --lora-targets
    #[arg(long, value_name = "RANK", conflicts_with = "freeze", value_parser = crate::numbers::whole::<u32>(1..=65_536))]
    lora: Option<u32>,
    /// What the two matrices give is multiplied by this over the rank [default: the rank]
    #[arg(long, value_name = "X", requires = "lora", value_parser = crate::numbers::finite_f32)]
    lora_alpha: Option<f32>,
    /// Names of weights that get two matrices, also of convolutions of one group; * is anything [default: all matrices of products]
    #[arg(long, value_name = "PATTERN", requires = "lora")]
    lora_targets: Vec<String>,
    /// What batch normalisations go by: each batch's own statistics, or the model's [default: batch; with --lora given]
    #[arg(long, value_name = "WHICH")]
    batch_norm: Option<BatchNormArg>,
    /// Scale all gradients together to at most this norm
    #[arg(long, value_name = "NORM", conflicts_with = "clip_value", value_parser = crate::numbers::from_zero_f32)]
    clip_norm: Option<f32>,
    /// Limit each element of gradients
    #[arg(long, value_name = "SIZE", value_parser = crate::numbers::from_zero_f32)]
    clip_value: Option<f32>,
    /// Of the order of samples, of augmentation and of dropout
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = crate::numbers::any::<u64>)]
    seed: u64,
    /// Random changes of pictures
    #[arg(long, value_name = "HOW", value_delimiter = ',')]
    augment: Vec<AugmentArg>,
    /// Share of the samples to validate with, where the data have none for that; 0 is none
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = crate::numbers::from_zero)]
    validation: f64,
    /// Train on the first so many samples only
    #[arg(long, value_name = "N", value_parser = crate::numbers::any::<usize>)]
    limit: Option<usize>,
    /// End after so many epochs without a lower loss of validation, and keep the best epoch's weights
    #[arg(long, value_name = "EPOCHS", value_parser = crate::numbers::whole::<u32>(1..=4_294_967_295))]
    patience: Option<u32>,
    /// Where the training can be taken up again [default: the output's name with .checkpoint]
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Steps between checkpoints; there is one after every epoch anyway
    #[arg(long, value_name = "STEPS", value_parser = crate::numbers::whole::<u64>(1..=u64::MAX))]
    checkpoint_every: Option<u64>,
    /// Go on from the checkpoint, where there is one
    #[arg(long)]
    resume: bool,
    /// Begin anew, and write over the checkpoint of an earlier training
    #[arg(long, conflicts_with = "resume")]
    overwrite: bool,
    /// Write each step's and epoch's figures, one JSON object a line
    #[arg(long, value_name = "FILE.jsonl")]
    log: Option<PathBuf>,
    /// Steps between lines of the log
    #[arg(long, value_name = "STEPS", default_value_t = 10, value_parser = crate::numbers::whole::<u64>(1..=u64::MAX))]
    log_every: u64,
    /// Write a page with curves
    #[arg(long, value_name = "FILE.html")]
    page: Option<PathBuf>,
    #[command(flatten)]
    picture: ImageOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LossArg {
    /// Class numbers
    CrossEntropy,
    /// Numbers: mean square of the difference
    Mse,
    /// Numbers: mean magnitude of the difference
    L1,
    /// Probabilities, against scores
    Bce,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OptimizerArg {
    Sgd,
    /// Adam with decoupled weight decay
    Adamw,
    Adagrad,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RateDecayArg {
    Constant,
    /// In a line to nothing
    Linear,
    /// In half a cosine to nothing
    Cosine,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StrategyArg {
    /// Whichever of these is predicted to take the least time
    Auto,
    /// All stay in memory
    Keep,
    /// They go to a file and come back
    Swap,
    /// Those that cost little are computed again, others are swapped
    Cheap,
    /// Segments of about the square root of the network's steps are computed again; nothing is swapped
    Sqrt,
    /// An integer program decides which are computed again and which swapped
    Optimal,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BatchNormArg {
    /// The model's statistics move along
    Batch,
    Given,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AugmentArg {
    /// Left and right exchanged, half of the time
    Flip,
    /// Moved by up to an eighth of each side
    Shift,
}

impl LearningArgs {
    /// `start` is where the model is written as it is trained, if it must be another.
    pub fn model(
        &self,
        shapes: BTreeMap<String, Vec<usize>>,
        start: PathBuf,
    ) -> Outcome<ModelOptions> {
        if !(0.0..=1.0).contains(&self.label_smoothing) {
            return Err(bad("--label-smoothing is a share, from 0 to 1"));
        }
        for (what, value) in [
            ("--momentum", Some(self.momentum)),
            ("--weight-decay", self.weight_decay),
            ("--clip-norm", self.clip_norm.map(f64::from)),
            ("--clip-value", self.clip_value.map(f64::from)),
        ] {
            if value.is_some_and(|v| !v.is_finite() || v < 0.0) {
                return Err(bad(format!("{what} must not be below 0")));
            }
        }
        let decay = |default| self.weight_decay.unwrap_or(default);
        let clip_norm = self.clip_norm.map(Clip::Norm);
        Ok(ModelOptions {
            batch: self.batch as usize,
            shapes,
            loss: match self.loss {
                LossArg::CrossEntropy => LossKind::CrossEntropy {
                    label_smoothing: self.label_smoothing,
                },
                LossArg::Mse => LossKind::MeanSquare,
                LossArg::L1 => LossKind::MeanAbsolute,
                LossArg::Bce => LossKind::BinaryCrossEntropy,
            },
            update: match self.optimizer {
                OptimizerArg::Sgd => Update::Sgd {
                    momentum: self.momentum,
                    nesterov: false,
                    decay: decay(0.0),
                },
                OptimizerArg::Adamw => Update::AdamW {
                    beta1: 0.9,
                    beta2: 0.999,
                    epsilon: 1e-8,
                    decay: decay(0.01),
                },
                OptimizerArg::Adagrad => Update::Adagrad {
                    epsilon: 1e-10,
                    rate_decay: 0.0,
                    decay: decay(0.0),
                },
            },
            freeze: self.freeze.clone(),
            lora: self.lora.map(|rank| LoraOptions {
                rank: rank as usize,
                alpha: self.lora_alpha,
                targets: self.lora_targets.clone(),
            }),
            batch_norm: match (self.batch_norm, self.lora) {
                (Some(BatchNormArg::Batch), _) | (None, None) => {
                    BatchNorm::Batch { momentum: MOMENTUM }
                }
                (Some(BatchNormArg::Given), _) | (None, Some(_)) => BatchNorm::Given,
            },
            clip: clip_norm.or(self.clip_value.map(Clip::Value)),
            classes: self.classes.map(|classes| classes as usize),
            seed: self.seed,
            start,
        })
    }

    pub fn data(&self) -> Outcome<DataOptions> {
        if !(0.0..1.0).contains(&self.validation) {
            return Err(bad("--validation is a share, from 0 to less than 1"));
        }
        Ok(DataOptions {
            picture: self.picture.over(Recipe {
                resize: Resize::Fill,
                ..Recipe::default()
            }),
            augmentation: Augmentation {
                flip: self.augment.contains(&AugmentArg::Flip),
                shift: self.augment.contains(&AugmentArg::Shift),
            },
            validation_share: self.validation,
            limit: self.limit,
            seed: self.seed,
        })
    }

    /// `data` is what a checkpoint is told of the data.
    pub fn training(&self, output: &Path, data: String) -> Outcome<TrainOptions> {
        let rate = self.lr.unwrap_or(match self.optimizer {
            OptimizerArg::Adamw => 3e-4,
            _ => 0.01,
        });
        if !rate.is_finite() || rate < 0.0 {
            return Err(bad("--lr must not be below 0"));
        }
        let options = self.data()?;
        let limit = self.limit.map_or("none".into(), |limit| limit.to_string());
        let augment = match (options.augmentation.flip, options.augmentation.shift) {
            (false, false) => "none",
            (true, false) => "flip",
            (false, true) => "shift",
            (true, true) => "flip,shift",
        };
        let settings = [
            ("--data", data),
            ("--limit", limit),
            ("how pictures are prepared", options.picture.text()),
            ("--augment", augment.into()),
            ("--validation", self.validation.to_string()),
        ];
        let mut checkpoint = output.as_os_str().to_os_string();
        checkpoint.push(".checkpoint");
        Ok(TrainOptions {
            epochs: self.epochs.into(),
            seed: self.seed,
            rate,
            warm_up: self.warm_up,
            decay: match self.lr_decay {
                RateDecayArg::Constant => RateDecay::Constant,
                RateDecayArg::Linear => RateDecay::Linear,
                RateDecayArg::Cosine => RateDecay::Cosine,
            },
            patience: self.patience.map(u64::from),
            keep_best: self.patience.is_some(),
            augments: options.augmentation != Augmentation::default(),
            checkpoint: self.checkpoint.clone().unwrap_or(checkpoint.into()),
            checkpoint_every: self.checkpoint_every,
            resume: self.resume,
            overwrite: self.overwrite,
            rate_is_given: self.lr.is_some(),
            output: output.into(),
            log: self.log.clone(),
            log_every: self.log_every,
            page: self.page.clone(),
            settings: settings.map(|(k, v)| (k.to_string(), v)).to_vec(),
        })
    }

    /// Whether a training that a checkpoint holds goes on.
    pub fn resumes(&self) -> bool {
        self.resume
    }

    pub fn micro_batch(&self) -> MicroBatch {
        match self.micro_batch {
            Some(MicroBatch::Samples(samples)) if samples == self.batch as usize => {
                MicroBatch::Whole
            }
            wanted => wanted.unwrap_or_default(),
        }
    }

    pub fn strategy(&self) -> TrainStrategy {
        match self.strategy {
            StrategyArg::Auto => TrainStrategy::Auto,
            StrategyArg::Keep => TrainStrategy::Keep,
            StrategyArg::Swap => TrainStrategy::Swap,
            StrategyArg::Cheap => TrainStrategy::Cheap,
            StrategyArg::Sqrt => TrainStrategy::Sqrt,
            StrategyArg::Optimal => TrainStrategy::Optimal,
        }
    }

    /// Whether a checkpoint is in nobody's way.
    pub fn overwrites(&self) -> bool {
        self.overwrite
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }
}

fn parse_micro_batch(text: &str) -> Result<MicroBatch, String> {
    match text {
        "auto" => Ok(MicroBatch::Auto),
        _ => match text.parse() {
            Ok(samples) if samples > 0 => Ok(MicroBatch::Samples(samples)),
            _ => Err("a micro-batch is a number from 1, or auto".into()),
        },
    }
}
