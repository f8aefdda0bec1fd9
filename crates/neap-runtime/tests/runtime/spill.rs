//! Plans that store activations: the same bits as with all of them in memory, or a clean error.

use crate::support::{Model, ReplacePlan, image_model, mixed_model, skip_model, within};
use neap_plan::{ExecutionPlan, LaneId};
use neap_planner::{PlanOptions, Planner, Strategy};
use neap_runtime::{Clock, RuntimeError, Session};
use neap_store::{
    Fault, FaultScript, MemoryModel, MemorySource, RandomFaults, StoreError, VirtualClock,
};
use proptest::prelude::{ProptestConfig, proptest};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

fn device() -> MemoryModel {
    MemoryModel {
        bytes_per_second: 500_000_000,
        latency_ns: 30_000,
        depth: 4,
        piece_bytes: 16 << 10,
        max_loads: 64,
    }
}

fn smallest_plan(model: &Model) -> ExecutionPlan {
    let plan = model.plan(model.smallest_bytes(), Strategy::Preload);
    assert!(!plan.stores.is_empty());
    plan
}

fn kept_of<C: Clock>(session: &mut Session<C>) -> Result<Vec<Vec<u8>>, RuntimeError> {
    let mut all = Vec::new();
    for index in 0..session.kept().len() {
        let mut bytes = Vec::new();
        session.read_kept(index, &mut |piece| bytes.extend_from_slice(piece))?;
        assert_eq!(bytes.len() as u64, session.kept()[index].bytes);
        all.push(bytes);
    }
    Ok(all)
}

#[test]
fn a_skip_that_is_away_meanwhile_changes_no_bits() {
    let model = skip_model(1);
    let expected = model.expected();
    let without = PlanOptions {
        spill: false,
        ..PlanOptions::default()
    };
    let in_memory = Planner::with_options(&model.workload, without).smallest_feasible_bytes();
    let (smallest, all) = (model.smallest_bytes(), model.unlimited_bytes());
    assert!(smallest < in_memory - (32 << 10), "{smallest} {in_memory}");
    for budget in (smallest..all)
        .step_by(20_000)
        .chain([in_memory - 1, in_memory, all])
    {
        let plan = model.plan(budget, Strategy::Preload);
        assert_eq!(plan.stores.is_empty(), budget >= in_memory);
        for threads in 1..=3 {
            let faults = FaultScript::default();
            let mut session = model.open(&plan, threads, device(), faults).unwrap();
            for _ in 0..4 {
                assert!(model.run(&mut session).unwrap() == expected, "{budget}");
            }
            let stored = session.stats().stored_bytes;
            assert_eq!(stored, 4 * plan.stored_bytes_per_run());
        }
    }
}

#[test]
fn kept_activations_are_the_same_wherever_they_are() {
    for model in [skip_model(2), mixed_model(3), image_model(4)] {
        let expected = model.expected();
        let model = model.keeping();
        let all = model.plan(u64::MAX, Strategy::Resident);
        assert!(all.stores.is_empty());
        let open = |plan| {
            model
                .open(plan, 2, device(), FaultScript::default())
                .unwrap()
        };
        let mut session = open(&all);
        assert!(kept_of(&mut session).is_err(), "nothing has run yet");
        assert!(model.run(&mut session).unwrap() == expected);
        let in_memory = kept_of(&mut session).unwrap();
        assert!(!in_memory.is_empty());
        let plan = smallest_plan(&model);
        assert!(plan.memory_bytes() < all.memory_bytes());
        let mut session = open(&plan);
        for _ in 0..3 {
            assert!(model.run(&mut session).unwrap() == expected);
            // Twice: reading takes nothing away.
            assert!(kept_of(&mut session).unwrap() == in_memory);
            assert!(kept_of(&mut session).unwrap() == in_memory);
        }
        session.rest();
        assert!(kept_of(&mut session).is_err(), "memory was given back");
        assert!(model.run(&mut session).unwrap() == expected);
    }
}

