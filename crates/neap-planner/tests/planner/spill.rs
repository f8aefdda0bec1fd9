//! Plans that spill activations: valid at every budget that is named feasible, and smaller than without.

use neap_plan::{
    BLOCK_BYTES, BufferId, BufferSpec, Extent, PanelSpec, SpaceId, StepRange, StepSpec, Workload,
    validate, whole_blocks,
};
use neap_planner::{PlanError, PlanOptions, Planner, Strategy};
use neap_sim::CostProfile;
use proptest::prelude::*;
use proptest::strategy::Strategy as _;

const WITHOUT: PlanOptions = PlanOptions {
    effort: neap_planner::Effort::Thorough,
    static_memory: true,
    cyclic: true,
    spill: false,
    stream_states: false,
};

const STREAMING: PlanOptions = PlanOptions {
    spill: true,
    stream_states: true,
    ..WITHOUT
};

/// One step of a random network.
#[derive(Clone, Debug)]
struct Node {
    bytes: u64,
    /// How far back the buffers that it reads were written, and whether it writes to the first of them.
    reads: Vec<usize>,
    in_place: bool,
    weights: u64,
    panels: u32,
    kept: bool,
    state: bool,
    workspace: u64,
}

fn node() -> impl prop::strategy::Strategy<Value = Node> {
    let reads = prop::collection::vec(prop_oneof![3 => 1usize..3, 1 => 3usize..12], 1..4);
    let panels = prop_oneof![Just(0u32), 1u32..6];
    let rest = (
        prop::bool::weighted(0.2),
        0u64..30_000,
        panels,
        any::<bool>(),
        prop::bool::weighted(0.3),
        0u64..5_000,
    );
    (1u64..60_000, reads, rest).prop_map(
        |(bytes, reads, (in_place, weights, panels, kept, state, workspace))| Node {
            bytes,
            reads,
            in_place,
            weights,
            panels,
            kept,
            state,
            workspace,
        },
    )
}

fn network(nodes: &[Node], keep: bool) -> Workload {
    let mut w = Workload {
        digest: "n".into(),
        ..Workload::default()
    };
    let mut at = 0;
    let n = nodes.len() as u32;
    for (i, node) in nodes.iter().enumerate() {
        let step = i as u32;
        let mut reads: Vec<BufferId> = Vec::new();
        for &back in &node.reads {
            let count = w.buffers.len();
            if back <= count {
                reads.push(BufferId((count - back) as u32));
            }
        }
        reads.dedup();
        let mut writes = Vec::new();
        match reads.first() {
            Some(&first) if node.in_place => writes.push(first),
            _ => {
                writes.push(BufferId(w.buffers.len() as u32));
                w.buffers.push(BufferSpec {
                    name: format!("buffer {i}"),
                    bytes: node.bytes,
                    align: 64,
                    live: StepRange::new(step, step + 1),
                    kept: false,
                });
            }
        }
        for buffer in reads.iter().chain(&writes) {
            w.buffers[buffer.index()].live.end = step + 1;
        }
        let extents = (node.weights > 0).then_some(Extent {
            file_offset: at,
            bytes: node.weights,
        });
        at += node.weights;
        let panels = (node.panels > 0).then_some(PanelSpec {
            file_offset: at,
            panel_bytes: 5_000,
            panels: node.panels,
            granule: 2,
        });
        at += u64::from(node.panels) * 5_000;
        w.steps.push(StepSpec {
            name: format!("step {i}"),
            workspace_bytes: node.workspace,
            flops: 1_000_000,
            extents: extents.into_iter().collect(),
            panels,
            reads,
            writes,
            ..StepSpec::default()
        });
    }
    for (buffer, node) in w.buffers.iter_mut().zip(nodes) {
        if keep && node.kept && buffer.live.end < n {
            buffer.kept = true;
            buffer.live.end = n;
        }
    }
    for (i, (buffer, node)) in (0..).zip(w.buffers.iter_mut().zip(nodes)) {
        if node.state && !buffer.kept {
            buffer.bytes = whole_blocks(buffer.bytes);
            buffer.align = BLOCK_BYTES;
            buffer.live = StepRange::new(0, n);
            w.states.push(BufferId(i));
        }
    }
    w
}

/// A chain whose first result is read again by the last step.
fn long_skip(kept: bool) -> Workload {
    const MIB: u64 = 1 << 20;
    let node = |bytes, reads: &[usize]| Node {
        bytes,
        reads: reads.to_vec(),
        in_place: false,
        weights: 1000,
        panels: 2,
        kept,
        state: false,
        workspace: 100,
    };
    let mut nodes = vec![node(4 * MIB, &[])];
    nodes.extend((0..9).map(|_| node(MIB, &[1])));
    nodes.push(node(MIB, &[1, 10]));
    network(&nodes, kept)
}

