//! Full calibration: storage, then the model under a few budgets, then what that tells.

use super::observe::{Given, Moved, Seen, observe};
use super::profile::{ComputeRates, MOST_STEPS, Profile};
use super::{CostSource, Known, cache_path, cached, file, fit, machine, quick, storage};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::model::{Model, reopen};
use crate::options::RunOptions;
use crate::plan::Plan;
use neap_compile::{StepTimes, step_key};
use neap_ir::Program;
use neap_plan::Workload;
use neap_runtime::CancelToken;
use neap_sim::CostProfile;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// What measuring takes beside the session: samples, copies of plans.
const OWN_BYTES: u64 = 1 << 20;

/// Requests to storage while its rate is measured, at most.
const STORAGE_BYTES: u64 = 4 << 20;

/// Runs that wait for more than this part of their time show what loads take.
const WAITED: u64 = 50;

/// Rates of loads to try, as shares of the sustained rate, and latencies.
const RATE_SHARES: [f64; 19] = [
    0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2,
    1.25, 1.3,
];
const LOAD_LATENCY_NS: [u64; 10] = [
    20_000, 50_000, 100_000, 150_000, 200_000, 300_000, 400_000, 600_000, 800_000, 1_000_000,
];

/// Weight of the rate measured without a plan against that of one observation: little, since the
/// processors were idle then, and completions are noticed late while they compute.
const PRIOR: f64 = 0.005;

/// What a calibration found.
#[derive(Debug, Clone, Serialize)]
pub struct CalibrationReport {
    pub profile: Profile,
    pub points: Vec<MeasuredPoint>,
    /// Where the profile is kept.
    pub file: Option<PathBuf>,
    pub remark: Option<String>,
}

/// The model under one budget while it was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeasuredPoint {
    /// `None` without a limit.
    pub budget_bytes: Option<u64>,
    pub loaded_bytes_per_run: u64,
    pub measured_latency_ns: u64,
    pub measured_stall_ns: u64,
    /// By the profile that came of it.
    pub predicted_latency_ns: u64,
    pub predicted_stall_ns: u64,
    /// The rate of storage in these runs, while it had anything to do.
    pub storage_bytes_per_second: f64,
}

/// The runs of one plan, with what they ran.
struct Observation {
    plan: Plan,
    seen: Seen,
}

pub(super) fn study(
    model: &Model,
    cancel: &CancelToken,
    options: &RunOptions,
) -> Result<CalibrationReport> {
    let (packed, _) = model.packed()?;
    let (before, mut remark) = cached(model, options);
    let room_bytes = match options.budget {
        Budget::Bytes(bytes) => bytes.saturating_sub(model.host.charged_bytes()) / 2,
        Budget::Engine(bytes) => bytes / 2,
        _ => u64::MAX,
    };
    let storage = storage::measure(packed, options.io, STORAGE_BYTES.min(room_bytes))?;
    let rates = before.as_ref().map_or_else(
        || first_rates(&quick::estimate(options, None)),
        |p| p.compute,
    );
    let mut profile = Profile {
        machine: machine::here(packed, options),
        compute: rates,
        storage,
        steps: before.map_or_else(BTreeMap::new, |p| p.steps),
    };
    model.host.trim_heap();

    let given = Given::to(model, cancel);
    let keeps_prepared = options.prepared_weights && options.budget == Budget::Unlimited;
    let options = RunOptions {
        reserve_bytes: options.reserve_bytes + OWN_BYTES,
        // What streams is computed from stored panels.
        prepared_weights: false,
        ..options.clone()
    };
    let most_bytes = match options.budget {
        Budget::Bytes(bytes) | Budget::Engine(bytes) => bytes,
        Budget::Unlimited => u64::MAX,
        Budget::Percent(_) => 0,
    };
    let mut observations = Vec::new();
    let sized = budgets(model, &options).into_iter().map(|b| (b, false));
    for (budget, prepared_weights) in sized.chain(keeps_prepared.then_some((options.budget, true)))
    {
        let mut options = RunOptions {
            budget,
            prepared_weights,
            ..options.clone()
        };
        let opened = reopen(model)?;
        let known = super::of_profile(profile.clone(), &opened, CostSource::Measured, options.isa);
        let plan = match plan_within(&opened, &known, options, most_bytes) {
            Ok((plan, with)) => {
                options = with;
                plan
            }
            // Smaller budgets only add to what is known.
            Err(Error::Infeasible { .. }) if !observations.is_empty() => continue,
            Err(error) => return Err(error),
        };
        if observations
            .iter()
            .any(|o: &Observation| o.plan.execution() == plan.execution())
        {
            continue;
        }
        let seen = observe(opened, plan.clone(), &options, &given)?;
        model.host.trim();
        observations.push(Observation { plan, seen });
        learn(&observations, &mut profile);
        learn_loads(&observations, &mut profile);
    }
    let file = cache_path(model);
    match &file {
        None => remark = Some("there is no folder to keep the calibration in".into()),
        Some(path) => {
            if let Err(e) = file::write(path, &profile) {
                remark = Some(format!("cannot write {}: {e}", path.display()));
            }
        }
    }
    Ok(CalibrationReport {
        points: observations.iter().map(|o| point(o, &profile)).collect(),
        profile,
        file,
        remark,
    })
}

