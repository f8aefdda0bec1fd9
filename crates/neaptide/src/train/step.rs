//! From a model's graph to the program of one training step.

use crate::error::{Error, Result};
use crate::ledger::training_opening_bytes;
use crate::train::TrainOptions;
use neap_autodiff::{
    Pass, Role, Start, Training, TrainingSpec, cut_updates, parameters, recompute_cheap,
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
    /// The same step with cheap activations computed again in the backward pass: other memory, the same bits.
    pub recomputing: Program,
    /// What a process takes while it comes to be and is planned.
    pub opening_bytes: u64,
    /// The model's own inputs, which come first.
    pub inputs: usize,
    /// Whether the last input is a seed.
    pub is_seeded: bool,
    /// In the order of the graphs' states, of which each is one or several.
    pub states: Vec<StepState>,
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
    let training = |recomputes| match parts {
        1 => training_step(model.clone(), &spec),
        _ => training_step_in_parts(&model, &spec, parts, recomputes),
    };
    let plain = WithStates::of(training(false)?, options.keep_result)?;
    let recomputing = match parts {
        1 => recompute_cheap(&plain.graph, plain.graph.outputs[0]),
        _ => WithStates::of(training(true)?, options.keep_result)?.graph,
    };
    let program = lower_plainly(plain.graph)?;
    let recomputing = lower_plainly(recomputing)?;
    Ok(Step {
        opening_bytes: training_opening_bytes(&model, [&program, &recomputing]),
        program,
        recomputing,
        inputs,
        is_seeded: plain.is_seeded,
        states: plain.states,
    })
}

/// A step whose parameters, moments and so on are states.
struct WithStates {
    graph: Graph,
    states: Vec<StepState>,
    is_seeded: bool,
}

impl WithStates {
    fn of(training: Training, keeps_result: bool) -> Result<WithStates> {
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
