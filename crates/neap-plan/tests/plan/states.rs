//! Buffers that survive runs: what is refused of them, and of their homes.

use neap_plan::{
    AfterCompute, BLOCK_BYTES, BufferId, BufferSpec, Compute, ExecutionPlan, Extent, LaneId, Load,
    PanelRange, Place, Return, Space, SpaceId, SpaceKind, State, StepId, StepRange, StepSpec,
    Store, Turn, Violation, WeightsAt, Workload, validate,
};

const BLOCK: u64 = BLOCK_BYTES;
const S: BufferId = BufferId(0);
const STATE: SpaceId = SpaceId(4);

/// Step 0 writes s, step 1 reads it and some weights.
fn workload() -> Workload {
    let spec = |writes: &[BufferId], reads: &[BufferId], weights: &[u64]| StepSpec {
        reads: reads.to_vec(),
        writes: writes.to_vec(),
        extents: weights
            .iter()
            .map(|&block| Extent {
                file_offset: block * BLOCK,
                bytes: BLOCK,
            })
            .collect(),
        workspace_bytes: 64,
        ..StepSpec::default()
    };
    Workload {
        steps: vec![spec(&[S], &[S], &[]), spec(&[], &[S], &[1])],
        buffers: vec![BufferSpec {
            name: "s".into(),
            bytes: BLOCK,
            align: BLOCK,
            live: StepRange::new(0, 2),
            kept: false,
        }],
        states: vec![S],
        ..Workload::default()
    }
}

fn plan() -> ExecutionPlan {
    let mut spaces = Space::of_host(3 * BLOCK, 0, 2 * BLOCK, BLOCK);
    spaces.push(Space {
        name: "state".into(),
        kind: SpaceKind::State,
        bytes: BLOCK,
        align: BLOCK,
    });
    let compute = |step, extents: &[u64], loads| Compute {
        step: StepId(step),
        panels: PanelRange::NONE,
        weights: WeightsAt {
            extents: extents.iter().map(|&at| Place::work(at)).collect(),
            ..WeightsAt::default()
        },
        turn: Turn::of(LaneId::COMPUTE).after(LaneId::LOAD, loads),
    };
    ExecutionPlan {
        spaces,
        buffers: vec![Place::work(0)],
        workspaces: vec![Place::work(2 * BLOCK); 2],
        loads: vec![Load {
            from: Place::packed(BLOCK),
            bytes: BLOCK,
            to: Place::work(BLOCK),
            turn: Turn::default(),
        }],
        computes: vec![compute(0, &[], 0), compute(1, &[BLOCK], 1)],
        states: vec![State {
            buffer: S,
            home: Place::new(STATE, 0),
        }],
        ..ExecutionPlan::default()
    }
}

fn refused(change: impl FnOnce(&mut Workload, &mut ExecutionPlan)) -> Violation {
    let (mut w, mut p) = (workload(), plan());
    change(&mut w, &mut p);
    validate(&w, &p).expect_err("it was accepted")
}

#[test]
fn a_state_has_a_home_of_its_own() {
    assert_eq!(
        validate(&workload(), &plan()).unwrap().high_water_bytes,
        3 * BLOCK
    );
    assert_eq!(plan().state_bytes(&workload()), BLOCK);
    let state = |v: Violation| assert!(matches!(v, Violation::State { .. }), "{v}");
    state(refused(|_, p| p.states.clear()));
    state(refused(|w, _| w.states.clear()));
    state(refused(|_, p| p.states.push(p.states[0])));
    let found = refused(|_, p| p.states[0].home = Place::packed(0));
    assert!(matches!(found, Violation::WrongSpace { .. }), "{found}");
    let found = refused(|_, p| p.states[0].home.offset = BLOCK);
    assert!(matches!(found, Violation::OutsideSpace { .. }), "{found}");
    let found = refused(|_, p| p.states[0].home.offset = 64);
    assert!(matches!(found, Violation::Misaligned { .. }), "{found}");
    // Two states in one home.
    state(refused(|w, p| {
        w.buffers.push(w.buffers[0].clone());
        w.states.push(BufferId(1));
        p.spaces[0].bytes += BLOCK;
        p.buffers.push(Place::work(3 * BLOCK));
        p.states.push(State {
            buffer: BufferId(1),
            ..p.states[0]
        });
    }));
}

#[test]
fn a_state_is_whole_blocks_that_live_always() {
    let workload = |v: Violation| assert!(matches!(v, Violation::Workload(_)), "{v}");
    workload(refused(|w, _| w.buffers[0].bytes -= 1));
    workload(refused(|w, _| w.buffers[0].align = 64));
    workload(refused(|w, _| w.buffers[0].live.end = 1));
    workload(refused(|w, _| w.buffers[0].kept = true));
    workload(refused(|w, _| w.states.push(BufferId(1))));
    workload(refused(|w, _| w.states.push(S)));
}

