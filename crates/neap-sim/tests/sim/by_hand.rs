//! Timelines small enough to be checked by hand: storage moves 1 byte per nanosecond, one load at a time.

use neap_plan::{
    AfterCompute, Compute, ExecutionPlan, Extent, LaneId, Load, PanelRange, PanelSpec, Place,
    RowTable, Space, StepId, StepSpec, Turn, WeightsAt, Workload,
};
use neap_sim::{CostProfile, predict, simulate};

const KB: u64 = 4096;

/// A chain of steps, step `i` with `blocks[i]` blocks of weights.
fn chain(blocks: &[u64]) -> Workload {
    let mut at = 0;
    let mut extent = |blocks: u64| {
        let e = Extent {
            file_offset: at,
            bytes: blocks * KB,
        };
        at += blocks * KB;
        e
    };
    let steps = blocks.iter().map(|&b| StepSpec {
        extents: if b > 0 { vec![extent(b)] } else { vec![] },
        ..StepSpec::default()
    });
    Workload {
        steps: steps.collect(),
        ..Workload::default()
    }
}

/// One load per weighted step at the given offset (in blocks) and dependency.
fn plan(w: &Workload, loads: &[(u64, u32, u32)]) -> ExecutionPlan {
    let mut p = ExecutionPlan {
        spaces: Space::of_host(1 << 20, 0, 1 << 20, 0),
        workspaces: vec![Place::work(0); w.steps.len()],
        ..Default::default()
    };
    for (s, step) in w.steps.iter().enumerate() {
        let mut extents = Vec::new();
        for e in &step.extents {
            let (offset, run_back, computes) = loads[p.loads.len()];
            let turn = AfterCompute { run_back, computes }.load(0);
            p.loads.push(Load {
                from: Place::packed(e.file_offset),
                bytes: e.bytes,
                to: Place::work(offset * KB),
                turn,
            });
            extents.push(Place::work(offset * KB));
        }
        let needs = p.loads.len() as u32;
        let weights = WeightsAt {
            extents: extents.into(),
            ..WeightsAt::default()
        };
        p.computes.push(Compute {
            step: StepId(s as u32),
            panels: PanelRange::NONE,
            weights,
            turn: Turn::of(LaneId::COMPUTE).after(LaneId::LOAD, needs),
        });
    }
    p
}

#[test]
fn on_demand_adds_loads_and_computes() {
    let w = chain(&[1, 1, 1]);
    let p = plan(&w, &[(0, 0, 0), (0, 0, 1), (0, 0, 2)]);
    let costs = CostProfile::byte_per_ns(vec![1000, 2000, 3000]);
    let got = predict(&w, &p, &costs);
    assert_eq!(got.latency_ns, 3 * KB + 6000);
    assert_eq!((got.stall_ns, got.compute_ns), (3 * KB, 6000));
}

#[test]
fn double_buffering_hides_the_shorter_lane() {
    // Two places in turn: load i+1 runs while compute i does; across runs too.
    let w = chain(&[1, 1, 1, 1]);
    let p = plan(&w, &[(0, 1, 3), (1, 0, 0), (0, 0, 1), (1, 0, 2)]);
    let fast_loads = predict(&w, &p, &CostProfile::byte_per_ns(vec![10_000; 4]));
    assert_eq!((fast_loads.latency_ns, fast_loads.stall_ns), (40_000, 0));
    let slow_loads = predict(&w, &p, &CostProfile::byte_per_ns(vec![100; 4]));
    // When load 3 ends, load 0 of the next run may already start (compute 2 is long done), and load 1 may
    // 100 ns later: the load lane never rests, and a run takes as long as its loads.
    assert_eq!(slow_loads.latency_ns, 4 * KB);
    assert_eq!(slow_loads.stall_ns, 4 * KB - 400);
}

#[test]
fn the_first_run_waits_and_the_second_finds_its_head_prefetched() {
    let w = chain(&[2, 0]);
    let p = plan(&w, &[(0, 1, 1)]);
    let t = simulate(&w, &p, &CostProfile::byte_per_ns(vec![1000, 9000]), 2);
    // Run 0 loads from 0 to 8192, computes to 9192 and 18192. The load of run 1 starts at 9192.
    assert_eq!(t.runs[0].latency_ns(), 2 * KB + 10_000);
    assert_eq!(t.runs[1].latency_ns(), 10_000);
    let load = t.spans_of(LaneId::LOAD, 1).next().unwrap();
    assert_eq!(
        (load.ready_ns, load.start_ns, load.end_ns),
        (9192, 9192, 9192 + 2 * KB)
    );
    assert_eq!((t.runs[0].stall_ns, t.runs[1].stall_ns), (2 * KB, 0));
}

