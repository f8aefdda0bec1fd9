//! `Trainer`: a model, its loss and its optimiser, ready to take steps inside a budget.

use crate::error::{Error, Result};
use crate::host::Host;
use crate::ledger::{FORESEEN_BYTES, Ledger};
use crate::model::{OpenOptions, TensorInfo, infos, onnx_options};
use crate::session::check_sizes;
use crate::source_weights::SourceFiles;
use crate::train::planning::{StepPlan, plan};
use crate::train::start::{Drawn, draw, first_bytes};
use crate::train::step::{StateRole, StepState, step_of};
use crate::train::{MicroBatch, StepCosts, StepSummary, TrainOptions, micro};
use neap_autodiff::{Loss, adaptable, add_adapters};
use neap_ir::update::Update;
use neap_ir::{DType, Graph, Program, State, TensorType, ValueId};
use neap_plan::{Timeline, Workload};
use neap_runtime::{BackingStore, InputTensor, OutputTensor, Stats};
use neap_store::{EmptySource, Spill, ThrottledSource, Verifier};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    /// changed. [`Error::Run`] when storage fails or a value cannot be computed with: then the states are lost, and must be
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
    /// [`Error::Run`] when there is no such state, a step failed, or it cannot be read.
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
    /// [`Error::BadInput`] when there is no such state or it has not so many bytes; [`Error::Run`] when they cannot be
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

/// What is left of a step when it has been planned.
pub(super) struct Ready {
    /// The one that was planned.
    pub program: Program,
    inputs: usize,
    is_seeded: bool,
    states: Vec<StepState>,
}

/// A model before it is made into a step.
pub(super) struct Model {
    pub graph: Graph,
    /// What the model does not say the first values of.
    drawn: Drawn,
    files: SourceFiles,
    folder: PathBuf,
    pub host: Arc<dyn Host>,
}

impl Model {
    pub fn open(path: &Path, open: &OpenOptions, options: &TrainOptions) -> Result<Model> {
        let whole = neap_onnx::OpenOptions {
            keep_parameters: true,
            ..onnx_options(open)
        };
        let bound = neap_onnx::Skeleton::open(path)?.bind(&whole)?;
        let files = SourceFiles::of(bound.open);
        let beside = path.parent().map(Path::to_path_buf);
        let folder = options.state_dir.clone().or(beside);
        let (graph, drawn) = with_adapters(bound.graph, options)?;
        Ok(Model {
            graph,
            drawn,
            files,
            folder: folder.unwrap_or_default(),
            host: open.host.clone(),
        })
    }

    /// For batches of `parts` times the graph's.
    pub fn trainer(
        self,
        parts: usize,
        options: &TrainOptions,
        update_of: &dyn Fn(&str, &TensorType) -> Option<Update>,
    ) -> Result<Trainer> {
        let costs = self.costs(parts, options, update_of)?;
        let (step, plan) = self.planned(parts, options, update_of, &costs)?;
        let mut trainer = self.opened(step, plan, options)?;
        trainer.costs = costs;
        trainer.parts = parts;
        self.files.check_unchanged()?;
        trainer.classes = match options.loss {
            Loss::CrossEntropy {
                class_axis,
                ignore_index,
                ..
            } => {
                let result = self.graph.outputs.get(options.result);
                let shape = result.map(|&v| &self.graph.ty(v).shape);
                let count = shape.and_then(|s| s.get(class_axis)).copied();
                count.map(|count| Classes {
                    count,
                    ignored: ignore_index,
                })
            }
            _ => None,
        };
        Ok(trainer)
    }

    /// What the process takes with a plan is measured when there is one, and planned with again where that was more than was foreseen.
    pub fn planned(
        &self,
        parts: usize,
        options: &TrainOptions,
        update_of: &dyn Fn(&str, &TensorType) -> Option<Update>,
        costs: &StepCosts,
    ) -> Result<(Ready, StepPlan)> {
        let mut more_bytes = 0;
        loop {
            let step = step_of(self.graph.clone(), parts, options, update_of)?;
            let mut plan = plan(&step, options, &*self.host, more_bytes, costs)?;
            let ready = Ready {
                program: plan.program.take().unwrap_or(step.program),
                inputs: step.inputs,
                is_seeded: step.is_seeded,
                states: step.states,
            };
            let excess_bytes = plan.measure(&ready.program, options.budget, &*self.host);
            if excess_bytes == 0 {
                return Ok((ready, plan));
            }
            more_bytes += excess_bytes + FORESEEN_BYTES;
        }
    }

