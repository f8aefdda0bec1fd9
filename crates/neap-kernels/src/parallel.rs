//! How kernels ask for threads: they never create any.
//!
//! A kernel splits its work into `tasks` independent pieces and hands them to a [`Parallel`].
//! Results must not depend on how many workers there are or which worker takes which task.

/// Runs independent tasks, possibly on several workers.
pub trait Parallel: Sync {
    /// Number of workers; worker indices are `0..workers()`.
    fn workers(&self) -> usize;

    /// Calls `body(task, worker)` once for every `task` in `0..tasks` and returns when all are done.
    /// No two concurrent calls get the same `worker`, so per-worker scratch needs no lock.
    fn run(&self, tasks: usize, body: &(dyn Fn(usize, usize) + Sync));

    /// Whether nobody wants what is computed any more. An operator that takes long asks between its parts, on the thread
    /// that runs it.
    fn is_unwanted(&self) -> bool {
        false
    }
}

/// Everything on the calling thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Serial;

impl Parallel for Serial {
    fn workers(&self) -> usize {
        1
    }

    fn run(&self, tasks: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        for task in 0..tasks {
            body(task, 0);
        }
    }
}
