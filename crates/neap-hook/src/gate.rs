//! The gate before the card: calls that give it work pass while the program has its turn, and wait otherwise.
//!
//! Passing costs two atomic additions. Whoever closes the gate waits until all who are inside have left.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

const CLOSED: u64 = 1 << 63;

/// Calls inside, and whether the gate is closed.
static STATE: AtomicU64 = AtomicU64::new(CLOSED);

/// Whether any call passed since [`was_busy`] asked last.
static BUSY: AtomicBool = AtomicBool::new(false);

/// Passes if the gate is open; then [`leave`] must follow.
#[inline]
pub fn try_enter() -> bool {
    if STATE.fetch_add(1, Acquire) & CLOSED == 0 {
        BUSY.store(true, Relaxed);
        return true;
    }
    leave();
    false
}

/// Passes beside others who are inside, though the gate is closed: whoever closed it still waits for them.
pub fn try_enter_beside() -> bool {
    let beside = |state: u64| (state & !CLOSED > 0).then_some(state + 1);
    STATE.fetch_update(AcqRel, Acquire, beside).is_ok()
}

#[inline]
pub fn leave() {
    STATE.fetch_sub(1, Release);
}

pub fn open() {
    STATE.fetch_and(!CLOSED, Release);
}

/// Lets nobody in any more.
pub fn close() {
    STATE.fetch_or(CLOSED, AcqRel);
}

pub fn is_open() -> bool {
    STATE.load(Acquire) & CLOSED == 0
}

/// Whether nobody is inside.
pub fn is_empty() -> bool {
    STATE.load(Acquire) & !CLOSED == 0
}

/// Whether a call passed since this was asked last.
pub fn was_busy() -> bool {
    BUSY.swap(false, Relaxed)
}

/// In a child after a fork: nobody is inside.
pub fn reset() {
    STATE.store(CLOSED, Release);
}
