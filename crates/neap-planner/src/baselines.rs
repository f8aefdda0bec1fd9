//! Baselines: `ondemand` loads a step's weights when the step before is done, and keeps none.

use neap_plan::{AfterCompute, BLOCK_BYTES, ExecutionPlan, Workload};
use neap_sim::{CostProfile, Prediction, Simulator, predict};

use crate::assemble::assemble;
use crate::ground::Ground;
use crate::preload::Grounds;
use crate::preload::place::addresses;
use crate::preload::residency::Window;
use crate::schedule::{Schedule, Slicing};

/// Loads only when needed: no load overlaps with any compute. Slices as large as fit.
pub fn ondemand(
    w: &Workload,
    grounds: &Grounds,
    budget_bytes: u64,
    costs: &CostProfile,
) -> Option<(ExecutionPlan, Prediction)> {
    let arena_bytes = budget_bytes / BLOCK_BYTES * BLOCK_BYTES;
    let slicing = Slicing {
        cap_bytes: u64::MAX,
        in_gap: 1,
        gather_bytes: 0,
    };
    let on = |ground: &Ground| {
        let schedule = Schedule::new(w, ground, arena_bytes, slicing)?;
        let offsets = addresses(&schedule, ground, arena_bytes)?;
        let window = Window {
            w,
            ground,
            schedule: &schedule,
            offsets: &offsets,
            window_bytes: arena_bytes,
            cyclic: grounds.options.cyclic,
        };
        let resident = vec![false; schedule.units.len()];
        let mut played = window.play(&resident, costs, &mut Simulator::default());
        for (s, after) in played.streamed.iter().zip(&mut played.after) {
            *after = AfterCompute {
                run_back: 0,
                computes: s.first,
            };
        }
        Some(assemble("ondemand", &window, &resident, &played))
    };
    let fits = |ground: &Ground| ground.needed_bytes <= arena_bytes;
    let candidates = [&grounds.loose, &grounds.tight]
        .into_iter()
        .filter(|g| fits(g))
        .filter_map(on);
    let predicted = candidates.map(|plan| {
        let prediction = predict(w, &plan, costs);
        (plan, prediction)
    });
    predicted.min_by_key(|(_, p)| p.latency_ns)
}
