//! Baselines that keep no weights: `ondemand` loads a step's when the step before is done, `odswap` as soon as
//! the memory that was used longest ago is free.

use neap_plan::{AfterCompute, BLOCK_BYTES, ExecutionPlan, Workload};
use neap_planner::parts::{
    BaseLayout, Schedule, Slicing, Window, addresses, all_resident, assemble,
};
use neap_planner::{BaseLayouts, OtherStrategy};
use neap_sim::{CostProfile, Prediction, Simulator, predict};

/// Loads only when needed: no load overlaps with any compute. Slices as large as fit.
pub struct OnDemand;

/// SwapAdvisor's baseline for weights: in a cycle, what was used longest ago is what is needed next, so that
/// nothing stays. From the second run on it is known what will be needed, and loaded as early as memory allows.
pub struct OdSwap;

impl OtherStrategy for OnDemand {
    fn name(&self) -> &'static str {
        "ondemand"
    }

    fn smallest_bytes(&self, _: &Workload, base_layouts: &BaseLayouts) -> u64 {
        base_layouts.smallest_bytes()
    }

    fn plan(
        &self,
        w: &Workload,
        base_layouts: &BaseLayouts,
        budget_bytes: u64,
        costs: &CostProfile,
    ) -> Option<(ExecutionPlan, Prediction)> {
        streamed(w, base_layouts, budget_bytes, costs, false)
    }
}

impl OtherStrategy for OdSwap {
    fn name(&self) -> &'static str {
        "odswap"
    }

    fn smallest_bytes(&self, _: &Workload, base_layouts: &BaseLayouts) -> u64 {
        base_layouts.smallest_bytes()
    }

    fn plan(
        &self,
        w: &Workload,
        base_layouts: &BaseLayouts,
        budget_bytes: u64,
        costs: &CostProfile,
    ) -> Option<(ExecutionPlan, Prediction)> {
        streamed(w, base_layouts, budget_bytes, costs, true)
    }
}

fn streamed(
    w: &Workload,
    base_layouts: &BaseLayouts,
    budget_bytes: u64,
    costs: &CostProfile,
    prefetches: bool,
) -> Option<(ExecutionPlan, Prediction)> {
    if budget_bytes < base_layouts.smallest_bytes() {
        return all_resident(
            w,
            base_layouts,
            budget_bytes,
            costs,
            &mut Simulator::default(),
        );
    }
    let arena_bytes = budget_bytes / BLOCK_BYTES * BLOCK_BYTES;
    let slicing = Slicing {
        cap_bytes: u64::MAX,
        in_gap: 1,
        gather_bytes: 0,
    };
    let on = |base_layout: &BaseLayout| {
        let schedule = Schedule::new(w, base_layout, arena_bytes, slicing, usize::MAX)?;
        let offsets = addresses(&schedule, base_layout, arena_bytes)?;
        let window = Window {
            w,
            base_layout,
            schedule: &schedule,
            offsets: &offsets,
            window_bytes: arena_bytes,
            cyclic: base_layouts.options.cyclic && !prefetches,
        };
        let resident = vec![false; schedule.units.len()];
        let mut simulated = window.simulate(&resident, costs, &mut Simulator::default());
        if !prefetches {
            for (s, after) in simulated.streamed.iter().zip(&mut simulated.after) {
                *after = AfterCompute {
                    run_back: 0,
                    computes: s.first,
                };
            }
        }
        Some(assemble("ondemand", &window, &resident, &simulated))
    };
    let fits = |base_layout: &BaseLayout| base_layout.needed_bytes <= arena_bytes;
    let candidates = [&base_layouts.loose, &base_layouts.tight]
        .into_iter()
        .filter(|g| fits(g))
        .filter_map(on);
    let predicted = candidates.map(|plan| {
        let prediction = predict(w, &plan, costs);
        (plan, prediction)
    });
    predicted.min_by_key(|(_, p)| p.latency_ns)
}
