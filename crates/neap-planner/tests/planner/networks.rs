//! Plans of workloads shaped like real networks.

use crate::shapes;
use neap_plan::{Workload, validate};
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
        for strategy in [Strategy::Preload, Strategy::Search] {
            let refused = planner.plan(smallest - 1, strategy, &costs).err();
            assert_eq!(
                refused,
                Some(PlanError::Infeasible {
                    smallest_bytes: smallest
                }),
                "{name}"
            );
        }
        let mut last_ns = u64::MAX;
        for percent in [0, 1, 3, 10, 25, 50, 75, 90, 99, 100] {
            let budget = smallest + (unlimited - smallest) * percent / 100;
            let preload = planned(&planner, &w, budget, Strategy::Preload, &costs);
            assert!(
                preload <= last_ns.saturating_add(last_ns / 200),
                "{name} {percent} %: slower with more memory"
            );
            last_ns = preload;
        }
    }
}

/// Plans, validates, prints a line; the predicted latency.
fn planned(
    planner: &Planner,
    w: &Workload,
    budget: u64,
    strategy: Strategy,
    costs: &CostProfile,
) -> u64 {
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    let begin = std::time::Instant::now();
    let planned = planner.plan(budget, strategy, costs).unwrap();
    let took_ms = begin.elapsed().as_secs_f64() * 1e3;
    let verdict =
        validate(w, &planned.plan).unwrap_or_else(|e| panic!("{} at {budget}: {e}", w.digest));
    assert!(verdict.high_water_bytes <= budget);
    let p = planned.prediction;
    println!(
        "{:12} {:8} {:7.2} MiB: {:8.2} ms, stalls {:7.2} ms, {:4} loads of {:7.2} MiB, resident {:7.2} MiB, {:4} computes, planned in {took_ms:.1} ms",
        w.digest,
        strategy.name(),
        mib(budget),
        p.latency_ns as f64 / 1e6,
        p.stall_ns as f64 / 1e6,
        planned.plan.loads.len(),
        mib(verdict.loaded_bytes_per_run),
        mib(verdict.resident_bytes),
        planned.plan.computes.len(),
    );
    p.latency_ns
}

/// The smallest arena is within a few percent of what is live at the fullest step, below which no plan
/// of any kind exists.
#[test]
fn smallest_budgets_are_near_their_lower_bound() {
    for (name, w) in shapes::all() {
        let planner = Planner::new(&w);
        let smallest = planner.smallest_feasible_bytes();
        let plan = planner
            .plan(smallest, Strategy::Preload, &CostProfile::default())
            .unwrap()
            .plan;
        let bound = validate(&w, &plan).unwrap().lower_bound_bytes;
        println!("{name}: smallest {smallest}, lower bound {bound}");
        assert!(
            smallest as f64 <= bound as f64 * 1.05,
            "{name}: {smallest} against {bound}"
        );
    }
}

/// Steps that compute with the same weights, again and again, as cells of a recurrent network do.
#[test]
fn weights_that_steps_share_are_in_memory_once() {
    const LAYERS: usize = 2;
    const TIMES: usize = 6;
    let mut net = shapes::Net::default();
    let mut state = net.input(4096);
    for _ in 0..LAYERS * TIMES {
        state = net.linear("cell", state, 1, 1024, 1024);
    }
    let mut w = net.finish(state, "recurrent");
    for step in 0..w.steps.len() {
        let first = w.steps[step / TIMES * TIMES].panels;
        w.steps[step].panels = first;
    }
    let layer_bytes = w.steps[0].weight_bytes();
    let planner = Planner::new(&w);
    let costs = CostProfile::default();
    let unlimited = planner.unlimited_high_water_bytes();
    let most = LAYERS as u64 * layer_bytes + MIB;
    assert!(unlimited < most, "{unlimited} of {most}");
    let smallest = planner.smallest_feasible_bytes();
    let mut last = u64::MAX;
    for percent in [0, 20, 40, 60, 80, 100] {
        let budget = smallest + (unlimited - smallest) * percent / 100;
        let planned = planner.plan(budget, Strategy::Preload, &costs).unwrap();
        let verdict = validate(&w, &planned.plan).unwrap();
        assert!(planned.plan.memory_bytes() <= budget);
        // What is resident serves every step that uses it, but where those are sliced differently.
        let spared = w.weight_bytes() - verdict.loaded_bytes_per_run.min(w.weight_bytes());
        let served = verdict.resident_bytes * TIMES as u64;
        assert!(
            spared >= served * 2 / 3,
            "{percent} %: {spared} of {served}"
        );
        assert!(verdict.loaded_bytes_per_run <= last);
        last = verdict.loaded_bytes_per_run;
    }
    assert_eq!(last, 0);
}
