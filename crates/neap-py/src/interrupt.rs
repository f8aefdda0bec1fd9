//! Runs that end early: because another thread asks for it, or because a signal's handler raises, as that of Ctrl-C does.

use neaptide::CancelToken;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A shorter run does not look for signals: Python does when it has ended.
const FIRST_AFTER: Duration = Duration::from_millis(1);

/// Looking takes the interpreter's lock, which another thread may keep for milliseconds. A run goes on for so many times as long as
/// the last look took before it looks again: where nobody has the lock, that is less than a compute takes.
const PAUSES_PER_LOOK: u32 = 20;
/// A handler may take any time.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Asks the runs that it is given to to end at the boundary of a compute.
#[pyclass(frozen, module = "neaptide._neaptide")]
pub struct Cancel(CancelToken);

#[pymethods]
impl Cancel {
    #[new]
    fn new() -> Cancel {
        Cancel(CancelToken::new())
    }

    fn cancel(&self) {
        self.0.cancel();
    }

    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// What the last look for signals took, in nanoseconds: of all runs of a session.
#[derive(Clone, Default)]
pub struct LookTime(Arc<AtomicU64>);

impl LookTime {
    fn set(&self, taken: Duration) {
        let nanoseconds = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX);
        self.0.store(nanoseconds, Ordering::Relaxed);
    }

    /// How long a run goes on before the next look.
    fn pause(&self) -> Duration {
        let taken = Duration::from_nanos(self.0.load(Ordering::Relaxed));
        taken.saturating_mul(PAUSES_PER_LOOK).min(LONGEST_PAUSE)
    }
}

/// What may end one run, and the exception that did.
pub struct Interrupt {
    token: CancelToken,
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl Interrupt {
    /// For a run on the calling thread.
    pub fn new(cancel: Option<&Cancel>, look_time: &LookTime) -> Interrupt {
        let raised = Arc::new(Mutex::new(None));
        let mut token = cancel.map_or_else(CancelToken::new, |cancel| cancel.0.clone());
        // Python runs signals' handlers in its main thread only.
        if rustix::thread::gettid() == rustix::process::getpid() {
            let next = Mutex::new(Instant::now() + look_time.pause().max(FIRST_AFTER));
            let (look_time, raised) = (look_time.clone(), raised.clone());
            token = token.or_when(move || is_raised(&next, &look_time, &raised));
        }
        Interrupt { token, raised }
    }

    pub fn token(&self) -> &CancelToken {
        &self.token
    }

    /// The handler's exception, if there is one.
    pub fn raised(&self) -> Option<PyErr> {
        let mut raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
        raised.take()
    }
}

/// Runs handlers of signals that have come, and keeps what one raises.
fn is_raised(next: &Mutex<Instant>, look_time: &LookTime, raised: &Mutex<Option<PyErr>>) -> bool {
    let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
    let began = Instant::now();
    if began < *next {
        return false;
    }
    let exception = Python::attach(|py| py.check_signals().err());
    let ended = Instant::now();
    look_time.set(ended - began);
    *next = ended + look_time.pause();
    let Some(exception) = exception else {
        return false;
    };
    let mut raised = raised.lock().unwrap_or_else(PoisonError::into_inner);
    *raised = Some(exception);
    true
}
