//! Plans with addresses, and the baseline that they are compared with.

use std::ops::ControlFlow;

use swap_search::{
    Classes, Dataflow, Found, Memory, PlaceRules, Placed, PlacedOptions, Pools, Random, Rules,
    SearchOptions, Serial, Side, SwapPlan, SwapPlanner, SwapTask, improve, odswap, random_order,
    search,
};

use crate::support::{LINK, check, random_flow, recurrent};

/// Addresses do not overlap while both are in use, and loads wait for whoever lay there.
fn check_addresses(flow: &Dataflow, plan: &SwapPlan, capacity_bytes: u64, seed: u64) {
    assert!(plan.repeats() && plan.high_water_bytes(flow) <= capacity_bytes);
    // Bytes must be enough too.
    let times = check(flow, &Memory::bytes(flow, capacity_bytes, 1), plan, seed);
    let end = |i: usize| {
        let stay = &plan.stays[i];
        stay.offset + flow.tensors()[stay.tensor.index()].bytes
    };
    for i in 0..plan.stays.len() {
        for j in 0..i {
            let (a, b) = (&plan.stays[i], &plan.stays[j]);
            let apart = end(i) <= b.offset || end(j) <= a.offset;
            let one_after_another = times[i].1 <= times[j].0 || times[j].1 <= times[i].0;
            assert!(apart || one_after_another, "seed {seed}: {a:?} and {b:?}");
        }
    }
}

fn place(flow: &Dataflow, bytes: u64, seed: u64, pooled: Option<&Found>) -> Option<Placed> {
    let options = PlacedOptions {
        seed,
        population: 8,
        generations: 6,
    };
    improve(flow, &LINK, bytes, &options, pooled, &Serial, &mut |_| {
        ControlFlow::Continue(())
    })
    .ok()
}

fn pool(flow: &Dataflow, bytes: u64, seed: u64) -> Option<Found> {
    let options = SearchOptions {
        seed,
        population: 16,
        generations: 6,
        ..SearchOptions::default()
    };
    search(flow, &LINK, bytes, &options, &Serial, &mut |_| {
        ControlFlow::Continue(())
    })
    .ok()
}

#[test]
fn placed_plans_are_right() {
    for seed in 0..25 {
        let flow = random_flow(seed, 40);
        let least = flow.largest_operator_bytes() + 512 * 6;
        for factor in [1.2, 2.0, 4.0] {
            let capacity = (least as f64 * factor) as u64;
            let placed = place(&flow, capacity, seed, None)
                .unwrap_or_else(|| panic!("seed {seed}: no plan in {capacity} bytes"));
            for speed in 0..4 {
                check_addresses(&flow, &placed.plan, capacity, seed * 10 + speed);
            }
            assert!(placed.last.best_ns <= placed.heuristic_ns);
            assert_eq!(
                placed.last.best_ns, placed.outcome.total_ns,
                "as it was timed"
            );
            assert_eq!(
                place(&flow, capacity, seed, None).map(|p| p.outcome),
                Some(placed.outcome),
                "the same for a seed"
            );
        }
    }
}

/// However places are chosen, and however little memory there is: one operator's tensors fit side by side.
#[test]
fn there_is_a_plan_wherever_the_largest_operator_fits() {
    let mut planner = SwapPlanner::default();
    for seed in 0..40 {
        let flow = random_flow(seed, 40);
        let mut r = Random::new(seed, 2, 1);
        let order = random_order(&flow, &mut r);
        let least = flow.largest_operator_bytes();
        for capacity in [least, least * 9 / 8, least * 3 / 2, least * 3] {
            let memory = Memory::places(&flow, capacity, 4);
            for side in [Side::Nobody, Side::Loads, Side::Below(300)] {
                for keeps_initial in [false, true] {
                    let rules = Rules {
                        recency: 2.0 * r.unit(),
                        keeps_initial,
                        places: PlaceRules {
                            far_power: 1 + r.below(3) as u8,
                            late_penalty: 2.0 * r.unit(),
                            side,
                        },
                        ..Rules::default()
                    };
                    let plan = planner.plan(&SwapTask {
                        flow: &flow,
                        order: &order,
                        memory: &memory,
                        device: &LINK,
                        rules: &rules,
                    });
                    let plan = plan.unwrap_or_else(|| panic!("seed {seed}, {capacity} bytes"));
                    for speed in 0..3 {
                        check_addresses(&flow, plan, capacity, seed * 10 + speed);
                    }
                }
            }
        }
        let memory = Memory::places(&flow, least - 1, 1);
        let none = planner.plan(&SwapTask {
            flow: &flow,
            order: &order,
            memory: &memory,
            device: &LINK,
            rules: &Rules::default(),
        });
        assert!(none.is_none());
    }
}

/// Pools have addresses too, and what they find is never lost.
#[test]
fn placed_is_never_slower_than_pools() {
    let mut was_faster = 0;
    for seed in 0..20 {
        let flow = random_flow(seed, 40);
        let least = Pools::new(&flow, 0, Classes::Monotonic).smallest_bytes();
        for capacity in [least, least * 5 / 4, least * 2] {
            let pooled = pool(&flow, capacity, seed).expect("the smallest pools fit");
            check_addresses(&flow, &pooled.plan, capacity, seed);
            let placed = place(&flow, capacity, seed, Some(&pooled)).expect("pools have a plan");
            check_addresses(&flow, &placed.plan, capacity, seed);
            assert!(placed.outcome.total_ns <= pooled.outcome.total_ns);
            was_faster += u32::from(placed.outcome.total_ns < pooled.outcome.total_ns);
        }
    }
    assert!(was_faster > 0, "its own search finds something");
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
    let placed = improve(&flow, &LINK, capacity, &options, None, &Serial, &mut |_| {
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
