//! The models that are loaded: in one engine, whose work memory they use in turn.
//!
//! Each has a key: its name, or `NAME#2` and so on where that is taken, as while a model of the same name is to take its place.

use crate::admission::Share;
use crate::buffer::Tensor;
use crate::settings::Settings;
use neaptide::{
    Budget, Cache, CancelToken, Engine, EngineLedger, EngineOptions, Error, LoadOptions,
    LoadedModel, Model, OpenOptions, PlanOptions, Result, RunOptions, RunReport, RunRequest,
    TensorInfo,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// How all models are opened and run.
#[derive(Debug, Clone)]
pub struct Opening {
    pub run: RunOptions,
    pub cache: Cache,
    pub host: Arc<dyn neaptide::Host>,
    /// The server ends: what takes long is given up.
    pub ending: Arc<AtomicBool>,
}

/// A model that was opened (and packed, where need be), and takes hardly any memory yet.
pub struct Opened {
    model: Model,
    urgency: f64,
    /// Rows of one run, at most.
    most_rows: usize,
    /// As the engine has them.
    pub inputs: Vec<TensorInfo>,
    pub outputs: Vec<TensorInfo>,
    /// As the model declares them: half floats are `f32` for the engine.
    pub declared_inputs: Vec<TensorInfo>,
    pub declared_outputs: Vec<TensorInfo>,
    /// Of each output the axes whose sizes the data decide; `outputs` has the most that they can be.
    pub late_axes: Vec<Vec<bool>>,
    /// Its outputs have as many rows as its inputs, whatever their number.
    pub takes_rows: bool,
    /// What the model says of its pictures and classes, by the names of its metadata.
    pub about: Vec<(String, String)>,
    /// What is to be known of it.
    pub remarks: Vec<String>,
}

/// Metadata that clients are told.
const TOLD: [&str; 3] = ["neaptide.picture", "neaptide.classes", "names"];

/// Every loaded model, and the memory that is theirs together.
pub struct Fleet {
    engine: Engine,
    /// What the process takes beside them.
    beside_bytes: u64,
}

/// One run.
pub struct Asked<'a> {
    pub model: &'a str,
    /// Of the inputs; as the model was opened, but for rows.
    pub shapes: &'a [TensorInfo],
    pub tensors: &'a [Tensor],
    /// Of runs that wait for their turn, the lowest goes first.
    pub rank: u64,
    pub cancel: CancelToken,
}

impl Opening {
    /// Packing takes long, and cleans up after itself.
    fn give_up_at_the_end(&self) {
        if self.ending.load(Relaxed) {
            std::panic::resume_unwind(Box::new("the server ends"));
        }
    }

    /// Opens a model; packs it first when no packed form is cached. Takes part in no budget: what opening takes is free
    /// again afterwards. It must not be more than `room_bytes`.
    ///
    /// # Errors
    /// Those of [`Model::open`]; [`Error::BadInput`] when it is to run in batches and cannot.
    pub fn open(
        &self,
        path: &Path,
        settings: &Settings,
        room_bytes: Option<u64>,
    ) -> Result<Opened> {
        check_room(path, room_bytes)?;
        let options = OpenOptions {
            shapes: settings.shapes.clone(),
            bindings: settings.values.clone(),
            size_bounds: settings.bounds.clone(),
            cache: self.cache.clone(),
            host: self.host.clone(),
            ..OpenOptions::default()
        };
        let mut model = Model::open(path, &options, &mut |_| self.give_up_at_the_end())?;
        model.check_weights()?;
        if settings.promise().is_some() && model.is_decided_by_data() {
            let what = "the data decide sizes or branches in it, and so how long a run takes: its deadline cannot be promised, leave out 'period'";
            return Err(Error::BadInput(what.into()));
        }
        let (inputs, outputs) = (model.inputs(), model.outputs());
        let (declared_inputs, declared_outputs) = neaptide::declared_tensors(path, &model);
        let late_axes = model.late_axes();
        if settings.batch.is_some() {
            check_rows(&mut model, &inputs, &outputs)?;
        }
        let about = model.metadata().iter();
        let about = about.filter(|(key, _)| TOLD.contains(&key.as_str()));
        let about = about.cloned().collect();
        let mut remarks = model.remarks().to_vec();
        if let Some(path) = model.packed_path().filter(|_| model.is_packed_in_memory()) {
            let path = path.display();
            remarks.push(format!(
                "{path} lies in memory (tmpfs), which the budget does not count"
            ));
        }
        Ok(Opened {
            remarks,
            about,
            model,
            urgency: settings.urgency,
            most_rows: settings.batch.map_or(1, |batch| batch.most_rows),
            inputs,
            outputs,
            declared_inputs,
            declared_outputs,
            late_axes,
            takes_rows: settings.batch.is_some(),
        })
    }
}

