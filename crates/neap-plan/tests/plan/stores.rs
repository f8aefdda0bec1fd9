//! A plan that stores a buffer and loads it back, and every way in which it could be wrong.
//!
//! ```text
//!   block 1   ·          b (written)  b (read)    a (back, read)
//!   block 0   a (written) a (read)    c ──────────────────────────►
//!             compute 0   compute 1   compute 2   compute 3
//!   store                 ├── a ──┤                                  after 1
//!   load                                          ├ a ┤              after 3
//! ```

use neap_plan::{
    AfterCompute, BLOCK_BYTES, BufferId, BufferSpec, Compute, ExecutionPlan, LaneId, Lanes, Load,
    PanelRange, Place, Return, RunTiming, Space, Span, StepId, StepRange, StepSpec, Store,
    Timeline, Turn, Violation, Wait, WeightsAt, Workload, render, validate,
};

const BLOCK: u64 = BLOCK_BYTES;
const A: BufferId = BufferId(0);
const B: BufferId = BufferId(1);
const C: BufferId = BufferId(2);

fn workload() -> Workload {
    let step = |reads: &[BufferId], writes: &[BufferId]| StepSpec {
        reads: reads.to_vec(),
        writes: writes.to_vec(),
        ..StepSpec::default()
    };
    let buffer = |name: &str, bytes, begin, end| BufferSpec {
        name: name.into(),
        bytes,
        align: 64,
        live: StepRange::new(begin, end),
        kept: false,
    };
    Workload {
        digest: "d".into(),
        steps: vec![
            step(&[], &[A]),
            step(&[A], &[B]),
            step(&[B], &[C]),
            step(&[A, C], &[]),
        ],
        buffers: vec![
            buffer("a", BLOCK - 96, 0, 4),
            buffer("b", BLOCK, 1, 3),
            buffer("c", BLOCK, 2, 4),
        ],
        constants_bytes: 0,
        states: vec![],
    }
}

fn plan() -> ExecutionPlan {
    let compute = |step, needs, stores| Compute {
        step: StepId(step),
        panels: PanelRange::NONE,
        weights: WeightsAt::default(),
        turn: Turn::of(LaneId::COMPUTE)
            .after(LaneId::LOAD, needs)
            .after(LaneId::STORE, stores),
    };
    ExecutionPlan {
        strategy: "by hand".into(),
        digest: "d".into(),
        spaces: Space::of_host(2 * BLOCK, 0, 0, 2 * BLOCK),
        lanes: Lanes::default(),
        buffers: vec![0, BLOCK, 0].into_iter().map(Place::work).collect(),
        workspaces: vec![Place::work(0); 4],
        resident: vec![],
        prepared: vec![],
        group_bytes: 0,
        loads: vec![Load {
            from: Place::spill(0),
            bytes: BLOCK,
            to: Place::work(BLOCK),
            turn: after(3).load(1),
        }],
        computes: vec![
            compute(0, 0, 0),
            compute(1, 0, 0),
            compute(2, 0, 1),
            compute(3, 1, 1),
        ],
        stores: vec![Store {
            buffer: A,
            from: Place::work(0),
            bytes: BLOCK,
            to: Place::spill(0),
            turn: stored_after(1),
        }],
        returns: vec![Return {
            buffer: A,
            step: StepId(3),
            load: 0,
        }],
        copies: vec![],
        spills_to_host: false,
        states: vec![],
    }
}

fn after(computes: u32) -> AfterCompute {
    AfterCompute {
        run_back: 0,
        computes,
    }
}

fn stored_after(computes: u32) -> Turn {
    Turn::of(LaneId::STORE).after(LaneId::COMPUTE, computes)
}

fn waits(turn: &mut Turn, lane: LaneId, count: u32) {
    *turn = turn.after(lane, count);
}

/// What `validate` finds when the plan is changed.
fn changed(change: impl FnOnce(&mut ExecutionPlan)) -> Violation {
    let mut p = plan();
    change(&mut p);
    validate(&workload(), &p).expect_err("a wrong plan passed")
}

