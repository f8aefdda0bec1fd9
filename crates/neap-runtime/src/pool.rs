//! The session's threads: a few workers that take tasks, each from its own part of them first (see `pool/crew.rs`).

mod crew;
#[cfg(test)]
mod crew_model;
mod sync;
#[cfg(test)]
mod tests;

use crate::worker_affinity::WorkerAffinity;
use crew::{Body, Crew, TASK_LIMIT};
use neap_kernels::parallel::Parallel;
use rustix::thread::gettid;
use std::cell::Cell;
use std::io;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

/// Stacks are charged to the budget as they are touched; kernels keep little on them.
const STACK_BYTES: usize = 512 * 1024;

/// `workers` threads, of which the first is whoever calls [`Parallel::run`].
pub struct Pool {
    crew: Arc<Crew>,
    threads: Vec<JoinHandle<()>>,
    affinity: WorkerAffinity,
    /// Held during a job, so that callers on two threads take turns.
    turn: Mutex<()>,
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
        let mut pool = Pool {
            crew: Arc::new(Crew::new(workers.max(1))),
            threads: Vec::with_capacity(workers.saturating_sub(1)),
            affinity: WorkerAffinity::new(Box::new([])),
            turn: Mutex::new(()),
        };
        let ids: Arc<[OnceLock<_>]> = (1..workers).map(|_| OnceLock::new()).collect();
        for worker in 1..workers.max(1) {
            let (crew, ids) = (Arc::clone(&pool.crew), Arc::clone(&ids));
            let thread = std::thread::Builder::new()
                .name(format!("neap-{worker}"))
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    let _ = ids[worker - 1].set(gettid());
                    drop(ids);
                    WORKER.set(Some(worker));
                    crew.work(worker);
                })?;
            pool.threads.push(thread);
        }
        pool.crew.wait_until_started(pool.threads.len() as u32);
        pool.affinity =
            WorkerAffinity::new(ids.iter().filter_map(|id| id.get().copied()).collect());
        Ok(pool)
    }

    /// As [`Parallel::run`]; the caller does `aside` before each of its own tasks, the first time while the
    /// other workers have begun.
    pub(crate) fn run_with(&self, tasks: usize, body: Body<'_>, aside: &mut dyn FnMut()) {
        let current = WORKER.get();
        if tasks <= 1 || self.threads.is_empty() || current.is_some() || tasks >= TASK_LIMIT {
            let worker = current.unwrap_or(0);
            for task in 0..tasks {
                aside();
                body(task, worker);
            }
            return;
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.affinity.keep_off_caller();
        WORKER.set(Some(0));
        let ended = self.crew.run(tasks, body, aside);
        WORKER.set(None);
        drop(turn);
        if let Err(payload) = ended {
            resume_unwind(payload);
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
        self.run_with(tasks, body, &mut || ());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.crew.stop();
        for thread in self.threads.drain(..) {
            // Tasks' panics are caught; one of the pool itself has nothing more to tell here.
            let _ = thread.join();
        }
    }
}
