//! The store lane by hand: 4096 ns for each block, in either direction.

use neap_plan::{
    AfterCompute, BufferId, BufferSpec, Compute, ExecutionPlan, LaneId, Load, PanelRange, Place,
    Return, Space, StepId, StepRange, StepSpec, Store, Turn, WeightsAt, Workload, validate,
};
use neap_sim::{CostProfile, predict, simulate};

const BLOCK: u64 = 4096;

/// a is written by step 0, stored from then on, back for step 2; step 1 writes where it lay if `waits`.
fn stored(waits: bool) -> (Workload, ExecutionPlan) {
    let a = BufferId(0);
    let step = |reads: &[BufferId], writes: &[BufferId]| StepSpec {
        reads: reads.to_vec(),
        writes: writes.to_vec(),
        ..StepSpec::default()
    };
    let w = Workload {
        steps: vec![step(&[], &[a]), step(&[], &[]), step(&[a], &[])],
        buffers: vec![BufferSpec {
            name: "a".into(),
            bytes: BLOCK,
            align: 64,
            live: StepRange::new(0, 3),
            kept: false,
        }],
        ..Workload::default()
    };
    let computes = (0..3).map(|i| Compute {
        step: StepId(i),
        panels: PanelRange::NONE,
        weights: WeightsAt::default(),
        turn: Turn::of(LaneId::COMPUTE)
            .after(LaneId::LOAD, u32::from(i == 2))
            .after(LaneId::STORE, u32::from(waits && i == 1)),
    });
    let p = ExecutionPlan {
        spaces: Space::of_host(BLOCK, 0, 0, BLOCK),
        buffers: vec![Place::work(0)],
        workspaces: vec![Place::work(0); 3],
        computes: computes.collect(),
        group_bytes: 0,
        loads: vec![Load {
            from: Place::spill(0),
            bytes: BLOCK,
            turn: AfterCompute {
                run_back: 0,
                computes: 1,
            }
            .load(1),
            ..Load::default()
        }],
        stores: vec![Store {
            buffer: a,
            from: Place::work(0),
            bytes: BLOCK,
            to: Place::spill(0),
            turn: Turn::of(LaneId::STORE).after(LaneId::COMPUTE, 1),
        }],
        returns: vec![Return {
            buffer: a,
            step: StepId(2),
            load: 0,
        }],
        ..ExecutionPlan::default()
    };
    validate(&w, &p).unwrap();
    (w, p)
}

#[test]
fn a_load_waits_for_the_store_and_the_step_for_the_load() {
    let (w, p) = stored(false);
    // Compute 1 ends while the store goes on: its end is waited for, and the load follows at once.
    let costs = CostProfile::byte_per_ns(vec![1000, 1500, 3000]);
    let got = predict(&w, &p, &costs);
    assert_eq!(got.latency_ns, 1000 + 2 * BLOCK + 3000);
    assert_eq!(got.stall_ns, 2 * BLOCK - 1500);
    let t = simulate(&w, &p, &costs, 2);
    let store = t.spans_of(LaneId::STORE, 0).next().unwrap();
    assert_eq!((store.start_ns, store.end_ns), (1000, 1000 + BLOCK));
    let load = t.spans_of(LaneId::LOAD, 0).next().unwrap();
    assert_eq!(
        (load.start_ns, load.end_ns),
        (1000 + BLOCK, 1000 + 2 * BLOCK)
    );
    assert_eq!(t.runs[1].start_ns, t.runs[0].end_ns);
}

#[test]
fn a_store_that_ends_while_a_step_computes_is_noticed_after_it() {
    let (w, p) = stored(false);
    let costs = CostProfile::byte_per_ns(vec![1000, 5000, 3000]);
    let t = simulate(&w, &p, &costs, 2);
    let store = t.spans_of(LaneId::STORE, 0).next().unwrap();
    assert_eq!(store.end_ns, 1000 + BLOCK);
    let load = t.spans_of(LaneId::LOAD, 0).next().unwrap();
    assert_eq!(
        (load.ready_ns, load.start_ns, load.end_ns),
        (6000, 6000, 6000 + BLOCK)
    );
    assert_eq!(
        (t.runs[0].end_ns, t.runs[0].stall_ns),
        (9000 + BLOCK, BLOCK)
    );
}

#[test]
fn a_compute_that_waits_for_a_store_stalls() {
    let (w, p) = stored(true);
    let costs = CostProfile::byte_per_ns(vec![1000, 10_000, 3000]);
    // The load comes while compute 1 does.
    let got = predict(&w, &p, &costs);
    assert_eq!((got.latency_ns, got.stall_ns), (14_000 + BLOCK, BLOCK));
}

#[test]
fn slower_stores_take_longer() {
    let (w, p) = stored(true);
    let mut costs = CostProfile::byte_per_ns(vec![1000, 10_000, 3000]);
    costs.store_bytes_per_second = 0.5e9;
    assert_eq!(predict(&w, &p, &costs).latency_ns, 14_000 + 2 * BLOCK);
}

#[test]
fn bytes_move_no_faster_than_each_way_or_both() {
    let (_, p) = stored(false);
    let costs = CostProfile::byte_per_ns(vec![0; 3]);
    assert_eq!(costs.moving_ns(&p), 2 * BLOCK, "they share the rate");
    let apart = CostProfile {
        both_ways_bytes_per_second: 2e9,
        ..costs.clone()
    };
    assert_eq!(apart.moving_ns(&p), BLOCK);
    let slow_stores = CostProfile {
        store_bytes_per_second: 0.25e9,
        ..apart
    };
    assert_eq!(slow_stores.moving_ns(&p), 4 * BLOCK);
    assert_eq!(costs.moving_ns(&ExecutionPlan::default()), 0);
}
