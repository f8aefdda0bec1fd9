//! From a model's graph to the program of one training step.

use crate::error::{Error, Result};
use crate::ledger::{graph_heap_bytes, training_opening_bytes};
use crate::train::TrainOptions;
use neap_autodiff::{
    Pass, Role, Start, Training, TrainingSpec, cheap_values, cut_updates, parameters, recompute,
    training_step, training_step_in_parts,
};
use neap_compile::lower_plainly;
use neap_ir::update::Update;
use neap_ir::{Const, Graph, Program, State, TensorType, ValueId};
use std::ops::Range;

/// Parameters of four of these and more are updated in pieces of about so many bytes.
const PIECE_BYTES: usize = 4 << 20;

/// The program of a step, and what its inputs and states are.
pub(super) struct Step {
    pub program: Program,
    /// What it was made of, where it sees its batch in parts.
    parts: Option<Parts>,
    /// Heap of the model.
    model_bytes: u64,
    /// The model's own inputs, which come first.
    pub inputs: usize,
    /// Whether the last input is a seed.
    pub is_seeded: bool,
    /// In the order of the graphs' states, of which each is one or several.
    pub states: Vec<StepState>,
}

struct Parts {
    model: Graph,
    spec: TrainingSpec,
    count: usize,
}

/// A tensor that survives steps.
pub(super) struct StepState {
    pub name: String,
    pub role: StateRole,
    pub ty: TensorType,
    /// The model's constant that it begins as; zeros without one.
    pub begins_as: Option<ValueId>,
    /// The graphs' states that hold it, one after the other.
    pub pieces: Range<usize>,
}

/// What a tensor that survives steps is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateRole {
    /// A constant of the model that steps update.
    Parameter,
    /// A constant of the model that stays as it is.
    Frozen,
    /// Of the optimiser.
    Moment,
    /// Mean or variance of a batch normalisation.
    RunningStatistic,
}

/// `update_of` says by name and type how a parameter is trained; `None` where it is frozen. The batch is `parts` times the
/// model's.
pub(super) fn step_of(
    model: Graph,
    parts: usize,
    options: &TrainOptions,
    update_of: &dyn Fn(&str, &TensorType) -> Option<Update>,
) -> Result<Step> {
    let inputs = model.inputs.len();
    let model_bytes = graph_heap_bytes(&model);
    let trained: Vec<(ValueId, Update)> = parameters(&model)
        .into_iter()
        .filter_map(|v| update_of(&model.value(v).name, model.ty(v)).map(|update| (v, update)))
        .collect();
    if trained.is_empty() {
        return Err(Error::BadInput(
            "no parameter of the model is trained".into(),
        ));
    }
    let spec = TrainingSpec {
        result: options.result,
        loss: options.loss,
        trained,
        batch_norm: options.batch_norm,
        clip: options.clip,
        pass: Pass::Whole,
        report_result: options.keep_result,
    };
    let keeps_result = options.keep_result;
    if parts == 1 {
        let training = training_step(model, &spec)?;
        let found = WithStates::of(training, keeps_result, Sums::Refused)?;
        return found.step(inputs, None, model_bytes);
    }
    let training = training_step_in_parts(&model, &spec, parts, &|graph, _| graph.clone())?;
    let parts = Parts {
        model,
        spec,
        count: parts,
    };
    let found = WithStates::of(training, keeps_result, Sums::Refused)?;
    found.step(inputs, Some(parts), model_bytes)
}

impl Step {
    /// A program in which the values of the forward pass to choose from are made and read: of the step, or of one of the
    /// parts that it sees its batch in.
    pub fn one_part(&self) -> Result<Option<Program>> {
        let Some(Parts { model, spec, .. }) = &self.parts else {
            return Ok(None);
        };
        let spec = TrainingSpec {
            pass: Pass::Accumulate,
            ..spec.clone()
        };
        let part = training_step(model.clone(), &spec)?;
        let part = WithStates::of(part, spec.report_result, Sums::AreStates)?;
        Ok(Some(lower_plainly(part.graph)?))
    }

    /// What a process takes while so many programs of the step are made and planned.
    pub fn opening_bytes(&self, programs: u64) -> u64 {
        let programs = programs + u64::from(self.parts.is_some());
        training_opening_bytes(self.model_bytes, &self.program, programs)
    }

