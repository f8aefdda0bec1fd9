//! Plans for arenas smaller than the activations that are live at once: some of them go to the spill file
//! and come back.
//!
//! ```text
//!   Workload ──► split: which buffers are away when ──► the same workload with a buffer for each stay
//!                                                              │ any planner of weights
//!   ExecutionPlan ◄── merge: stores early, returns early ◄── its plan
//! ```
//! A stay is where a buffer is between two absences. To the planner of weights it is a buffer like any
//! other, of whole blocks; merging then adds the store that ends one stay and the load that begins the next.

mod merge;
mod split;
mod stretch;

use neap_plan::{BLOCK_BYTES, ExecutionPlan, Workload};
use neap_sim::{CostProfile, Prediction, predict};

use crate::layout::Layouts;
use crate::options::{Effort, PlanOptions};
use crate::preload::{self, BaseLayouts, smallest_on, tight};
use split::{Split, Traffic};

/// How often a split is tightened until its layout fits.
const TRIES: u32 = 8;

/// Splits are made for so many percent of the budget: less leaves more room for weights to stream through.
const SHARES: &[u64] = &[100, 85, 70, 55];

/// The same where states stream: what is left over gives transfers time beside computing. More of it moves more.
const STREAMING_SHARES: &[u64] = &[100, 88, 76];

/// A plan that takes no more than this many per cent of its computes, or of its transfers alone, is not worth improving.
const ENOUGH_PERCENT: u64 = 103;

/// How often stays are made less long until their layout fits.
const STRETCHES: u32 = 4;

/// The fastest plan found within `budget_bytes`, or `None` if there is none that is faster than `limit_ns`.
pub fn plan(
    w: &Workload,
    options: PlanOptions,
    budget_bytes: u64,
    costs: &CostProfile,
    limit_ns: u64,
) -> Option<(ExecutionPlan, Prediction)> {
    let steps = w.steps.iter().enumerate();
    let compute_ns: u64 = steps.map(|(s, step)| costs.step_ns(s, step)).sum();
    if compute_ns >= limit_ns {
        return None;
    }
    let traffic = Traffic::new(w, options.stream_states);
    let shares = match options.effort {
        _ if options.stream_states => STREAMING_SHARES,
        Effort::Thorough => SHARES,
        Effort::Quick => &SHARES[..1],
    };
    let mut best: Option<(ExecutionPlan, Prediction)> = None;
    let mut tried = Vec::new();
    for share in shares {
        let room = budget_bytes / 100 * share;
        let Some((split, base_layouts)) = fitting(w, &traffic, options, room, budget_bytes) else {
            continue;
        };
        if tried.contains(&split.absences) {
            continue;
        }
        let stretched = (options.stream_states)
            .then(|| with_time(w, &split, options, budget_bytes, costs))
            .flatten();
        let absences = split.absences.clone();
        let (split, base_layouts) = stretched.unwrap_or((split, base_layouts));
        // Stores make none faster.
        let best_ns = best.as_ref().map_or(limit_ns, |(_, p)| p.latency_ns);
        let found = preload::plan(&split.workload, &base_layouts, budget_bytes, costs, best_ns);
        let found = found.map(|(plan, _)| {
            let plan = merge::merge(w, &split, plan);
            let prediction = predict(w, &plan, costs);
            (plan, prediction)
        });
        match found {
            Some((plan, prediction)) if prediction.latency_ns < best_ns => {
                let least_ns = compute_ns.max(transfers_ns(&plan, costs));
                let is_enough = prediction.latency_ns <= least_ns / 100 * ENOUGH_PERCENT;
                best = Some((plan, prediction));
                if options.stream_states && is_enough {
                    break;
                }
            }
            // To move more does not help any more.
            _ if options.stream_states && best.is_some() => break,
            _ => {}
        }
        tried.push(absences);
    }
    best
}

/// What the plan's bytes take if nothing else does.
fn transfers_ns(plan: &ExecutionPlan, costs: &CostProfile) -> u64 {
    let bytes = plan.stored_bytes_per_run() + plan.loaded_bytes_per_run();
    (bytes as f64 * 1e9 / costs.both_ways_rate()) as u64
}

/// The split with stays as long as there is room for, and what lies still then; `None` if no stay can be longer.
fn with_time(
    w: &Workload,
    split: &Split,
    options: PlanOptions,
    budget_bytes: u64,
    costs: &CostProfile,
) -> Option<(Split, BaseLayouts)> {
    let once = Layouts::default();
    let mut room_bytes = budget_bytes;
    for _ in 0..STRETCHES {
        let longer = stretch::stretched(w, split, costs, room_bytes);
        let tight = tight(&longer.workload, options, &once);
        let needed_bytes = smallest_on(&tight);
        if needed_bytes <= budget_bytes {
            let base_layouts = BaseLayouts::beside(tight, &longer.workload, options, &once);
            return Some((longer, base_layouts));
        }
        // What layout loses to fragmentation, twice.
        room_bytes = room_bytes.checked_sub(2 * (needed_bytes - budget_bytes))?;
    }
    None
}

/// The smallest arena in which [`plan`] finds one.
pub fn smallest_bytes(w: &Workload, options: PlanOptions, layouts: &Layouts) -> u64 {
    let traffic = Traffic::new(w, options.stream_states);
    let tightest = traffic.split(traffic.floor_bytes());
    smallest_on(&tight(&tightest.workload, options, layouts))
}

/// A split whose smallest plan fits in `budget_bytes`, if possible in `room_bytes` of it.
fn fitting(
    w: &Workload,
    traffic: &Traffic,
    options: PlanOptions,
    room_bytes: u64,
    budget_bytes: u64,
) -> Option<(Split, BaseLayouts)> {
    // Another budget has another split.
    let once = Layouts::default();
    let mut target = room_bytes / BLOCK_BYTES * BLOCK_BYTES;
    for attempt in 0..=TRIES {
        if attempt == TRIES {
            // As much away as there can be.
            target = traffic.floor_bytes();
        }
        let split = traffic.split(target);
        let tight = tight(&split.workload, options, &once);
        let needed = smallest_on(&tight);
        if needed <= room_bytes || (attempt == TRIES && needed <= budget_bytes) {
            let base_layouts = BaseLayouts::beside(tight, &split.workload, options, &once);
            return Some((split, base_layouts));
        }
        // What layout loses to fragmentation, and a little, is taken off.
        let over = needed - room_bytes;
        target = target.saturating_sub(over.max(w.buffers.len() as u64 * 64));
    }
    None
}
