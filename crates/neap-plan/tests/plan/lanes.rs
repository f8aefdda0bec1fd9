//! Waits among any number of lanes: which are refused, and why.

use neap_plan::{
    Compute, ExecutionPlan, Extent, Lane, LaneId, LaneKind, Lanes, LinkId, Load, PanelRange, Place,
    Space, StepId, StepSpec, Turn, Violation, Wait, WeightsAt, Workload, validate,
};

const BLOCK: u64 = neap_plan::BLOCK_BYTES;
const COMPUTE: LaneId = LaneId(0);
/// Lanes of loads from here on.
const FIRST: u8 = 1;

fn workload(steps: u64) -> Workload {
    let step = |i| StepSpec {
        extents: vec![Extent {
            file_offset: i * BLOCK,
            bytes: BLOCK,
        }],
        ..StepSpec::default()
    };
    Workload {
        steps: (0..steps).map(step).collect(),
        ..Workload::default()
    }
}

/// One load for each step, in a lane of its own; every compute waits for its own and for what `more` says.
fn plan(steps: u64, more: impl Fn(u8, Turn) -> Turn) -> ExecutionPlan {
    let lane = |name: String, kind| Lane {
        name: name.into(),
        kind,
        link: LinkId(0),
    };
    let mut lanes = vec![lane("compute".into(), LaneKind::Compute)];
    lanes.extend((0..steps).map(|i| lane(format!("link {i}"), LaneKind::Load)));
    let at = |i: u64| Place::work(i * BLOCK);
    ExecutionPlan {
        spaces: Space::of_host(steps * BLOCK, 0, steps * BLOCK, 0),
        lanes: Lanes::from(lanes),
        workspaces: vec![Place::work(0); steps as usize],
        loads: (0..steps)
            .map(|i| Load {
                from: Place::packed(i * BLOCK),
                bytes: BLOCK,
                to: at(i),
                turn: more(i as u8, Turn::of(LaneId(FIRST + i as u8))),
            })
            .collect(),
        computes: (0..steps)
            .map(|i| Compute {
                step: StepId(i as u32),
                panels: PanelRange::NONE,
                weights: WeightsAt {
                    extents: [at(i)].into(),
                    ..WeightsAt::default()
                },
                turn: Turn::of(COMPUTE).after(LaneId(FIRST + i as u8), 1),
            })
            .collect(),
        ..ExecutionPlan::default()
    }
}

/// A plan is counted in the budget.
#[test]
fn actions_are_small() {
    assert!(size_of::<Load>() <= 56, "{}", size_of::<Load>());
    assert!(size_of::<Compute>() <= 96, "{}", size_of::<Compute>());
}

#[test]
fn a_plan_may_have_many_lanes_of_loads() {
    for lanes in [1, 2, 5, 60] {
        let verdict = validate(&workload(lanes), &plan(lanes, |_, turn| turn)).unwrap();
        assert_eq!(verdict.loaded_bytes_per_run, lanes * BLOCK);
    }
    // Each may wait for the lane before it …
    let chain = |i: u8, turn: Turn| match i {
        0 => turn,
        _ => turn.after(LaneId(FIRST + i - 1), 1),
    };
    validate(&workload(9), &plan(9, chain)).unwrap();
    // … and a weight is there only for who waits for the lane that brings it.
    let mut p = plan(2, |_, turn| turn);
    p.computes[1].turn = Turn::of(COMPUTE).after(LaneId(FIRST), 1);
    let found = validate(&workload(2), &p).unwrap_err();
    assert!(
        matches!(found, Violation::WeightMissing { compute: 1, .. }),
        "{found}"
    );
}

#[test]
fn a_circle_of_any_number_of_lanes_is_found() {
    for lanes in [2u8, 3, 7] {
        let around = |i: u8, turn: Turn| turn.after(LaneId(FIRST + (i + 1) % lanes), 1);
        let found = validate(&workload(lanes.into()), &plan(lanes.into(), around)).unwrap_err();
        let Violation::Deadlock { action, other } = &found else {
            panic!("{found}");
        };
        assert_ne!(action, other);
    }
    // Through the computes: the second load comes after the compute that waits for it.
    let late = |i: u8, turn: Turn| turn.after(COMPUTE, 2 * u32::from(i));
    let found = validate(&workload(2), &plan(2, late)).unwrap_err();
    assert!(matches!(found, Violation::Deadlock { .. }), "{found}");
    let in_time = |i: u8, turn: Turn| turn.after(COMPUTE, u32::from(i));
    validate(&workload(2), &plan(2, in_time)).unwrap();
}

#[test]
fn the_run_before_can_be_waited_for_without_a_circle() {
    let back = |lane, count| Wait {
        lane,
        count,
        run_back: 1,
    };
    // Each lane waits for the other's load of the run before.
    let other = |i: u8, turn: Turn| turn.wait(back(LaneId(FIRST + 1 - i), 1));
    let mut p = plan(2, other);
    let found = validate(&workload(2), &p).unwrap_err();
    // They may come while the weights of the run before are still used, unless they wait for that, too.
    assert!(matches!(found, Violation::Overlap { .. }), "{found}");
    p.loads[0].turn = p.loads[0].turn.wait(back(COMPUTE, 1));
    p.loads[1].turn = p.loads[1].turn.after(COMPUTE, 0).after(COMPUTE, 1);
    validate(&workload(2), &p).unwrap();
    // All computes of the run before: that is to wait for the run itself.
    p.loads[0].turn = p.loads[0].turn.wait(back(COMPUTE, 2));
    let found = validate(&workload(2), &p).unwrap_err();
    assert!(matches!(found, Violation::Wait { .. }), "{found}");
}

#[test]
fn memory_is_proved_for_one_lane_of_computes() {
    let mut p = plan(2, |_, turn| turn);
    let lanes = p.lanes.iter().map(|(_, lane)| lane.clone());
    let second = Lane {
        name: "second".into(),
        ..lanes.clone().next().unwrap()
    };
    p.lanes = Lanes::from(lanes.chain([second]).collect::<Vec<_>>());
    p.computes[1].turn.lane = LaneId(3);
    let found = validate(&workload(2), &p).unwrap_err();
    assert!(matches!(found, Violation::Lanes(_)), "{found}");
}

#[test]
fn actions_are_in_lanes_of_their_kind() {
    let mut p = plan(2, |_, turn| turn);
    p.loads[0].turn.lane = COMPUTE;
    let found = validate(&workload(2), &p).unwrap_err();
    assert!(matches!(found, Violation::Wait { .. }), "{found}");
    let mut p = plan(2, |_, turn| turn);
    p.lanes = Lanes::default();
    assert!(validate(&workload(2), &p).is_err());
}