/// Measuring takes memory of its own, so that the smallest budget may be a little larger than was thought;
/// but never more than was given.
fn plan_within(
    model: &Model,
    known: &Known,
    options: RunOptions,
    most_bytes: u64,
) -> Result<(Plan, RunOptions)> {
    let plan = |options: &RunOptions| model.plan_knowing(known, options, Instant::now());
    match plan(&options) {
        Err(Error::Infeasible {
            budget_bytes,
            smallest_bytes,
            ..
        }) if smallest_bytes <= most_bytes && smallest_bytes - budget_bytes <= 2 * OWN_BYTES => {
            let options = RunOptions {
                budget: Budget::of(options.budget.scope(), smallest_bytes),
                ..options
            };
            Ok((plan(&options)?, options))
        }
        found => Ok((found?, options)),
    }
}

/// The budget that is wanted, and smaller ones, under which slices and loads show what they cost.
fn budgets(model: &Model, options: &RunOptions) -> Vec<Budget> {
    let bounds = model.bounds(options);
    let most_bytes = match options.budget {
        Budget::Bytes(bytes) | Budget::Engine(bytes) => {
            bytes.min(bounds.unlimited_high_water_bytes())
        }
        _ => bounds.unlimited_high_water_bytes(),
    };
    let least_bytes = bounds.smallest_feasible_bytes();
    let between = least_bytes + most_bytes.saturating_sub(least_bytes) / 3;
    let smaller = [between, least_bytes];
    let smaller = smaller.into_iter().filter(|&b| b < most_bytes);
    std::iter::once(options.budget)
        .chain(smaller.map(|bytes| Budget::of(options.budget.scope(), bytes)))
        .collect()
}

fn first_rates(costs: &CostProfile) -> ComputeRates {
    ComputeRates {
        flops_per_second: costs.flops_per_second,
        memory_bytes_per_second: costs.memory_bytes_per_second,
        compute_overhead_ns: costs.compute_overhead_ns,
        slice_overhead_ns: costs.slice_overhead_ns,
        load_handling_ns: costs.load_handling_ns,
        load_handling_ns_per_byte: costs.load_handling_ns_per_byte,
    }
}

fn costs_for(profile: &Profile, program: &Program, workload: &Workload) -> CostProfile {
    let mut costs = profile.costs();
    StepTimes(Arc::new(profile.steps.clone())).apply(program, workload, &mut costs);
    costs
}

/// Rates and times of steps from all that was observed.
fn learn(observations: &[Observation], profile: &mut Profile) {
    let whole = |o: &Observation| -> Vec<fit::WholeStep> {
        let steps = o.seen.steps.iter().zip(&o.plan.workload().steps);
        steps
            .filter(|(seen, step)| {
                seen.computes == 1 && seen.loaded_bytes == 0.0 && step.rows.is_none()
            })
            .map(|(seen, step)| fit::WholeStep {
                flops: step.flops,
                touched_bytes: step.touched_bytes,
                ns: seen.ns,
            })
            .collect()
    };
    let steps: Vec<_> = observations.iter().flat_map(whole).collect();
    fit::roofline(&steps, &mut profile.compute);

    let undisturbed = times(observations, &profile.compute, true);
    let rows: Vec<fit::Excess> = observations
        .iter()
        .filter(|o| o.seen.loads > 0)
        .flat_map(|o| {
            let whole_ns = by_step(&undisturbed, &o.plan);
            fit::excesses(
                &o.seen,
                o.plan.workload(),
                &whole_ns,
                profile.compute.compute_overhead_ns,
            )
        })
        .collect();
    fit::disturbances(&rows, &mut profile.compute);
    // Steps that were seen with disturbances only: those are known now.
    let mut all = times(observations, &profile.compute, false);
    all.extend(undisturbed);
    profile.steps.extend(all);
    while profile.steps.len() > MOST_STEPS {
        profile.steps.pop_first();
    }
}

