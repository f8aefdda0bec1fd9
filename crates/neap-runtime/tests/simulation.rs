//! The simulator says what the executor does: the real executor under virtual time, on a device as the cost
//! profile describes it, has the simulator's timeline to the nanosecond.
//!
//! What the executor's thread sees of a load is when it handed it over and when it looked next:
//!
//! ```text
//!   simulated   ready ├─ queue ─┤ start ├──────────┤ end
//!   executor          ├──────────────────────────────────┤ the next compute's begin, or at once in a stall
//! ```

mod support;

use neap_plan::{ExecutionPlan, Lane, Span, Timeline};
use neap_planner::{PlanOptions, Planner, Strategy as Planning};
use neap_runtime::{Clock, Session, Storage};
use neap_sim::{CostProfile, simulate};
use neap_store::{FaultScript, MemoryModel, MemorySource, VirtualClock};
use proptest::prelude::*;
use std::time::Duration;
use support::{Model, Random, image_model, options, random_model, within};

const LIMIT: Duration = Duration::from_secs(120);
const RUNS: u32 = 4;

/// Virtual time in which each compute takes what the cost profile says.
struct CostClock {
    time: VirtualClock,
    compute_ns: Vec<u64>,
}

impl Clock for CostClock {
    fn now_ns(&self) -> u64 {
        self.time.now_ns()
    }

    fn computed(&mut self, compute: usize) {
        self.time.advance_ns(self.compute_ns[compute]);
    }
}

/// The device of a profile; its rate gives whole nanoseconds per byte.
fn device(costs: &CostProfile) -> MemoryModel {
    MemoryModel {
        bytes_per_second: costs.storage_bytes_per_second as u64,
        latency_ns: costs.request_latency_ns,
        depth: costs.queue_depth as usize,
        piece_bytes: 1 << 30,
        max_loads: 4096,
    }
}

fn executed(model: &Model, plan: &ExecutionPlan, costs: &CostProfile, threads: usize) -> Timeline {
    let time = VirtualClock::new();
    let source = MemorySource::new(
        model.file.clone(),
        device(costs),
        time.clone(),
        FaultScript::default(),
    );
    let computes = plan.computes.iter();
    let compute_ns = computes.map(|c| costs.compute_ns(&model.workload, c));
    let clock = CostClock {
        time,
        compute_ns: compute_ns.collect(),
    };
    let mut session = Session::open_with_clock(
        model.program.clone(),
        plan.clone(),
        &model.workload,
        Storage {
            source: Box::new(source.unwrap()),
            verifier: model.verifier(),
            spill: None,
        },
        options(threads),
        clock,
    )
    .unwrap();
    session.record_timeline(RUNS as usize);
    for _ in 0..RUNS {
        model.run(&mut session).unwrap();
    }
    let mut timeline = session.take_timeline().unwrap();
    // Reading what is resident took time before.
    let opened_ns = timeline.runs[0].start_ns;
    for span in &mut timeline.spans {
        span.ready_ns -= opened_ns;
        span.start_ns -= opened_ns;
        span.end_ns -= opened_ns;
    }
    for run in &mut timeline.runs {
        run.start_ns -= opened_ns;
        run.end_ns -= opened_ns;
    }
    timeline
}

/// What of a simulation the executor's thread sees in its first [`RUNS`] runs.
fn seen(simulated: &Timeline) -> Timeline {
    let of = |lane| {
        simulated
            .spans
            .iter()
            .filter(move |s: &&Span| s.lane == lane)
    };
    let computes: Vec<Span> = of(Lane::Compute)
        .filter(|s| s.run < RUNS)
        .copied()
        .collect();
    let mut handed_over_ns = 0;
    let loads = of(Lane::Load).filter_map(|load| {
        handed_over_ns = load.ready_ns.max(handed_over_ns);
        // Those are under way since the session was opened, before anything was recorded.
        if handed_over_ns == 0 {
            return None;
        }
        // The first look at or after its end: before a compute, or at any time while one waits.
        let next = computes.partition_point(|c| c.start_ns < load.end_ns);
        let looked_ns = computes.get(next)?.ready_ns.max(load.end_ns);
        Some(Span {
            ready_ns: handed_over_ns,
            start_ns: handed_over_ns,
            end_ns: looked_ns,
            ..*load
        })
    });
    let loads: Vec<Span> = loads.collect();
    Timeline {
        spans: computes.into_iter().chain(loads).collect(),
        runs: simulated.runs[..RUNS as usize].to_vec(),
    }
}

