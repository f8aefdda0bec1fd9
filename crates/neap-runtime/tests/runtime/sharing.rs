//! Sessions that take turns in one work memory: the same bits whatever was left there, for any plan, on any threads.

use crate::support::{Model, Random, image_model, mixed_model, within};
use neap_kernels::simd::Isa;
use neap_plan::ExecutionPlan;
use neap_planner::Strategy;
use neap_runtime::{BackingStore, CancelToken, Commons, RuntimeError, Session};
use neap_store::{BLOCK, IoMode, PackWriter, PackedFile};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

fn pack(model: &Model, folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    let mut writer = PackWriter::create(&path).unwrap();
    writer.append(&model.file[BLOCK..]).unwrap();
    writer.finish(b"none").unwrap();
    path
}

/// A model on a drive, with sessions in common memory.
struct Packed {
    model: Model,
    path: PathBuf,
    expected: Vec<Vec<u8>>,
}

impl Packed {
    fn new(model: Model, folder: &Path, name: &str) -> Packed {
        Packed {
            path: pack(&model, folder, name),
            expected: model.expected(),
            model,
        }
    }

    fn all(folder: &Path) -> Vec<Packed> {
        let models = [
            mixed_model(51),
            image_model(52),
            mixed_model(53),
            image_model(54),
        ];
        let names = ["a", "b", "c", "d"];
        let packed = models.into_iter().zip(names);
        packed.map(|(m, n)| Packed::new(m, folder, n)).collect()
    }

    fn open(&self, plan: &ExecutionPlan, commons: &Commons) -> Result<Session, RuntimeError> {
        let mut file = PackedFile::open(&self.path)?;
        let verifier = file.take_verifier()?;
        let storage = BackingStore {
            source: file.open_source(IoMode::Auto)?,
            verifier,
            spill: None,
        };
        let (program, plan) = (self.model.program.clone(), self.model.checked(plan)?);
        Session::open_in(commons, program, plan, storage, Isa::detect())
    }

    /// Plans from the smallest without spilling to all resident.
    fn plans(&self) -> Vec<ExecutionPlan> {
        let least = self.model.smallest_bytes_of(Strategy::Search);
        let most = self.model.unlimited_bytes();
        let budgets = [least, u64::midpoint(least, most), most];
        let plans = budgets.map(|budget| self.model.plan(budget, Strategy::Preload));
        let plans = plans.into_iter().filter(|plan| plan.stores.is_empty());
        plans.collect()
    }
}

fn work_bytes(plan: &ExecutionPlan) -> u64 {
    let work = plan.spaces.iter();
    let work = work.filter(|s| s.kind == neap_plan::SpaceKind::Work);
    work.map(|s| s.bytes).sum()
}

#[test]
fn the_same_bits_in_any_order_over_any_rest() {
    within(LIMIT, || {
        let folder = tempfile::tempdir().unwrap();
        let models = Packed::all(folder.path());
        for threads in [1, 2] {
            let commons = Commons::new(threads).unwrap();
            let mut sessions = Vec::new();
            let mut most = 0;
            for model in &models {
                for plan in model.plans() {
                    most = most.max(work_bytes(&plan));
                    sessions.push((model, model.open(&plan, &commons).unwrap()));
                }
            }
            commons.work.resize(most).unwrap();
            let mut random = Random(77 + threads as u64);
            for turn in 0..80 {
                let at = random.below(sessions.len());
                let (model, session) = &mut sessions[at];
                // Also one that reads resident weights while others are to run.
                if turn % 7 == 0 {
                    session.settle().unwrap();
                }
                commons.work.overwrite(random.next() as u8).unwrap();
                if turn % 11 == 0 {
                    commons.work.discard().unwrap();
                }
                let found = model.model.run(session).unwrap();
                assert_eq!(found, model.expected, "turn {turn} of session {at}");
            }
            // Larger and smaller work memory: at other addresses.
            for bytes in [most + (6 << 20), most] {
                commons.work.resize(bytes).unwrap();
                for (model, session) in &mut sessions {
                    assert_eq!(model.model.run(session).unwrap(), model.expected);
                }
            }
        }
    });
}