/// Rate and latency of loads. Loads that are handed over in groups tell both by what each group took; of
/// others, which overlap, those are taken with which the simulator comes closest to the runs that waited. What
/// was measured of storage by itself counts as one more observation.
fn learn_loads(observations: &[Observation], profile: &mut Profile) {
    let groups: Vec<Moved> = (observations.iter())
        .flat_map(|o| o.seen.groups.iter().copied())
        .collect();
    if let Some(found) = fit::transfer(&groups, profile.storage.block_latency_ns as f64) {
        profile.storage.load_bytes_per_second = 1e9 / found.ns_per_byte;
        profile.storage.load_latency_ns = found.latency_ns as u64;
        return;
    }
    let waited: Vec<&Observation> = observations
        .iter()
        .filter(|o| o.seen.stall_ns > o.seen.latency_ns / WAITED)
        .collect();
    if waited.is_empty() {
        return;
    }
    let sustained = profile.storage.sustained_bytes_per_second;
    let costs: Vec<CostProfile> = waited
        .iter()
        .map(|o| costs_for(profile, &o.plan.program, o.plan.workload()))
        .collect();
    let mut best = f64::INFINITY;
    for share in RATE_SHARES {
        for latency_ns in LOAD_LATENCY_NS {
            let mut error = PRIOR * share.ln().powi(2);
            for (o, costs) in waited.iter().zip(&costs) {
                let costs = CostProfile {
                    storage_bytes_per_second: sustained * share,
                    request_latency_ns: latency_ns,
                    ..costs.clone()
                };
                let predicted = neap_sim::predict(o.plan.workload(), o.plan.execution(), &costs);
                let ratio = predicted.latency_ns.max(1) as f64 / o.seen.latency_ns.max(1) as f64;
                error += ratio.ln().powi(2);
            }
            if error < best {
                best = error;
                profile.storage.load_bytes_per_second = sustained * share;
                profile.storage.load_latency_ns = latency_ns;
            }
        }
    }
}

fn by_step(times: &BTreeMap<u64, u64>, plan: &Plan) -> Vec<u64> {
    let nodes = &plan.program.graph.nodes;
    let steps = plan.program.steps.iter().zip(&plan.workload().steps);
    steps
        .map(|(node, spec)| step_key(&plan.program, &nodes[node.index()], spec.kernel))
        .map(|key| times.get(&key).copied().unwrap_or(0))
        .collect()
}

/// Times of whole steps without the fixed cost, equal steps averaged. Either only of those that were
/// whole and undisturbed, or of all with what disturbed them taken off.
fn times(
    observations: &[Observation],
    rates: &ComputeRates,
    undisturbed: bool,
) -> BTreeMap<u64, u64> {
    let mut sums: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for o in observations {
        let nodes = &o.plan.program.graph.nodes;
        for ((seen, &node), step) in
            (o.seen.steps.iter().zip(&o.plan.program.steps)).zip(&o.plan.workload().steps)
        {
            let is_whole = seen.computes == 1 && seen.loaded_bytes == 0.0;
            if seen.ns == 0 || step.rows.is_some() || (undisturbed && !is_whole) {
                continue;
            }
            let computes = u64::from(seen.computes);
            let mut extra_ns = computes * rates.compute_overhead_ns;
            if computes > 1 {
                extra_ns += computes * rates.slice_overhead_ns;
            }
            extra_ns += (seen.loads_started * rates.load_handling_ns as f64
                + seen.loaded_bytes * rates.load_handling_ns_per_byte)
                as u64;
            let sum = sums
                .entry(step_key(&o.plan.program, &nodes[node.index()], step.kernel))
                .or_default();
            sum.0 += seen.ns.saturating_sub(extra_ns).max(1);
            sum.1 += 1;
        }
    }
    let means = sums.into_iter().map(|(key, (sum, n))| (key, sum / n));
    means.map(|(key, ns)| (key, ns.max(1))).collect()
}

fn point(observation: &Observation, profile: &Profile) -> MeasuredPoint {
    let Observation { plan, seen } = observation;
    let workload: &Workload = plan.workload();
    let costs = costs_for(profile, &plan.program, workload);
    let predicted = neap_sim::predict(workload, plan.execution(), &costs);
    MeasuredPoint {
        budget_bytes: plan.budget_bytes,
        loaded_bytes_per_run: seen.loaded_bytes,
        measured_latency_ns: seen.latency_ns,
        measured_stall_ns: seen.stall_ns,
        predicted_latency_ns: predicted.latency_ns,
        predicted_stall_ns: predicted.stall_ns,
        storage_bytes_per_second: seen.busy_bytes_per_second,
    }
}
