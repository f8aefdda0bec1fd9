//! From a model to a trainer: its step is planned, a session opened, and states get their first values.

use super::{Classes, Piece, TrainState, Trainer, write_pieces};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::ledger::FORESEEN_BYTES;
use crate::model::{OpenOptions, TensorInfo, infos, onnx_options};
use crate::source_weights::SourceFiles;
use crate::train::planning::{StepPlan, plan};
use crate::train::start::{Drawn, first_bytes};
use crate::train::step::{StepState, step_of};
use crate::train::{StepCosts, TrainOptions};
use neap_autodiff::{Loss, adaptable, add_adapters};
use neap_ir::update::Update;
use neap_ir::{Graph, Program, State, TensorType, ValueId};
use neap_plan::Workload;
use neap_runtime::BackingStore;
use neap_store::{EmptySource, Spill, ThrottledSource, Verifier};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is left of a step when it has been planned.
pub(in crate::train) struct Ready {
    /// The one that was planned.
    pub program: Program,
    inputs: usize,
    is_seeded: bool,
    states: Vec<StepState>,
}

/// A model before it is made into a step.
pub(in crate::train) struct Model {
    pub graph: Graph,
    /// What the model does not say the first values of.
    pub(super) drawn: Drawn,
    pub(super) files: SourceFiles,
    pub(super) folder: PathBuf,
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
        let at = numbers(&program, plan.plan.workload(), &step.states);
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
            spill: self.file(plan.plan.verdict().spill_bytes, options)?,
        };
        let settings = neap_runtime::Options {
            threads: options.threads,
            isa: options.isa,
        };
        let session = neap_runtime::Session::open(program, plan.plan, storage, settings)?;
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
pub(super) fn with_adapters(graph: Graph, options: &TrainOptions) -> Result<(Graph, Drawn)> {
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