#[test]
fn a_long_skip_does_not_set_the_smallest_budget() {
    let w = long_skip(false);
    let with = Planner::new(&w).smallest_feasible_bytes();
    let without = Planner::with_options(&w, WITHOUT).smallest_feasible_bytes();
    let mib = |bytes: u64| bytes >> 20;
    assert_eq!(
        (mib(without), mib(with)),
        (6, 6),
        "{without} {with}: both ends need the skip"
    );
    // In between it need not be there; below 6 MiB both ends alone are what is left.
    let mut w = long_skip(false);
    w.buffers[0].bytes = 4 << 20;
    w.buffers[5].bytes = 4 << 20;
    w.buffers[6].bytes = 3 << 20;
    let with = Planner::new(&w).smallest_feasible_bytes();
    let without = Planner::with_options(&w, WITHOUT).smallest_feasible_bytes();
    assert_eq!((mib(without), mib(with)), (11, 7));
    let costs = CostProfile::default();
    // Enough memory: nothing is spilled, whatever it would gain.
    let plan = Planner::new(&w)
        .plan(without, Strategy::Preload, &costs)
        .unwrap()
        .plan;
    assert!(plan.stores.is_empty());
    let plan = Planner::new(&w)
        .plan(without - 1, Strategy::Preload, &costs)
        .unwrap()
        .plan;
    assert_eq!((plan.stores.len(), plan.returns.len()), (1, 1));
    assert_eq!(plan.stored_bytes_per_run(), 4 << 20);
    validate(&w, &plan).unwrap();
    let refused = Planner::with_options(&w, WITHOUT).plan(without - 1, Strategy::Preload, &costs);
    assert_eq!(
        refused.unwrap_err(),
        PlanError::Infeasible {
            smallest_bytes: without
        }
    );
}

#[test]
fn kept_activations_are_stored_once_and_not_loaded_back() {
    let w = long_skip(true);
    assert_eq!(w.buffers.iter().filter(|b| b.kept).count(), 8);
    let costs = CostProfile::default();
    let all = Planner::new(&w).unlimited_high_water_bytes();
    let smallest = Planner::new(&w).smallest_feasible_bytes();
    assert!(smallest < all / 2, "{smallest} of {all}");
    let plan = Planner::new(&w)
        .plan(smallest, Strategy::Preload, &costs)
        .unwrap()
        .plan;
    let verdict = validate(&w, &plan).unwrap();
    assert!(verdict.high_water_bytes <= smallest);
    let back: u64 = plan
        .loads
        .iter()
        .filter(|l| l.from.space == SpaceId::SPILL)
        .map(|l| l.bytes)
        .sum();
    // Only the skip comes back, for the last step.
    assert!(back <= 4 << 20, "{back}");
    assert!(plan.stored_bytes_per_run() >= 8 << 20);
}

/// Two uses of each of ten states far apart: as in a training step, forward and backward.
#[test]
fn states_stream_where_they_do_not_fit() {
    const KIB: u64 = 1 << 10;
    let mut w = Workload::default();
    let n = 20u32;
    for i in 0..n / 2 {
        w.buffers.push(BufferSpec {
            name: format!("state {i}"),
            bytes: 64 * KIB,
            align: BLOCK_BYTES,
            live: StepRange::new(0, n),
            kept: false,
        });
        w.states.push(BufferId(i));
    }
    for step in 0..n {
        let state = BufferId(step.min(n - 1 - step));
        w.steps.push(StepSpec {
            name: format!("step {step}"),
            flops: 1_000_000,
            reads: vec![state],
            writes: if step < n / 2 { vec![] } else { vec![state] },
            ..StepSpec::default()
        });
    }
    // Unless they may, they are in memory always.
    assert_eq!(Planner::new(&w).smallest_feasible_bytes(), 640 * KIB);
    let planner = Planner::with_options(&w, STREAMING);
    assert_eq!(planner.unlimited_high_water_bytes(), 640 * KIB);
    assert_eq!(planner.smallest_feasible_bytes(), 64 * KIB);
    let costs = CostProfile::default();
    for budget in [64 * KIB, 128 * KIB, 400 * KIB] {
        let plan = planner
            .plan(budget, Strategy::Preload, &costs)
            .unwrap()
            .plan;
        assert!(validate(&w, &plan).unwrap().high_water_bytes <= budget);
        let streaming = w.states.iter();
        let streaming = streaming.filter(|&&b| plan.streaming_home(b).is_some());
        let streaming = streaming.count() as u64;
        // Each is written once; the last one is in use from step to step.
        assert_eq!(plan.stored_bytes_per_run(), streaming * 64 * KIB);
        assert!(plan.loaded_bytes_per_run() < 2 * streaming * 64 * KIB);
        assert!(streaming >= 10 - budget / (64 * KIB));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_budget_from_the_smallest_up_has_a_valid_plan(
        nodes in prop::collection::vec(node(), 2..24),
        keep in any::<bool>(),
        stream_states in any::<bool>(),
        share in 0u64..=100,
    ) {
        let w = network(&nodes, keep);
        let planner = Planner::with_options(&w, PlanOptions { stream_states, ..STREAMING });
        let (least, most) = (planner.smallest_feasible_bytes(), planner.unlimited_high_water_bytes());
        let without = Planner::with_options(&w, WITHOUT).smallest_feasible_bytes();
        prop_assert!(least <= without);
        let costs = CostProfile::default();
        for budget in [least, least + (without.max(least) - least) * share / 100, without, most] {
            let planned = planner.plan(budget, Strategy::Preload, &costs);
            let planned = planned.map_err(|e| TestCaseError::fail(format!("{budget}: {e}")))?;
            let verdict = validate(&w, &planned.plan);
            let verdict = verdict.map_err(|e| TestCaseError::fail(format!("{budget}: {e}")))?;
            prop_assert!(verdict.high_water_bytes <= budget);
            prop_assert!(planned.prediction.latency_ns < u64::MAX);
            if budget >= without {
                prop_assert!(planned.plan.stores.is_empty());
            }
        }
    }
}