/// A model whose structure alone is too large for the memory there is would end the server.
fn check_room(path: &Path, room_bytes: Option<u64>) -> Result<()> {
    let needed = neaptide::opening_estimate_bytes(path);
    match room_bytes {
        Some(room) if needed > room => Err(Error::BadInput(format!(
            "to open it takes about {}, as it has so many nodes, and there are {} for that: give a larger --memory-budget, or unload other models",
            neaptide::Bytes(needed),
            neaptide::Bytes(room)
        ))),
        _ => Ok(()),
    }
}

impl Opened {
    fn options(&self) -> LoadOptions {
        let largest = shapes(&with_rows(&self.inputs, self.most_rows));
        LoadOptions {
            weight: self.urgency,
            other_shapes: match self.takes_rows {
                true => vec![largest],
                false => Vec::new(),
            },
            ..LoadOptions::default()
        }
    }
}

/// The name that a model with this key is asked by.
pub fn served_name(key: &str) -> &str {
    key.split('#').next().unwrap_or(key)
}

/// The same tensors with another number of rows.
pub fn with_rows(tensors: &[TensorInfo], rows: usize) -> Vec<TensorInfo> {
    let mut all = tensors.to_vec();
    for tensor in &mut all {
        if let Some(first) = tensor.ty.shape.first_mut() {
            *first = rows;
        }
    }
    all
}

/// Binds the model to other numbers of rows, and back.
fn check_rows(model: &mut Model, inputs: &[TensorInfo], outputs: &[TensorInfo]) -> Result<()> {
    let cannot = |reason: String| Error::BadInput(format!("it cannot run in batches: {reason}"));
    let late = model.late_axes();
    if let Some(at) = late.iter().position(|axes| axes.contains(&true)) {
        let reason = format!("the data decide the size of '{}'", outputs[at].name);
        return Err(cannot(reason));
    }
    if let Some(bad) = (inputs.iter().chain(outputs)).find(|t| t.ty.shape.first() != Some(&1)) {
        let shape = neaptide::shape_text(&bad.ty.shape);
        let reason = format!("'{}' is {shape}, and has not one row", bad.name);
        return Err(cannot(reason));
    }
    for rows in [2, 3] {
        model
            .bind(&shapes(&with_rows(inputs, rows)))
            .map_err(|e| cannot(e.to_string()))?;
        if model.inputs() != with_rows(inputs, rows) || model.outputs() != with_rows(outputs, rows)
        {
            return Err(cannot(format!(
                "with {rows} rows of inputs its outputs have not {rows} rows"
            )));
        }
    }
    model.bind(&shapes(inputs))
}

fn shapes(tensors: &[TensorInfo]) -> BTreeMap<String, Vec<usize>> {
    let shapes = tensors.iter();
    shapes
        .map(|t| (t.name.clone(), t.ty.shape.clone()))
        .collect()
}

