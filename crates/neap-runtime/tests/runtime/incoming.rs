//! Resident weights come beside the first run of a plan: no compute before its own, the same bits whatever storage
//! does meanwhile, and a plan may be replaced at any moment.

use crate::support::{Builder, Model, Random, ReplacePlan, image_model, mixed_model, within};
use neap_ir::op::Activation;
use neap_plan::{ExecutionPlan, LaneId};
use neap_planner::Strategy;
use neap_runtime::RuntimeError;
use neap_store::{Fault, FaultScript, MemoryModel, RandomFaults};
use proptest::prelude::*;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const COMPUTE_NS: u64 = 20_000;

/// One byte in a nanosecond.
fn device() -> MemoryModel {
    MemoryModel {
        bytes_per_second: 1_000_000_000,
        latency_ns: 10_000,
        depth: 4,
        piece_bytes: 128 << 10,
        max_loads: 64,
    }
}

/// Layers of 1 MiB each, so that each comes in pieces of its own.
fn wide_model(layers: usize) -> Model {
    let mut b = Builder::new(31);
    let mut x = b.input("x", &[2, 512]);
    for _ in 0..layers {
        x = b.linear(x, 512, Activation::Tanh, None);
    }
    b.output(x);
    b.finish()
}

fn resident(model: &Model) -> ExecutionPlan {
    let plan = model.plan(u64::MAX, Strategy::Resident);
    assert!(plan.loads.is_empty() && !plan.resident.is_empty());
    plan
}

#[test]
fn the_first_run_begins_when_its_first_weights_are_there() {
    let model = wide_model(8);
    let expected = model.expected();
    let plan = resident(&model);
    for group_bytes in [0, 1, 1 << 20, 4 << 20] {
        let plan = ExecutionPlan {
            group_bytes,
            ..plan.clone()
        };
        let mut session = model
            .open(&plan, 1, device(), FaultScript::default())
            .unwrap();
        assert_eq!(session.held_bytes(), 0);
        session.record_timeline(2);
        for _ in 0..2 {
            assert_eq!(model.run(&mut session).unwrap(), expected);
        }
        let reading_ns = session.stats().resident_bytes;
        assert_eq!(session.held_bytes(), reading_ns);
        let timeline = session.take_timeline().unwrap();
        let [first, second] = timeline.runs[..] else {
            panic!("two runs")
        };
        // It takes as long as reading does; of computing, the last step is not hidden.
        let computes = plan.computes.len() as u64;
        assert_eq!(second.latency_ns(), computes * COMPUTE_NS);
        assert!(first.latency_ns() >= reading_ns + COMPUTE_NS);
        let latencies = 10_000 * (2 + reading_ns / (128 << 10));
        assert!(
            first.latency_ns() < reading_ns + 2 * COMPUTE_NS + latencies,
            "{group_bytes}: {} for {reading_ns}",
            first.latency_ns()
        );
        assert_eq!(
            first.stall_ns,
            first.latency_ns() - second.latency_ns(),
            "what is not computing is a stall"
        );
        let begun = timeline.spans.iter().find(|s| s.lane == LaneId::COMPUTE);
        assert!(begun.unwrap().start_ns < reading_ns / 2);
    }
}

/// The last weights come late; only the last computes wait for them.
#[test]
fn a_compute_waits_for_its_own_weights_only() {
    let model = wide_model(6);
    let plan = resident(&model);
    let reads = session_reads(&model, &plan);
    const LATE_NS: u64 = 1_000_000_000;
    let late = FaultScript::at([(reads - 1, Fault::Delay { ns: LATE_NS })]);
    let mut session = model.open(&plan, 1, device(), late).unwrap();
    session.record_timeline(1);
    assert_eq!(model.run(&mut session).unwrap(), model.expected());
    let timeline = session.take_timeline().unwrap();
    let computes = timeline.spans.iter().filter(|s| s.lane == LaneId::COMPUTE);
    let starts: Vec<u64> = computes.map(|s| s.start_ns).collect();
    let (last, before) = starts.split_last().unwrap();
    assert!(before.iter().all(|&ns| ns < LATE_NS) && *last > LATE_NS);
}

