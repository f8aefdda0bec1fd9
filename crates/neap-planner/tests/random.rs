//! Random workloads under random budgets: every plan validates, keeps to its budget and its promises.

mod shapes;

use neap_plan::{Verdict, Workload, validate};
use neap_planner::{PlanError, Planned, Planner, Strategy};
use neap_sim::{CostProfile, predict};
use proptest::prelude::*;
use proptest::strategy::Strategy as _;
use shapes::random::workload;

fn checked(
    w: &Workload,
    planned: &Planned,
    budget: u64,
    costs: &CostProfile,
) -> Result<Verdict, TestCaseError> {
    let verdict = validate(w, &planned.plan).map_err(|e| TestCaseError::fail(e.to_string()))?;
    prop_assert!(planned.plan.arena_bytes <= budget);
    prop_assert!(verdict.high_water_bytes <= planned.plan.arena_bytes);
    prop_assert!(verdict.lower_bound_bytes <= verdict.high_water_bytes);
    prop_assert_eq!(predict(w, &planned.plan, costs), planned.prediction);
    Ok(verdict)
}

fn costs() -> impl proptest::strategy::Strategy<Value = CostProfile> {
    (1u64..50, 0u64..200_000, 1u32..9, 0u64..20_000).prop_map(|(rate, latency, depth, overhead)| {
        CostProfile {
            storage_bytes_per_second: rate as f64 * 1e8,
            request_latency_ns: latency,
            queue_depth: depth,
            compute_overhead_ns: overhead,
            ..CostProfile::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_strategy_is_valid_at_every_budget(w in workload(24), costs in costs(), share in 0u64..=110) {
        let planner = Planner::new(&w);
        let (smallest, unlimited) = (planner.smallest_feasible_bytes(), planner.unlimited_high_water_bytes());
        prop_assert!(smallest <= unlimited);
        let budget = smallest + (unlimited - smallest) * share / 100;
        for strategy in Strategy::ALL {
            match planner.plan(budget, strategy, &costs) {
                Ok(planned) => {
                    let verdict = checked(&w, &planned, budget, &costs)?;
                    if strategy == Strategy::Resident {
                        prop_assert!(planned.plan.loads.is_empty() && verdict.loaded_bytes_per_run == 0);
                    }
                }
                Err(PlanError::Infeasible { smallest_bytes }) => {
                    prop_assert_eq!(strategy, Strategy::Resident);
                    prop_assert_eq!(smallest_bytes, unlimited);
                    prop_assert!(budget < unlimited);
                }
            }
        }
    }

    #[test]
    fn the_smallest_feasible_budget_is_one(w in workload(24), costs in costs()) {
        let planner = Planner::new(&w);
        let smallest = planner.smallest_feasible_bytes();
        for strategy in [Strategy::Preload, Strategy::OnDemand] {
            let planned = planner.plan(smallest, strategy, &costs).unwrap();
            checked(&w, &planned, smallest, &costs)?;
            if let Some(less) = smallest.checked_sub(1) {
                let refused = planner.plan(less, strategy, &costs).err();
                prop_assert_eq!(refused, Some(PlanError::Infeasible { smallest_bytes: smallest }));
            }
        }
    }

    #[test]
    fn more_memory_never_predicts_slower(w in workload(24), costs in costs(), mut shares in prop::collection::vec(0u64..=1000, 2..6)) {
        let planner = Planner::new(&w);
        let (smallest, unlimited) = (planner.smallest_feasible_bytes(), planner.unlimited_high_water_bytes());
        shares.sort_unstable();
        let mut before = u64::MAX;
        for share in shares {
            let budget = smallest + (unlimited - smallest) * share / 1000;
            let latency = planner.plan(budget, Strategy::Preload, &costs).unwrap().prediction.latency_ns;
            // The search is content within half a percent; slices round to nanoseconds.
            prop_assert!(latency <= before.saturating_add(before / 200 + 100), "{latency} after {before}");
            before = latency.min(before);
        }
    }

    #[test]
    fn preload_is_never_slower_than_on_demand(w in workload(24), costs in costs()) {
        // In one window: the smallest, which both must use.
        let planner = Planner::new(&w);
        let budget = planner.smallest_feasible_bytes();
        let preload = planner.plan(budget, Strategy::Preload, &costs).unwrap().prediction;
        let ondemand = planner.plan(budget, Strategy::OnDemand, &costs).unwrap().prediction;
        prop_assert!(preload.latency_ns <= ondemand.latency_ns + ondemand.latency_ns / 200);
    }
}
