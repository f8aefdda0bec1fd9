//! Plans with addresses, and the baseline that they are compared with.

use std::ops::ControlFlow;

use neap_planner::search::{Dataflow, Memory, Placed, PlacedOptions, Serial, improve, odswap};

use crate::support::{LINK, check, random_flow, recurrent};

/// Addresses do not overlap while both are in use, and loads wait for whoever lay there.
fn check_placed(flow: &Dataflow, placed: &Placed, capacity_bytes: u64, seed: u64) {
    assert!(placed.high_water_bytes <= capacity_bytes);
    let plan = &placed.plan;
    // Bytes must be enough too.
    let times = check(flow, &Memory::bytes(flow, capacity_bytes, 1), plan, seed);
    let ends: Vec<u64> = plan
        .stays
        .iter()
        .zip(&placed.offsets)
        .map(|(s, at)| at + flow.tensors()[s.tensor.index()].bytes)
        .collect();
    assert!(ends.iter().all(|&end| end <= capacity_bytes));
    for i in 0..ends.len() {
        for j in 0..i {
            let apart = ends[i] <= placed.offsets[j] || ends[j] <= placed.offsets[i];
            let one_after_another = times[i].1 <= times[j].0 || times[j].1 <= times[i].0;
            assert!(
                apart || one_after_another,
                "seed {seed}: {:?} and {:?}",
                plan.stays[i],
                plan.stays[j]
            );
        }
    }
}

#[test]
fn placed_plans_are_right() {
    for seed in 0..25 {
        let flow = random_flow(seed, 40);
        let least = flow.largest_operator_bytes() + 512 * 6;
        for factor in [1.2, 2.0, 4.0] {
            let capacity = (least as f64 * factor) as u64;
            let options = PlacedOptions {
                seed,
                population: 8,
                generations: 6,
            };
            let run = || {
                improve(&flow, &LINK, capacity, &options, &Serial, &mut |_| {
                    ControlFlow::Continue(())
                })
            };
            let placed = run().unwrap_or_else(|e| panic!("seed {seed}, {capacity} bytes: {e}"));
            for speed in 0..4 {
                check_placed(&flow, &placed, capacity, seed * 10 + speed);
            }
            assert!(placed.last.best_ns <= placed.heuristic_ns);
            assert_eq!(
                run().unwrap().outcome,
                placed.outcome,
                "the same for a seed"
            );
        }
    }
}

/// Grouping by parameters finds what random schedules hardly do: each layer's parameters come once.
#[test]
fn heuristics_group_by_parameters() {
    let flow = recurrent(6, 20, 100_000);
    let capacity = 400_000 + 512 * 40;
    let options = PlacedOptions {
        generations: 10,
        ..PlacedOptions::default()
    };
    let placed = improve(&flow, &LINK, capacity, &options, &Serial, &mut |_| {
        ControlFlow::Continue(())
    });
    let placed = placed.unwrap();
    let (_, on_demand) = odswap(&flow, &LINK, capacity).unwrap();
    assert!(
        placed.outcome.total_ns * 2.0 < on_demand.total_ns,
        "{} and {}",
        placed.outcome.total_ns,
        on_demand.total_ns
    );
    assert!(placed.outcome.loaded_bytes < 2 * flow.parameter_bytes());
}

#[test]
fn on_demand_swapping_is_right_too() {
    for seed in 0..10 {
        let flow = random_flow(seed, 40);
        for factor in [1, 2, 5] {
            let capacity = flow.largest_operator_bytes() * factor;
            let (plan, outcome) = odswap(&flow, &LINK, capacity).unwrap();
            check(&flow, &Memory::bytes(&flow, capacity, 1), &plan, seed);
            assert!(outcome.total_ns >= flow.ideal_ns() as f64);
        }
        assert!(odswap(&flow, &LINK, flow.largest_operator_bytes() - 1).is_none());
    }
}
