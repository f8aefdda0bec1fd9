//! `Trainer`: a model, its loss and its optimiser, ready to take steps inside a budget.

mod model;

use crate::error::{Error, Result};
use crate::ledger::Ledger;
use crate::model::{OpenOptions, TensorInfo};
use crate::session::check_sizes;
use crate::source_weights::SourceFiles;
use crate::train::planning::plan;
use crate::train::start::draw;
use crate::train::step::{StateRole, step_of};
use crate::train::{MicroBatch, StepCosts, StepSummary, TrainOptions, micro};
pub(super) use model::Model;
use model::with_adapters;
use neap_ir::update::Update;
use neap_ir::{DType, Graph, TensorType};
use neap_plan::Timeline;
use neap_runtime::{InputTensor, OutputTensor, Stats};
use std::path::Path;

/// A model that is trained, step by step, inside its budget.
///
/// ```no_run
/// use neaptide::{OpenOptions, TrainOptions, Trainer, Update};
///
/// let sgd = Update::Sgd { momentum: 0.9, nesterov: false, decay: 0.0 };
/// let all = |_: &str, _: &neaptide::TensorType| Some(sgd);
/// let mut trainer = Trainer::open("lenet.onnx", &OpenOptions::default(), &TrainOptions::default(), &all)?;
/// let images = vec![0u8; trainer.inputs()[0].len_bytes()]; // f32, 64x1x28x28
/// let labels = vec![0u8; trainer.target().len_bytes()]; // i64, 64
/// let loss = trainer.step(&[&images], &labels, 0.01)?;
/// # Ok::<(), neaptide::Error>(())
/// ```
/// Results are the same bits under every budget, and the same as [`neap_ops::interpret`] gives for the step's graph.
pub struct Trainer {
    session: neap_runtime::Session,
    /// The model's, then target, rate, step and perhaps seed.
    inputs: Vec<TensorInfo>,
    own_inputs: usize,
    is_seeded: bool,
    outputs: Vec<TensorInfo>,
    states: Vec<TrainState>,
    /// By state: where its bytes are.
    at: Vec<Vec<Piece>>,
    /// In which a batch is seen.
    parts: usize,
    classes: Option<Classes>,
    seed: u64,
    steps: u64,
    loss: [u8; 8],
    result: Vec<u8>,
    ledger: Ledger,
    budget_bytes: Option<u64>,
    summary: StepSummary,
    costs: StepCosts,
}

/// A tensor that survives steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainState {
    /// The model's for parameters, frozen constants and statistics; `NAME/moment0` and so on for those of a parameter.
    pub name: String,
    pub role: StateRole,
    pub ty: TensorType,
}

/// A part of a state: a state of the session.
#[derive(Clone, Copy)]
struct Piece {
    number: usize,
    bytes: usize,
}

/// What class numbers may be.
struct Classes {
    count: usize,
    ignored: Option<i64>,
}

impl Trainer {
    /// Opens an `.onnx` and plans its training. `update_of` says for each parameter, by name and type, how it is updated;
    /// `None` freezes it, which costs no gradient.
    ///
    /// # Errors
    /// [`Error::BadInput`] for anything wrong with the file, its shapes or the request; [`Error::Unsupported`] for an
    /// operator without a derivative; [`Error::Infeasible`] names the smallest budget that can be met.
    pub fn open(
        path: impl AsRef<Path>,
        open: &OpenOptions,
        options: &TrainOptions,
        update_of: &dyn Fn(&str, &TensorType) -> Option<Update>,
    ) -> Result<Trainer> {
        let make = |model: Model, parts| model.trainer(parts, options, update_of);
        let trainer = micro::by_parts(path.as_ref(), open, options, &make)?;
        // What opening took is not charged beside what steps take.
        open.host.trim();
        Ok(trainer)
    }

    /// What [`Trainer::open`] would plan: reads no weights. It takes no memory for them, unless costs are measured: then it takes
    /// the trial's steps.
    ///
    /// # Errors
    /// As [`Trainer::open`].
    pub fn preview(
        path: impl AsRef<Path>,
        open: &OpenOptions,
        options: &TrainOptions,
        update_of: &dyn Fn(&str, &TensorType) -> Option<Update>,
    ) -> Result<StepSummary> {
        let make = |model: Model, parts| {
            let step = step_of(model.graph.clone(), parts, options, update_of)?;
            let costs = model.costs(parts, options, update_of)?;
            Ok(plan(&step, options, &*model.host, 0, &costs)?.summary)
        };
        micro::by_parts(path.as_ref(), open, options, &make)
    }

