//! What an engine, a model in it and a run are asked for with.

use crate::budget::Budget;
use crate::calibrate::Calibration;
use crate::error::{Error, Result};
use crate::host::{Embedded, Host};
use crate::model::OpenOptions;
use crate::options::RunOptions;
use neap_compile::StrategyChoice;
use neap_planner::{Effort, PlanOptions, Strategy};
use neap_runtime::CancelToken;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How an engine runs its models.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Budget and threads, of all models together, and how each is planned. Not looked at are the strategy, which is
    /// [`Strategy::Preload`], `keep_activations`, and `prepared_weights`: those would lie in work memory, which others
    /// overwrite.
    pub run: RunOptions,
    /// The process that the engine is in. That of [`LoadOptions::open`] is not looked at.
    pub host: Arc<dyn Host>,
    /// For how many sizes of memory each model's latency is predicted, at least 2. More of them divide memory better
    /// and take longer to load.
    pub points: usize,
    /// Of a budget of the whole process, what opening, packing and planning a model may take for a while, beside the models that
    /// run. It is more where a model is loaded whose nodes are so many that opening it again would take more; the first such
    /// model is opened before that is known.
    pub loading_bytes: u64,
    /// Before each run all work memory is filled with this byte: a test of whether runs rely on what others left.
    pub overwrite: Option<u8>,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            run: RunOptions {
                planner: PlanOptions {
                    effort: Effort::Quick,
                    ..PlanOptions::default()
                },
                ..RunOptions::default()
            },
            host: Arc::new(Embedded),
            points: 16,
            loading_bytes: 8 << 20,
            overwrite: None,
        }
    }
}

impl EngineOptions {
    /// As they are used.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a budget or a calibration that is of one model.
    pub(crate) fn checked(self) -> Result<EngineOptions> {
        check_budget(self.run.budget)?;
        if self.run.calibration == Calibration::Full {
            return Err(Error::BadInput(
                "an engine measures no models: calibrate them before".into(),
            ));
        }
        let run = RunOptions {
            strategy: StrategyChoice::Only(Strategy::Preload),
            keep_activations: false,
            prepared_weights: false,
            planner: PlanOptions {
                // Between runs the memory is another model's.
                cyclic: false,
                ..self.run.planner
            },
            threads: self.run.threads.max(1),
            ..self.run
        };
        Ok(EngineOptions {
            points: self.points.max(2),
            run,
            ..self
        })
    }
}

/// # Errors
/// [`Error::BadInput`] for a percentage.
pub(crate) fn check_budget(budget: Budget) -> Result<()> {
    match budget {
        Budget::Percent(_) => Err(Error::BadInput(
            "an engine's budget is in bytes: percentages are of one model".into(),
        )),
        Budget::Unlimited | Budget::Bytes(_) | Budget::Engine(_) => Ok(()),
    }
}

/// How a model is loaded into an engine.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    pub open: OpenOptions,
    /// How much its latency matters beside that of others: memory is divided so that the largest product of weight and
    /// predicted latency is as small as can be.
    pub weight: f64,
    /// Its plan is at least as good as one that has so many bytes for itself, work memory included. 0 is the smallest.
    pub least_bytes: u64,
    /// Shapes that it is to run in, too, such as those of its largest batch: memory is divided so that it can. Then
    /// [`RunRequest::shapes`] may be any that need no more memory. Empty for a model that runs in its own shapes only.
    pub other_shapes: Vec<BTreeMap<String, Vec<usize>>>,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            open: OpenOptions::default(),
            weight: 1.0,
            least_bytes: 0,
            other_shapes: Vec::new(),
        }
    }
}

/// How a run is asked for.
#[derive(Debug, Clone, Default)]
pub struct RunRequest {
    /// Of runs that wait, those with the lowest rank go first; of those of the same rank, the one that was asked for
    /// first. With deadlines as ranks that is earliest deadline first; with the same rank for all, first in, first out.
    pub rank: u64,
    /// Ends the run early, also while it waits.
    pub cancel: Option<CancelToken>,
    /// Of inputs, by name, for a model that was loaded with [`LoadOptions::other_shapes`]: these, and of inputs that share
    /// dimensions with them; the rest are as when it was loaded. `None` is the model's own shapes.
    pub shapes: Option<BTreeMap<String, Vec<usize>>>,
}
