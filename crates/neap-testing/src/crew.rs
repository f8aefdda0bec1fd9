//! Threads that stay: where a sanitizer watches, making one takes longer than most cases of a test.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError, mpsc};

/// What a thread is to do, and whom it tells when that is done.
struct Job {
    body: &'static (dyn Fn(usize) + Sync),
    worker: usize,
    done: mpsc::Sender<Result<(), Box<dyn Any + Send>>>,
}

/// Threads that wait for a job.
static IDLE: Mutex<Vec<mpsc::Sender<Job>>> = Mutex::new(Vec::new());

/// Calls `body` with 0, 1, ... `workers - 1`, each on a thread of its own, and returns when all have ended.
///
/// # Panics
/// If one of them did: then as that one.
pub fn together(workers: usize, body: &(dyn Fn(usize) + Sync)) {
    // SAFETY: no thread uses it after it has told that it is done, and all are waited for below.
    let body = unsafe {
        std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(body)
    };
    let mut crew: Vec<_> = {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        let first = idle.len().saturating_sub(workers);
        idle.drain(first..).collect()
    };
    crew.resize_with(workers, member);
    let (done, ended) = mpsc::channel();
    for (worker, thread) in crew.iter().enumerate() {
        let done = done.clone();
        let job = Job { body, worker, done };
        thread.send(job).expect("threads of a crew wait for ever");
    }
    // Ends when every thread has dropped its own.
    drop(done);
    let results: Vec<_> = ended.iter().collect();
    IDLE.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .append(&mut crew);
    assert_eq!(results.len(), workers, "a thread of a crew has ended");
    if let Some(Err(panic)) = results.into_iter().find(Result::is_err) {
        resume_unwind(panic);
    }
}

fn member() -> mpsc::Sender<Job> {
    let (jobs, waiting) = mpsc::channel::<Job>();
    std::thread::spawn(move || {
        for Job { body, worker, done } in waiting {
            let result = catch_unwind(AssertUnwindSafe(|| body(worker)));
            // Nobody listens where the one who asked has gone.
            let _ = done.send(result);
        }
    });
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn each_has_a_thread_of_its_own() {
        for workers in [1, 3, 2, 5] {
            let (all, seen) = (Barrier::new(workers), AtomicUsize::new(0));
            together(workers, &|worker| {
                // Ends only if all are here at once.
                all.wait();
                seen.fetch_add(1 << (8 * worker), Ordering::Relaxed);
            });
            let each = (0..workers).map(|worker| 1 << (8 * worker)).sum();
            assert_eq!(seen.into_inner(), each);
        }
    }

    #[test]
    fn a_panic_is_the_callers_and_the_others_end_first() {
        let ended = AtomicUsize::new(0);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            together(3, &|worker| {
                assert_ne!(worker, 1, "the second");
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }));
        assert!(panicked.is_err());
        assert_eq!(ended.into_inner(), 2);
        together(3, &|_| {});
    }
}
