//! `Crew`: how the pool's threads share out a job's tasks, without a lock.
//!
//! ```text
//!   tasks    0 1 2 3 4 5 | 6 7 8 9 10 11        a share for each thread, side by side
//!   share    first ─►  ◄─ end                   its owner takes from the front, who has nothing left from the back
//!
//!   caller   write job ─► open shares ─► claim, run, … ─► wait until all are counted as done
//!   worker   watch its share, then sleep ─► claim, run, claim, run, … ─► done += mine
//! ```
//! So a thread has the same part of each layer, and mostly reads what it wrote itself: what the other one wrote may
//! be far away. A worker that wakes late finds no task left and goes back to sleep; nobody waits for it.
//!
//! `super::sync` is the machine's memory and kernel; the tests also compile this file over a model of both,
//! which tries every order of what threads do (`crew_model.rs`).

use super::sync::{AtomicBool, AtomicU64, Slot, Word, fence, spin_until};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A job has fewer tasks than this.
pub(super) const TASK_LIMIT: usize = u32::MAX as usize;

pub(super) type Body<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// The tasks of a thread: what its owner watches and takes from, in cache lines of its own.
#[repr(align(128))]
struct Share {
    /// first : 32 | end : 32, so that a claim is one compare-and-swap.
    tasks: AtomicU64,
    /// What runs them, from when tasks are put here until those are done.
    body: Slot<Body<'static>>,
}

/// What a thread writes and the caller watches.
#[repr(align(128))]
struct Done {
    /// Tasks that this thread has run, of all jobs; wraps around.
    tasks: AtomicU64,
}

/// What is written seldom, apart from what is written in each job.
#[repr(align(128))]
struct Sleep {
    /// Counts wake-ups; sleeping workers wait for it to change.
    wakes: Word,
    sleepers: Word,
    /// 1 while the caller sleeps until the job is completed.
    caller: Word,
    /// Workers that have begun to work, and will allocate no more.
    started: Word,
    stop: AtomicBool,
    panicked: AtomicBool,
}

pub(super) struct Crew {
    /// The caller's, then each worker's.
    shares: Box<[Share]>,
    done: Box<[Done]>,
    sleep: Sleep,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Crew {
    /// For so many threads, the caller included.
    pub(super) fn new(threads: usize) -> Crew {
        let share = |_| Share {
            tasks: AtomicU64::new(pack(0, 0)),
            body: Slot::new(&|_, _| ()),
        };
        let done = |_| Done {
            tasks: AtomicU64::new(0),
        };
        Crew {
            shares: (0..threads).map(share).collect(),
            done: (0..threads).map(done).collect(),
            sleep: Sleep {
                wakes: Word::new(0),
                sleepers: Word::new(0),
                caller: Word::new(0),
                started: Word::new(0),
                stop: AtomicBool::new(false),
                panicked: AtomicBool::new(false),
            },
            panic: Mutex::new(None),
        }
    }

    /// Runs a job's tasks, of which the caller takes some; does `aside` before each of the caller's. One
    /// call at a time. Returns the payload of a panic in one of them.
    pub(super) fn run(
        &self,
        tasks: usize,
        body: Body<'_>,
        aside: &mut dyn FnMut(),
    ) -> Result<(), Box<dyn Any + Send>> {
        // All jobs before this one are completed.
        let completed = self.done().wrapping_add(tasks as u64);
        self.open(body, tasks);
        // Whatever happens, the job must outlive the workers' interest in it.
        self.take_tasks(0, aside);
        self.wait_until_done(completed);
        if !self.sleep.panicked.load(Acquire) {
            return Ok(());
        }
        self.sleep.panicked.store(false, Relaxed);
        let payload = lock(&self.panic).take();
        Err(payload.unwrap_or_else(|| Box::new("a task panicked")))
    }

    /// Ends all workers.
    pub(super) fn stop(&self) {
        self.sleep.stop.store(true, SeqCst);
        self.wake_workers(u32::MAX >> 1);
    }

    /// Makes the job's tasks claimable. The caller then waits for their end, which is what
    /// keeps the job alive for as long as any worker may look at it.
    fn open(&self, body: Body<'_>, tasks: usize) {
        // SAFETY: only the lifetime changes. Who claims a task looks at the body before the task counts as done, and the
        // caller of `run` waits until all do.
        let body = unsafe { std::mem::transmute::<Body<'_>, Body<'static>>(body) };
        // The first shares are not shorter than others, and the caller's is opened last: workers have a way to go.
        let threads = self.shares.len().min(tasks);
        for (i, share) in self.shares[..threads].iter().enumerate().rev() {
            let [first, end] = [i, i + 1].map(|i| (tasks * i).div_ceil(threads) as u32);
            // SAFETY: all earlier tasks are done, so nobody looks at the body of one.
            unsafe { share.body.put(body) };
            share.tasks.store(pack(first, end), Release);
        }
        // With the worker's going to sleep: either it sees its tasks or we see it asleep.
        fence(SeqCst);
        if self.sleep.sleepers.load(SeqCst) != 0 {
            self.wake_workers((tasks - 1) as u32);
        }
    }

    fn wake_workers(&self, count: u32) {
        self.sleep.wakes.fetch_add(1, SeqCst);
        self.sleep.wakes.wake(count);
    }

    /// Claims tasks and runs them until none is left; does `before` before each, and in any case once.
    fn take_tasks(&self, thread: usize, before: &mut dyn FnMut()) {
        let mut mine = 0;
        self.guarded(&mut *before);
        while let Some((task, body)) = self.claim(thread) {
            mine += 1;
            if self.sleep.panicked.load(Relaxed) {
                continue;
            }
            if mine > 1 {
                self.guarded(&mut *before);
            }
            self.guarded(|| body(task, thread));
        }
        if mine == 0 {
            return;
        }
        let done = &self.done[thread].tasks;
        done.store(done.load(Relaxed).wrapping_add(mine), Release);
        if thread == 0 {
            return;
        }
        // From here on the caller may be gone; only `self` is touched, which the pool keeps.
        // With the caller's going to sleep: either it sees these tasks done or we see it asleep.
        fence(SeqCst);
        if self.sleep.caller.load(SeqCst) == 1 && self.sleep.caller.swap(0, SeqCst) == 1 {
            self.sleep.caller.wake(1);
        }
    }

    /// Keeps the payload of a panic for the caller.
    fn guarded(&self, work: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
            lock(&self.panic).get_or_insert(payload);
            self.sleep.panicked.store(true, Release);
        }
    }

