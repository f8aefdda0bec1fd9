//! What a training tells whoever follows it.

use crate::history::Epoch;
use serde::Serialize;
use std::path::Path;

/// Follows a training.
pub trait Watch {
    fn event(&mut self, event: &Event);

    /// Whether to end: a checkpoint is written first.
    fn should_stop(&self) -> bool;

    /// The most memory that the process has had.
    fn peak_bytes(&self) -> u64;
}

#[derive(Debug)]
pub enum Event<'a> {
    /// Before the first step; `from` is the step at which a checkpoint is taken up.
    Begun {
        samples: usize,
        validation: usize,
        steps_per_epoch: u64,
        epochs: u64,
        from: Option<u64>,
    },
    /// The first step is about to be taken.
    Planned(&'a PlanLine),
    Step(&'a StepFigures),
    /// A validation begins.
    Validating {
        samples: usize,
    },
    Epoch {
        epoch: &'a Epoch,
        samples_per_second: f64,
        peak_bytes: u64,
        is_best: bool,
    },
    /// No better epoch for as long as was asked for.
    StoppedEarly {
        best_epoch: u64,
    },
    Written {
        path: &'a Path,
    },
    /// What the user should hear.
    Remark {
        text: &'a str,
    },
}

/// How steps make do with the memory that there is, as a line of the log has it. Bytes and operations are those of a step.
#[derive(Debug, Clone, Serialize)]
pub struct PlanLine {
    pub strategy: &'static str,
    pub micro_batches: usize,
    pub planned_bytes: u64,
    pub stored_bytes: u64,
    pub loaded_bytes: u64,
    pub recomputed_flops: u64,
    /// Seconds of a step, where costs were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_s: Option<f64>,
    /// Whether the strategy's choice was proven to be the best of its kind.
    pub is_proven: bool,
}

/// A step, as a line of the log has it.
#[derive(Debug, Clone, Serialize)]
pub struct StepFigures {
    pub step: u64,
    pub epoch: u64,
    /// Mean of the epoch so far.
    pub epoch_loss: f64,
    pub epoch_accuracy: Option<f64>,
    /// Of this step's batch.
    pub loss: f64,
    pub accuracy: Option<f64>,
    pub rate: f64,
    pub samples_per_second: f64,
    pub peak_bytes: u64,
}

/// An epoch, as a line of the log has it.
#[derive(Debug, Serialize)]
pub(crate) struct EpochLine<'a> {
    #[serde(flatten)]
    pub epoch: &'a Epoch,
    pub samples_per_second: f64,
    pub peak_bytes: u64,
}
