//! Swap plans of workloads as plans of the engine, which its validator accepts.

use neap_plan::{
    BLOCK_BYTES, BufferId, BufferSpec, SpaceKind, StepRange, StepSpec, Workload, check_workload,
    validate,
};
use neap_sim::{CostProfile, predict};
use swap_search::{
    Classes, Device, Memory, OpId, Pools, Random, Rules, SwapPlanner, SwapTask, execution,
    of_workload, random_order,
};

const DEVICE: Device = Device {
    one_way_bytes_per_second: 1e9,
    both_ways_bytes_per_second: 1e9,
    transfer_latency_ns: 1_000,
};

/// Steps that read results and states, make results, some of them in place, and update states; and its outputs.
fn random_workload(seed: u64, steps: u32) -> (Workload, Vec<BufferId>) {
    let mut r = Random::new(seed, u32::MAX, 1);
    let mut w = Workload {
        digest: "w".into(),
        ..Workload::default()
    };
    let states = 1 + r.below(6) as u32;
    for _ in 0..states {
        let blocks = 1 + r.below(4) as u64;
        add(&mut w, blocks * BLOCK_BYTES, BLOCK_BYTES);
    }
    w.states = (0..states).map(BufferId).collect();
    let mut made: Vec<BufferId> = Vec::new();
    for i in 0..steps {
        let mut step = StepSpec {
            name: format!("step{i}"),
            flops: 1_000 * (1 + r.below(900) as u64),
            workspace_bytes: [0, 0, 100, 9_000][r.below(4)],
            ..StepSpec::default()
        };
        for _ in 0..r.below(3) {
            if !made.is_empty() {
                step.reads.push(made[r.below(made.len())]);
            }
        }
        let state = BufferId(r.below(states as usize) as u32);
        step.reads.push(state);
        if i > 0 && r.chance(0.2) {
            step.writes.push(state);
        } else if r.chance(0.2) && !made.is_empty() {
            let overwritten = made[r.below(made.len())];
            step.reads.push(overwritten);
            step.writes.push(overwritten);
        } else {
            let bytes = [10, 4_096, 5_000, 20_000][r.below(4)];
            let result = add(&mut w, bytes, 64);
            step.writes.push(result);
            made.push(result);
        }
        step.reads.sort_unstable();
        step.reads.dedup();
        w.steps.push(step);
    }
    // Some of all results, and one that no step makes.
    let idle = add(&mut w, 300, 64);
    let outputs = [made[0], made[made.len() / 2], idle].to_vec();
    live(&mut w, &outputs);
    (w, outputs)
}

fn add(w: &mut Workload, bytes: u64, align: u64) -> BufferId {
    w.buffers.push(BufferSpec {
        name: format!("b{}", w.buffers.len()),
        bytes,
        align,
        live: StepRange::new(0, 0),
        kept: false,
    });
    BufferId(w.buffers.len() as u32 - 1)
}

/// Sets lives by who uses what.
fn live(w: &mut Workload, outputs: &[BufferId]) {
    let end = w.steps.len() as u32;
    let mut lives = vec![(end, 0); w.buffers.len()];
    for (at, step) in (0..).zip(&w.steps) {
        for b in step.reads.iter().chain(&step.writes) {
            let (first, last) = lives[b.index()];
            lives[b.index()] = (first.min(at), last.max(at + 1));
        }
    }
    for (id, buffer) in (0..).map(BufferId).zip(&mut w.buffers) {
        let (mut first, mut last) = lives[id.index()];
        if outputs.contains(&id) {
            (first, last) = (first.min(end - 1), end);
        }
        if w.states.contains(&id) {
            (first, last) = (0, end);
        }
        buffer.live = StepRange::new(first.min(last), last);
    }
}

fn in_order(w: &Workload, order: &[OpId], outputs: &[BufferId]) -> Workload {
    let mut other = w.clone();
    let steps = order.iter().map(|op| w.steps[op.index()].clone());
    other.steps = steps.collect();
    live(&mut other, outputs);
    other
}

#[test]
fn every_schedule_and_pool_is_a_valid_plan() {
    let costs = CostProfile::default();
    let mut planner = SwapPlanner::default();
    let (mut stored, mut streams, mut stays, mut moved) = (0, 0, 0, 0);
    for seed in 0..120 {
        let (w, outputs) = random_workload(seed, 5 + seed as u32 % 40);
        check_workload(&w).unwrap();
        let steps = of_workload(&w, &outputs, &costs).unwrap();
        let flow = &steps.flow;
        let mut r = Random::new(seed, 3, 1);
        let least = Pools::new(flow, 0, Classes::Monotonic).smallest_bytes();
        for factor in [1.0, 1.2, 1.6, 3.0, 20.0] {
            let order = random_order(flow, &mut r);
            let capacity = (least as f64 * factor) as u64;
            let pools = Pools::new(flow, capacity, Classes::Monotonic);
            let memory = Memory::pools(flow, &pools.random(&mut r).unwrap());
            let swaps = planner.plan(&SwapTask {
                flow,
                order: &order,
                memory: &memory,
                device: &DEVICE,
                rules: &Rules::default(),
            });
            let swaps = swaps.expect("the smallest pools let every operator run");
            let ordered = in_order(&w, &order, &outputs);
            check_workload(&ordered).unwrap();
            let limit = capacity + steps.apart_bytes();
            let plan = execution(&ordered, &steps, swaps, limit).expect("no weights are packed");
            let verdict = validate(&ordered, &plan)
                .unwrap_or_else(|violation| panic!("seed {seed}, {factor}: {violation}"));
            assert!(verdict.high_water_bytes <= limit);
            assert!(predict(&ordered, &plan, &costs).latency_ns > 0);
            stored += plan.stored_bytes_per_run();
            let of_kind = |kind| {
                let kinds = plan
                    .states
                    .iter()
                    .filter(|s| plan.kind(s.home.space) == Some(kind));
                kinds.count()
            };
            streams += of_kind(SpaceKind::Spill);
            stays += of_kind(SpaceKind::State);
            moved += usize::from(!order.is_sorted());
        }
    }
    assert!(
        stored > 0 && streams > 100 && stays > 100,
        "{streams} {stays}"
    );
    assert!(moved > 300, "{moved} orders were others");
}

#[test]
fn weights_from_a_file_are_not_planned() {
    let (mut w, outputs) = random_workload(1, 9);
    let costs = CostProfile::default();
    let steps = of_workload(&w, &outputs, &costs).unwrap();
    let memory = Memory::bytes(&steps.flow, u64::MAX >> 8, 1);
    let mut planner = SwapPlanner::default();
    let order = steps.flow.given_order();
    let swaps = planner.plan(&SwapTask {
        flow: &steps.flow,
        order: &order,
        memory: &memory,
        device: &DEVICE,
        rules: &Rules::default(),
    });
    w.steps[3].extents = vec![neap_plan::Extent {
        file_offset: 0,
        bytes: 10,
    }];
    assert!(execution(&w, &steps, swaps.unwrap(), 1 << 40).is_none());
}
