//! Genomes' plans on random workloads and on networks' shapes.

#[path = "../../tests/shapes/mod.rs"]
mod shapes;

use super::*;
use crate::options::PlanOptions;
use crate::preload;
use crate::search::Serial;
use neap_plan::validate;
use neap_sim::predict;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// The best plan of a few generations, proved and predicted anew.
fn found(w: &Workload, grounds: &Grounds, budget: u64, costs: &CostProfile) -> Option<u64> {
    let mut swapped = Swapped::new(w, grounds, budget, costs, 3);
    let mut best_ns = u64::MAX;
    for generation in 0..4 {
        swapped.advance(generation, &Serial);
        let now_ns = swapped.best_ns().unwrap_or(u64::MAX);
        assert!(now_ns <= best_ns);
        best_ns = now_ns;
    }
    let (plan, prediction) = swapped.finish()?;
    let verdict = validate(w, &plan).unwrap();
    assert!(verdict.high_water_bytes <= plan.arena_bytes && plan.arena_bytes <= budget);
    assert_eq!(predict(w, &plan, costs), prediction);
    assert_eq!(prediction.latency_ns, best_ns, "as it was timed");
    Some(best_ns)
}

#[test]
fn plans_of_random_workloads_are_valid() {
    let mut runner = TestRunner::deterministic();
    let (mut plans, mut faster) = (0, 0);
    for case in 0..60u64 {
        let w = shapes::random::workload(24)
            .new_tree(&mut runner)
            .unwrap()
            .current();
        let costs = CostProfile {
            storage_bytes_per_second: 1e8 * (1 + case % 30) as f64,
            request_latency_ns: 3000 * (case % 7),
            ..CostProfile::default()
        };
        let grounds = Grounds::new(&w, PlanOptions::default(), &Default::default());
        for percent in [0, 10, 40, 90] {
            let budget = grounds.smallest_bytes() + w.weight_bytes() * percent / 100;
            let Some(latency_ns) = found(&w, &grounds, budget, &costs) else {
                continue;
            };
            plans += 1;
            let preloaded = preload::plan(&w, &grounds, budget, &costs, u64::MAX);
            faster += u32::from(preloaded.is_none_or(|(_, p)| latency_ns < p.latency_ns));
        }
    }
    assert!(plans > 120, "{plans} of 240");
    assert!(faster > 0, "never faster than preloading");
}
