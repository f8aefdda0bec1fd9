//! The independent validator: proves that a plan computes the whole workload with the right weights and
//! activations in memory, whatever the speed of the lanes. Shares no code with any planner; every plan passes
//! it before it runs.
//!
//! It unrolls the cycle. Time is counted in computes: compute `i` of run `r` occupies `[r·n + i, r·n + i + 1)`.
//! Everything in work memory is a rectangle, address × time, and two rectangles may not overlap:
//!
//! ```text
//!   buffer      first compute of its first step  →  last compute of its last step, or until it is stored
//!     returned  the `after` of the load that brings it back  →  the same
//!   workspace   first → last compute of its step
//!   load        its `after` → the last compute that uses it      (it may be in flight from `after` on)
//!   prepared    always
//! ```
//!
//! Resident weights have memory of their own.
//! A load lives less than two runs, so three consecutive runs show every meeting of two rectangles.

mod computes;
mod copies;
mod lanes;
mod rects;
mod residents;
mod spaces;
mod states;
mod stays;
mod workload;

pub use workload::check_workload;

use thiserror::Error;

use crate::{ExecutionPlan, ExecutionPlan as Plan, Place, SpaceKind, Workload};

/// What a valid plan uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The memory that is charged: all work memory, and what resident loads fill.
    pub high_water_bytes: u64,
    /// Most bytes live at any one time: no layout of the same live ranges can do with fewer.
    pub lower_bound_bytes: u64,
    pub loaded_bytes_per_run: u64,
    pub stored_bytes_per_run: u64,
    pub resident_bytes: u64,
    /// Size of the spill file; 0 for a plan without stores.
    pub spill_bytes: u64,
}

/// The first thing found wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    #[error("the plan is for digest {plan:?}, the workload is {workload:?}")]
    Digest { plan: String, workload: String },
    #[error("malformed workload: {0}")]
    Workload(String),
    #[error("{what}: the plan lists {got}, the workload has {want}")]
    Count {
        what: &'static str,
        got: usize,
        want: usize,
    },
    #[error("{what} at offset {offset} is not aligned to {align}")]
    Misaligned {
        what: String,
        offset: u64,
        align: u64,
    },
    #[error("malformed spaces: {0}")]
    Spaces(String),
    #[error("{what} lies at {at}, which is not of the kind {kind:?}")]
    WrongSpace {
        what: String,
        at: Place,
        kind: SpaceKind,
    },
    #[error("{what} at {at} with {bytes} bytes exceeds its space of {space_bytes}")]
    OutsideSpace {
        what: String,
        at: Place,
        bytes: u64,
        space_bytes: u64,
    },
    #[error("the change of plans: {0}")]
    Transition(String),
    #[error("resident load {load}: {why}")]
    Resident { load: usize, why: &'static str },
    #[error("compute {compute}: {why}")]
    Coverage { compute: usize, why: String },
    #[error("compute {compute}: no load that is complete by then puts {what} at {at}")]
    WeightMissing {
        compute: usize,
        what: String,
        at: Place,
    },
    #[error("load {load}: {why}")]
    Dependency { load: usize, why: String },
    #[error("malformed lanes: {0}")]
    Lanes(String),
    #[error("{action}: {why}")]
    Wait { action: String, why: String },
    #[error("{action} can never start: it waits for {other}, which waits for it")]
    Deadlock { action: String, other: String },
    #[error("load {load} is used by no compute")]
    UnusedLoad { load: usize },
    #[error("store {store}: {why}")]
    Store { store: usize, why: String },
    #[error("the return of buffer {buffer} at step {step}: {why}")]
    Return {
        buffer: u32,
        step: u32,
        why: &'static str,
    },
    #[error("the state in buffer {buffer}: {why}")]
    State { buffer: u32, why: &'static str },
    #[error("the prepared panels of step {step}: {why}")]
    Prepared { step: u32, why: &'static str },
    #[error("the host copy of file offset {offset}: {why}")]
    Copy { offset: u64, why: &'static str },
    #[error("{a} and {b} overlap at time {time}")]
    Overlap { a: String, b: String, time: u64 },
}

/// Checks everything that [`crate::ExecutionPlan`] promises; see the module for what that is.
///
/// # Errors
/// The first [`Violation`] found.
pub fn validate(workload: &Workload, plan: &ExecutionPlan) -> Result<Verdict, Violation> {
    check_workload(workload)?;
    check_shape(workload, plan)?;
    spaces::check_spaces(plan)?;
    residents::check_places(plan)?;
    copies::check_copies(plan)?;
    states::check_states(workload, plan)?;
    let times = computes::check_coverage(workload, plan)?;
    lanes::check_lanes(plan)?;
    let compute_lane = lanes::compute_lane(plan)?;
    let last_use = computes::check_weights(workload, plan)?;
    residents::check_order(plan)?;
    let stays = stays::stays(workload, plan, &times, compute_lane)?;
    let rects = rects::rectangles(workload, plan, (&times, compute_lane), &stays, &last_use)?;
    let most_live_bytes = rects::check_overlaps(plan, &rects)?;
    let resident_bytes = plan.resident_bytes();
    Ok(Verdict {
        high_water_bytes: plan.memory_bytes(),
        lower_bound_bytes: most_live_bytes.saturating_add(resident_bytes),
        loaded_bytes_per_run: plan.loaded_bytes_per_run(),
        stored_bytes_per_run: plan.stored_bytes_per_run(),
        resident_bytes,
        spill_bytes: plan.spill_bytes(),
    })
}

fn check_shape(w: &Workload, plan: &Plan) -> Result<(), Violation> {
    if plan.digest != w.digest {
        return Err(Violation::Digest {
            plan: plan.digest.clone(),
            workload: w.digest.clone(),
        });
    }
    let counts = [
        ("buffers", plan.buffers.len(), w.buffers.len()),
        ("workspaces", plan.workspaces.len(), w.steps.len()),
    ];
    for (what, got, want) in counts {
        if got != want {
            return Err(Violation::Count { what, got, want });
        }
    }
    check_prepared(w, plan)
}

/// Each step that takes its panels prepared has one place for them, and no other step has.
fn check_prepared(w: &Workload, plan: &Plan) -> Result<(), Violation> {
    let mut listed = plan.prepared.iter().map(|p| p.step.0).peekable();
    for (step, spec) in (0..).zip(&w.steps) {
        let why = match (listed.next_if_eq(&step), spec.prepared_bytes() > 0) {
            (None, true) => "they have no place",
            (Some(_), false) => "it takes them as they are stored",
            _ => continue,
        };
        return Err(Violation::Prepared { step, why });
    }
    match listed.next() {
        None => Ok(()),
        Some(step) => Err(Violation::Prepared {
            step,
            why: "they are listed twice, out of order, or for a step that there is not",
        }),
    }
}
