//! Trains models on data: from files of samples to a file of trained weights, epoch by epoch.
//!
//! ```text
//! data       IDX, npz, tokens, folders of pictures, drawn digits ─► batches, on a thread of its own
//! start      the model, or that model with what a training needs otherwise
//! recipe     a model file ─► what is trained, by what, against which loss
//! settings   what the bits depend on: whether a checkpoint is of this training
//! lora       adapters: for which weights, and those weights with what they learned
//! engine     a trainer within the budget, or a session to validate with; never both at once
//! run        the loop: order, steps, checkpoints, validation, early end ─► log, page
//! drive      files written past the page cache, which the budget counts
//! export     the model with trained weights as ONNX; the weights as safetensors
//! ```
//! Every choice at random is a function of the seed, the epoch and the sample, so a training that was killed and taken up from its
//! checkpoint has the bits of one that was not.

#![forbid(unsafe_code)]

mod checkpoint;
mod data;
mod drive;
mod engine;
mod error;
mod export;
mod history;
mod log;
mod lora;
mod metrics;
mod options;
mod page;
mod places;
mod random;
mod recipe;
mod run;
mod settings;
mod start;
mod stored;
mod tensors;
mod watch;
mod whole;

pub use data::{
    Augment, Augmentation, Batch, DataOptions, DataSet, Largest, SampleType, Samples, are_tokens,
    digits, memory_bytes, open as open_data,
};
pub use engine::Engine;
pub use error::{Result, TrainError};
pub use history::{Epoch, History, Point};
pub use lora::{Lora, LoraOptions, LoraPart};
pub use options::{RateDecay, TrainOptions};
pub use recipe::{LossKind, ModelOptions, Recipe};
pub use run::{Summary, train};
pub use start::Start;
pub use watch::{Event, PlanLine, StepFigures, Watch};