    /// The same of a graph whose constants are all inline, whose batch is seen whole.
    ///
    /// # Errors
    /// As [`Trainer::open`].
    pub fn of_graph(
        graph: Graph,
        options: &TrainOptions,
        update_of: &dyn Fn(&str, &TensorType) -> Option<Update>,
    ) -> Result<Trainer> {
        let files = SourceFiles::open(&graph)?;
        let (graph, drawn) = with_adapters(graph, options)?;
        let model = Model {
            files,
            graph,
            drawn,
            folder: options.state_dir.clone().unwrap_or_default(),
            host: OpenOptions::default().host,
        };
        if options.micro_batch != MicroBatch::Whole {
            return Err(Error::BadInput(
                "a graph is trained by whole batches".into(),
            ));
        }
        model.trainer(1, options, update_of)
    }

    /// The model's inputs.
    pub fn inputs(&self) -> &[TensorInfo] {
        &self.inputs[..self.own_inputs]
    }

    /// What the result is compared with.
    pub fn target(&self) -> &TensorInfo {
        &self.inputs[self.own_inputs]
    }

    /// Takes a step at this learning rate and gives the loss before it. `inputs` are in the model's order; all are row-major
    /// little-endian bytes of exactly the tensors' sizes.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a wrong number or size of tensors, and for a class that there is not: then nothing has
    /// changed. [`Error::Machine`] when storage fails, [`Error::Run`] when a value cannot be computed with: then the states are lost, and must be
    /// written anew.
    pub fn step(&mut self, inputs: &[&[u8]], target: &[u8], rate: f64) -> Result<f64> {
        let sizes = inputs.iter().map(|b| b.len());
        check_sizes("input", self.inputs(), sizes)?;
        check_sizes(
            "target",
            &self.inputs[self.own_inputs..][..1],
            [target.len()].into_iter(),
        )?;
        self.check_classes(target)?;
        let rate = match self.inputs[self.own_inputs + 1].ty.dtype {
            DType::F64 => rate.to_le_bytes().to_vec(),
            _ => (rate as f32).to_le_bytes().to_vec(),
        };
        let step = (self.steps + 1).to_le_bytes();
        let seed = dropout_seed(self.seed, self.steps + 1).to_le_bytes();
        let mut all: Vec<&[u8]> = inputs.to_vec();
        all.extend([target, &rate, &step]);
        all.extend(self.is_seeded.then_some(&seed[..]));
        let tensors: Vec<InputTensor> = (self.inputs.iter().zip(&all))
            .map(|(info, &bytes)| InputTensor {
                ty: &info.ty,
                bytes,
            })
            .collect();
        let loss_bytes = self.outputs[0].len_bytes();
        let memory = [&mut self.loss[..loss_bytes], &mut self.result];
        let mut outputs: Vec<OutputTensor> = (self.outputs.iter().zip(memory))
            .map(|(info, bytes)| OutputTensor {
                ty: &info.ty,
                bytes,
            })
            .collect();
        self.session.run(&tensors, &mut outputs)?;
        self.steps += 1;
        Ok(self.last_loss())
    }

    /// Of the last step.
    fn last_loss(&self) -> f64 {
        match self.outputs[0].ty.dtype {
            DType::F64 => f64::from_le_bytes(self.loss),
            _ => {
                let [a, b, c, d, ..] = self.loss;
                f32::from_le_bytes([a, b, c, d]).into()
            }
        }
    }

    /// The model's result in the last step, before its update, under [`TrainOptions::keep_result`]; empty otherwise.
    pub fn result(&self) -> &[u8] {
        &self.result
    }

    /// Steps that have been taken: the number that the optimiser counts by.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Goes on as after so many steps, for a checkpoint.
    pub fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    /// What survives steps, in an order that the model and the options determine.
    pub fn states(&self) -> &[TrainState] {
        &self.states
    }