#[test]
fn a_full_disk_is_an_error_of_the_run_and_overcome() {
    within(LIMIT, || {
        let model = skip_model(5).keeping();
        let expected = model.expected();
        let plan = smallest_plan(&model);
        let mut failed = 0;
        for at in 0..80 {
            let time = VirtualClock::new();
            let full = FaultScript::at([(at, Fault::Error { errno: 28 })]);
            let bytes = plan.spill_bytes() as usize;
            let spill = MemorySource::spill(bytes, device(), time.clone(), full).unwrap();
            let file = model.file.clone();
            let source = MemorySource::new(file, device(), time.clone(), FaultScript::default());
            let mut session = model
                .open_with(&plan, time, source.unwrap(), Some(spill))
                .unwrap();
            let mut good = 0;
            for _ in 0..3 {
                match model.run(&mut session) {
                    Ok(found) => {
                        assert!(found == expected, "wrong results");
                        good += 1;
                    }
                    Err(RuntimeError::Store(e @ StoreError::Write { .. })) => {
                        assert!(e.is_disk_full());
                        assert!(
                            e.to_string()
                                .starts_with("writing to the spill file failed")
                        );
                        failed += 1;
                    }
                    Err(RuntimeError::Store(StoreError::Read { .. })) => failed += 1,
                    Err(e) => panic!("{e}"),
                }
            }
            assert!(good >= 2, "operation {at}: {good} good");
        }
        assert!(failed > 20, "{failed}");
    });
}

/// Stored activations that come back with a wrong bit are an error, never a wrong result.
#[test]
fn what_comes_back_otherwise_than_stored_is_found() {
    within(LIMIT, || {
        let model = skip_model(5);
        let expected = model.expected();
        let plan = smallest_plan(&model);
        let mut found = 0;
        for at in 0..60 {
            let time = VirtualClock::new();
            let torn = FaultScript::at([(at, Fault::Corrupt { at_byte: 77 })]);
            let bytes = plan.spill_bytes() as usize;
            let spill = MemorySource::spill(bytes, device(), time.clone(), torn).unwrap();
            let file = model.file.clone();
            let source = MemorySource::new(file, device(), time.clone(), FaultScript::default());
            let mut session = model
                .open_with(&plan, time, source.unwrap(), Some(spill))
                .unwrap();
            for _ in 0..3 {
                match model.run(&mut session) {
                    Ok(made) => assert!(made == expected, "operation {at}: wrong results"),
                    Err(RuntimeError::Store(StoreError::Corrupt { what, .. })) => {
                        assert_eq!(what, "a stored activation");
                        found += 1;
                    }
                    Err(e) => panic!("{e}"),
                }
            }
        }
        assert!(found > 10, "{found}");
    });
}