    fn opened(&self, step: Ready, plan: StepPlan, options: &TrainOptions) -> Result<Trainer> {
        let program = step.program;
        let graph = &program.graph;
        let (inputs, outputs) = (infos(graph, &graph.inputs), infos(graph, &graph.outputs));
        let at = numbers(&program, &plan.workload, &step.states);
        let (ledger, budget_bytes, summary) = (plan.ledger, plan.budget_bytes, plan.summary);
        let mut session = self.session(Arc::new(program), plan, options)?;
        for (state, at) in step.states.iter().zip(&at) {
            let mut visit = |offset, bytes: &[u8]| write_pieces(&mut session, at, offset, bytes);
            first_bytes(&self.graph, &self.files, &self.drawn, state, &mut visit)?;
        }
        let result_bytes = outputs.get(1).map_or(0, TensorInfo::len_bytes);
        let states = step.states.into_iter();
        Ok(Trainer {
            session,
            own_inputs: step.inputs,
            is_seeded: step.is_seeded,
            states: states
                .map(|s| TrainState {
                    name: s.name,
                    role: s.role,
                    ty: s.ty,
                })
                .collect(),
            at,
            parts: 1,
            classes: None,
            seed: options.seed,
            steps: 0,
            loss: [0; 8],
            result: vec![0; result_bytes],
            ledger,
            budget_bytes,
            summary,
            costs: StepCosts::default(),
            inputs,
            outputs,
        })
    }

    /// By a plan for the program, with states of zeros.
    pub fn session(
        &self,
        program: Arc<Program>,
        plan: StepPlan,
        options: &TrainOptions,
    ) -> Result<neap_runtime::Session> {
        let storage = BackingStore {
            source: Box::new(EmptySource),
            verifier: Verifier::from_data(0, &[])?,
            spill: self.file(plan.verdict.spill_bytes, options)?,
        };
        let settings = neap_runtime::Options {
            threads: options.threads,
            isa: options.isa,
        };
        let (execution, workload) = (plan.execution, plan.workload);
        let session =
            neap_runtime::Session::open(program, execution, &workload, storage, settings)?;
        drop(workload);
        // What its checks took goes before states come.
        self.host.trim_heap();
        Ok(session)
    }

    /// Where the file goes.
    pub fn folder(&self) -> &Path {
        match self.folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => &self.folder,
        }
    }

    /// Room on the drive for what is not in memory; `None` where everything is.
    fn file(&self, bytes: u64, options: &TrainOptions) -> Result<Option<Box<dyn Spill>>> {
        if bytes == 0 {
            return Ok(None);
        }
        let spill = neap_store::open_spill(self.folder(), bytes, options.io)?;
        Ok(Some(match options.throttle_bytes_per_second {
            Some(rate) => Box::new(ThrottledSource::new(spill, rate)?),
            None => spill,
        }))
    }
}

/// The model with the adapters that are wished for, and how they begin.
fn with_adapters(graph: Graph, options: &TrainOptions) -> Result<(Graph, Drawn)> {
    let Some(wanted) = &options.adapters else {
        return Ok((graph, Drawn::default()));
    };
    let weights: Vec<ValueId> = (adaptable(&graph).into_iter())
        .map(|(weight, _)| weight)
        .filter(|&weight| wanted.weights.contains(&graph.value(weight).name))
        .collect();
    if weights.len() < wanted.weights.len() {
        let is_found = |name: &&String| weights.iter().any(|&v| graph.value(v).name == **name);
        let missing = wanted.weights.iter().find(|name| !is_found(name));
        return Err(Error::BadInput(format!(
            "'{}' is no weight that can have an adapter",
            missing.map_or("", String::as_str)
        )));
    }
    let (graph, adapters) = add_adapters(graph, &weights, wanted.rank, wanted.scale())?;
    let drawn = Drawn::of(&graph, &adapters, options.seed);
    Ok((graph, drawn))
}

/// Where the bytes of each state are: states of a plan are in the order of their buffers.
fn numbers(program: &Program, workload: &Workload, states: &[StepState]) -> Vec<Vec<Piece>> {
    let of_graph = &program.graph.states;
    let pieces = |state: &StepState| {
        let own = of_graph.get(state.pieces.clone()).unwrap_or_default();
        let piece = |state: &State| {
            let buffer = program.buffer_of(state);
            Piece {
                number: workload.states.partition_point(|b| Some(b.0) < buffer),
                bytes: program.graph.ty(state.value).len_bytes(),
            }
        };
        own.iter().map(piece).collect()
    };
    states.iter().map(pieces).collect()
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
