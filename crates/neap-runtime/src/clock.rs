//! What time it is: real, or virtual in tests of the same executor.

use std::time::Instant;

/// Tells time to the executor.
pub trait Clock: Send + Sync {
    /// Nanoseconds since some fixed moment; never decreases.
    fn now_ns(&self) -> u64;

    /// Called when the plan's compute of that index has been done, until it answers false. A virtual clock
    /// advances by the compute's cost; it may stop on the way, with true, so that what has happened by then is
    /// looked at, as is done beside a real compute.
    fn passes(&mut self, _compute: usize) -> bool {
        false
    }
}

/// The machine's monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct Monotonic(Instant);

impl Default for Monotonic {
    fn default() -> Self {
        Monotonic(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}
