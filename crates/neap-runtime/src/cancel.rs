//! A run that is no longer wanted ends at the boundary of a compute, or of a pass of a long loop.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks a run to end early, from another thread. Clones are of one request.
///
/// A run looks at it before each of its computes, and before each pass of a loop that is one compute. It then ends with
/// [`RuntimeError::Cancelled`](crate::RuntimeError::Cancelled), its outputs mean nothing, and the session can run again.
#[derive(Clone, Default)]
pub struct CancelToken {
    requested: Arc<AtomicBool>,
    asks: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl CancelToken {
    /// A request that nobody has made yet.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// The same request, which is also made when `asks` says so. It is called on the thread that runs, as often as that: for a
    /// program that can tell only from there, such as an interpreter with signals.
    pub fn or_when(&self, asks: impl Fn() -> bool + Send + Sync + 'static) -> CancelToken {
        CancelToken {
            requested: self.requested.clone(),
            asks: Some(Arc::new(asks)),
        }
    }

    /// Makes the request. It cannot be taken back.
    pub fn cancel(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }

    /// Whether the request has been made.
    pub fn is_cancelled(&self) -> bool {
        self.requested.load(Ordering::Relaxed) || self.asks.as_ref().is_some_and(|asks| asks())
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requested = self.requested.load(Ordering::Relaxed);
        f.debug_tuple("CancelToken").field(&requested).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_made_by_any_clone_or_by_whoever_is_asked() {
        let token = CancelToken::new();
        let asked = token.or_when(|| true);
        assert!(!token.is_cancelled() && asked.is_cancelled());
        let asked = token.or_when(|| false);
        assert!(!asked.is_cancelled());
        asked.clone().cancel();
        assert!(token.is_cancelled() && asked.is_cancelled());
    }
}
