//! `Beside`: the pool, with something for the caller to do while the workers have begun.
//!
//! ```text
//!   caller   │ submit loads │ task │ task │ …
//!   worker   │ task │ task │ task │ task │ …      the caller's delay is made up by shorter shares
//! ```
//! To hand a mebibyte to storage takes tens of microseconds; done between two computes, all workers
//! would wait for it.

use crate::pool::Pool;
use neap_kernels::parallel::Parallel;
use std::sync::{Mutex, PoisonError};

pub(crate) struct Beside<'a> {
    pool: &'a Pool,
    /// Done by the first parallel section, or by [`Beside::finish`].
    aside: Mutex<Option<&'a mut (dyn FnMut() + Send)>>,
}

impl<'a> Beside<'a> {
    pub(crate) fn new(pool: &'a Pool, aside: Option<&'a mut (dyn FnMut() + Send)>) -> Beside<'a> {
        Beside {
            pool,
            aside: Mutex::new(aside),
        }
    }

    /// For a step that had no parallel section.
    pub(crate) fn finish(&self) {
        if let Some(aside) = self.take() {
            aside();
        }
    }

    fn take(&self) -> Option<&'a mut (dyn FnMut() + Send)> {
        self.aside
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

impl Parallel for Beside<'_> {
    fn workers(&self) -> usize {
        self.pool.workers()
    }

    fn run(&self, tasks: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        match self.take() {
            Some(aside) => self.pool.run_beside(tasks, body, aside),
            None => self.pool.run(tasks, body),
        }
    }
}
