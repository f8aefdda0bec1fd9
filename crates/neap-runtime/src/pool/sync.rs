//! What the crew shares memory and sleeps by: atomics, and the kernel's futexes.

use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, fence};

/// How long a thread without work watches for more before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// A value that one thread puts where others get it, in an order that atomics make.
pub(super) struct Slot<T>(UnsafeCell<T>);

// SAFETY: users of `put` and `get` promise that those of several threads are in order.
unsafe impl<T: Copy + Send + Sync> Sync for Slot<T> {}

impl<T: Copy> Slot<T> {
    pub(super) fn new(value: T) -> Slot<T> {
        Slot(UnsafeCell::new(value))
    }

    /// # Safety
    /// No other call is made meanwhile.
    pub(super) unsafe fn put(&self, value: T) {
        // SAFETY: the caller's promise.
        unsafe { *self.0.get() = value }
    }

    /// # Safety
    /// `put` is not called meanwhile.
    pub(super) unsafe fn get(&self) -> T {
        // SAFETY: the caller's promise.
        unsafe { *self.0.get() }
    }
}

/// A number that threads can wait on.
pub(super) struct Word(AtomicU32);

impl Word {
    pub(super) fn new(value: u32) -> Word {
        Word(AtomicU32::new(value))
    }

    /// Sleeps until woken, if the number is still `value`. Returns early on a signal.
    pub(super) fn wait(&self, value: u32) {
        let _ = futex::wait(&self.0, futex::Flags::PRIVATE, value, None);
    }

    /// Wakes so many of those that wait.
    pub(super) fn wake(&self, count: u32) {
        // Fails only for addresses that are no memory.
        let _ = futex::wake(&self.0, futex::Flags::PRIVATE, count);
    }

    pub(super) fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }

    pub(super) fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }

    pub(super) fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.0.swap(value, order)
    }

    pub(super) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.0.fetch_add(value, order)
    }

    pub(super) fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
        self.0.fetch_sub(value, order)
    }
}

/// Watches for `done` for a short while.
pub(super) fn spin_until(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN {
            return false;
        }
    }
}