#[test]
fn the_plan_is_valid_and_needs_less_than_all_at_once() {
    let verdict = validate(&workload(), &plan()).unwrap();
    assert_eq!(verdict.high_water_bytes, 2 * BLOCK);
    assert_eq!(verdict.lower_bound_bytes, 2 * BLOCK);
    assert_eq!(verdict.stored_bytes_per_run, BLOCK);
    assert_eq!(verdict.loaded_bytes_per_run, BLOCK);
    assert_eq!(verdict.spill_bytes, BLOCK);
}

#[test]
fn memory_is_reused_only_when_the_store_is_complete() {
    // Compute 2 writes c where a lay, without waiting.
    let found = changed(|p| waits(&mut p.computes[2].turn, LaneId::STORE, 0));
    assert!(matches!(found, Violation::Overlap { .. }), "{found}");
    // If an earlier compute waits, a later one need not.
    let mut p = plan();
    p.stores[0].turn = stored_after(1);
    waits(&mut p.computes[1].turn, LaneId::STORE, 1);
    waits(&mut p.computes[2].turn, LaneId::STORE, 0);
    assert!(validate(&workload(), &p).is_ok());
}

#[test]
fn what_comes_back_is_what_was_stored_before() {
    // The load does not wait for the store.
    let found = changed(|p| waits(&mut p.loads[0].turn, LaneId::STORE, 0));
    assert!(matches!(found, Violation::Return { .. }), "{found}");
    // It reads another place.
    let found = changed(|p| p.loads[0].from.offset = BLOCK);
    assert!(matches!(found, Violation::Return { .. }), "{found}");
    // The step does not wait for the load.
    let found = changed(|p| waits(&mut p.computes[3].turn, LaneId::LOAD, 0));
    assert!(matches!(found, Violation::Return { .. }), "{found}");
    // Without the return, a lies under c.
    let found = changed(|p| p.returns.clear());
    assert!(matches!(found, Violation::UnusedLoad { .. }), "{found}");
    let found = changed(|p| {
        p.returns.clear();
        p.loads.clear();
        waits(&mut p.computes[3].turn, LaneId::LOAD, 0);
    });
    assert!(matches!(found, Violation::Store { .. }), "{found}");
    // It comes a step later than it is read.
    let mut w = workload();
    w.steps[2].reads.push(A);
    let found = validate(&w, &plan()).expect_err("a is read while it is away");
    assert!(matches!(found, Violation::Overlap { .. }), "{found}");
}

#[test]
fn what_is_written_after_the_store_is_not_lost() {
    let mut w = workload();
    w.steps[1].writes.push(A);
    let found = validate(&w, &plan()).expect_err("compute 1 writes a after its store may start");
    assert!(matches!(found, Violation::Return { .. }), "{found}");
    let mut p = plan();
    p.stores[0].turn = stored_after(2);
    assert!(validate(&w, &p).is_ok());
    // Nobody says which steps use a: each may.
    for step in &mut w.steps {
        step.reads.retain(|&b| b != A);
        step.writes.retain(|&b| b != A);
    }
    assert!(validate(&w, &p).is_err());
}

#[test]
fn stores_are_whole_blocks_from_where_the_buffer_lies() {
    for change in [
        |s: &mut Store| s.from.offset = BLOCK,
        |s: &mut Store| s.bytes = 2 * BLOCK,
        |s: &mut Store| s.bytes = BLOCK - 96,
        |s: &mut Store| s.to.offset = 512,
        |s: &mut Store| s.buffer = BufferId(7),
        |s: &mut Store| s.turn = Turn::of(LaneId::STORE),
        |s: &mut Store| s.turn = stored_after(5),
        |s: &mut Store| s.turn.lane = LaneId::LOAD,
        |s: &mut Store| s.turn.lane = LaneId(3),
    ] {
        let found = changed(|p| change(&mut p.stores[0]));
        assert!(
            matches!(found, Violation::Store { .. } | Violation::Wait { .. }),
            "{found}"
        );
    }
    let found = changed(|p| {
        p.spaces[0].bytes += BLOCK;
        p.buffers[0].offset = 64;
        p.stores[0].from.offset = 64;
    });
    assert!(matches!(found, Violation::Misaligned { .. }), "{found}");
}

