//! The model at work: a trainer for steps, and a session for validation, each with all of the memory.

use crate::data::Largest;
use crate::drive::WRITING_BYTES;
use crate::error::{Result, TrainError, bad};
use crate::recipe::Recipe;
use neaptide::{
    Budget, Bytes, Cache, Host, MicroBatch, Model, OpenOptions, RunOptions, Session, TrainCosts,
    TrainOptions, TrainStrategy, Trainer,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a recipe's model works.
#[derive(Clone)]
pub struct Engine {
    pub recipe: Recipe,
    pub budget: Budget,
    /// How many samples of a batch go through the model at a time.
    pub micro_batch: MicroBatch,
    /// What becomes of activations for which there is no room.
    pub strategy: TrainStrategy,
    pub threads: usize,
    /// The process around, for a budget of all of it.
    pub host: Arc<dyn Host>,
    /// Of dropouts and adapters.
    pub seed: u64,
    /// What else takes memory meanwhile: batches and decoding.
    pub reserve_bytes: u64,
    /// The part of that which decoding the largest picture takes.
    pub largest: Option<Largest>,
    /// Where parameters and activations go that are not in memory.
    pub folder: PathBuf,
    /// What plans are chosen by.
    pub costs: TrainCosts,
}

impl Engine {
    /// With the model's own parameters, and moments of zero.
    ///
    /// # Errors
    /// The model cannot be trained, or not within the budget.
    pub fn trainer(&self) -> Result<Trainer> {
        let recipe = &self.recipe;
        let options = TrainOptions {
            loss: recipe.loss,
            batch_norm: recipe.batch_norm,
            clip: recipe.clip,
            adapters: recipe.lora.as_ref().map(|l| l.adapters.clone()),
            micro_batch: self.micro_batch,
            strategy: self.strategy,
            costs: self.costs.clone(),
            keep_result: true,
            seed: self.seed,
            budget: self.budget,
            threads: self.threads,
            // Checkpoints are written while it is there.
            reserve_bytes: self.reserve_bytes + WRITING_BYTES,
            state_dir: Some(self.folder.clone()),
            ..TrainOptions::default()
        };
        let update_of = |name: &str, _: &neaptide::TensorType| recipe.trained.get(name).copied();
        let opened = Trainer::open(recipe.model(), &self.open(), &options, &update_of);
        opened.map_err(|error| match error {
            error @ neaptide::Error::Infeasible { .. } => {
                let strategy = match self.strategy {
                    TrainStrategy::Auto => String::new(),
                    strategy => format!("; this is of --strategy {strategy}"),
                };
                TrainError::Infeasible(format!("{error}{strategy}{}", self.of_pictures()))
            }
            error => error.into(),
        })
    }

    /// What pictures have to do with a refusal: nothing, where they take little.
    fn of_pictures(&self) -> String {
        const LITTLE_BYTES: u64 = 8 << 20;
        let Some(largest) = self.largest.as_ref().filter(|l| l.bytes > LITTLE_BYTES) else {
            return String::new();
        };
        let Largest {
            path,
            width,
            height,
            bytes,
        } = largest;
        format!(
            "; {} of it are for decoding pictures, of which the largest is {} ({width}x{height}): smaller ones take less",
            Bytes(*bytes),
            path.display()
        )
    }

    /// The same with as many samples at a time as the budget has room for, where that was left open: the bits of a training
    /// depend on it.
    ///
    /// # Errors
    /// As [`Engine::trainer`].
    pub fn resolved(&self) -> Result<Engine> {
        let mut engine = self.clone();
        if self.micro_batch == MicroBatch::Auto {
            engine.micro_batch = match self.trainer()?.parts() {
                1 => MicroBatch::Whole,
                parts => MicroBatch::Samples(self.recipe.batch / parts),
            };
        }
        Ok(engine)
    }

    /// A session of the recipe's model with other weights, of the file `model`. Its results have the same bits under every
    /// budget.
    ///
    /// # Errors
    /// It cannot be opened, or not within the budget.
    pub fn session(&self, model: &Path) -> Result<Session> {
        let open = OpenOptions {
            cache: Cache::Folder(self.folder.clone()),
            ..self.open()
        };
        let model = Model::open(model, &open, &mut |_| {})?;
        let options = RunOptions {
            budget: self.budget,
            threads: self.threads,
            exact: true,
            reserve_bytes: self.reserve_bytes,
            spill_dir: Some(self.folder.clone()),
            ..RunOptions::default()
        };
        let plan = model.plan(&options)?;
        Ok(model.into_session(plan, &options)?)
    }

    fn open(&self) -> OpenOptions {
        OpenOptions {
            shapes: self.recipe.shapes.clone(),
            host: self.host.clone(),
            ..OpenOptions::default()
        }
    }
}

impl From<neaptide::Error> for TrainError {
    fn from(error: neaptide::Error) -> TrainError {
        match error {
            neaptide::Error::Infeasible { .. } => TrainError::Infeasible(error.to_string()),
            neaptide::Error::Unbound { text, need } => TrainError::Unbound { text, need },
            neaptide::Error::Defect(text) => TrainError::Defect(text),
            error => bad(error),
        }
    }
}