#[test]
fn a_plan_that_stores_needs_a_file_that_is_large_enough() {
    let model = skip_model(6);
    let plan = smallest_plan(&model);
    for bytes in [None, Some(plan.spill_bytes() as usize - 4096)] {
        let time = VirtualClock::new();
        let faults = FaultScript::default;
        let spill =
            bytes.map(|b| MemorySource::spill(b, device(), time.clone(), faults()).unwrap());
        let source = MemorySource::new(model.file.clone(), device(), time.clone(), faults());
        let refused = model.open_with(&plan, time, source.unwrap(), spill);
        match refused.err() {
            Some(RuntimeError::Mismatch { reason, .. }) => assert!(reason.contains("spill file")),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_use_that_the_workload_does_not_list_is_found() {
    let mut model = skip_model(7);
    let plan = smallest_plan(&model);
    let buffer = plan.stores[0].buffer;
    let steps = &mut model.workload.steps;
    let reader = steps
        .iter()
        .position(|s| s.reads.contains(&buffer))
        .unwrap();
    steps[reader].reads.retain(|&b| b != buffer);
    let refused = model.open(&plan, 1, device(), FaultScript::default()).err();
    let Some(RuntimeError::Mismatch { reason, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert!(reason.contains("does not list"), "{reason}");
}

#[test]
fn sessions_go_over_to_plans_that_store_and_back() {
    let model = skip_model(8);
    let expected = model.expected();
    let small = smallest_plan(&model);
    let large = model.plan(u64::MAX, Strategy::Resident);
    let mut session = model
        .open(&large, 2, device(), FaultScript::default())
        .unwrap();
    assert!(model.run(&mut session).unwrap() == expected);
    // The file that there is, is empty.
    assert!(
        session
            .replace_plan(small.clone(), &model.workload)
            .is_err()
    );
    assert!(model.run(&mut session).unwrap() == expected);
    let bytes = small.spill_bytes() as usize;
    let time = VirtualClock::new();
    let spill = MemorySource::spill(bytes, device(), time, FaultScript::default()).unwrap();
    let program = session.program().clone();
    let transition = neap_planner::transition(&session.held().unwrap(), &small);
    session
        .replace(
            program,
            model.checked(&small).unwrap(),
            &transition,
            Some(Box::new(spill)),
        )
        .unwrap();
    assert_eq!(session.spill_room_bytes(), small.spill_bytes());
    for _ in 0..2 {
        assert!(model.run(&mut session).unwrap() == expected);
    }
    // Another plan that stores may use the same file; one that does not gives it up.
    session.replace_plan(small, &model.workload).unwrap();
    assert!(model.run(&mut session).unwrap() == expected);
    session.replace_plan(large, &model.workload).unwrap();
    assert_eq!(session.spill_room_bytes(), 0);
    assert!(model.run(&mut session).unwrap() == expected);
}

#[test]
fn the_timeline_shows_every_store_between_its_writer_and_what_comes_over_it() {
    let model = skip_model(9).keeping();
    let plan = smallest_plan(&model);
    let mut session = model
        .open(&plan, 1, device(), FaultScript::default())
        .unwrap();
    session.record_timeline(3);
    for _ in 0..3 {
        model.run(&mut session).unwrap();
    }
    let timeline = session.take_timeline().unwrap();
    for run in 0..3 {
        let computes: Vec<_> = timeline.spans_of(LaneId::COMPUTE, run).collect();
        assert_eq!(computes.len(), plan.computes.len());
        let stores: Vec<_> = timeline.spans_of(LaneId::STORE, run).collect();
        assert_eq!(stores.len(), plan.stores.len());
        for s in &stores {
            let store = &plan.stores[s.action as usize];
            assert!(s.start_ns >= computes[store.after() as usize - 1].end_ns);
            assert!(s.end_ns <= timeline.runs[run as usize].end_ns);
            for (c, compute) in plan.computes.iter().zip(&computes) {
                assert!(c.turn.count(LaneId::STORE) <= s.action || compute.start_ns >= s.end_ns);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_goes_wrong_the_bits_are_right_or_the_error_is_clean(
        seed in 0u64..1 << 40,
        errors in 0u64..30,
        keep: bool,
    ) {
        let model = skip_model(seed % 7);
        let model = if keep { model.keeping() } else { model };
        within(LIMIT, move || {
            let expected = model.expected();
            let faults = RandomFaults {
                seed,
                short_per_mille: 200,
                error_per_mille: errors,
                retry_per_mille: 100,
                delay_per_mille: 200,
                max_delay_ns: 3_000_000,
                corrupt_per_mille: 0,
            };
            let plan = smallest_plan(&model);
            let opened = model.open(&plan, 2, device(), FaultScript::random(faults));
            let Ok(mut session) = opened else { return };
            for _ in 0..5 {
                match model.run(&mut session) {
                    Ok(found) => assert!(found == expected, "wrong results"),
                    Err(RuntimeError::Store(StoreError::Read { .. } | StoreError::Write { .. })) => {}
                    Err(e) => panic!("{e}"),
                }
            }
        });
    }
}
