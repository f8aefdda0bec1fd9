//! Runs that end early: because another thread asks for it, or because a signal's handler raises, as that of Ctrl-C does.

use neaptide::CancelToken;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a run goes on, at least, before signals are looked for again. That takes the interpreter's lock.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

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

/// What may end one run, and the exception that did.
pub struct Interrupt {
    token: CancelToken,
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl Interrupt {
    /// For a run on the calling thread.
    pub fn new(cancel: Option<&Cancel>) -> Interrupt {
        let raised = Arc::new(Mutex::new(None));
        let mut token = cancel.map_or_else(CancelToken::new, |cancel| cancel.0.clone());
        // Python runs signals' handlers in its main thread only.
        if rustix::thread::gettid() == rustix::process::getpid() {
            let next = Mutex::new(Instant::now() + SIGNALS_EVERY);
            let raised = raised.clone();
            token = token.or_when(move || is_raised(&next, &raised));
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
fn is_raised(next: &Mutex<Instant>, raised: &Mutex<Option<PyErr>>) -> bool {
    let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
    if Instant::now() < *next {
        return false;
    }
    let exception = Python::attach(|py| py.check_signals().err());
    *next = Instant::now() + SIGNALS_EVERY;
    let Some(exception) = exception else {
        return false;
    };
    let mut raised = raised.lock().unwrap_or_else(PoisonError::into_inner);
    *raised = Some(exception);
    true
}
