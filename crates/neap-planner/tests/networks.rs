//! Plans of workloads shaped like real networks.

mod shapes;

use neap_plan::validate;
use neap_planner::{PlanError, Planner, Strategy};
use neap_sim::CostProfile;

const MIB: u64 = 1 << 20;

#[test]
fn every_network_plans_at_every_budget() {
    let costs = CostProfile::default();
    for (name, w) in shapes::all() {
        let planner = Planner::new(&w);
        let smallest = planner.smallest_feasible_bytes();
        let unlimited = planner.unlimited_high_water_bytes();
        assert!(smallest <= unlimited, "{name}");
        for strategy in [Strategy::Preload, Strategy::OnDemand] {
            let refused = planner.plan(smallest - 1, strategy, &costs).err();
            assert_eq!(
                refused,
                Some(PlanError::Infeasible {
                    smallest_bytes: smallest
                }),
                "{name}"
            );
            let mut last_ns = u64::MAX;
            for percent in [0, 1, 3, 10, 25, 50, 75, 90, 99, 100] {
                let budget = smallest + (unlimited - smallest) * percent / 100;
                let begin = std::time::Instant::now();
                let planned = planner.plan(budget, strategy, &costs).unwrap();
                let took = begin.elapsed();
                let verdict = validate(&w, &planned.plan)
                    .unwrap_or_else(|e| panic!("{name} {percent} %: {e}"));
                assert!(
                    verdict.high_water_bytes <= planned.plan.arena_bytes
                        && planned.plan.arena_bytes <= budget
                );
                let p = planned.prediction;
                println!(
                    "{name} {} {percent:3} % {:7.2} MiB: {:8.2} ms, stall {:7.2}, compute {:7.2}, loads {:4} of {:7.2} MiB, resident {:7.2}, computes {:4}; planned in {:.1} ms",
                    strategy.name(),
                    budget as f64 / MIB as f64,
                    p.latency_ns as f64 / 1e6,
                    p.stall_ns as f64 / 1e6,
                    p.compute_ns as f64 / 1e6,
                    planned.plan.loads.len(),
                    verdict.loaded_bytes_per_run as f64 / MIB as f64,
                    verdict.resident_bytes as f64 / MIB as f64,
                    planned.plan.computes.len(),
                    took.as_secs_f64() * 1e3,
                );
                if strategy == Strategy::Preload {
                    assert!(p.latency_ns <= last_ns, "{name}: slower with more memory");
                    last_ns = p.latency_ns;
                }
            }
        }
    }
}
