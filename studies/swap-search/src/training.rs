//! A step of training as a dataflow: forward pass, loss, backward pass and updates.
//!
//! ```text
//!   W ─┬─► conv ─► A ─┬─► norm ─► ... ─► loss        W stays from step to step, and its update writes it
//!      │              │                    │         where it lies; A waits for the backward pass
//!      └─► update ◄── gradient ◄── ... ◄───┘
//! ```

use crate::dataflow::{Dataflow, DataflowError};
use crate::graph::{Form, flow_of};
use neap_autodiff::{
    AutodiffError, BatchNorm, Loss, Pass, Role, TrainingSpec, drop_unused, parameters,
    training_step,
};
use neap_ir::update::Update;
use neap_ir::{Graph, Op, ValueId};
use neap_sim::CostProfile;
use std::collections::HashSet;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum TrainingError {
    #[error(transparent)]
    Derivative(#[from] AutodiffError),
    #[error(transparent)]
    Flow(#[from] DataflowError),
}

/// A step of training, and how many of its operators do what.
#[derive(Clone, Debug)]
pub struct TrainingFlow {
    pub flow: Dataflow,
    /// Of the network itself.
    pub forward: usize,
    /// Of the loss and of all derivatives.
    pub backward: usize,
    /// One for each parameter.
    pub updates: usize,
}

/// A step of training of `graph`, whose first output is compared with classes: every parameter is trained, by
/// stochastic gradient descent without momentum; normalisations are by the batch.
///
/// Running statistics are left out: frameworks move them inside of the normalisation, and they are a few KB.
///
/// # Errors
/// [`TrainingError`] where an operator has no derivative, or its graph cannot be run in its order.
pub fn of_training(graph: Graph, costs: &CostProfile) -> Result<TrainingFlow, TrainingError> {
    let forward: HashSet<String> = graph.nodes.iter().map(|n| n.name.clone()).collect();
    let descent = Update::Sgd {
        momentum: 0.0,
        nesterov: false,
        decay: 0.0,
    };
    let trained: Vec<(ValueId, Update)> =
        (parameters(&graph).into_iter().map(|v| (v, descent))).collect();
    let spec = TrainingSpec {
        result: 0,
        loss: Loss::CrossEntropy {
            class_axis: 1,
            label_smoothing: 0.0,
            ignore_index: None,
        },
        trained,
        batch_norm: BatchNorm::Batch { momentum: 0.1 },
        clip: None,
        pass: Pass::Whole,
        report_result: false,
    };
    let training = training_step(graph, &spec)?;
    let mut graph = training.graph;
    let (kept, left): (Vec<_>, Vec<_>) = training
        .state
        .iter()
        .partition(|s| s.role != Role::RunningStatistic);
    let left_out = |v: &ValueId| left.iter().any(|s| s.input == *v || s.output == Some(*v));
    graph.outputs.retain(|v| !left_out(v));
    graph.inputs.retain(|v| !left_out(v));
    drop_unused(&mut graph);
    let replaces: Vec<_> = kept.iter().map(|s| (s.input, s.output)).collect();
    let form = Form {
        replaces: &replaces,
        is_training: true,
    };
    let flow = flow_of(&graph, &form, costs)?;
    let is_update = |n: &&neap_ir::Node| matches!(n.op, Op::Update(_));
    let updates = graph.nodes.iter().filter(is_update).count();
    let operators = flow.operators();
    let forward = (operators.iter()).filter(|o| forward.contains(&o.name));
    let forward = forward.count();
    Ok(TrainingFlow {
        forward,
        backward: operators.len() - forward - updates,
        updates,
        flow,
    })
}
