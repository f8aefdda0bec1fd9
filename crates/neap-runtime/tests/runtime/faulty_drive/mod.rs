//! A drive that fails for real, under the real executor: after each fault the right bits or an error, and once the
//! drive is well again the right bits.
//!
//! `NEAP_SEED=N` draws other faults; `NEAP_SOAK=N` goes on for N rounds.

mod drive;

use crate::support::{Model, image_model, mixed_model, skip_model, within};
use drive::{Control, Faults, mount};
use neap_planner::Strategy;
use neap_runtime::{BackingStore, RuntimeError, Session};
use neap_store::{BLOCK, IoMode, PackWriter, PackedFile, StoreError, open_spill};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);

fn number(variable: &str, or: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.and_then(|v| v.parse().ok()).unwrap_or(or)
}

/// The packed model's bytes.
fn packed(model: &Model) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.neap");
    let mut writer = PackWriter::create(&path).unwrap();
    writer.append(&model.file[BLOCK..]).unwrap();
    writer.finish(b"none").unwrap();
    std::fs::read(&path).unwrap()
}

/// A model on a drive that works so far, under the smallest budget, with its spill file there too.
struct Bench {
    model: Model,
    session: Session,
    control: Control,
    // Last: the session's reads end before the drive goes.
    _mounted: fuser::BackgroundSession,
    _folder: tempfile::TempDir,
}

impl Bench {
    /// `None`, said aloud, where this machine has no such drive, or no such way to read.
    fn new(model: Model, io: IoMode) -> Option<Bench> {
        let folder = tempfile::tempdir().unwrap();
        let (mounted, control) = match mount(folder.path(), "model.neap", packed(&model)) {
            Ok(mounted) => mounted,
            Err(e) => {
                neap_testing::skip(format_args!("no file system in user space: {e}"));
                return None;
            }
        };
        let path = folder.path().join("model.neap");
        let session = open(&model, &path, io)?;
        Some(Bench {
            model,
            session,
            control,
            _mounted: mounted,
            _folder: folder,
        })
    }

    /// One run; an error must be the drive's.
    fn run(&mut self) -> Result<(), RuntimeError> {
        match self.model.run(&mut self.session) {
            Ok(found) => {
                assert!(found == self.model.expected(), "other bits");
                Ok(())
            }
            Err(RuntimeError::Store(
                e @ (StoreError::Read { .. }
                | StoreError::Write { .. }
                | StoreError::Corrupt { .. }),
            )) => Err(e.into()),
            Err(e) => panic!("{e}"),
        }
    }

    /// The drive works again. Reads that were in flight may still fail the next run.
    fn heals(&mut self) {
        self.control.set(Faults::default());
        let _ = self.run();
        self.run().expect("works again");
    }
}

fn open(model: &Model, path: &Path, io: IoMode) -> Option<Session> {
    let plan = model.plan(model.smallest_bytes(), Strategy::Preload);
    let mut file = PackedFile::open(path).unwrap();
    assert!(file.file().is_direct(), "the drive has direct I/O");
    let source = match file.open_source(io) {
        Err(e) if io == IoMode::Uring => {
            neap_testing::skip(format_args!("no io_uring here: {e}"));
            return None;
        }
        opened => opened.unwrap(),
    };
    let spill = (plan.spill_bytes() > 0)
        .then(|| open_spill(path.parent().unwrap(), plan.spill_bytes(), io).unwrap());
    let storage = BackingStore {
        source,
        verifier: file.take_verifier().unwrap(),
        spill,
    };
    Some(model.open_storage(&plan, 2, storage).unwrap())
}

#[test]
fn random_faults_give_the_right_bits_or_an_error_and_pass() {
    within(LIMIT, || {
        let seed = neap_testing::seed();
        let rounds = number("NEAP_SOAK", 6);
        for io in [IoMode::Uring, IoMode::Pread] {
            // The kernel reads the rest of a short read itself where io_uring meets a file system of user
            // space, and from a wrong place of the file (Linux 6.18).
            let short_per_mille = if io == IoMode::Uring { 0 } else { 200 };
            let models = [
                mixed_model(41),
                image_model(42),
                skip_model(43),
                mixed_model(44).keeping(),
            ];
            let (mut good, mut bad) = (0, 0);
            for model in models {
                let Some(mut bench) = Bench::new(model, io) else {
                    return;
                };
                for round in 0..rounds {
                    let seed = seed.wrapping_mul(1000).wrapping_add(round);
                    bench.control.set(Faults {
                        seed,
                        error_per_mille: [0, 20, 200][round as usize % 3],
                        short_per_mille,
                        full_per_mille: 50,
                        flip_per_mille: 0,
                        ends_at: None,
                    });
                    for _ in 0..5 {
                        match bench.run() {
                            Ok(()) => good += 1,
                            Err(_) => bad += 1,
                        }
                    }
                    bench.heals();
                }
                assert!(bench.control.injected() > 0, "no fault was met");
            }
            assert!(good > 10 && bad > 5, "{io:?}: {good} good runs, {bad} bad");
        }
    });
}

