//! The phase of a run in which reading holds it up: steps with many weights for what they compute, such as the fully
//! connected layers at the end of VGG-19.
//!
//! ```text
//!   load lane      ░░ ▤▤▤▤ ░░░░░░ ▤▤▤ ▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤      early layers compute much, and what is read beside them
//!   compute lane   █████████████████ █░░░░█░░░░█░░░░█░░░░█        finds room for little
//!                                    └─ phase ───────────┘
//! ```
//! When it begins, no more of its weights are in memory than the arena holds. The rest is read within it, however
//! long the load lane was idle before.

use std::ops::Range;

use neap_plan::{PanelRange, StepId, Workload};
use neap_sim::CostProfile;

/// Some steps in a row, and what is known of them and the others.
#[derive(Debug)]
pub struct Phase {
    /// Empty where no steps read for longer than they compute.
    pub steps: Range<usize>,
    /// What all steps take in one piece each: no plan computes for less.
    pub all_ns: u64,
    /// Of these, those outside of the phase.
    pub others_ns: u64,
    /// Activations that lie in memory when it begins.
    pub live_bytes: u64,
}

impl Phase {
    /// The steps that read longest beyond what they compute, with an arena of so many bytes.
    pub fn new(w: &Workload, costs: &CostProfile, arena_bytes: u64) -> Self {
        let whole = |step: usize| {
            let panels = w.steps[step].panels.map_or(PanelRange::NONE, |p| p.all());
            costs.slice_ns(w, StepId(step as u32), panels, false)
        };
        let steps_ns: Vec<u64> = (0..w.steps.len()).map(whole).collect();
        let all_ns = steps_ns.iter().sum();
        let live_bytes = live_before(w);
        let ahead_ns = |step: usize| {
            let ahead = arena_bytes.saturating_sub(live_bytes[step]);
            i128::from(costs.transfer_ns(ahead))
        };
        let mut steps = 0..0;
        let (mut most, mut begin, mut gain) = (0, 0, i128::MIN);
        for (step, spec) in w.steps.iter().enumerate() {
            // To begin here, or to go on.
            if gain < -ahead_ns(step) {
                (begin, gain) = (step, -ahead_ns(step));
            }
            let table_bytes = spec.rows.map_or(0, |r| r.bytes);
            let bytes = spec.weight_bytes().saturating_sub(table_bytes);
            gain += i128::from(costs.transfer_ns(bytes)) - i128::from(steps_ns[step]);
            if gain > most {
                (most, steps) = (gain, begin..step + 1);
            }
        }
        let own_ns: u64 = steps_ns[steps.clone()].iter().sum();
        Self {
            live_bytes: live_bytes.get(steps.start).copied().unwrap_or(0),
            steps,
            all_ns,
            others_ns: all_ns - own_ns,
        }
    }
}

/// By step: bytes of activations that lie in memory from the step before to this one.
fn live_before(w: &Workload) -> Vec<u64> {
    let mut live = vec![0u64; w.steps.len()];
    for buffer in &w.buffers {
        let steps = buffer.live.begin as usize + 1..buffer.live.end as usize;
        for bytes in live.get_mut(steps).into_iter().flatten() {
            *bytes = bytes.saturating_add(buffer.bytes);
        }
    }
    live
}