    /// Hands the bytes of a state to `visit`, as the last step left them: row-major, little-endian, in order, in one piece or
    /// several.
    ///
    /// # Errors
    /// [`Error::Run`] when there is no such state, or a step failed, [`Error::Machine`] when it cannot be read.
    pub fn read(&mut self, state: usize, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        let pieces = self.at.get(state).ok_or_else(|| no_state(state))?;
        for piece in pieces {
            let mut left = piece.bytes;
            self.session.read_state(piece.number, &mut |bytes| {
                // States take whole blocks.
                let bytes = &bytes[..left.min(bytes.len())];
                left -= bytes.len();
                visit(bytes);
            })?;
        }
        Ok(())
    }

    /// Sets some of a state's bytes, from `offset` on, for the next step.
    ///
    /// # Errors
    /// [`Error::BadInput`] when there is no such state or it has not so many bytes; [`Error::Machine`] when they cannot be
    /// written.
    pub fn write(&mut self, state: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let info = self.states.get(state).ok_or_else(|| no_state(state))?;
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > info.ty.len_bytes() as u64) {
            return Err(Error::BadInput(format!(
                "'{}' has {} bytes, {} were given for byte {offset} on",
                info.name,
                info.ty.len_bytes(),
                bytes.len()
            )));
        }
        write_pieces(&mut self.session, &self.at[state], offset, bytes)
    }

    /// Sets all states to zero, also after a step that failed: what is not zero is to be written then.
    pub fn clear(&mut self) {
        self.session.clear_states();
    }

    /// Planned peak of the whole process, or of the engine.
    pub fn high_water_bytes(&self) -> u64 {
        self.ledger.total_bytes()
    }

    /// Where that goes, part by part.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Budget in force; `None` without a limit.
    pub fn budget_bytes(&self) -> Option<u64> {
        self.budget_bytes
    }

    /// Bytes that each step writes to storage and reads back.
    pub fn traffic_bytes(&self) -> (u64, u64) {
        (self.summary.stored_bytes, self.summary.loaded_bytes)
    }

    /// In how many parts each batch is seen ([`MicroBatch`]).
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// How the plan makes do with the memory that there is, and what that costs.
    pub fn summary(&self) -> &StepSummary {
        &self.summary
    }

    /// What the plan was chosen by.
    pub fn costs(&self) -> &StepCosts {
        &self.costs
    }

    /// Whether the backward pass computes activations again, as the plan has it.
    pub fn recomputes(&self) -> bool {
        self.summary.recomputed_steps > 0
    }

    /// Records what happens in the next `steps` steps.
    pub fn record_timeline(&mut self, steps: usize) {
        self.session.record_timeline(steps);
    }

    /// Spans of the recorded steps, when recording was switched on.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.session.timeline()
    }

    /// The operator of each of the plan's steps.
    pub fn operators(&self) -> impl Iterator<Item = &'static str> {
        let program = self.session.program();
        let nodes = program.steps.iter();
        nodes.map(|step| program.graph.nodes[step.index()].op.name())
    }

    /// Counters since the trainer was opened.
    pub fn stats(&self) -> Stats {
        self.session.stats()
    }

    fn check_classes(&self, target: &[u8]) -> Result<()> {
        let Some(classes) = &self.classes else {
            return Ok(());
        };
        for (index, bytes) in target.chunks_exact(8).enumerate() {
            let class = i64::from_le_bytes(bytes.try_into().unwrap_or_default());
            let is_class = usize::try_from(class).is_ok_and(|class| class < classes.count);
            if !is_class && Some(class) != classes.ignored {
                return Err(Error::BadInput(format!(
                    "target {index} is class {class}, the model has classes 0 to {}",
                    classes.count.saturating_sub(1)
                )));
            }
        }
        Ok(())
    }
}

/// What dropouts draw from in a step: another number for each.
pub fn dropout_seed(seed: u64, step: u64) -> i64 {
    draw(seed, step) as i64
}

fn no_state(state: usize) -> Error {
    Error::BadInput(format!("there is no state {state}"))
}

/// Sets some of a state's bytes, wherever they are.
fn write_pieces(
    session: &mut neap_runtime::Session,
    pieces: &[Piece],
    offset: u64,
    mut bytes: &[u8],
) -> Result<()> {
    let mut skipped = offset as usize;
    for piece in pieces {
        if bytes.is_empty() {
            break;
        }
        let at = skipped.min(piece.bytes);
        skipped -= at;
        let (own, rest) = bytes.split_at(bytes.len().min(piece.bytes - at));
        if !own.is_empty() {
            session.write_state_at(piece.number, at as u64, own)?;
        }
        bytes = rest;
    }
    Ok(())
}