/// How many reads bring what is resident.
fn session_reads(model: &Model, plan: &ExecutionPlan) -> u64 {
    // One that fails is the last that there is, or one more.
    let fails = |at: u64| {
        let faults = FaultScript::at([(at, Fault::Error { errno: 5 })]);
        let mut session = model.open(plan, 1, device(), faults).unwrap();
        session.settle().is_err()
    };
    (0..).find(|&at| !fails(at)).unwrap()
}

#[test]
fn weights_that_cannot_be_read_are_asked_for_again() {
    within(LIMIT, || {
        for (model, settles) in [(mixed_model(32), false), (wide_model(3), true)] {
            let expected = model.expected();
            let plan = resident(&model);
            let reads = session_reads(&model, &plan);
            for at in 0..reads {
                let faults = FaultScript::at([(at, Fault::Error { errno: 5 })]);
                let mut session = model.open(&plan, 2, device(), faults).unwrap();
                let error = match settles {
                    true => session.settle().unwrap_err(),
                    false => model.run(&mut session).unwrap_err(),
                };
                assert!(matches!(error, RuntimeError::Store(_)), "{error}");
                assert!(session.held_bytes() < session.stats().resident_bytes);
                assert_eq!(model.run(&mut session).unwrap(), expected);
                assert_eq!(session.held_bytes(), session.stats().resident_bytes);
            }
        }
    });
}

#[test]
fn settled_there_is_nothing_to_wait_for() {
    let model = wide_model(4);
    let plan = resident(&model);
    let mut session = model
        .open(&plan, 1, device(), FaultScript::default())
        .unwrap();
    session.settle().unwrap();
    session.settle().unwrap();
    assert_eq!(session.held_bytes(), session.stats().resident_bytes);
    assert_eq!(model.run(&mut session).unwrap(), model.expected());
    assert_eq!(session.stats().stall_ns, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Plans follow each other, some before a run, some after a run that failed.
    #[test]
    fn plans_may_change_while_weights_come(
        seed in any::<u64>(),
        kind in 0usize..3,
        group_bytes in prop::sample::select(vec![0u64, 1, 64 << 10, 1 << 20]),
        errors in 0u64..60,
        delays in 0u64..200,
    ) {
        within(LIMIT, move || {
            let model = match kind {
                0 => mixed_model(seed),
                1 => image_model(seed),
                _ => wide_model(3),
            };
            let expected = model.expected();
            let faults = FaultScript::random(RandomFaults {
                seed,
                error_per_mille: errors,
                delay_per_mille: delays,
                max_delay_ns: 2_000_000,
                ..RandomFaults::default()
            });
            let (least, most) = (model.smallest_bytes(), model.unlimited_bytes());
            let mut random = Random(seed | 1);
            let plan = |random: &mut Random| ExecutionPlan {
                group_bytes,
                ..model.plan(least + random.below((most - least) as usize + 1) as u64, Strategy::Preload)
            };
            let mut session = model.open(&plan(&mut random), 2, device(), faults).unwrap();
            let mut good = 0;
            for _ in 0..24 {
                let stats = session.stats();
                prop_assert!(session.held_bytes() <= stats.resident_bytes);
                let done = match random.below(6) {
                    0 => {
                        let next = plan(&mut random);
                        let held = session.held_bytes();
                        let found = session.replace_plan(next.clone(), &model.workload).unwrap();
                        prop_assert_eq!(found.kept_bytes + found.read_bytes, next.resident_bytes());
                        prop_assert_eq!(found.kept_bytes + found.released_bytes, held);
                        Ok(())
                    }
                    1 => {
                        session.rest();
                        session.wake();
                        Ok(())
                    }
                    2 => session.settle(),
                    _ => model.run(&mut session).map(|found| {
                        assert_eq!(found, expected);
                        assert_eq!(session.held_bytes(), session.stats().resident_bytes);
                        good += 1;
                    }),
                };
                if let Err(e) = done {
                    prop_assert!(matches!(e, RuntimeError::Store(_)), "{}", e);
                }
            }
            prop_assert!(good > 0 || errors > 0);
            Ok(())
        })?;
    }
}