fn in_order(mut timeline: Timeline) -> Timeline {
    timeline
        .spans
        .sort_by_key(|s| (s.lane == Lane::Load, s.run, s.action));
    timeline
}

fn same_events(model: &Model, plan: &ExecutionPlan, costs: &CostProfile, threads: usize) -> usize {
    // One run more: its first loads may arrive in the last that is compared.
    let simulated = simulate(&model.workload, plan, costs, RUNS + 1);
    let (expected, found) = (
        in_order(seen(&simulated)),
        in_order(executed(model, plan, costs, threads)),
    );
    assert_eq!(found.runs, expected.runs);
    assert_eq!(found.spans.len(), expected.spans.len());
    for (found, expected) in found.spans.iter().zip(&expected.spans) {
        assert_eq!(found, expected);
    }
    plan.loads.len()
}

/// Plans of two lanes.
fn planner(model: &Model) -> Planner<'_> {
    let options = PlanOptions {
        spill: false,
        ..PlanOptions::default()
    };
    Planner::with_options(&model.workload, options)
}

/// Random times of steps, and a device of a random speed.
fn random_costs(random: &mut Random, model: &Model) -> CostProfile {
    let ns_per_byte = [1, 2, 4, 5, 10][random.below(5)];
    let steps = model.workload.steps.iter();
    let scale = 1 + random.below(200_000);
    CostProfile {
        storage_bytes_per_second: 1e9 / f64::from(ns_per_byte),
        request_latency_ns: random.below(200_000) as u64,
        queue_depth: 1 + random.below(9) as u32,
        compute_overhead_ns: random.below(20_000) as u64,
        slice_overhead_ns: random.below(20_000) as u64,
        load_handling_ns: 0,
        load_handling_ns_per_byte: 0.0,
        step_ns: steps.map(|_| 1 + random.below(scale) as u64).collect(),
        ..CostProfile::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_executor_does_what_the_simulator_says(
        seed in any::<u64>(),
        layers in 1usize..16,
        share in (0u64..=1000).prop_map(|s| s as f64 / 1000.0),
        threads in 1usize..=2,
        preload in any::<bool>(),
    ) {
        within(LIMIT, move || {
            let mut random = Random(seed | 1);
            let model = random_model(seed, layers, 3);
            let costs = random_costs(&mut random, &model);
            let planner = planner(&model);
            let strategy = if preload { Planning::Preload } else { Planning::OnDemand };
            let (least, most) = (planner.smallest_bytes_of(strategy), model.unlimited_bytes());
            let budget = least + ((most - least) as f64 * share * share) as u64;
            let planned = planner.plan(budget, strategy, &costs).unwrap();
            same_events(&model, &planned.plan, &costs, threads);
        });
    }
}

#[test]
fn images_under_every_budget() {
    within(LIMIT, || {
        let model = image_model(11);
        let mut random = Random(12);
        let planner = planner(&model);
        let mut loads = 0;
        for eighth in 0..=8 {
            for strategy in [Planning::Preload, Planning::OnDemand] {
                let (least, most) = (planner.smallest_bytes_of(strategy), model.unlimited_bytes());
                let budget = least + (most - least) * eighth / 8;
                let costs = random_costs(&mut random, &model);
                let planned = planner.plan(budget, strategy, &costs).unwrap();
                loads += same_events(&model, &planned.plan, &costs, 2);
            }
        }
        assert!(loads > 50, "{loads} loads: too few to say anything");
    });
}
