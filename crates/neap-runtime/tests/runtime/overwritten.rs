//! A packed file that is written to in place while a session has it open: the right bits, or an error that says so,
//! and the right bits again once the file is as it was.

use crate::support::{Model, ReplacePlan, image_model, mixed_model, within};
use neap_plan::ExecutionPlan;
use neap_planner::Strategy;
use neap_runtime::{RuntimeError, Session};
use neap_store::{
    BLOCK, IoMode, LoadTag, PackWriter, PackedFile, RangeRead, Sighting, Source, StoreError,
};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

/// A packed model on a drive.
struct Packed {
    model: Model,
    path: PathBuf,
    /// As it was packed.
    bytes: Vec<u8>,
    expected: Vec<Vec<u8>>,
}

impl Packed {
    fn new(model: Model, folder: &Path) -> Packed {
        let path = folder.join("model.neap");
        let mut writer = PackWriter::create(&path).unwrap();
        writer.append(&model.file[BLOCK..]).unwrap();
        writer.finish(b"none").unwrap();
        let packed = Packed {
            expected: model.expected(),
            bytes: std::fs::read(&path).unwrap(),
            model,
            path,
        };
        packed.settle();
        packed
    }

    /// Other weights of the same shapes, with checksums of their own.
    fn other(&self, other: &Model) -> Vec<u8> {
        let folder = tempfile::tempdir_in(self.path.parent().unwrap()).unwrap();
        let other = Packed::new(other.clone(), folder.path());
        assert_eq!(other.bytes.len(), self.bytes.len());
        assert_ne!(other.bytes, self.bytes);
        assert_ne!(other.expected, self.expected);
        other.bytes
    }

