//! Counts allocations of each thread for itself, so that tests may run side by side.

use std::alloc::{GlobalAlloc, Layout as Block, System};
use std::cell::Cell;

/// The system's allocator.
pub struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// So many on this thread so far.
pub fn allocations() -> usize {
    ALLOCATIONS.with(Cell::get)
}

// SAFETY: hands every request to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Block) -> *mut u8 {
        // No destructor and constant initialisation: the cell can be used while allocating.
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(block) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, block: Block) {
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(ptr, block) }
    }
}