impl Fleet {
    /// For `budget_bytes` of models, or without a limit; `beside_bytes` are told with it where it is too small.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn new(budget_bytes: Option<u64>, beside_bytes: u64, opening: &Opening) -> Result<Fleet> {
        let default = EngineOptions::default();
        let engine = Engine::new(EngineOptions {
            run: RunOptions {
                budget: budget_bytes.map_or(Budget::Unlimited, Budget::Engine),
                planner: PlanOptions {
                    effort: default.run.planner.effort,
                    ..opening.run.planner
                },
                ..opening.run.clone()
            },
            host: opening.host.clone(),
            ..default
        })?;
        Ok(Fleet {
            engine,
            beside_bytes,
        })
    }

    /// Takes a model in, and divides the memory anew, while others run. All is as it was when this fails.
    ///
    /// # Errors
    /// [`Error::Infeasible`] when not all can run in the memory there is.
    pub fn add(&self, key: &str, opened: Opened) -> Result<()> {
        let options = opened.options();
        let loaded = self.engine.load_opened(key, opened.model, &options);
        loaded.map(|_| ()).map_err(|error| self.told(error))
    }

    /// As [`Fleet::add`], and lets another model go in the same change. It needs memory for one of them only.
    ///
    /// # Errors
    /// As [`Fleet::add`].
    pub fn replace(&self, old: &str, key: &str, opened: Opened) -> Result<()> {
        let (old, options) = (self.loaded(old)?, opened.options());
        let loaded = (self.engine).load_opened_instead(&old, key, opened.model, &options);
        loaded.map(|_| ()).map_err(|error| self.told(error))
    }

    /// A key for one more model of that name.
    pub fn free_key(&self, name: &str) -> String {
        let numbers = (2..).map(|number| format!("{name}#{number}"));
        let mut keys = std::iter::once(name.to_string()).chain(numbers);
        keys.find(|key| !self.has(key)).unwrap_or_default()
    }

    /// Gives a model's memory to the others, while they run.
    ///
    /// # Errors
    /// When another model cannot go over to its new share; the model is gone all the same.
    pub fn remove(&self, name: &str) -> Result<()> {
        match self.engine.model(name) {
            Some(model) => self.engine.unload(&model).map_err(|error| self.told(error)),
            None => Ok(()),
        }
    }

    /// Divides another budget of the whole process among the models, while they run.
    ///
    /// # Errors
    /// [`Error::Infeasible`] when it is too small for them: all is as it was.
    pub fn set_budget(&self, budget_bytes: u64) -> Result<()> {
        let models_bytes = budget_bytes.saturating_sub(self.beside_bytes);
        let budget = Budget::Engine(models_bytes);
        self.engine
            .set_budget(budget)
            .map_err(|error| match self.told(error) {
                // The number that was asked for, also where it is less than the process takes beside models.
                Error::Infeasible { parts, .. } => Error::infeasible(budget_bytes, *parts),
                other => other,
            })
    }

    pub fn has(&self, name: &str) -> bool {
        self.engine.model(name).is_some()
    }

    /// The model keeps the memory and the plan that it has.
    ///
    /// # Errors
    /// [`Error::BadInput`] when there is no such model.
    pub fn pin(&self, name: &str) -> Result<()> {
        self.engine.pin(&self.loaded(name)?)
    }

    /// Reads all that stays in memory of a model.
    ///
    /// # Errors
    /// As [`Engine::settle`].
    pub fn settle(&self, name: &str) -> Result<()> {
        self.engine.settle(&self.loaded(name)?).map(|_| ())
    }

    fn loaded(&self, name: &str) -> Result<LoadedModel> {
        let loaded = self.engine.model(name);
        loaded.ok_or_else(|| Error::BadInput(format!("the model '{name}' is not loaded")))
    }

    /// Runs a model.
    ///
    /// # Errors
    /// As [`Engine::run_as`]; [`Error::BadInput`] when there is no such model.
    pub fn run(&self, asked: &Asked, outputs: &mut [&mut [u8]]) -> Result<RunReport> {
        let model = self.loaded(asked.model)?;
        let request = RunRequest {
            rank: asked.rank,
            cancel: Some(asked.cancel.clone()),
            shapes: (model.inputs() != asked.shapes).then(|| shapes(asked.shapes)),
        };
        let tensors: Vec<&[u8]> = asked.tensors.iter().map(Tensor::bytes).collect();
        self.engine.run_as(&request, &model, &tensors, outputs)
    }

    /// How much memory each model has.
    pub fn shares(&self) -> BTreeMap<String, Share> {
        let models = self.engine.ledger().models.into_iter();
        let shares = models.map(|m| {
            let share = Share {
                resident_bytes: m.resident_bytes,
                work_bytes: m.work_bytes,
                latency_ns: m.predicted_latency_ns,
            };
            (m.name, share)
        });
        shares.collect()
    }

    /// Where the memory goes, by names: by keys, where there are two models of a name.
    pub fn ledger(&self) -> EngineLedger {
        let mut ledger = self.engine.ledger();
        for model in &mut ledger.models {
            let name = served_name(&model.name);
            if !self.has(name) {
                model.name = name.to_string();
            }
        }
        ledger
    }

    /// A budget that is too small, with all that the process takes.
    fn told(&self, mut error: Error) -> Error {
        if let Error::Infeasible {
            budget_bytes,
            smallest_bytes,
            parts,
            ..
        } = &mut error
        {
            parts.caller_bytes = parts.caller_bytes.saturating_add(self.beside_bytes);
            *smallest_bytes = parts.total_bytes();
            *budget_bytes = budget_bytes.saturating_add(self.beside_bytes);
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_of_too_many_nodes_is_refused_before_it_is_read() {
        let mut file = tempfile::Builder::new().suffix(".onnx").tempfile().unwrap();
        // A graph of ten thousand nodes that say nothing.
        let nodes = [1 << 3 | 2, 0].repeat(10_000);
        let head = [7 << 3 | 2, 0xa0, 0x9c, 1];
        std::io::Write::write_all(&mut file, &[&head[..], &nodes].concat()).unwrap();
        let refused = check_room(file.path(), Some(8 << 20)).unwrap_err();
        assert!(refused.to_string().contains("so many nodes"), "{refused}");
        assert!(check_room(file.path(), Some(64 << 20)).is_ok());
        assert!(check_room(file.path(), None).is_ok());
        assert_eq!(served_name("a#2"), "a");
    }
}