    /// Waits until the clock that times writes has gone on.
    fn settle(&self) {
        let file = std::fs::File::open(&self.path).unwrap();
        while Sighting::of(&file).unwrap().is_fresh {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn overwrite(&self, bytes: &[u8]) {
        overwrite(&self.path, bytes);
    }

    fn open(&self, plan: &ExecutionPlan, io: IoMode) -> Option<Session> {
        self.open_through(plan, io, |source| source)
    }

    /// `None`, said aloud, where there is no such way to read.
    fn open_through(
        &self,
        plan: &ExecutionPlan,
        io: IoMode,
        wrap: impl FnOnce(Box<dyn Source>) -> Box<dyn Source>,
    ) -> Option<Session> {
        let mut file = PackedFile::open(&self.path).unwrap();
        let verifier = file.take_verifier().unwrap();
        let source = match file.open_source(io) {
            Err(e) if io == IoMode::Uring => {
                neap_testing::skip(format_args!("no io_uring here: {e}"));
                return None;
            }
            source => wrap(source.unwrap()),
        };
        Some(self.model.open_source(plan, 2, source, verifier).unwrap())
    }

    /// One run; says whether it ended well. An error must be about the file.
    fn run(&self, session: &mut Session) -> Result<(), StoreError> {
        match self.model.run(session) {
            Ok(found) => {
                assert!(found == self.expected, "other bits");
                Ok(())
            }
            Err(RuntimeError::Store(
                e @ (StoreError::Changed { .. }
                | StoreError::Overwritten { .. }
                | StoreError::Corrupt { .. }),
            )) => Err(e),
            Err(e) => panic!("{e}"),
        }
    }
}

/// In place, and with the time of change set back, as a copy that keeps times does.
fn overwrite(path: &Path, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let time = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.set_modified(time).unwrap();
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn weights_that_are_read_again_are_not_those_of_another_file() {
    within(LIMIT, || {
        for io in [IoMode::Uring, IoMode::Pread] {
            let folder = folder();
            let packed = Packed::new(mixed_model(61), folder.path());
            let other = packed.other(&mixed_model(62));
            let smallest = packed.model.smallest_bytes();
            let plan = packed.model.plan(smallest, Strategy::Preload);
            assert!(!plan.loads.is_empty());
            let Some(mut session) = packed.open(&plan, io) else {
                return;
            };
            // By the second run all blocks have been checked.
            for _ in 0..3 {
                packed.run(&mut session).unwrap();
            }
            packed.overwrite(&other);
            for _ in 0..3 {
                let error = packed.run(&mut session).unwrap_err();
                assert!(matches!(error, StoreError::Overwritten { .. }), "{error}");
                assert!(error.to_string().contains("model.neap"), "{error}");
                assert!(error.is_damage());
            }
            packed.overwrite(&packed.bytes);
            packed.run(&mut session).unwrap();
            // The same bytes once more are no reason to fail.
            for _ in 0..3 {
                packed.settle();
                packed.overwrite(&packed.bytes);
                packed.run(&mut session).unwrap();
                packed.run(&mut session).unwrap();
            }
        }
    });
}

#[test]
fn weights_in_memory_stay_right_and_others_are_not_mixed_with_them() {
    within(LIMIT, || {
        for io in [IoMode::Uring, IoMode::Pread] {
            let folder = folder();
            let packed = Packed::new(image_model(63), folder.path());
            let other = packed.other(&image_model(64));
            let model = &packed.model;
            let all = model.plan(u64::MAX, Strategy::Resident);
            let least = model.plan(model.smallest_bytes(), Strategy::Preload);
            assert!(all.loads.is_empty() && !least.loads.is_empty());
            let Some(mut session) = packed.open(&all, io) else {
                return;
            };
            session.settle().unwrap();
            packed.overwrite(&other);
            // Nothing is read any more.
            packed.run(&mut session).unwrap();
            packed.run(&mut session).unwrap();
            session
                .replace_plan(least.clone(), &model.workload)
                .unwrap();
            packed.run(&mut session).unwrap_err();
            // What is to be resident again is not that of the other file.
            session.replace_plan(all.clone(), &model.workload).unwrap();
            session.settle().unwrap_err();
            packed.run(&mut session).unwrap_err();
            packed.overwrite(&packed.bytes);
            session.settle().unwrap();
            packed.run(&mut session).unwrap();
            session.replace_plan(least, &model.workload).unwrap();
            packed.run(&mut session).unwrap();
        }
    });
}

/// A source before which the file is overwritten when it is asked something for the `at`th time.
struct Meddler {
    inner: Box<dyn Source>,
    path: PathBuf,
    bytes: Vec<u8>,
    /// 0 once it has been.
    left: Arc<AtomicUsize>,
}

impl Meddler {
    fn asked(&self) {
        let less = |left: usize| left.checked_sub(1);
        if self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            == Ok(1)
        {
            overwrite(&self.path, &self.bytes);
        }
    }
}

impl Source for Meddler {
    unsafe fn submit(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        self.asked();
        // SAFETY: the caller's to vouch for.
        unsafe { self.inner.submit(tag, file_offset, dst, len_bytes) }
    }

    fn flush(&mut self) {
        self.asked();
        self.inner.flush();
    }

    fn poll(&mut self, wait: bool, done: &mut dyn FnMut(LoadTag)) -> Result<(), StoreError> {
        self.asked();
        self.inner.poll(wait, done)
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    unsafe fn read_ranges(&mut self, reads: &[RangeRead]) -> Result<(), StoreError> {
        self.asked();
        // SAFETY: the caller's to vouch for.
        unsafe { self.inner.read_ranges(reads) }
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }
}

/// At every moment of a few runs, changes of plans among them.
#[test]
fn a_write_at_any_moment_never_gives_other_bits() {
    within(LIMIT, || {
        let folder = folder();
        let packed = Packed::new(mixed_model(65), folder.path());
        let other = packed.other(&mixed_model(66));
        let model = &packed.model;
        let (least, most) = (model.smallest_bytes(), model.unlimited_bytes());
        let plans: Vec<ExecutionPlan> = [least, (least + most) / 2, most, least]
            .into_iter()
            .map(|budget| model.plan(budget, Strategy::Preload))
            .collect();
        let (mut good, mut bad) = (0, 0);
        for at in 1.. {
            packed.overwrite(&packed.bytes);
            packed.settle();
            let left = Arc::new(AtomicUsize::new(at));
            let meddle = |inner| -> Box<dyn Source> {
                Box::new(Meddler {
                    inner,
                    path: packed.path.clone(),
                    bytes: other.clone(),
                    left: left.clone(),
                })
            };
            let Some(mut session) = packed.open_through(&plans[0], IoMode::Pread, meddle) else {
                return;
            };
            for plan in &plans[1..] {
                for _ in 0..2 {
                    match packed.run(&mut session) {
                        Ok(()) => good += 1,
                        Err(_) => bad += 1,
                    }
                }
                session.replace_plan(plan.clone(), &model.workload).unwrap();
            }
            let was_overwritten = left.swap(0, Ordering::Relaxed) == 0;
            packed.overwrite(&packed.bytes);
            let _ = packed.run(&mut session);
            packed.run(&mut session).unwrap();
            if !was_overwritten {
                break;
            }
        }
        assert!(good > 100 && bad > 100, "{good} good runs, {bad} bad");
    });
}
