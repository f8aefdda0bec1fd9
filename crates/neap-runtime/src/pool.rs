//! The session's threads: a few workers that take tasks off a shared counter.
//!
//! ```text
//!   state   epoch : 32 | next task : 32       one word, so a claim is one compare-and-swap
//!
//!   caller  close(e+1) ─► write job ─► open(e+1, 0) ─► claim, run, … ─► wait until completed = tasks
//!   worker  spin, then sleep ─────────────► claim, run, claim, run, … ─► completed += mine
//! ```
//! A worker that wakes late finds no task left and goes back to sleep; nobody waits for it.

use crate::apart::Apart;
use neap_kernels::parallel::Parallel;
use rustix::process::Pid;
use rustix::thread::{futex, gettid};
use std::any::Any;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Stacks are charged to the budget as they are touched; kernels keep little on them.
const STACK_BYTES: usize = 512 * 1024;
/// How long a worker without work watches for the next job before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Value of `next task` while no task may be claimed.
const CLOSED: u32 = u32::MAX;

/// `workers` threads, of which the first is whoever calls [`Parallel::run`].
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    apart: Apart,
    /// Held during a job, so that callers on two threads take turns.
    turn: Mutex<()>,
}

type Body<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// One call of `run`; lives on the caller's stack until all its tasks are done.
struct Job<'a> {
    body: Body<'a>,
}

struct Shared {
    state: AtomicU64,
    tasks: AtomicUsize,
    job: AtomicPtr<Job<'static>>,
    completed: AtomicUsize,
    /// Counts wake-ups; sleeping workers wait for it to change.
    wakes: AtomicU32,
    sleepers: AtomicU32,
    /// 1 while the caller sleeps until the job is completed.
    caller_sleeps: AtomicU32,
    /// Workers that have begun to work, and will allocate no more.
    started: AtomicU32,
    /// Which threads they are.
    ids: Box<[OnceLock<Pid>]>,
    stop: AtomicBool,
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

thread_local! {
    /// The worker that this thread is while it runs a task.
    static WORKER: Cell<Option<usize>> = const { Cell::new(None) };
}

impl Pool {
    /// A pool of `workers` (at least 1), the caller included.
    ///
    /// # Errors
    /// Those of starting threads.
    pub fn new(workers: usize) -> io::Result<Pool> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(pack(0, CLOSED)),
            tasks: AtomicUsize::new(0),
            job: AtomicPtr::new(ptr::null_mut()),
            completed: AtomicUsize::new(0),
            wakes: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            caller_sleeps: AtomicU32::new(0),
            started: AtomicU32::new(0),
            ids: (1..workers).map(|_| OnceLock::new()).collect(),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = Pool {
            shared,
            threads: Vec::with_capacity(workers.saturating_sub(1)),
            apart: Apart::new(Box::new([])),
            turn: Mutex::new(()),
        };
        for worker in 1..workers.max(1) {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new()
                .name(format!("neap-{worker}"))
                .stack_size(STACK_BYTES)
                .spawn(move || shared.work(worker))?;
            pool.threads.push(thread);
        }
        pool.shared.wait_until_started(pool.threads.len() as u32);
        pool.apart = Apart::new(
            pool.shared
                .ids
                .iter()
                .filter_map(|id| id.get().copied())
                .collect(),
        );
        Ok(pool)
    }

    /// As [`Parallel::run`]; the caller does `aside` before each of its own tasks, the first time while the
    /// other workers have begun.
    pub(crate) fn run_beside(&self, tasks: usize, body: Body<'_>, aside: &mut dyn FnMut()) {
        let current = WORKER.get();
        if tasks <= 1 || self.threads.is_empty() || current.is_some() || tasks >= CLOSED as usize {
            let worker = current.unwrap_or(0);
            for task in 0..tasks {
                aside();
                body(task, worker);
            }
            return;
        }
        let turn = lock(&self.turn);
        let job = Job { body };
        self.apart.keep();
        self.shared.open(&job, tasks);
        // Whatever happens, the job must outlive the workers' interest in it.
        self.shared.take_tasks(0, aside);
        self.shared.wait_until_completed(tasks);
        drop(turn);
        if self.shared.panicked.load(Acquire) {
            self.shared.panicked.store(false, Relaxed);
            let payload = lock(&self.shared.panic).take();
            resume_unwind(payload.unwrap_or_else(|| Box::new("a task panicked")));
        }
    }
}

impl Parallel for Pool {
    fn workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// A panic in a task reaches the caller once all running tasks have ended. A call from within a
    /// task runs on that task's worker alone.
    fn run(&self, tasks: usize, body: Body<'_>) {
        self.run_beside(tasks, body, &mut || ());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.wake_workers(u32::MAX >> 1);
        for thread in self.threads.drain(..) {
            // Tasks' panics are caught; one of the pool itself has nothing more to tell here.
            let _ = thread.join();
        }
    }
}

impl Shared {
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
        // Fails only for addresses that are no memory.
        let _ = futex::wake(&self.wakes, futex::Flags::PRIVATE, count);
    }

    /// Claims tasks and runs them until none is left; does `before` before each, and in any case once.
    fn take_tasks(&self, worker: usize, before: &mut dyn FnMut()) {
        let mut mine = 0;
        WORKER.set(Some(worker));
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
        WORKER.set(None);
        if mine == 0 {
            return;
        }
        let tasks = self.tasks.load(Relaxed);
        let completed = self.completed.fetch_add(mine, SeqCst) + mine;
        // From here on the caller may be gone; only `self` is touched, which the pool keeps.
        if completed == tasks && self.caller_sleeps.swap(0, SeqCst) == 1 {
            let _ = futex::wake(&self.caller_sleeps, futex::Flags::PRIVATE, 1);
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
            let _ = futex::wait(&self.caller_sleeps, futex::Flags::PRIVATE, 1, None);
        }
    }

    fn wait_until_started(&self, count: u32) {
        loop {
            let started = self.started.load(Acquire);
            if started == count {
                return;
            }
            // Returns when the count has changed, or early.
            let _ = futex::wait(&self.started, futex::Flags::PRIVATE, started, None);
        }
    }

    fn work(&self, worker: usize) {
        let _ = self.ids[worker - 1].set(gettid());
        self.started.fetch_add(1, Release);
        let _ = futex::wake(&self.started, futex::Flags::PRIVATE, 1);
        loop {
            self.take_tasks(worker, &mut || ());
            let wake = || self.has_task() || self.stop.load(Relaxed);
            if !spin_until(wake) {
                let seen = self.wakes.load(SeqCst);
                self.sleepers.fetch_add(1, SeqCst);
                if !self.has_task() && !self.stop.load(SeqCst) {
                    let _ = futex::wait(&self.wakes, futex::Flags::PRIVATE, seen, None);
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

/// Watches for `done` for a short while.
fn spin_until(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN {
            return false;
        }
    }
}

/// Panics are caught before they could leave a lock in doubt.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