#[test]
fn nothing_waits_in_a_circle() {
    // Compute 2 waits for a store that waits for it.
    let found = changed(|p| p.stores[0].turn = stored_after(3));
    assert!(matches!(found, Violation::Deadlock { .. }), "{found}");
    // The load waits for the compute that needs it.
    let found = changed(|p| p.loads[0].turn = after(4).load(1));
    assert!(matches!(found, Violation::Deadlock { .. }), "{found}");
    let found = changed(|p| waits(&mut p.computes[3].turn, LaneId::STORE, 2));
    assert!(matches!(found, Violation::Wait { .. }), "{found}");
    let found = changed(|p| waits(&mut p.loads[0].turn, LaneId::STORE, 2));
    assert!(matches!(found, Violation::Wait { .. }), "{found}");
    let a_run_back = |lane, count| Wait {
        lane,
        count,
        run_back: 1,
    };
    let found = changed(|p| {
        p.loads[0].turn = Turn::of(LaneId::LOAD).wait(a_run_back(LaneId::COMPUTE, 3));
    });
    assert!(matches!(found, Violation::Wait { .. }), "{found}");
    // Waits that the executor would not follow.
    for wait in [
        a_run_back(LaneId::LOAD, 1),
        a_run_back(LaneId::STORE, 0),
        Wait {
            run_back: 0,
            ..a_run_back(LaneId(3), 1)
        },
        Wait {
            run_back: 0,
            ..a_run_back(LaneId::COMPUTE, 1)
        },
    ] {
        let found = changed(|p| p.computes[3].turn = p.computes[3].turn.wait(wait));
        assert!(matches!(found, Violation::Wait { .. }), "{found}");
    }
    let found = changed(|p| {
        let turn = Turn::of(LaneId::STORE).wait(a_run_back(LaneId::COMPUTE, 1));
        p.stores[0].turn = turn;
    });
    assert!(matches!(found, Violation::Wait { .. }), "{found}");
}

#[test]
fn a_load_may_come_where_a_buffer_is_stored_from_if_it_waits_itself() {
    // a comes back to where it was, before any compute has waited for its store.
    let mut p = plan();
    p.spaces[0].bytes = 3 * BLOCK;
    p.buffers[2].offset = 2 * BLOCK;
    p.loads[0].to.offset = 0;
    p.loads[0].turn = after(2).load(1);
    waits(&mut p.computes[2].turn, LaneId::STORE, 0);
    assert!(validate(&workload(), &p).is_ok());
    // While it is still read there, it may not.
    p.loads[0].turn = after(1).load(1);
    let found = validate(&workload(), &p).expect_err("a is read by compute 1");
    assert!(matches!(found, Violation::Overlap { .. }), "{found}");
}

#[test]
fn the_spill_file_holds_what_is_still_to_be_read() {
    // b goes and comes too, to the same place of the file while a is there.
    let mut w = workload();
    w.steps[3].reads.push(B);
    w.buffers[1].live.end = 4;
    let mut p = plan();
    p.spaces[0].bytes = 4 * BLOCK;
    p.buffers[2].offset = 2 * BLOCK;
    p.stores.push(Store {
        buffer: B,
        from: Place::work(BLOCK),
        bytes: BLOCK,
        to: Place::spill(BLOCK),
        turn: stored_after(2),
    });
    p.loads[0].to.offset = 0;
    p.loads.push(Load {
        from: Place::spill(BLOCK),
        to: Place::work(3 * BLOCK),
        turn: p.loads[0].turn.after(LaneId::STORE, 2),
        ..p.loads[0]
    });
    p.returns.push(Return {
        buffer: B,
        step: StepId(3),
        load: 1,
    });
    waits(&mut p.computes[3].turn, LaneId::LOAD, 2);
    assert_eq!(validate(&w, &p).unwrap().spill_bytes, 2 * BLOCK);
    p.stores[1].to.offset = 0;
    p.loads[1].from.offset = 0;
    let found = validate(&w, &p).expect_err("b lies over a");
    assert!(matches!(found, Violation::Overlap { .. }), "{found}");
    // One load is one buffer's.
    p.returns[1].load = 0;
    let found = validate(&w, &p).expect_err("one load cannot bring two buffers");
    assert!(matches!(found, Violation::Return { .. }), "{found}");
}