#[test]
fn nobody_else_is_where_a_state_is_and_it_never_leaves() {
    // A load of the next run, too.
    for turn in [
        Turn::default(),
        AfterCompute {
            run_back: 1,
            computes: 1,
        }
        .load(0),
    ] {
        let found = refused(|_, p| {
            p.loads[0].to = Place::work(0);
            p.loads[0].turn = turn;
            p.computes[1].weights.extents[0] = Place::work(0);
        });
        assert!(matches!(found, Violation::Overlap { .. }), "{found}");
    }
    let found = refused(|_, p| {
        p.stores.push(Store {
            buffer: S,
            from: Place::work(0),
            bytes: BLOCK,
            to: Place::spill(0),
            turn: Turn::of(LaneId::STORE).after(LaneId::COMPUTE, 1),
        });
        p.returns.push(Return {
            buffer: S,
            step: StepId(1),
            load: 0,
        });
    });
    assert!(matches!(found, Violation::State { .. }), "{found}");
}

/// The state comes before step 0, which writes it, and is stored after that.
fn streaming() -> ExecutionPlan {
    let mut plan = plan();
    plan.states[0].home = Place::spill(0);
    plan.spaces[4].bytes = 0;
    plan.loads.insert(
        0,
        Load {
            from: Place::spill(0),
            bytes: BLOCK,
            to: Place::work(0),
            turn: AfterCompute::START.load(0),
        },
    );
    plan.loads[1].turn = AfterCompute::START.load(0);
    for (compute, loads) in plan.computes.iter_mut().zip([1, 2]) {
        compute.turn = Turn::of(LaneId::COMPUTE).after(LaneId::LOAD, loads);
    }
    plan.returns = vec![Return {
        buffer: S,
        step: StepId(0),
        load: 0,
    }];
    plan.stores = vec![Store {
        buffer: S,
        from: Place::work(0),
        bytes: BLOCK,
        to: Place::spill(0),
        turn: Turn::of(LaneId::STORE).after(LaneId::COMPUTE, 1),
    }];
    plan
}

fn refused_streaming(change: impl FnOnce(&mut Workload, &mut ExecutionPlan)) -> Violation {
    let (mut w, mut p) = (workload(), streaming());
    change(&mut w, &mut p);
    validate(&w, &p).expect_err("it was accepted")
}

#[test]
fn a_state_that_streams_is_loaded_before_it_is_used_and_stored_after_it_was_written() {
    let verdict = validate(&workload(), &streaming()).unwrap();
    assert_eq!(
        (verdict.spill_bytes, verdict.stored_bytes_per_run),
        (BLOCK, BLOCK)
    );
    assert_eq!(streaming().state_bytes(&workload()), 0);
    let state = |v: Violation| assert!(matches!(v, Violation::State { .. }), "{v}");
    // Never stored, or before the last write.
    state(refused_streaming(|_, p| p.stores.clear()));
    state(refused_streaming(|w, _| w.steps[1].writes.push(S)));
    let is_return = |v: Violation| assert!(matches!(v, Violation::Return { .. }), "{v}");
    is_return(refused_streaming(|_, p| p.returns[0].step = StepId(1)));
    is_return(refused_streaming(|_, p| {
        p.computes[0].turn = Turn::of(LaneId::COMPUTE)
    }));
    let more = |p: &mut ExecutionPlan| p.spaces[3].bytes = 2 * BLOCK;
    is_return(refused_streaming(|_, p| {
        more(p);
        p.loads[0].from = Place::spill(BLOCK);
    }));
    state(refused_streaming(|_, p| {
        more(p);
        p.stores[0].to = Place::spill(BLOCK);
    }));
    // Without a load it is nowhere.
    state(refused_streaming(|_, p| {
        p.returns.clear();
        p.loads.remove(0);
        p.computes[1].turn = Turn::of(LaneId::COMPUTE).after(LaneId::LOAD, 1);
    }));
    // What the run before stores is there when that is over, and no earlier.
    let back = AfterCompute {
        run_back: 1,
        computes: 1,
    };
    let found = refused_streaming(|_, p| p.loads[0].turn = back.load(0));
    assert!(matches!(found, Violation::Wait { .. }), "{found}");
    // Another buffer is stored in its home.
    state(refused_streaming(|w, p| {
        w.buffers.push(w.buffers[0].clone());
        w.buffers[1].live = StepRange::new(0, 1);
        w.steps[0].writes.push(BufferId(1));
        p.buffers.push(Place::work(2 * BLOCK));
        let other = Store {
            buffer: BufferId(1),
            ..p.stores[0]
        };
        p.stores.push(other);
    }));
}

#[test]
fn a_state_that_is_only_read_is_loaded_again_and_never_stored() {
    let (mut w, mut p) = (workload(), streaming());
    w.steps[0].writes.clear();
    p.stores.clear();
    validate(&w, &p).unwrap();
    // And again for step 1, elsewhere.
    p.spaces[0].bytes = 4 * BLOCK;
    p.loads.push(Load {
        to: Place::work(3 * BLOCK),
        ..p.loads[0]
    });
    p.returns.push(Return {
        buffer: S,
        step: StepId(1),
        load: 2,
    });
    p.computes[1].turn = Turn::of(LaneId::COMPUTE).after(LaneId::LOAD, 3);
    validate(&w, &p).unwrap();
    // Not once it has been written.
    w.steps[0].writes.push(S);
    assert!(validate(&w, &p).is_err());
}