    /// A task of this thread's share, or else the last of another's.
    fn claim(&self, thread: usize) -> Option<(usize, Body<'static>)> {
        let threads = self.shares.len();
        self.shares[thread].claim(true).or_else(|| {
            (1..threads).find_map(|next| self.shares[(thread + next) % threads].claim(false))
        })
    }

    fn has_task(&self, thread: usize) -> bool {
        let (first, end) = unpack(self.shares[thread].tasks.load(SeqCst));
        first < end
    }

    /// Tasks that all threads have done; wraps around.
    fn done(&self) -> u64 {
        let each = self.done.iter().map(|done| done.tasks.load(Acquire));
        each.fold(0, u64::wrapping_add)
    }

    fn wait_until_done(&self, tasks: u64) {
        if spin_until(|| self.done() == tasks) {
            return;
        }
        loop {
            self.sleep.caller.store(1, SeqCst);
            fence(SeqCst);
            if self.done() == tasks {
                self.sleep.caller.store(0, SeqCst);
                return;
            }
            // Returns early when the word is no longer 1, or on a signal.
            self.sleep.caller.wait(1);
        }
    }

    pub(super) fn wait_until_started(&self, count: u32) {
        loop {
            let started = self.sleep.started.load(Acquire);
            if started == count {
                return;
            }
            // Returns when the count has changed, or early.
            self.sleep.started.wait(started);
        }
    }

    /// The life of a worker.
    pub(super) fn work(&self, worker: usize) {
        self.sleep.started.fetch_add(1, Release);
        self.sleep.started.wake(1);
        loop {
            self.take_tasks(worker, &mut || ());
            let wake = || self.has_task(worker) || self.sleep.stop.load(Relaxed);
            if !spin_until(wake) {
                let seen = self.sleep.wakes.load(SeqCst);
                self.sleep.sleepers.fetch_add(1, SeqCst);
                if !self.has_task(worker) && !self.sleep.stop.load(SeqCst) {
                    self.sleep.wakes.wait(seen);
                }
                self.sleep.sleepers.fetch_sub(1, SeqCst);
            }
            if self.sleep.stop.load(Acquire) {
                return;
            }
        }
    }
}

impl Share {
    fn claim(&self, is_own: bool) -> Option<(usize, Body<'static>)> {
        let mut tasks = self.tasks.load(Acquire);
        loop {
            let (first, end) = unpack(tasks);
            if first >= end {
                return None;
            }
            let (task, left) = match is_own {
                true => (first, pack(first + 1, end)),
                false => (end - 1, pack(first, end - 1)),
            };
            // Acquire: whatever job these tasks are of by now, its body is seen.
            let claimed = self
                .tasks
                .compare_exchange_weak(tasks, left, Acquire, Acquire);
            match claimed {
                // SAFETY: the task is of the job that runs, which is not done before this task is: until then nobody puts
                // another body here.
                Ok(_) => return Some((task as usize, unsafe { self.body.get() })),
                Err(now) => tasks = now,
            }
        }
    }
}

fn pack(first: u32, end: u32) -> u64 {
    u64::from(first) << 32 | u64::from(end)
}

fn unpack(tasks: u64) -> (u32, u32) {
    ((tasks >> 32) as u32, tasks as u32)
}

/// Panics are caught before they could leave a lock in doubt.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
