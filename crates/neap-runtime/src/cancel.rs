//! A run that is no longer wanted ends at the boundary of a compute.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks a run to end early, from another thread. Clones are of one request.
///
/// A run looks at it before each of its computes. It then ends with [`RuntimeError::Cancelled`](crate::RuntimeError::Cancelled),
/// its outputs mean nothing, and the session can run again.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A request that nobody has made yet.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Makes the request. It cannot be taken back.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the request has been made.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
