//! Ctrl-C and its relatives: at once where nothing can be left behind, in order where something could.
//!
//! By default a signal ends the process as always. While a [`Deferred`] lives it is only noted:
//! long work calls [`unwind_if_asked`], everything on the way cleans up after itself, and the process ends
//! then. A second signal ends it at once; one that comes within a quarter of a second is the same one, which a sender to the
//! whole process group and a parent that passes it on both delivered. While a child runs ([`with_child`]) signals are passed on to it.

use crate::failure::{Failure, Outcome};
use neaptide::CancelToken;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU32, Ordering::SeqCst};

static DEFERRED: AtomicU32 = AtomicU32::new(0);
static NOTED: AtomicI32 = AtomicI32::new(0);
static CHILD: AtomicI32 = AtomicI32::new(0);
static CHILD_DECIDES: AtomicBool = AtomicBool::new(false);
/// When the noted one came.
static NOTED_MS: AtomicI64 = AtomicI64::new(0);

const SAME_MS: i64 = 250;

/// A run that ends within so long after the signal is not cut short: its outputs are whole then.
const GRACE_MS: i64 = 500;

const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// What unwinds when a signal was noted.
pub struct Interrupt(pub i32);

/// While this lives, signals are noted instead of obeyed.
pub struct Deferred(());

pub fn defer() -> Deferred {
    DEFERRED.fetch_add(1, SeqCst);
    Deferred(())
}

impl Drop for Deferred {
    fn drop(&mut self) {
        DEFERRED.fetch_sub(1, SeqCst);
    }
}

/// The signal that was noted.
pub fn noted() -> Option<i32> {
    match NOTED.load(SeqCst) {
        0 => None,
        signal => Some(signal),
    }
}

/// Goes on as if no signal had been noted: an answer that Ctrl-C stopped is all that it stopped.
pub fn forget() {
    NOTED.store(0, SeqCst);
    NOTED_MS.store(0, SeqCst);
}

/// Leaves Ctrl-C to the child that is waited for: what it ends with counts.
pub fn leave_to_child() {
    CHILD_DECIDES.store(true, SeqCst);
}

/// Ends orderly when a signal was noted.
pub fn check() -> Outcome {
    noted().map_or(Ok(()), |signal| Err(Failure::Interrupted(signal)))
}

/// Cuts a run short that goes on after a signal was noted: one run may take hours.
pub fn token() -> CancelToken {
    let is_late = || noted().is_some() && now_ms() - NOTED_MS.load(SeqCst) > GRACE_MS;
    CancelToken::new().or_when(is_late)
}

/// As [`check`], for callbacks that cannot return an error: unwinds, running every destructor.
pub fn unwind_if_asked() {
    if let Some(signal) = noted() {
        std::panic::resume_unwind(Box::new(Interrupt(signal)));
    }
}

/// Notes signals and passes them on to the process `pid` while `wait` runs.
pub fn with_child<T>(pid: u32, wait: impl FnOnce() -> T) -> T {
    let _deferred = defer();
    CHILD.store(pid as i32, SeqCst);
    // One that came in between was noted, but not passed on.
    if let Some(signal) = noted() {
        // SAFETY: sends a signal to a child that has not been waited for.
        unsafe { libc::kill(pid as i32, signal) };
    }
    let result = wait();
    CHILD.store(0, SeqCst);
    result
}

pub fn install() {
    for signal in SIGNALS {
        // SAFETY: the structures are plain data for the kernel, and the handler only uses what is
        // allowed in handlers: atomics, kill, signal and raise.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut before);
            // Under nohup, or in the background of a simple shell, signals stay ignored.
            if before.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Ends the process by the signal, as the shell expects of an interrupted command.
pub fn die_of(signal: i32) {
    // SAFETY: resets the handler and sends the signal to this process.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let child = CHILD.load(SeqCst);
    // SAFETY: the kernel passes valid information. Signals from a terminal (code above 0) reach the
    // child as well without help.
    if child > 0 && unsafe { (*info).si_code } <= 0 {
        // SAFETY: the child is waited for only after `CHILD` is reset, or is a zombie.
        unsafe { libc::kill(child, signal) };
    }
    if child > 0 && signal == libc::SIGINT && CHILD_DECIDES.load(SeqCst) {
        return;
    }
    let now = now_ms();
    let first = match NOTED_MS.compare_exchange(0, now, SeqCst, SeqCst) {
        Ok(_) => now,
        Err(first) => first,
    };
    let again = NOTED.swap(signal, SeqCst) != 0 && now - first > SAME_MS;
    if DEFERRED.load(SeqCst) == 0 || (again && child == 0) {
        die_of(signal);
    }
}

fn now_ms() -> i64 {
    // SAFETY: the structure is plain data, and the call is allowed in handlers.
    unsafe {
        let mut now: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now);
        now.tv_sec * 1000 + now.tv_nsec / 1_000_000
    }
}
