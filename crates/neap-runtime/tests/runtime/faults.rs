//! Storage that misbehaves: the same bits or a clean error, never a hang, and usable afterwards.

use crate::support::{Model, Random, ReplacePlan, image_model, mixed_model, within};
use neap_planner::Strategy;
use neap_runtime::RuntimeError;
use neap_store::{BLOCK, Fault, FaultScript, MemoryModel, RandomFaults, StoreError};
use proptest::prelude::{ProptestConfig, proptest};
use std::sync::Arc;
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

/// Opens and runs four times. Every run gives the right bits or an error of storage.
fn survives(model: &Model, budget: u64, faults: FaultScript) -> (usize, usize) {
    runs_on(model, model.file.clone(), budget, faults)
}

/// [`survives`] on a file that may differ from the one that was packed.
fn runs_on(model: &Model, file: Arc<[u8]>, budget: u64, faults: FaultScript) -> (usize, usize) {
    let expected = model.expected();
    let plan = model.plan(budget, Strategy::Preload);
    let mut session = match model.open_file(&plan, 2, file, device(), faults) {
        Ok(session) => session,
        Err(RuntimeError::Store(_)) => return (0, 1),
        Err(e) => panic!("{e}"),
    };
    let (mut good, mut bad) = (0, 0);
    for _ in 0..4 {
        match model.run(&mut session) {
            Ok(found) => {
                assert!(found == expected, "wrong results");
                good += 1;
            }
            Err(RuntimeError::Store(
                StoreError::Read { .. } | StoreError::Write { .. } | StoreError::Corrupt { .. },
            )) => {
                bad += 1;
            }
            Err(e) => panic!("{e}"),
        }
    }
    (good, bad)
}

/// The file with one bit of one byte changed.
fn corrupted(model: &Model, at_byte: usize) -> Arc<[u8]> {
    let mut file = model.file.to_vec();
    file[at_byte] ^= 0x20;
    file.into()
}

#[test]
fn an_error_at_any_read_is_reported_once_and_overcome() {
    within(LIMIT, || {
        let model = mixed_model(11);
        let budget = model.smallest_bytes();
        for at in 0..60 {
            let faults = FaultScript::at([(at, Fault::Error { errno: 5 })]);
            let (good, bad) = survives(&model, budget, faults);
            assert!(
                bad <= 1 && good + bad == 4,
                "read {at}: {good} good, {bad} bad"
            );
        }
    });
}

#[test]
fn a_corrupted_byte_anywhere_is_detected_when_it_is_read() {
    within(LIMIT, || {
        let model = mixed_model(12);
        let budget = model.smallest_bytes();
        let table = &model.program.packed[0];
        let table = table.offset as usize..(table.offset + table.bytes) as usize;
        let mut random = Random(5);
        let mut unread = 0;
        for _ in 0..100 {
            let at = BLOCK + random.below(model.file.len() - BLOCK);
            let file = corrupted(&model, at);
            let (good, bad) = runs_on(&model, file, budget, FaultScript::default());
            assert!(good == 0 || bad == 0, "byte {at}: {good} good, {bad} bad");
            // Of the table only some rows are read; of all else every byte.
            assert!(
                bad > 0 || at < table.end.next_multiple_of(BLOCK),
                "byte {at}"
            );
            unread += usize::from(bad == 0);
        }
        assert!(unread < 80, "{unread} of 100 bytes are never read");
    });
}

#[test]
fn corrupted_resident_weights_are_not_computed_with() {
    let model = mixed_model(13);
    let plan = model.plan(u64::MAX, Strategy::Resident);
    for settles in [false, true] {
        let faults = FaultScript::at([(1, Fault::Corrupt { at_byte: 5 })]);
        let mut session = model.open(&plan, 1, device(), faults).unwrap();
        let error = match settles {
            true => session.settle().unwrap_err(),
            false => model.run(&mut session).unwrap_err(),
        };
        assert!(
            matches!(error, RuntimeError::Store(StoreError::Corrupt { .. })),
            "{error}"
        );
        assert_eq!(model.run(&mut session).unwrap(), model.expected());
    }
}

