//! `CallerWork`: the pool, with something for the caller to do while the workers compute.
//!
//! ```text
//!   caller   │ submit loads │ task │ look │ task │ look │ …
//!   worker   │ task │ task │ task │ task │ task │ …         the caller's delay is made up by shorter shares
//! ```
//! To hand a mebibyte to storage takes tens of microseconds; done between two computes, all workers
//! would wait for it. And what arrives while a long step computes may let the next load start.

use crate::cancel::CancelToken;
use crate::pool::Pool;
use neap_kernels::parallel::Parallel;
use std::sync::{Mutex, PoisonError};

pub(crate) struct CallerWork<'a> {
    pool: &'a Pool,
    aside: Mutex<Aside<'a>>,
    cancel: Option<&'a CancelToken>,
}

struct Aside<'a> {
    /// What to do: in the first parallel section, or in [`CallerWork::finish`].
    work: Option<&'a mut (dyn FnMut() + Send)>,
    is_done: bool,
    /// It is to be done again and again.
    repeats: bool,
}

impl<'a> CallerWork<'a> {
    pub(crate) fn new(
        pool: &'a Pool,
        work: Option<&'a mut (dyn FnMut() + Send)>,
        repeats: bool,
        cancel: Option<&'a CancelToken>,
    ) -> CallerWork<'a> {
        CallerWork {
            pool,
            cancel,
            aside: Mutex::new(Aside {
                work,
                is_done: false,
                repeats,
            }),
        }
    }

    /// For a step that had no parallel section.
    pub(crate) fn finish(&self) {
        self.aside
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .once();
    }
}

impl Aside<'_> {
    fn once(&mut self) {
        if let (false, Some(work)) = (self.is_done, &mut self.work) {
            self.is_done = true;
            work();
        }
    }

    fn again(&mut self) {
        match &mut self.work {
            Some(work) if self.repeats => work(),
            _ => self.once(),
        }
    }
}

impl Parallel for CallerWork<'_> {
    fn workers(&self) -> usize {
        self.pool.workers()
    }

    fn run(&self, tasks: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        // Only the thread that computes the step starts sections; one within a task finds it taken.
        match self.aside.try_lock() {
            Ok(mut aside) => self.pool.run_with(tasks, body, &mut || aside.again()),
            Err(_) => self.pool.run(tasks, body),
        }
    }

    fn is_unwanted(&self) -> bool {
        self.cancel.is_some_and(CancelToken::is_cancelled)
    }
}
