//! Two lanes of computes and two links by hand, as a machine with a second device would have them.
//!
//! ```text
//!   bus      ├── l0 ─┤
//!   drive        ├────── l1 ──────┤
//!   cpu      │ c0│                │── c2 ──│
//!   gpu              │─── c1 ────│         │ c3 │
//!            0   1000 2048     5048 5096  7096 7596
//! ```

use neap_plan::{
    Compute, ExecutionPlan, Lane, LaneId, LaneKind, Lanes, LinkId, Load, PanelRange, Place, Space,
    StepId, StepSpec, Turn, WeightsAt, Workload,
};
use neap_sim::{CostProfile, simulate_lanes};

const DRIVE: LaneId = LaneId(0);
const CPU: LaneId = LaneId(1);
const BUS: LaneId = LaneId(2);
const GPU: LaneId = LaneId(3);

fn lanes(bus: LinkId) -> Lanes {
    let lane = |name: &'static str, kind, link| Lane {
        name: name.into(),
        kind,
        link,
    };
    Lanes::from(vec![
        lane("drive", LaneKind::Load, LinkId(0)),
        lane("cpu", LaneKind::Compute, LinkId(0)),
        lane("bus", LaneKind::Load, bus),
        lane("gpu", LaneKind::Compute, LinkId(0)),
    ])
}

/// The picture's plan; l1 waits for c0, or for nothing.
fn plan(bus: LinkId, l1: Turn) -> (Workload, ExecutionPlan) {
    let load = |turn| Load {
        from: Place::packed(0),
        bytes: 4096,
        to: Place::work(0),
        turn,
    };
    let turns = [
        Turn::of(CPU),
        Turn::of(GPU).after(BUS, 1),
        Turn::of(CPU).after(DRIVE, 1),
        Turn::of(GPU).after(CPU, 2),
    ];
    let computes = (0..).zip(turns).map(|(step, turn)| Compute {
        step: StepId(step),
        panels: PanelRange::NONE,
        weights: WeightsAt::default(),
        turn,
    });
    let plan = ExecutionPlan {
        spaces: Space::of_host(4096, 0, 4096, 0),
        lanes: lanes(bus),
        loads: vec![load(Turn::of(BUS)), load(l1)],
        computes: computes.collect(),
        ..ExecutionPlan::default()
    };
    let workload = Workload {
        steps: vec![StepSpec::default(); 4],
        ..Workload::default()
    };
    (workload, plan)
}

/// The drive moves a byte in a nanosecond, the bus two.
fn costs() -> [CostProfile; 2] {
    let drive = CostProfile::byte_per_ns(vec![1000, 3000, 2000, 500]);
    let bus = CostProfile {
        storage_bytes_per_second: 2e9,
        ..drive.clone()
    };
    [drive, bus]
}

fn times(workload: &Workload, plan: &ExecutionPlan, lane: LaneId, run: u32) -> Vec<[u64; 2]> {
    let [drive, bus] = costs();
    let timeline = simulate_lanes(workload, plan, &[&drive, &drive, &bus, &drive], 3);
    let begun = timeline.runs[run as usize].start_ns;
    let spans = timeline.spans_of(lane, run);
    spans
        .map(|s| [s.start_ns, s.end_ns].map(|ns| ns - begun))
        .collect()
}

#[test]
fn lanes_of_computes_and_links_go_on_beside_each_other() {
    let (w, p) = plan(LinkId(1), Turn::of(DRIVE).after(CPU, 1));
    let [drive, bus] = costs();
    let timeline = simulate_lanes(&w, &p, &[&drive, &drive, &bus, &drive], 3);
    for run in 0..3 {
        assert_eq!(times(&w, &p, BUS, run), [[0, 2048]]);
        assert_eq!(times(&w, &p, DRIVE, run), [[1000, 5096]]);
        assert_eq!(times(&w, &p, CPU, run), [[0, 1000], [5096, 7096]]);
        assert_eq!(times(&w, &p, GPU, run), [[2048, 5048], [7096, 7596]]);
        let of_run = timeline.runs[run as usize];
        assert_eq!(of_run.latency_ns(), 7596);
        // The processor waits for l1, and for the end; the other one for l0 and for c2.
        assert_eq!(of_run.stall_ns, 4096 + 500 + 2048 + 2048);
    }
}

#[test]
fn lanes_share_a_link() {
    // Half of the link each until l0 is there, at half the bus's 2 bytes in a nanosecond.
    let (w, p) = plan(LinkId(0), Turn::of(DRIVE));
    assert_eq!(times(&w, &p, BUS, 0), [[0, 4096]]);
    assert_eq!(times(&w, &p, DRIVE, 0), [[0, 4096 + 2048]]);
    // On links of their own neither slows the other down.
    let (w, p) = plan(LinkId(1), Turn::of(DRIVE));
    assert_eq!(times(&w, &p, BUS, 0), [[0, 2048]]);
    assert_eq!(times(&w, &p, DRIVE, 0), [[0, 4096]]);
}

#[test]
fn a_lane_of_loads_may_prefetch_for_the_next_run() {
    // When the other device has begun its last compute's wait, the bus brings l0 for the next run.
    let (w, mut p) = plan(LinkId(1), Turn::of(DRIVE).after(CPU, 1));
    p.loads[0].turn = Turn::of(BUS).wait(neap_plan::Wait {
        lane: GPU,
        count: 1,
        run_back: 1,
    });
    // c1 begins with its run, and is done before c2 needs it: what is left is c0, l1, c2 and c3.
    let gpu = times(&w, &p, GPU, 1);
    assert_eq!(gpu, [[0, 3000], [7096, 7596]]);
}
