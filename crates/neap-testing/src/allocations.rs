//! Counts what the engine allocates, in whichever of its threads.
//!
//! The test harness's main thread prints and waits beside a test, and may allocate at any moment. It is
//! told apart by its number and not counted. So a test that counts must be alone in its binary.

use rustix::process::getpid;
use rustix::thread::gettid;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering::SeqCst};

/// The system's allocator; make it the `#[global_allocator]` of a test.
pub struct Counting;

/// Calls of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocations {
    /// Blocks taken or resized.
    pub taken: usize,
    /// Blocks given back.
    pub released: usize,
}

impl Allocations {
    pub const NONE: Allocations = Allocations {
        taken: 0,
        released: 0,
    };
}

static ON: AtomicBool = AtomicBool::new(false);
static MAIN_COUNTS: AtomicBool = AtomicBool::new(false);
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static RELEASED: AtomicUsize = AtomicUsize::new(0);
/// Bytes taken and not given back, and the most that there were at once.
static HELD: AtomicIsize = AtomicIsize::new(0);
static MOST: AtomicIsize = AtomicIsize::new(0);

/// The most bytes that `work` holds at once, of those that it takes itself.
pub fn most_bytes(work: impl FnOnce()) -> u64 {
    HELD.store(0, SeqCst);
    MOST.store(0, SeqCst);
    counted(work);
    MOST.load(SeqCst).unsigned_abs() as u64
}

/// The bytes that `work` takes and does not give back.
pub fn kept_bytes(work: impl FnOnce()) -> u64 {
    HELD.store(0, SeqCst);
    counted(work);
    HELD.load(SeqCst).unsigned_abs() as u64
}

/// What all threads but the harness's allocate while `work` goes on. Counts one `work` at a time.
pub fn counted(work: impl FnOnce()) -> Allocations {
    MAIN_COUNTS.store(on_main_thread(), SeqCst);
    TAKEN.store(0, SeqCst);
    RELEASED.store(0, SeqCst);
    ON.store(true, SeqCst);
    work();
    ON.store(false, SeqCst);
    Allocations {
        taken: TAKEN.load(SeqCst),
        released: RELEASED.load(SeqCst),
    }
}

fn on_main_thread() -> bool {
    gettid() == getpid()
}

fn count(counter: &AtomicUsize, bytes: isize) {
    if ON.load(SeqCst) && (MAIN_COUNTS.load(SeqCst) || !on_main_thread()) {
        counter.fetch_add(1, SeqCst);
        let held = HELD.fetch_add(bytes, SeqCst) + bytes;
        MOST.fetch_max(held, SeqCst);
    }
}

fn size(layout: Layout) -> isize {
    layout.size().cast_signed()
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(&TAKEN, size(layout));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(&TAKEN, size(layout));
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(&RELEASED, -size(layout));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(&TAKEN, bytes.cast_signed() - size(layout));
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}
