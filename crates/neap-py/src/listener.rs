//! Tells a Python function how far packing is, a few times a second.

use neaptide::{Progress, Work};
use pyo3::prelude::*;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(100);

/// Called with the kind of work, bytes done and bytes in all, on a thread that does not hold the interpreter's lock.
pub struct Listener<'a> {
    function: Option<&'a Py<PyAny>>,
    told: Instant,
    error: Option<PyErr>,
}

impl<'a> Listener<'a> {
    pub fn new(function: Option<&'a Py<PyAny>>) -> Listener<'a> {
        Listener {
            function,
            told: Instant::now(),
            error: None,
        }
    }

    pub fn hear(&mut self, progress: Progress) {
        let Some(function) = self.function else {
            return;
        };
        let is_done = progress.done_bytes == progress.total_bytes;
        if self.error.is_some() || !is_done && self.told.elapsed() < INTERVAL {
            return;
        }
        self.told = Instant::now();
        let kind = match progress.work {
            Work::Hashing => "hashing",
            Work::Packing => "packing",
        };
        let called = Python::attach(|py| {
            function.call1(py, (kind, progress.done_bytes, progress.total_bytes))
        });
        self.error = called.err();
    }

    /// # Errors
    /// The first exception of the function, such as that the user wants no more of it.
    pub fn end(self) -> PyResult<()> {
        self.error.map_or(Ok(()), Err)
    }
}
