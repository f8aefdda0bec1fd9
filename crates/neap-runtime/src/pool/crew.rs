//! `Crew`: how the pool's threads share out a job's tasks, without a lock.
//!
//! ```text
//!   state   epoch : 32 | next task : 32       one word, so a claim is one compare-and-swap
//!
//!   caller  close(e+1) ─► write job ─► open(e+1, 0) ─► claim, run, … ─► wait until completed = tasks
//!   worker  spin, then sleep ─────────────► claim, run, claim, run, … ─► completed += mine
//! ```
//! A worker that wakes late finds no task left and goes back to sleep; nobody waits for it.
//!
//! `super::sync` is the machine's memory and kernel; the tests also compile this file over a model of both,
//! which tries every order of what threads do (`crew_model.rs`).

use super::sync::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Word, spin_until};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Value of `next task` while no task may be claimed.
const CLOSED: u32 = u32::MAX;

/// A job has fewer tasks than this.
pub(super) const TASK_LIMIT: usize = CLOSED as usize;

pub(super) type Body<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// One call of `run`; lives on the caller's stack until all its tasks are done.
struct Job<'a> {
    body: Body<'a>,
}

pub(super) struct Crew {
    state: AtomicU64,
    tasks: AtomicUsize,
    job: AtomicPtr<Job<'static>>,
    completed: AtomicUsize,
    /// Counts wake-ups; sleeping workers wait for it to change.
    wakes: Word,
    sleepers: Word,
    /// 1 while the caller sleeps until the job is completed.
    caller_sleeps: Word,
    /// Workers that have begun to work, and will allocate no more.
    started: Word,
    stop: AtomicBool,
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Crew {
    pub(super) fn new() -> Crew {
        Crew {
            state: AtomicU64::new(pack(0, CLOSED)),
            tasks: AtomicUsize::new(0),
            job: AtomicPtr::new(ptr::null_mut()),
            completed: AtomicUsize::new(0),
            wakes: Word::new(0),
            sleepers: Word::new(0),
            caller_sleeps: Word::new(0),
            started: Word::new(0),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
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
        let job = Job { body };
        self.open(&job, tasks);
        // Whatever happens, the job must outlive the workers' interest in it.
        self.take_tasks(0, aside);
        self.wait_until_completed(tasks);
        if !self.panicked.load(Acquire) {
            return Ok(());
        }
        self.panicked.store(false, Relaxed);
        let payload = lock(&self.panic).take();
        Err(payload.unwrap_or_else(|| Box::new("a task panicked")))
    }

    /// Ends all workers.
    pub(super) fn stop(&self) {
        self.stop.store(true, SeqCst);
        self.wake_workers(u32::MAX >> 1);
    }

    /// Makes the job's tasks claimable. The caller then waits for its completion, which is what
    /// keeps the job alive for as long as any worker may look at it.
    fn open(&self, job: &Job<'_>, tasks: usize) {
        let epoch = (self.state.load(Relaxed) >> 32) as u32;
        let epoch = epoch.wrapping_add(1);
        // Closed first: a worker that still holds the old epoch in hand must fail its claim if it
        // has read any of what is written below.
        self.state.store(pack(epoch, CLOSED), Release);
        self.tasks.store(tasks, Release);
        self.completed.store(0, Relaxed);
        self.job.store(
            ptr::from_ref(job).cast_mut().cast::<Job<'static>>(),
            Release,
        );
        // SeqCst with the worker's going to sleep: either it sees the job or we see it asleep.
        self.state.store(pack(epoch, 0), SeqCst);
        if self.sleepers.load(SeqCst) != 0 {
            self.wake_workers((tasks - 1) as u32);
        }
    }

    fn wake_workers(&self, count: u32) {
        self.wakes.fetch_add(1, SeqCst);
        self.wakes.wake(count);
    }

    /// Claims tasks and runs them until none is left; does `before` before each, and in any case once.
    fn take_tasks(&self, worker: usize, before: &mut dyn FnMut()) {
        let mut mine = 0;
        self.guarded(&mut *before);
        while let Some((task, job)) = self.claim() {
            mine += 1;
            if self.panicked.load(Relaxed) {
                continue;
            }
            if mine > 1 {
                self.guarded(&mut *before);
            }
            // SAFETY: the claim is not yet counted as completed, so the caller of `run`, on whose
            // stack the job and what it borrows lie, is still waiting there.
            let body = unsafe { (*job).body };
            self.guarded(|| body(task, worker));
        }
        if mine == 0 {
            return;
        }
        let tasks = self.tasks.load(Relaxed);
        let completed = self.completed.fetch_add(mine, SeqCst) + mine;
        // From here on the caller may be gone; only `self` is touched, which the pool keeps.
        if completed == tasks && self.caller_sleeps.swap(0, SeqCst) == 1 {
            self.caller_sleeps.wake(1);
        }
    }

    /// Keeps the payload of a panic for the caller.
    fn guarded(&self, work: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
            lock(&self.panic).get_or_insert(payload);
            self.panicked.store(true, Release);
        }
    }

    fn claim(&self) -> Option<(usize, *const Job<'static>)> {
        let mut state = self.state.load(Acquire);
        loop {
            let next = state as u32;
            // Acquire: a value of a later job shows its closing too, and the claim fails.
            let tasks = self.tasks.load(Acquire);
            let job = self.job.load(Acquire);
            if next == CLOSED || next as usize >= tasks {
                return None;
            }
            match self
                .state
                .compare_exchange_weak(state, state + 1, Acquire, Acquire)
            {
                Ok(_) => return Some((next as usize, job)),
                Err(now) => state = now,
            }
        }
    }

    fn has_task(&self) -> bool {
        let next = self.state.load(SeqCst) as u32;
        next != CLOSED && (next as usize) < self.tasks.load(Acquire)
    }

    fn wait_until_completed(&self, tasks: usize) {
        if spin_until(|| self.completed.load(Acquire) == tasks) {
            return;
        }
        loop {
            self.caller_sleeps.store(1, SeqCst);
            if self.completed.load(SeqCst) == tasks {
                self.caller_sleeps.store(0, SeqCst);
                return;
            }
            // Returns early when the word is no longer 1, or on a signal.
            self.caller_sleeps.wait(1);
        }
    }

    pub(super) fn wait_until_started(&self, count: u32) {
        loop {
            let started = self.started.load(Acquire);
            if started == count {
                return;
            }
            // Returns when the count has changed, or early.
            self.started.wait(started);
        }
    }

    /// The life of a worker.
    pub(super) fn work(&self, worker: usize) {
        self.started.fetch_add(1, Release);
        self.started.wake(1);
        loop {
            self.take_tasks(worker, &mut || ());
            let wake = || self.has_task() || self.stop.load(Relaxed);
            if !spin_until(wake) {
                let seen = self.wakes.load(SeqCst);
                self.sleepers.fetch_add(1, SeqCst);
                if !self.has_task() && !self.stop.load(SeqCst) {
                    self.wakes.wait(seen);
                }
                self.sleepers.fetch_sub(1, SeqCst);
            }
            if self.stop.load(Acquire) {
                return;
            }
        }
    }
}

fn pack(epoch: u32, next: u32) -> u64 {
    u64::from(epoch) << 32 | u64::from(next)
}

/// Panics are caught before they could leave a lock in doubt.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
