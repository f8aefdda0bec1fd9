//! What the steps of a training and its drive take on this machine: two steps with zeros, before there are states, under the
//! plan that built-in costs give. The first touches memory, the second is measured.
//!
//! ```text
//!   built-in costs ─► plan ─► drive, two steps ─► StepCosts ─► plan ─► states ─► steps of the training
//! ```

use crate::error::{Error, Result};
use crate::train::costs::{StepCosts, Taken};
use crate::train::trainer::Model;
use crate::train::{TrainCosts, TrainOptions, TrainStrategy};
use neap_compile::Target;
use neap_ir::update::Update;
use neap_ir::{Graph, Program, TensorType};
use neap_plan::LaneId;
use neap_runtime::{InputTensor, OutputTensor, RuntimeError, Session};
use neap_store::{SPILL_PROBE_BYTES, SpillRates, measure_spill};
use std::path::Path;
use std::sync::Arc;

/// What a trial takes beside its inputs and what any step does: its timeline.
const TRIAL_BYTES: u64 = 1 << 20;

impl Model {
    /// What plans are chosen by: as the options say.
    pub fn costs(
        &self,
        parts: usize,
        options: &TrainOptions,
        update_of: &dyn Fn(&str, &TensorType) -> Option<Update>,
    ) -> Result<StepCosts> {
        match &options.costs {
            TrainCosts::BuiltIn => Ok(StepCosts::default()),
            TrainCosts::Known(costs) => Ok(costs.clone()),
            TrainCosts::Measured => {
                let costs = self.tried(parts, options, update_of)?;
                self.host.trim();
                Ok(costs.unwrap_or_default())
            }
        }
    }

    /// `None` where there is no room for a trial, or it fails: what is wrong then shows when the training begins.
    fn tried(
        &self,
        parts: usize,
        options: &TrainOptions,
        update_of: &dyn Fn(&str, &TensorType) -> Option<Update>,
    ) -> Result<Option<StepCosts>> {
        let with_room = TrainOptions {
            reserve_bytes: options.reserve_bytes
                + TRIAL_BYTES
                + parts as u64 * inputs_bytes(&self.graph),
            // Its plan is soon made, and has the steps that all have.
            strategy: match options.strategy {
                TrainStrategy::Keep => TrainStrategy::Keep,
                TrainStrategy::Sqrt => TrainStrategy::Sqrt,
                _ => TrainStrategy::Swap,
            },
            ..options.clone()
        };
        let planned = self.planned(parts, &with_room, update_of, &StepCosts::default());
        let (ready, plan) = match planned {
            Err(Error::Infeasible { .. }) => return Ok(None),
            planned => planned?,
        };
        // The arena is not there yet.
        let room_bytes = match plan.plan.verdict().spill_bytes {
            0 => 0,
            _ => plan.plan.verdict().high_water_bytes,
        };
        let drive = drive(self.folder(), room_bytes, options);
        let program = Arc::new(ready.program);
        let mut session = self.session(program.clone(), plan, options)?;
        let taken = take(&program, &mut session);
        drop(session);
        let target = Target {
            threads: options.threads,
            isa: options.isa,
        };
        let machine = (target, options.throttle_bytes_per_second);
        let costs = |taken| StepCosts::measured(&program, &taken, drive, machine);
        Ok(taken.ok().map(costs))
    }
}

/// A target is not larger than what the model is given.
fn inputs_bytes(model: &Graph) -> u64 {
    let inputs = model.inputs.iter();
    let inputs_bytes: u64 = inputs.map(|&v| model.ty(v).len_bytes() as u64).sum();
    2 * inputs_bytes
}

/// Two steps with zeros.
fn take(program: &Program, session: &mut Session) -> std::result::Result<Taken, RuntimeError> {
    let graph = &program.graph;
    let zeros = |values: &[neap_ir::ValueId]| -> Vec<Vec<u8>> {
        let bytes = |&v: &neap_ir::ValueId| vec![0u8; graph.ty(v).len_bytes()];
        values.iter().map(bytes).collect()
    };
    let (inputs, mut outputs) = (zeros(&graph.inputs), zeros(&graph.outputs));
    let inputs: Vec<InputTensor> = (graph.inputs.iter().zip(&inputs))
        .map(|(&v, bytes)| InputTensor {
            ty: graph.ty(v),
            bytes,
        })
        .collect();
    let mut outputs: Vec<OutputTensor> = (graph.outputs.iter().zip(&mut outputs))
        .map(|(&v, bytes)| OutputTensor {
            ty: graph.ty(v),
            bytes,
        })
        .collect();
    session.run(&inputs, &mut outputs)?;
    session.record_timeline(1);
    session.run(&inputs, &mut outputs)?;
    let mut step_ns = vec![0; program.steps.len()];
    let timeline = session.take_timeline().unwrap_or_default();
    // Without panels each step is one compute.
    for span in timeline.spans_of(LaneId::COMPUTE, 0) {
        if let Some(ns) = step_ns.get_mut(span.action as usize) {
            *ns += span.end_ns - span.start_ns;
        }
    }
    let run = timeline.runs.first().copied().unwrap_or_default();
    let busy_ns = run.stall_ns + step_ns.iter().sum::<u64>();
    let rest_ns = run.latency_ns().saturating_sub(busy_ns);
    Ok(Taken {
        between_ns: rest_ns / step_ns.len().max(1) as u64,
        step_ns,
    })
}

/// Rates of the drive, where there is memory to measure them and they can be had.
fn drive(folder: &Path, room_bytes: u64, options: &TrainOptions) -> Option<SpillRates> {
    let measured = || measure_spill(folder, options.io).ok();
    (room_bytes >= SPILL_PROBE_BYTES).then(measured).flatten()
}