#[test]
fn short_reads_and_retries_change_nothing() {
    within(LIMIT, || {
        for model in [mixed_model(14), image_model(15)] {
            let faults = FaultScript::random(RandomFaults {
                seed: 3,
                short_per_mille: 200,
                retry_per_mille: 100,
                delay_per_mille: 200,
                max_delay_ns: 3_000_000,
                ..RandomFaults::default()
            });
            let (good, bad) = survives(&model, model.smallest_bytes(), faults);
            assert_eq!((good, bad), (4, 0));
        }
    });
}

/// Storage that fails while a plan takes over costs an error, not the session.
#[test]
fn a_plan_that_could_not_read_its_weights_tries_again() {
    within(LIMIT, || {
        let model = mixed_model(17);
        let small = model.plan(model.smallest_bytes(), Strategy::Preload);
        let large = model.plan(u64::MAX, Strategy::Resident);
        assert!(small.resident.is_empty() && !large.resident.is_empty());
        let expected = model.expected();
        // The reads of a small run come before those of the resident weights.
        let (mut failures, mut twice) = (0, 0);
        for at in 0..80 {
            let faults = [at, at + 1, at + 2].map(|at| (at, Fault::Error { errno: 5 }));
            let mut session = model
                .open(&small, 1, device(), FaultScript::at(faults))
                .unwrap();
            let _ = model.run(&mut session);
            let grown = session.replace_plan(large.clone(), &model.workload);
            assert!(grown.unwrap().read_bytes > 0);
            let mut tries = 0;
            while let Err(e) = model.run(&mut session) {
                assert!(matches!(e, RuntimeError::Store(_)), "{e}");
                assert!(session.held_bytes() < session.stats().resident_bytes);
                tries += 1;
            }
            failures += usize::from(tries > 0);
            twice += usize::from(tries > 1);
            assert_eq!(session.held_bytes(), session.stats().resident_bytes);
            assert_eq!(model.run(&mut session).unwrap(), expected);
            let kept = session
                .replace_plan(large.clone(), &model.workload)
                .unwrap();
            assert_eq!((kept.read_bytes, kept.released_bytes), (0, 0));
            assert_eq!(kept.kept_bytes, session.stats().resident_bytes);
            assert_eq!(model.run(&mut session).unwrap(), expected);
        }
        assert!(failures > 0 && twice > 0, "{failures} {twice}");
    });
}

#[test]
fn a_file_that_ends_too_early() {
    within(LIMIT, || {
        let model = mixed_model(16);
        let mut cut = model.clone();
        cut.file = model.file[..model.file.len() - 8192].into();
        let plan = model.plan(model.smallest_bytes(), Strategy::Preload);
        let error = match cut.open(&plan, 1, device(), FaultScript::default()) {
            Err(e) => e,
            Ok(mut session) => cut.run(&mut session).unwrap_err(),
        };
        assert!(matches!(error, RuntimeError::Store(_)), "{error}");
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_faults(
        seed in proptest::num::u64::ANY,
        images in proptest::bool::ANY,
        budget_share in 0u64..4,
        short in 0u64..300,
        error in 0u64..30,
        retry in 0u64..100,
        delay in 0u64..300,
        corrupt in 0u64..10,
    ) {
        within(LIMIT, move || {
            let model = if images { image_model(seed) } else { mixed_model(seed) };
            let (least, most) = (model.smallest_bytes(), model.unlimited_bytes());
            let budget = least + most.saturating_sub(least) / 4 * budget_share;
            let faults = FaultScript::random(RandomFaults {
                seed,
                short_per_mille: short,
                error_per_mille: error,
                retry_per_mille: retry,
                delay_per_mille: delay,
                max_delay_ns: 2_000_000,
                corrupt_per_mille: 0,
            });
            let file = match corrupt {
                0..5 => model.file.clone(),
                _ => corrupted(&model, BLOCK + seed as usize % (model.file.len() - BLOCK)),
            };
            runs_on(&model, file, budget, faults);
        });
    }
}
