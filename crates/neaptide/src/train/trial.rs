//! What the steps of a training and its drive take on this machine: two steps with zeros, before there are states, under the
//! plan that built-in costs give. The first touches memory, the second is measured.
//!
//! ```text
//!   built-in costs ─► plan ─► drive, two steps ─► StepCosts ─► plan ─► states ─► steps of the training
//! ```

use crate::calibrate::{CostSource, rates_of};
use crate::error::{Error, Result};
use crate::train::trainer::Model;
use crate::train::{TrainCosts, TrainOptions, TrainStrategy};
use neap_compile::{Kernels, StepTimes, Target, step_key, workload};
use neap_ir::update::Update;
use neap_ir::{Graph, Program, TensorType};
use neap_plan::LaneId;
use neap_runtime::{InputTensor, OutputTensor, RuntimeError, Session};
use neap_sim::CostProfile;
use neap_store::{SPILL_PROBE_BYTES, SpillRates, measure_spill};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What a trial takes beside its inputs and what any step does: its timeline.
const TRIAL_BYTES: u64 = 1 << 20;

/// What steps of a training are taken to cost.
#[derive(Debug, Clone, Default)]
pub struct StepCosts {
    /// Of steps that were not measured, and of the drive.
    rates: CostProfile,
    times: StepTimes,
    source: CostSource,
}

impl StepCosts {
    /// For a program's steps.
    pub(super) fn of(&self, program: &Program, of_program: &neap_plan::Workload) -> CostProfile {
        let mut costs = self.rates.clone();
        self.times.apply(program, of_program, &mut costs);
        costs
    }

    pub(super) fn rates(&self) -> &CostProfile {
        &self.rates
    }

    /// Where they came from.
    pub fn source(&self) -> CostSource {
        self.source
    }

    /// What was measured of a program.
    fn measured(
        program: &Program,
        taken: &Taken,
        drive: Option<SpillRates>,
        options: &TrainOptions,
    ) -> StepCosts {
        let target = Target {
            threads: options.threads,
            isa: options.isa,
        };
        let steps = workload(program, target, Kernels::Direct).steps;
        let mut rates = CostProfile::default();
        let seen = steps.iter().zip(&taken.step_ns);
        rates_of(
            seen.map(|(s, &ns)| (s.flops, s.touched_bytes, ns)),
            &mut rates,
        );
        rates.compute_overhead_ns = taken.between_ns;
        if let Some(drive) = drive {
            let throttle = options.throttle_bytes_per_second.map(|rate| rate as f64);
            let [loads, stores, both] = [drive.loads, drive.stores, drive.both]
                .map(|rate| throttle.map_or(rate, |throttle| rate.min(throttle)));
            rates.storage_bytes_per_second = loads;
            rates.store_bytes_per_second = stores;
            rates.both_ways_bytes_per_second = both;
            // Steps were measured beside loads and stores.
            rates.load_handling_ns = 0;
            rates.load_handling_ns_per_byte = 0.0;
        }
        // Equal steps take the mean of theirs, so that their sum is as it was measured.
        let mut sums: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let measured = program.steps.iter().zip(&steps).zip(&taken.step_ns);
        for ((&node, step), &ns) in measured {
            let key = step_key(program, &program.graph.nodes[node.index()], step.kernel);
            let (sum, count) = sums.entry(key).or_default();
            (*sum, *count) = (*sum + ns, *count + 1);
        }
        let means = sums.into_iter();
        let means = means.map(|(key, (sum, count))| (key, (sum / count).max(1)));
        StepCosts {
            rates,
            times: StepTimes(Arc::new(means.collect())),
            source: CostSource::Measured,
        }
    }
}

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
        let room_bytes = match plan.verdict.spill_bytes {
            0 => 0,
            _ => plan.verdict.high_water_bytes,
        };
        let drive = drive(self.folder(), room_bytes, options);
        let program = Arc::new(ready.program);
        let mut session = self.session(program.clone(), plan, options)?;
        let taken = take(&program, &mut session);
        drop(session);
        let costs = |taken| StepCosts::measured(&program, &taken, drive, options);
        Ok(taken.ok().map(costs))
    }
}

/// A target is not larger than what the model is given.
fn inputs_bytes(model: &Graph) -> u64 {
    let inputs = model.inputs.iter();
    let inputs_bytes: u64 = inputs.map(|&v| model.ty(v).len_bytes() as u64).sum();
    2 * inputs_bytes
}

/// A measured step.
struct Taken {
    /// By step of the program.
    step_ns: Vec<u64>,
    /// What passes between two of them without waiting, on average.
    between_ns: u64,
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