    pub fn moments_bytes(&self) -> u64 {
        let moments = self.states.iter().filter(|s| s.role == StateRole::Moment);
        moments.map(|s| s.ty.len_bytes() as u64).sum()
    }

    /// The same step with such values computed again in the backward pass: other memory, the same bits.
    pub fn recomputing(&self, dropped: &[ValueId]) -> Result<Program> {
        let graph = match &self.parts {
            None => {
                let graph = &self.program.graph;
                recompute(graph, graph.outputs[0], dropped)
            }
            Some(Parts { model, spec, count }) => {
                let rewrite = |graph: &Graph, loss| recompute(graph, loss, dropped);
                let training = training_step_in_parts(model, spec, *count, &rewrite)?;
                WithStates::of(training, spec.report_result, Sums::Refused)?.graph
            }
        };
        Ok(lower_plainly(graph)?)
    }
}

/// Values of [`Step::one_part`], or of the step, that cost next to nothing.
pub(super) fn cheap_of(program: &Program) -> Vec<ValueId> {
    let graph = &program.graph;
    cheap_values(graph, graph.outputs[0])
}

/// Sums of gradients, which only a part of a step has as its inputs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sums {
    Refused,
    AreStates,
}

/// A step whose parameters, moments and so on are states.
struct WithStates {
    graph: Graph,
    states: Vec<StepState>,
    is_seeded: bool,
}

impl WithStates {
    fn of(training: Training, keeps_result: bool, sums: Sums) -> Result<WithStates> {
        let mut graph = training.graph;
        let mut states = Vec::new();
        graph.outputs.truncate(1 + usize::from(keeps_result));
        for state in training.state {
            graph.inputs.retain(|&v| v != state.input);
            let role = match (state.role, state.output) {
                (Role::Parameter, None) => StateRole::Frozen,
                (Role::Parameter, Some(_)) => StateRole::Parameter,
                (Role::RunningStatistic, _) => StateRole::RunningStatistic,
                (Role::Moment, _) => StateRole::Moment,
                (Role::Sum, _) if sums == Sums::AreStates => StateRole::Moment,
                (Role::Sum, _) => {
                    return Err(Error::Defect("a whole batch needs no sums".into()));
                }
            };
            graph.states.push(State {
                value: state.input,
                next: state.output,
            });
            states.push(StepState {
                name: state.name,
                role,
                ty: graph.ty(state.input).clone(),
                begins_as: matches!(state.start, Start::Constant(_)).then_some(state.input),
                pieces: 0..0,
            });
        }
        freeze_stored(&mut graph, &mut states);
        let cut = cut_updates(graph, PIECE_BYTES)?;
        for (state, pieces) in states.iter_mut().zip(cut.states) {
            state.pieces = pieces;
        }
        Ok(WithStates {
            graph: cut.graph,
            states,
            is_seeded: training.seed.is_some(),
        })
    }

    fn step(self, inputs: usize, parts: Option<Parts>, model_bytes: u64) -> Result<Step> {
        Ok(Step {
            program: lower_plainly(self.graph)?,
            parts,
            model_bytes,
            inputs,
            is_seeded: self.is_seeded,
            states: self.states,
        })
    }
}

/// Constants that are left in the model's files become states that nothing replaces.
fn freeze_stored(graph: &mut Graph, states: &mut Vec<StepState>) {
    let mut is_read = vec![false; graph.values.len()];
    for node in &graph.nodes {
        node.present_inputs()
            .for_each(|v| is_read[v.index()] = true);
    }
    for id in (0..graph.values.len() as u32).map(ValueId) {
        let is_stored = matches!(graph.constant(id), Some(Const::Stored { .. }));
        if !is_stored || !is_read[id.index()] {
            continue;
        }
        let value = &mut graph.values[id.index()];
        value.constant = None;
        states.push(StepState {
            name: value.name.clone(),
            role: StateRole::Frozen,
            ty: value.ty.clone(),
            begins_as: Some(id),
            pieces: 0..0,
        });
        graph.states.push(State {
            value: id,
            next: None,
        });
    }
}
