//! Blocks: partitions by dynamic programming are those that trying all of them finds; plans hold whole
//! layers, two blocks at a time.

#[path = "../../../crates/neap-planner/tests/shapes/mod.rs"]
mod shapes;

use baselines::BLOCKS;
use baselines::blocks::{
    Layer, LookupTable, Objective, best, create_blocks, dynamic, evaluate, exhaustive, get_layers,
};
use neap_plan::{Workload, validate};
use neap_planner::{PlanError, Planner, Strategy};
use neap_sim::CostProfile;
use proptest::prelude::*;
use proptest::strategy::Strategy as _;

fn layer(at: u32, bytes: u64, times: (u64, u64, u64)) -> Layer {
    Layer {
        steps: at..at + 1,
        bytes,
        tensors: 1,
        flops: 0,
        input_ns: times.0,
        execute_ns: times.1,
        output_ns: times.2,
    }
}

fn layers() -> impl proptest::strategy::Strategy<Value = Vec<Layer>> {
    let one = (0u64..60, (0u64..60, 0u64..60, 0u64..8));
    prop::collection::vec(one, 2..11).prop_map(|rows| {
        let rows = rows.into_iter().enumerate();
        rows.map(|(i, (bytes, times))| layer(i as u32, bytes, times))
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_ways_find_the_same_delay(layers in layers(), share in 0u64..=100) {
        let all: u64 = layers.iter().map(|l| l.bytes).sum();
        let room = all * share / 100;
        for objective in [Objective::Residual, Objective::Latency] {
            for blocks in 1..=layers.len() + 1 {
                let tried = exhaustive(&layers, room, blocks, objective);
                let found = dynamic(&layers, room, blocks, objective);
                prop_assert_eq!(tried.as_ref().map(|p| p.delay_ns), found.as_ref().map(|p| p.delay_ns));
                for partition in tried.iter().chain(&found) {
                    let cut = create_blocks(&partition.points, &layers);
                    prop_assert_eq!(cut.len(), blocks);
                    prop_assert_eq!(evaluate(&cut, objective), partition.delay_ns);
                    let pairs = cut.windows(2).map(|p| p[0].bytes + p[1].bytes);
                    prop_assert_eq!(pairs.max(), Some(partition.most_bytes));
                    prop_assert!(partition.most_bytes <= room);
                }
            }
        }
    }

    #[test]
    fn a_table_holds_what_fits(layers in layers(), share in 1u64..=120) {
        let all: u64 = layers.iter().map(|l| l.bytes).sum();
        let table = LookupTable::new(layers.clone(), all * share / 100);
        for row in &table.rows {
            prop_assert!(row.most_bytes <= all * share / 100);
        }
        // All as blocks of their own is the partition that takes least.
        let pairs = layers.windows(2).map(|p| p[0].bytes + p[1].bytes);
        let least = pairs.max().unwrap();
        prop_assert_eq!(table.rows.is_empty(), least > all * share / 100);
    }
}

/// Many layers in many blocks, with all kinds of times: the search stays small.
#[test]
fn deep_networks_are_cut_quickly() {
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    let layers: Vec<Layer> = (0..160)
        .map(|i| {
            let times = (random(9_000_000), random(9_000_000), random(90_000));
            layer(i, 1 + random(1_000_000), times)
        })
        .collect();
    let pairs = layers.windows(2).map(|p| p[0].bytes + p[1].bytes);
    let least = pairs.max().unwrap();
    for room in [least, 2 * least, 20 * least] {
        let found = LookupTable::new(layers.clone(), room);
        assert!(!found.rows.is_empty());
        assert!(found.rows.iter().all(|row| row.most_bytes <= room));
    }
}

/// Equation 4 by hand: three blocks, t_ov(2) = (t_out(1) + t_in(3)) − t_ex(2), t_ov(3) = t_out(2) − ….
#[test]
fn residuals_by_hand() {
    let blocks = [
        layer(0, 10, (5, 4, 1)),
        layer(1, 10, (9, 4, 2)),
        layer(2, 10, (8, 3, 1)),
    ];
    // Block 2: 1 + 8 − 4 = 5; block 3: 2 + 0 − (3 + 5) is covered.
    assert_eq!(evaluate(&blocks, Objective::Residual), 5);
    // Block 1: 9 − 4 = 5; block 2: 1 + 8 − (4 + 5) = 0; block 3: 2 − 3 is covered. Input 5, executing 11.
    assert_eq!(evaluate(&blocks, Objective::Latency), 5 + 11 + 5);
}

#[test]
fn the_papers_number_of_blocks_comes_first() {
    let layers: Vec<Layer> = (0..12).map(|i| layer(i, 10, (10, 10, 0))).collect();
    // n = ⌈2 · 120 / 80⌉ = 3.
    let found = best(&layers, 80, 3, 2, Objective::Residual);
    assert_eq!(found[0].points.len() + 1, 3);
    // With 70, n = 4; into three equal blocks it would be 80.
    let found = best(&layers, 70, 4, 1, Objective::Residual);
    assert_eq!(found[0].points.len() + 1, 4);
}

#[test]
fn networks_run_in_whole_layers() {
    let costs = CostProfile::default();
    for (name, w) in shapes::all() {
        let planner = Planner::new(&w);
        let smallest = planner.smallest_bytes_of(BLOCKS);
        let unlimited = planner.unlimited_high_water_bytes();
        assert!(planner.smallest_feasible_bytes() <= smallest, "{name}");
        let refused = planner.plan(smallest - 1, BLOCKS, &costs).err();
        let infeasible = PlanError::Infeasible {
            smallest_bytes: smallest,
        };
        assert_eq!(refused, Some(infeasible), "{name}");
        for percent in [0, 5, 20, 50, 90, 100] {
            let budget = smallest + (unlimited - smallest) * percent / 100;
            let begin = std::time::Instant::now();
            let planned = planner.plan(budget, BLOCKS, &costs).unwrap();
            let took_ms = begin.elapsed().as_secs_f64() * 1e3;
            let verdict = validate(&w, &planned.plan).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(verdict.high_water_bytes <= budget, "{name}");
            assert_eq!(planned.plan.computes.len(), w.steps.len(), "{name}");
            assert_eq!(planned.plan.strategy, "blocks");
            let preload = planner.plan(budget, Strategy::Preload, &costs).unwrap();
            println!(
                "{name:12} {:7.2} MiB: {:8.2} ms (preload {:8.2}), stalls {:7.2} ms, {} loads, planned in {took_ms:.1} ms",
                budget as f64 / 1048576.0,
                planned.prediction.latency_ns as f64 / 1e6,
                preload.prediction.latency_ns as f64 / 1e6,
                planned.prediction.stall_ns as f64 / 1e6,
                planned.plan.loads.len(),
            );
        }
    }
}

/// A block's first compute waits for the whole block, and nothing else of it is waited for.
#[test]
fn blocks_come_in_whole() {
    let w: Workload = shapes::vgg19();
    let planner = Planner::new(&w);
    let costs = CostProfile::default();
    let smallest = planner.smallest_bytes_of(BLOCKS);
    let plan = planner
        .plan(smallest + (32 << 20), BLOCKS, &costs)
        .unwrap()
        .plan;
    let mut needs: Vec<u32> = plan.computes.iter().map(|c| c.needs()).collect();
    needs.dedup();
    assert_eq!(needs.last().copied(), Some(plan.loads.len() as u32));
    let layers = get_layers(&w, &costs);
    // 19 layers have weights; the first fully connected one and its neighbours decide the least.
    assert_eq!(layers.len(), 19);
    assert!((2..layers.len()).contains(&needs.len()), "{needs:?}");
    assert!(plan.resident.is_empty());
}
