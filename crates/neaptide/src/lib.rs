//! Run neural networks inside an enforced memory budget.
//!
//! A [`Model`] is opened from an `.onnx` (packed once into a `.neap` beside it) or a `.neap`; its
//! weights stay on storage. [`Model::plan`] decides for a [`Budget`] which
//! weights stay resident, how layers are sliced, and when each slice is read; a [`Session`] executes
//! that plan, reading while it computes.
//!
//! A budget is of the engine's own memory ([`Budget::Engine`]), or of the whole process ([`Budget::Bytes`]). Either way
//! a [`Ledger`] adds it up. The process around the engine is a [`Host`]: by default ([`Embedded`]) nothing is trimmed
//! or mapped anew that is not the engine's; a process that exists to run models asks for more ([`OwnProcess`]).
//!
//! ```no_run
//! use neaptide::{Budget, Model, OpenOptions, RunOptions};
//!
//! let model = Model::open("resnet50.onnx", &OpenOptions::default(), &mut |_| {})?;
//! let options = RunOptions { budget: Budget::Engine(40 << 20), ..RunOptions::default() };
//! let plan = model.plan(&options)?;
//! let mut session = model.into_session(plan, &options)?;
//! let image = vec![0u8; session.inputs()[0].len_bytes()]; // f32, 1x3x224x224, row-major
//! let mut scores = vec![0u8; session.outputs()[0].len_bytes()]; // f32, 1x1000
//! session.run(&[&image], &mut [&mut scores])?;
//! # Ok::<(), neaptide::Error>(())
//! ```

mod adapt;
mod budget;
mod cache;
mod cached;
mod calibrate;
mod curve;
mod engine;
mod error;
mod from_bytes;
mod halves;
mod host;
mod identity;
mod in_use;
mod ledger;
pub mod memory;
mod model;
mod on_device;
mod opening_estimate;
mod options;
mod pack;
mod package;
mod plan;
mod planning;
mod plans_ahead;
mod rebind;
mod request;
mod runner;
mod session;
mod shapes;
mod sharing;
mod size_bounds;
mod source_weights;
mod spill;
mod stored;
mod strategy;
mod time;
mod train;
mod versions;

pub use adapt::Adaptation;
pub use budget::{Budget, Bytes, Scope, parse_bytes};
pub use cached::{CachedFile, cached, clear_cached};
pub use calibrate::{
    Calibration, CalibrationReport, ComputeRates, CostSource, Machine, MeasuredPoint, Profile,
    StoragePoint, StorageRates,
};
pub use curve::{CurvePoint, LatencyCurve};
pub use engine::{
    Engine, EngineLedger, EngineOptions, LoadOptions, LoadedModel, ModelStatus, RunReport,
    RunRequest,
};
pub use error::{Error, Result};
pub use from_bytes::{forget_model, held_model, kept_model};
pub use halves::{declared_tensors, is_half, round_to_halves, widen_halves};
pub use host::{Embedded, Host, OwnProcess};
pub use ledger::{DeviceLedger, Ledger};
pub use model::{Cache, Model, OpenOptions, PackReport, TensorInfo, pack, pack_graph};
pub use neap_autodiff::{BatchNorm, Clip, Decay, Loss, Schedule};
pub use neap_compile::{BandCount, BandMode, Kernels, StepOrder, StrategyChoice};
pub use neap_ir::update::Update;
pub use neap_ir::{BoundInput, DType, Graph, Literal, TensorType};
pub use neap_kernels::simd::Isa;
pub use neap_onnx::{
    About, Declared, DeclaredDim, Initializer, Need, OnnxError, ReplaceError, Replaceable,
    Signature, signature,
};
pub use neap_plan::{Timeline, Workload};
pub use neap_planner::{PlanOptions, Strategy};
pub use neap_runtime::{Accelerator, CancelToken};
pub use neap_sim::CostProfile;
pub use neap_store::{IoMode, measure_bandwidth};
pub use opening_estimate::opening_estimate_bytes;
pub use options::RunOptions;
pub use pack::{Progress, WeightError, WeightFormats, Work};
pub use plan::{Bounds, Plan};
pub use rebind::Rebinding;
pub use runner::{Runner, Tensor, declared_inputs};
pub use session::Session;
pub use shapes::shape_text;
pub use sharing::Sharing;
pub use size_bounds::{known_bounds, parse_bounds};
pub use strategy::SearchEffort;
pub use time::parse_duration;
pub use train::{
    Adapters, MicroBatch, OtherTrainStrategy, PlannedStep, StateRole, StepCosts, StepSummary,
    StepToPlan, TrainCosts, TrainOptions, TrainState, TrainStrategy, Trainer, dropout_seed,
};
