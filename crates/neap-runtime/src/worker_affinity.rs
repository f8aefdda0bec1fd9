//! `WorkerAffinity`: keeps the workers off the processor that the caller runs on.
//!
//! ```text
//!   processor 0   │ caller │ caller │ caller          a sleeping worker is often woken where the waker runs, and
//!   processor 1   │ idle   │ worker │ worker          waits there for milliseconds until the load is balanced:
//!                     ▲                               longer than whole runs of small networks
//! ```
//! A processor of the caller's own suffices: how several workers share the others is the kernel's affair.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

pub(crate) struct WorkerAffinity {
    workers: Box<[Pid]>,
    /// The processor that the workers keep off, once there is one.
    from: AtomicUsize,
}

const NOWHERE: usize = usize::MAX;

impl WorkerAffinity {
    pub(crate) fn new(workers: Box<[Pid]>) -> WorkerAffinity {
        WorkerAffinity {
            workers,
            from: AtomicUsize::new(NOWHERE),
        }
    }

    /// Bars the workers from the processor that this thread runs on, of those that it may run on. Does
    /// nothing while it has not moved, or where the workers would have to share what is left. All this
    /// is a wish: where the kernel refuses, workers run where they may.
    pub(crate) fn keep_off_caller(&self) {
        let here = sched_getcpu();
        // One caller at a time comes here; the order with anything else does not matter.
        if self.from.swap(here, Relaxed) == here {
            return;
        }
        let Ok(mut allowed) = sched_getaffinity(None) else {
            return;
        };
        let others = (allowed.count() as usize).saturating_sub(1);
        if here >= CpuSet::MAX_CPU || !allowed.is_set(here) || others < self.workers.len() {
            return;
        }
        allowed.unset(here);
        for &worker in &self.workers {
            let _ = sched_setaffinity(Some(worker), &allowed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::gettid;
    use std::sync::mpsc::channel;

    /// What a sleeping thread may run on after workers were kept off this thread's processor.
    #[test]
    fn workers_keep_off_the_callers_processor() {
        let (told, tid) = channel();
        let (end, ends) = channel::<()>();
        let worker = std::thread::spawn(move || {
            told.send(gettid()).unwrap();
            let _ = ends.recv();
        });
        let tid = tid.recv().unwrap();
        let before = sched_getaffinity(None).unwrap();
        let affinity = WorkerAffinity::new(Box::new([tid]));
        affinity.keep_off_caller();
        let from = affinity.from.load(Relaxed);
        let mut expected = before;
        if before.count() > 1 {
            expected.unset(from);
        }
        assert_eq!(sched_getaffinity(Some(tid)).unwrap(), expected);
        assert_eq!(
            sched_getaffinity(None).unwrap(),
            before,
            "the caller is free"
        );
        drop(end);
        worker.join().unwrap();
    }

    #[test]
    fn more_workers_than_other_processors_stay_free() {
        let before = sched_getaffinity(None).unwrap();
        let affinity = WorkerAffinity::new(vec![gettid(); before.count() as usize].into());
        affinity.keep_off_caller();
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
