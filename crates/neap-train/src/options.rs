//! How a training goes on and what it leaves.

use neap_autodiff::{Decay, Schedule};
use std::path::PathBuf;

#[derive(Debug, Clone)]
pub struct TrainOptions {
    pub epochs: u64,
    pub seed: u64,
    /// The highest learning rate.
    pub rate: f64,
    /// Steps in which the rate rises to that.
    pub warm_up: u64,
    pub decay: RateDecay,
    /// End after so many epochs without a lower loss of validation.
    pub patience: Option<u64>,
    /// Keep the weights of the epoch with the lowest loss of validation, not the last one's.
    pub keep_best: bool,
    pub augments: bool,
    /// Where the training can be taken up again.
    pub checkpoint: PathBuf,
    /// Steps between checkpoints; there is one after every epoch anyway.
    pub checkpoint_every: Option<u64>,
    /// Take up the training of the checkpoint, where there is one.
    pub resume: bool,
    /// Begin anew, whatever the checkpoint holds.
    pub overwrite: bool,
    /// The rate is the user's own: a training that goes on goes on with it. Otherwise it keeps its own.
    pub rate_is_given: bool,
    /// The trained model; its weights go beside it as safetensors.
    pub output: PathBuf,
    pub log: Option<PathBuf>,
    /// Steps between lines of the log.
    pub log_every: u64,
    pub page: Option<PathBuf>,
    /// Whatever else the bits depend on, by name: a checkpoint is taken up by the same training only.
    pub settings: Vec<(String, String)>,
}

/// What becomes of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateDecay {
    Constant,
    /// In a line to nothing at the last step.
    Linear,
    /// In half a cosine to nothing at the last step.
    Cosine,
}

impl TrainOptions {
    /// The rate of each step, where all epochs have so many together.
    pub fn schedule(&self, steps: u64) -> Schedule {
        Schedule {
            rate: self.rate,
            warm_up: self.warm_up,
            decay: match self.decay {
                RateDecay::Constant => Decay::Constant,
                RateDecay::Linear => Decay::Linear { steps, last: 0.0 },
                RateDecay::Cosine => Decay::Cosine { steps, last: 0.0 },
            },
        }
    }
}
