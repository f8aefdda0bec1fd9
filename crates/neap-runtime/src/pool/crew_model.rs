//! The crew under a model of memory and threads: `loom` runs it in every order that the memory model allows, up to a
//! number of preemptions, and finds races, lost wake-ups and threads that wait for ever.
//!
//! The model knows no sequentially consistent accesses. Each is an access with a fence before it here, which
//! promises no less than the algorithm asks for: of two threads that each write and then read what the other
//! writes, one sees the other's.

#[path = "crew.rs"]
#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "the same code over another machine"
)]
mod crew;

/// What `pool/sync.rs` is on a real machine.
mod sync {
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::AtomicU32;
    pub(in super::super) use loom::sync::atomic::fence;
    use loom::sync::{Condvar, Mutex};
    use std::sync::atomic::Ordering::{self, SeqCst};

    macro_rules! atomic {
        ($name:ident, $value:ty) => {
            pub(in super::super) struct $name(loom::sync::atomic::$name);

            impl $name {
                pub(in super::super) fn new(value: $value) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                pub(in super::super) fn load(&self, order: Ordering) -> $value {
                    fence_for(order);
                    self.0.load(order)
                }

                pub(in super::super) fn store(&self, value: $value, order: Ordering) {
                    fence_for(order);
                    self.0.store(value, order);
                }
            }
        };
    }

    atomic!(AtomicBool, bool);
    atomic!(AtomicU64, u64);

    impl AtomicU64 {
        pub(in super::super) fn compare_exchange_weak(
            &self,
            old: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            self.0.compare_exchange_weak(old, new, success, failure)
        }
    }

    fn fence_for(order: Ordering) {
        if order == SeqCst {
            fence(SeqCst);
        }
    }

    /// The model tells when two threads' accesses to the value are not in order.
    pub(in super::super) struct Slot<T>(UnsafeCell<T>);

    // SAFETY: just what the model checks.
    unsafe impl<T: Copy> Sync for Slot<T> {}

    impl<T: Copy> Slot<T> {
        pub(in super::super) fn new(value: T) -> Slot<T> {
            Slot(UnsafeCell::new(value))
        }

        pub(in super::super) unsafe fn put(&self, value: T) {
            // SAFETY: the caller's promise, which the model checks.
            self.0.with_mut(|at| unsafe { *at = value });
        }

        pub(in super::super) unsafe fn get(&self) -> T {
            // SAFETY: the caller's promise, which the model checks.
            self.0.with(|at| unsafe { *at })
        }
    }

    /// As the kernel does it: under the lock of the word's bucket.
    pub(in super::super) struct Word {
        value: AtomicU32,
        bucket: Mutex<()>,
        woken: Condvar,
    }

    impl Word {
        pub(in super::super) fn new(value: u32) -> Word {
            Word {
                value: AtomicU32::new(value),
                bucket: Mutex::new(()),
                woken: Condvar::new(),
            }
        }

        pub(in super::super) fn wait(&self, value: u32) {
            let guard = self.bucket.lock().unwrap();
            if self.load(SeqCst) == value {
                drop(self.woken.wait(guard).unwrap());
            }
        }

        pub(in super::super) fn wake(&self, count: u32) {
            let guard = self.bucket.lock().unwrap();
            if count == 1 {
                self.woken.notify_one();
            } else {
                self.woken.notify_all();
            }
            drop(guard);
        }

        pub(in super::super) fn load(&self, order: Ordering) -> u32 {
            fence_for(order);
            self.value.load(order)
        }

        pub(in super::super) fn store(&self, value: u32, order: Ordering) {
            self.value.store(value, order);
        }

        pub(in super::super) fn swap(&self, value: u32, order: Ordering) -> u32 {
            fence_for(order);
            self.value.swap(value, order)
        }

        pub(in super::super) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
            fence_for(order);
            self.value.fetch_add(value, order)
        }

        pub(in super::super) fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
            fence_for(order);
            self.value.fetch_sub(value, order)
        }
    }

    /// Looks once: sleeping is what must be looked into.
    pub(in super::super) fn spin_until(done: impl Fn() -> bool) -> bool {
        done()
    }
}

use crew::Crew;
use loom::cell::UnsafeCell;
use loom::sync::Arc;

/// What a job works on: each task on its own number. The model tells when two threads' accesses are not in order.
struct Numbers(Vec<UnsafeCell<usize>>);

// SAFETY: tasks touch numbers of their own, and the caller none while a job runs: just what the model checks.
unsafe impl Sync for Numbers {}

impl Numbers {
    fn add(&self, at: usize, by: usize) {
        self.0[at].with_mut(|number| {
            // SAFETY: nobody else has it, as the model checks.
            unsafe { *number += by }
        });
    }
}

/// Jobs of so many tasks, one after the other, in all orders with at most so many preemptions.
fn every_task_once(workers: usize, jobs: &'static [usize], preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 100_000;
    model.check(move || {
        let crew = Arc::new(Crew::new(workers + 1));
        let threads: Vec<_> = (1..=workers)
            .map(|worker| {
                let crew = Arc::clone(&crew);
                loom::thread::spawn(move || crew.work(worker))
            })
            .collect();
        crew.wait_until_started(workers as u32);
        for &tasks in jobs {
            let numbers = Numbers((0..tasks).map(|_| UnsafeCell::new(0)).collect());
            (0..tasks).for_each(|task| numbers.add(task, 10));
            let ended = crew.run(tasks, &|task, _| numbers.add(task, 1), &mut || ());
            assert!(ended.is_ok());
            for number in &numbers.0 {
                // SAFETY: the job is over.
                number.with(|n| assert_eq!(unsafe { *n }, 11));
            }
        }
        crew.stop();
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn one_worker_beside_the_caller() {
    every_task_once(1, &[2], 3);
}

#[test]
fn two_jobs_in_a_row() {
    every_task_once(1, &[2, 3], 3);
}

#[test]
fn two_workers_beside_the_caller() {
    every_task_once(2, &[3], 2);
}

/// Whose own tasks are done takes those of others, from the other end.
#[test]
fn shares_of_several_tasks() {
    every_task_once(1, &[4], 3);
}

/// A worker whose share stays empty.
#[test]
fn fewer_tasks_than_threads() {
    every_task_once(2, &[2], 2);
}
