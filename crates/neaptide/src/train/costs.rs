//! What steps of a training are taken to cost.

use crate::calibrate::{CostSource, rates_of};
use neap_compile::{Kernels, StepTimes, Target, step_key, workload};
use neap_ir::Program;
use neap_sim::CostProfile;
use neap_store::SpillRates;
use std::collections::BTreeMap;
use std::sync::Arc;

/// By operator, attributes and types where they were measured, else by rates.
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
    pub(super) fn measured(
        program: &Program,
        taken: &Taken,
        drive: Option<SpillRates>,
        (target, throttle_bytes_per_second): (Target, Option<u64>),
    ) -> StepCosts {
        let steps = workload(program, target, Kernels::Direct).steps;
        let mut rates = CostProfile::default();
        let seen = steps.iter().zip(&taken.step_ns);
        rates_of(
            seen.map(|(s, &ns)| (s.flops, s.touched_bytes, ns)),
            &mut rates,
        );
        rates.compute_overhead_ns = taken.between_ns;
        if let Some(drive) = drive {
            let throttle = throttle_bytes_per_second.map(|rate| rate as f64);
            let [loads, stores, both] = [drive.loads, drive.stores, drive.both]
                .map(|rate| throttle.map_or(rate, |throttle| rate.min(throttle)));
            rates.storage_bytes_per_second = loads;
            rates.store_bytes_per_second = stores;
            rates.both_ways_bytes_per_second = both;
            rates.request_latency_ns = drive.latency.as_nanos() as u64;
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

/// A measured step.
pub(super) struct Taken {
    /// By step of the program.
    pub step_ns: Vec<u64>,
    /// What passes between two of them without waiting, on average.
    pub between_ns: u64,
}
