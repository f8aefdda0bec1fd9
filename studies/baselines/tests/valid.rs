//! Plans of baselines: each is valid, keeps to its budget, and is refused with the smallest one that it takes.

#[path = "../../../crates/neap-planner/tests/shapes/mod.rs"]
mod shapes;

use baselines::{ALL, ON_DEMAND};
use neap_plan::validate;
use neap_planner::{PlanError, Planner, Strategy};
use neap_sim::CostProfile;
use proptest::prelude::*;
use shapes::random::workload;

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_are_valid_at_every_budget(w in workload(24), share in 0u64..=110) {
        let costs = CostProfile::default();
        let planner = Planner::new(&w);
        let (smallest, unlimited) = (planner.smallest_feasible_bytes(), planner.unlimited_high_water_bytes());
        let budget = smallest + (unlimited - smallest) * share / 100;
        for strategy in ALL {
            match planner.plan(budget, strategy, &costs) {
                Ok(planned) => {
                    let verdict = validate(&w, &planned.plan).map_err(|e| TestCaseError::fail(e.to_string()))?;
                    prop_assert!(verdict.high_water_bytes <= budget);
                }
                Err(PlanError::Infeasible { smallest_bytes }) => {
                    prop_assert_eq!(smallest_bytes, planner.smallest_bytes_of(strategy));
                    prop_assert!(budget < smallest_bytes && smallest_bytes <= unlimited);
                }
            }
            let smallest = planner.smallest_bytes_of(strategy);
            prop_assert!(planner.plan(smallest, strategy, &costs).is_ok());
            prop_assert!(planner.plan(smallest - 1, strategy, &costs).is_err());
        }
    }

    #[test]
    fn preload_is_never_slower_than_on_demand(w in workload(24)) {
        // In one window: the smallest, which both must use.
        let costs = CostProfile::default();
        let planner = Planner::new(&w);
        let budget = planner.smallest_bytes_of(ON_DEMAND);
        let preload = planner.plan(budget, Strategy::Preload, &costs).unwrap().prediction;
        let ondemand = planner.plan(budget, ON_DEMAND, &costs).unwrap().prediction;
        prop_assert!(preload.latency_ns <= ondemand.latency_ns + ondemand.latency_ns / 200);
    }
}