#[test]
fn rows_are_read_when_the_group_on_its_way_is_complete() {
    // Step 0 reads a block of rows. The load may start when the step that uses it is done.
    let mut w = chain(&[0, 2, 0]);
    w.steps[0].rows = Some(RowTable {
        file_offset: 0,
        bytes: 64 * KB,
        rows_workspace_bytes: KB,
    });
    let mut p = plan(&w, &[(0, 1, 2)]);
    let mut costs = CostProfile::byte_per_ns(vec![10_000, 1000, 1000]);
    costs.request_latency_ns = 1000;
    let rows_ns = 1000 + KB;
    // Each load by itself: latencies overlap, and what else there is to read is not looked at.
    assert_eq!(predict(&w, &p, &costs).latency_ns, 12_000 + rows_ns);
    // It has been on its way for as long as step 2 takes.
    p.group_bytes = 1 << 20;
    let waits_ns = 1000 + 2 * KB - 1000;
    assert_eq!(
        predict(&w, &p, &costs).latency_ns,
        waits_ns + 12_000 + rows_ns
    );
}

#[test]
fn a_group_is_what_may_start_when_the_one_before_is_complete() {
    // Each compute takes 10 000 ns; loads 1 and 2 may start when compute 0 is done, load 3 one later.
    let w = chain(&[1, 1, 1, 1]);
    let mut p = plan(&w, &[(0, 0, 0), (1, 0, 1), (2, 0, 1), (3, 0, 2)]);
    let mut costs = CostProfile::byte_per_ns(vec![10_000; 4]);
    costs.request_latency_ns = 1000;
    let spans = |p: &ExecutionPlan| {
        let t = simulate(&w, p, &costs, 1);
        let loads: Vec<_> = t.spans_of(LaneId::LOAD, 0).cloned().collect();
        loads
            .iter()
            .map(|s| (s.start_ns, s.end_ns))
            .collect::<Vec<_>>()
    };
    p.group_bytes = 1 << 20;
    let first = (0, 1000 + KB);
    let both = (11_000 + KB, 12_000 + 3 * KB);
    // Load 3 may start when compute 1 is done, which waits for the group.
    let last = (both.1 + 10_000, both.1 + 11_000 + KB);
    assert_eq!(spans(&p), [first, both, both, last]);
    // A group of its own for each: the second waits for the first.
    p.group_bytes = 1;
    let second = (both.0, 12_000 + 2 * KB);
    let third = (second.1, second.1 + 1000 + KB);
    let last = (second.1 + 10_000, second.1 + 11_000 + KB);
    assert_eq!(spans(&p), [first, second, third, last]);
    // In one run the next run's loads are not known; in a cycle they join.
    p.loads[0].turn = AfterCompute {
        run_back: 1,
        computes: 2,
    }
    .load(0);
    p.group_bytes = 1 << 20;
    let t = simulate(&w, &p, &costs, 2);
    let ends: Vec<u64> = (0..2)
        .flat_map(|r| {
            t.spans_of(LaneId::LOAD, r)
                .map(|s| s.end_ns)
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(ends[3], ends[4]);
    assert_eq!(t.runs[1].stall_ns + 40_000, t.runs[1].latency_ns());
}

#[test]
fn latency_of_requests_overlaps_up_to_the_queue_depth() {
    let w = chain(&[1, 1, 1, 1]);
    let p = plan(&w, &[(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0)]);
    let mut costs = CostProfile::byte_per_ns(vec![1; 4]);
    costs.request_latency_ns = 50_000;
    let one_by_one = simulate(&w, &p, &costs, 1).runs[0].latency_ns();
    assert_eq!(one_by_one, 4 * (50_000 + KB) + 1);
    costs.queue_depth = 4;
    let together = simulate(&w, &p, &costs, 1).runs[0].latency_ns();
    assert_eq!(together, 50_000 + 4 * KB + 1);
    costs.queue_depth = 2;
    let pairs = simulate(&w, &p, &costs, 1).runs[0].latency_ns();
    // Loads 0 and 1 start at 0; 2 starts when 0 is done (54096), 3 when 1 is (58192): 3 is done at
    // 58192 + 50000 + 4096.
    assert_eq!(pairs, 58_192 + 50_000 + KB + 1);
}

#[test]
fn loads_keep_their_order() {
    // Load 1 could start at once, but load 0 waits for a compute of this run.
    let w = chain(&[0, 1, 1]);
    let p = plan(&w, &[(0, 0, 1), (1, 0, 0)]);
    let t = simulate(&w, &p, &CostProfile::byte_per_ns(vec![5000, 1, 1]), 1);
    let loads: Vec<_> = t
        .spans_of(LaneId::LOAD, 0)
        .map(|s| (s.start_ns, s.end_ns))
        .collect();
    assert_eq!(loads, [(5000, 5000 + KB), (5000 + KB, 5000 + 2 * KB)]);
    assert_eq!(t.runs[0].latency_ns(), 5000 + 2 * KB + 1);
}

#[test]
fn a_plan_that_cannot_progress_is_not_a_hang() {
    let w = chain(&[1]);
    let p = plan(&w, &[(0, 0, 1)]);
    assert_eq!(
        predict(&w, &p, &CostProfile::byte_per_ns(vec![1])).latency_ns,
        u64::MAX
    );
}

#[test]
fn two_thousand_actions_take_less_than_a_millisecond() {
    let w = chain(&[1; 1000]);
    let loads: Vec<_> = (0..1000)
        .map(|i| {
            if i < 2 {
                (i, 1, 998 + i as u32)
            } else {
                (i % 2, 0, i as u32 - 1)
            }
        })
        .collect();
    let p = plan(&w, &loads);
    let costs = CostProfile::byte_per_ns(vec![1000; 1000]);
    let best = (0..20).map(|_| {
        let begin = std::time::Instant::now();
        assert!(predict(&w, &p, &costs).latency_ns < u64::MAX);
        begin.elapsed()
    });
    let limit_us = if cfg!(debug_assertions) {
        20_000
    } else {
        1_000
    };
    assert!(best.min().unwrap().as_micros() < limit_us);
}

#[test]
fn loads_take_from_computing_unless_it_waits_for_them() {
    // Two places in turn, as above: all loads are hidden behind computes.
    let w = chain(&[1, 1, 1, 1]);
    let p = plan(&w, &[(0, 1, 3), (1, 0, 0), (0, 0, 1), (1, 0, 2)]);
    let mut costs = CostProfile::byte_per_ns(vec![10_000; 4]);
    costs.load_handling_ns = 100;
    costs.load_handling_ns_per_byte = 0.25;
    let hidden = predict(&w, &p, &costs);
    let handling = 100 + KB / 4;
    assert_eq!(hidden.latency_ns, 40_000 + 4 * handling);
    assert_eq!((hidden.stall_ns, hidden.compute_ns), (0, 40_000));
    // On demand, each load takes longer than its handling, which is done while waiting for it.
    let p = plan(&w, &[(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3)]);
    let waited = predict(&w, &p, &costs);
    assert_eq!(waited.latency_ns, 4 * (KB + 10_000));
    assert_eq!(waited.stall_ns, 4 * (KB - handling));
    // And then wakes.
    costs.wake_ns = 70;
    let woken = predict(&w, &p, &costs);
    assert_eq!(woken.latency_ns, waited.latency_ns + 4 * 70);
    assert_eq!(woken.stall_ns, waited.stall_ns + 4 * 70);
}

#[test]
fn every_slice_of_a_step_that_is_cut_costs_extra() {
    let mut costs = CostProfile::byte_per_ns(vec![8_000]);
    costs.compute_overhead_ns = 10;
    costs.slice_overhead_ns = 300;
    let mut w = chain(&[0]);
    w.steps[0].panels = Some(PanelSpec {
        file_offset: 0,
        panel_bytes: KB,
        panels: 8,
        granule: 2,
    });
    let slice = |begin, end| costs.slice_ns(&w, StepId(0), PanelRange::new(begin, end), false);
    assert_eq!(slice(0, 8), 8_010);
    assert_eq!(slice(0, 4), 4_310);
    assert_eq!(slice(6, 8), 2_310);
}

/// Chains on which each load may start when the compute two before its own is done.
fn two_ahead(blocks: &[u64]) -> (Workload, ExecutionPlan) {
    let w = chain(blocks);
    let n = blocks.len() as u32;
    let weighted = (0..n).filter(|&s| blocks[s as usize] > 0);
    let loads: Vec<_> = weighted
        .map(|s| match s.checked_sub(1) {
            Some(before) => (u64::from(s), 0, before),
            None => (u64::from(s), 1, n - 1),
        })
        .collect();
    let p = plan(&w, &loads);
    (w, p)
}

#[test]
fn fewer_loads_never_make_a_plan_slower() {
    let blocks = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3];
    let mut costs = CostProfile::byte_per_ns((1..=10).map(|i| 2_000 * (i * 7 % 5)).collect());
    costs.load_handling_ns = 700;
    costs.load_handling_ns_per_byte = 0.3;
    costs.queue_depth = 2;
    for removed in 0u32..1 << blocks.len() {
        let without = |bits: u32| {
            let keep = |(i, &b): (usize, &u64)| if bits >> i & 1 == 1 { 0 } else { b };
            let (w, p) = two_ahead(&blocks.iter().enumerate().map(keep).collect::<Vec<_>>());
            predict(&w, &p, &costs).latency_ns
        };
        let latency_ns = without(removed);
        for more in (0..blocks.len()).filter(|i| removed >> i & 1 == 0) {
            assert!(
                without(removed | 1 << more) <= latency_ns,
                "{removed:b} {more}"
            );
        }
    }
}