/// Blocks are checked when they are first read, so a bit that is wrong then is never computed with.
#[test]
fn wrong_bits_are_noticed_when_a_block_is_first_read() {
    within(LIMIT, || {
        for io in [IoMode::Uring, IoMode::Pread] {
            let Some(mut bench) = Bench::new(mixed_model(45), io) else {
                return;
            };
            bench.control.set(Faults {
                seed: 3,
                flip_per_mille: 1000,
                ..Faults::default()
            });
            // What was read when the session was opened was right.
            let mut noticed = 0;
            for _ in 0..3 {
                noticed += usize::from(bench.run().is_err());
            }
            assert!(noticed > 0, "{io:?}: nothing was noticed");
            bench.heals();
        }
    });
}

/// The kernel's own ENOSPC, on its way through direct writes: one line, and the session goes on when there is room.
#[test]
fn a_drive_without_room_for_the_spill_file_is_an_error_until_there_is_room() {
    within(LIMIT, || {
        for io in [IoMode::Uring, IoMode::Pread] {
            let Some(mut bench) = Bench::new(skip_model(50), io) else {
                return;
            };
            bench.run().unwrap();
            assert!(bench.session.stats().stored_bytes > 0, "nothing is stored");
            bench.control.set(Faults {
                seed: 1,
                full_per_mille: 1000,
                ..Faults::default()
            });
            for _ in 0..3 {
                let Err(RuntimeError::Store(error)) = bench.run() else {
                    panic!("{io:?}: no store failed");
                };
                assert!(error.is_disk_full(), "{error}");
                assert!(!error.is_damage(), "the packed file is not at fault");
                let text = error.to_string();
                assert!(
                    text.contains("spill file") && !text.contains('\n'),
                    "{text}"
                );
            }
            bench.heals();
        }
    });
}

#[test]
fn a_file_that_becomes_short_is_an_error_until_it_is_whole_again() {
    within(LIMIT, || {
        for io in [IoMode::Uring, IoMode::Pread] {
            let Some(mut bench) = Bench::new(mixed_model(46), io) else {
                return;
            };
            bench.run().unwrap();
            bench.control.set(Faults {
                ends_at: Some(BLOCK as u64),
                ..Faults::default()
            });
            // Reads for the next run had begun.
            let _ = bench.run();
            let error = bench.run().unwrap_err();
            assert!(!error.to_string().contains('\n'), "{error}");
            bench.heals();
        }
    });
}

/// The name is another file's, the session has the one that it opened.
#[test]
fn a_file_that_is_replaced_stays_the_sessions() {
    within(LIMIT, || {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for io in [IoMode::Uring, IoMode::Pread] {
            let path = folder.path().join("model.neap");
            let model = mixed_model(47);
            std::fs::write(&path, packed(&model)).unwrap();
            let Some(mut session) = open(&model, &path, io) else {
                return;
            };
            assert_eq!(model.run(&mut session).unwrap(), model.expected());
            let other = folder.path().join("other.neap");
            std::fs::write(&other, packed(&mixed_model(48))).unwrap();
            std::fs::rename(&other, &path).unwrap();
            for _ in 0..3 {
                assert_eq!(model.run(&mut session).unwrap(), model.expected());
            }
            std::fs::remove_file(&path).unwrap();
            assert_eq!(model.run(&mut session).unwrap(), model.expected());
        }
    });
}

/// Cut short on a real drive, by another process say.
#[test]
fn a_file_that_is_truncated_is_an_error() {
    within(LIMIT, || {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for io in [IoMode::Uring, IoMode::Pread] {
            let path = folder.path().join("model.neap");
            let model = mixed_model(49);
            let bytes = packed(&model);
            std::fs::write(&path, &bytes).unwrap();
            let plan = model.plan(model.smallest_bytes(), Strategy::Preload);
            assert!(!plan.loads.is_empty());
            let Some(mut session) = open(&model, &path, io) else {
                return;
            };
            assert_eq!(model.run(&mut session).unwrap(), model.expected());
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(BLOCK as u64).unwrap();
            let _ = model.run(&mut session);
            let error = model.run(&mut session).unwrap_err();
            assert!(matches!(error, RuntimeError::Store(_)), "{error}");
            std::fs::write(&path, &bytes).unwrap();
            let _ = model.run(&mut session);
            assert_eq!(model.run(&mut session).unwrap(), model.expected());
        }
    });
}