#[test]
fn threads_take_turns() {
    within(LIMIT, || {
        let folder = tempfile::tempdir().unwrap();
        let models = Packed::all(folder.path());
        let commons = Commons::new(2).unwrap();
        let plans: Vec<_> = models.iter().map(|m| m.plans().remove(0)).collect();
        let most = plans.iter().map(work_bytes).max().unwrap();
        commons.work.resize(most).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let runners: Vec<_> = models
                .iter()
                .zip(&plans)
                .map(|(model, plan)| {
                    let commons = &commons;
                    scope.spawn(move || {
                        for _ in 0..4 {
                            // Opened and closed while others run.
                            let mut session = model.open(plan, commons).unwrap();
                            for _ in 0..6 {
                                assert_eq!(model.model.run(&mut session).unwrap(), model.expected);
                            }
                        }
                    })
                })
                .collect();
            let (work, over) = (&commons.work, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    work.overwrite(0xC3).unwrap();
                    std::thread::yield_now();
                }
            });
            let ended: Vec<_> = runners.into_iter().map(|r| r.join()).collect();
            over.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(Result::is_ok));
        });
    });
}

#[test]
fn plans_follow_each_other_in_shared_memory() {
    within(LIMIT, || {
        let folder = tempfile::tempdir().unwrap();
        for packed in Packed::all(folder.path()) {
            let plans = packed.plans();
            let commons = Commons::new(2).unwrap();
            let most = plans.iter().map(work_bytes).max().unwrap();
            commons.work.resize(most).unwrap();
            let mut session = packed.open(&plans[0], &commons).unwrap();
            for plan in plans.iter().chain(plans.iter().rev()) {
                let transition = neap_planner::transition(&session.held().unwrap(), plan);
                let program = packed.model.program.clone();
                let plan = packed.model.checked(plan).unwrap();
                session.replace(program, plan, &transition, None).unwrap();
                for _ in 0..2 {
                    commons.work.overwrite(0x5A).unwrap();
                    assert_eq!(packed.model.run(&mut session).unwrap(), packed.expected);
                }
            }
        }
    });
}

#[test]
fn too_little_work_memory_is_told() {
    within(LIMIT, || {
        let folder = tempfile::tempdir().unwrap();
        let packed = Packed::new(mixed_model(57), folder.path(), "m");
        let plan = packed.plans().remove(0);
        let commons = Commons::new(1).unwrap();
        let mut session = packed.open(&plan, &commons).unwrap();
        let refused = packed.model.run(&mut session);
        assert!(matches!(refused, Err(RuntimeError::Mismatch { .. })));
        commons.work.resize(work_bytes(&plan)).unwrap();
        assert_eq!(packed.model.run(&mut session).unwrap(), packed.expected);
    });
}

/// From another thread, at a moment that differs from run to run.
#[test]
fn a_cancelled_run_leaves_its_session_and_the_memory_usable() {
    within(LIMIT, || {
        let folder = tempfile::tempdir().unwrap();
        let packed = Packed::new(image_model(58), folder.path(), "m");
        let plan = packed.plans().remove(0);
        let commons = Commons::new(2).unwrap();
        commons.work.resize(work_bytes(&plan)).unwrap();
        let mut session = packed.open(&plan, &commons).unwrap();
        let mut cancelled = 0;
        for turn in 0..40 {
            let token = CancelToken::new();
            let ended = std::thread::scope(|scope| {
                let ours = token.clone();
                scope.spawn(move || {
                    for _ in 0..turn * 200 {
                        std::hint::spin_loop();
                    }
                    ours.cancel();
                });
                packed.model.run_unless(&mut session, &token)
            });
            match ended {
                Ok(found) => assert_eq!(found, packed.expected),
                Err(RuntimeError::Cancelled) => cancelled += 1,
                Err(error) => panic!("{error}"),
            }
            commons.work.overwrite(0x11).unwrap();
            assert_eq!(packed.model.run(&mut session).unwrap(), packed.expected);
        }
        // One that is cancelled before it begins always is.
        let token = CancelToken::new();
        token.cancel();
        let refused = packed.model.run_unless(&mut session, &token);
        assert!(matches!(refused, Err(RuntimeError::Cancelled)));
        assert_eq!(packed.model.run(&mut session).unwrap(), packed.expected);
        println!("{cancelled} of 40 runs were cancelled in between");
    });
}