#[test]
fn a_kept_buffer_may_end_the_run_in_the_spill_file() {
    let mut w = workload();
    w.buffers[1].kept = true;
    w.buffers[1].live.end = 4;
    // b stays where a comes back to.
    assert!(matches!(
        validate(&w, &plan()),
        Err(Violation::Overlap { .. })
    ));
    let mut p = plan();
    p.stores.push(Store {
        buffer: B,
        from: Place::work(BLOCK),
        bytes: BLOCK,
        to: Place::spill(BLOCK),
        turn: stored_after(2),
    });
    waits(&mut p.loads[0].turn, LaneId::STORE, 2);
    assert_eq!(validate(&w, &p).unwrap().stored_bytes_per_run, 2 * BLOCK);
    // Not if it is written again later.
    w.steps[2].writes.push(B);
    assert!(validate(&w, &p).is_err());
    // An output must be in memory.
    let mut w = workload();
    w.buffers[1].live.end = 4;
    assert!(validate(&w, &p).is_err());
}

#[test]
fn plans_are_read_as_they_are_written() {
    let text = serde_json::to_string(&(workload(), plan())).unwrap();
    let back: (Workload, ExecutionPlan) = serde_json::from_str(&text).unwrap();
    assert_eq!(back, (workload(), plan()));
    let text = r#"{"from":{"space":2,"offset":0},"bytes":4096,"to":{"space":0,"offset":0},"turn":{"lane":0,"waits":[{"lane":1,"count":2,"run_back":1}]}}"#;
    let load: Load = serde_json::from_str(text).unwrap();
    assert_eq!((load.from, load.after().computes), (Place::packed(0), 2));
    assert_eq!(serde_json::to_string(&load).unwrap(), text);
}

#[test]
fn pictures_show_the_store_lane_and_both_places() {
    let span = |lane, action, start_ns, end_ns| Span {
        lane,
        run: 0,
        action,
        ready_ns: start_ns,
        start_ns,
        end_ns,
    };
    let mut spans: Vec<_> = (0..4)
        .map(|i| {
            span(
                LaneId::COMPUTE,
                i,
                u64::from(i) * 100,
                u64::from(i) * 100 + 100,
            )
        })
        .collect();
    spans.push(span(LaneId::STORE, 0, 100, 200));
    spans.push(span(LaneId::LOAD, 0, 300, 300));
    let timeline = Timeline {
        spans,
        runs: vec![RunTiming {
            start_ns: 0,
            end_ns: 400,
            stall_ns: 0,
        }],
    };
    let (w, p) = (workload(), plan());
    let text = render::text(&w, &p, Some(&timeline));
    assert!(text.contains("4.0 KiB per run to the spill file in 1 stores, back in 1 loads"));
    let lane = text.lines().find(|l| l.trim_start().starts_with("store │"));
    let lane: String = lane.unwrap().chars().filter(|c| *c == '█').collect();
    assert_eq!(lane.chars().count(), 24);
    // Row of block 1: free, b, b, a again.
    let row = text
        .lines()
        .find(|l| l.trim_start().starts_with("4.0 KiB │"));
    assert_eq!(
        row.unwrap().chars().rev().take(4).collect::<String>(),
        "███·"
    );
    let page = render::html("t", &w, &p, &validate(&w, &p).unwrap(), &timeline, None);
    assert!(page.contains("\"store_busy\":[[100,200]]"));
    assert!(page.contains("\"stored\":4096"));
}
