//! What the tasks of one kernel call share: raw views of its memory, and how its work is cut.

use std::ops::Range;

/// A read-only buffer as tasks see it.
#[derive(Clone, Copy)]
pub(crate) struct Src<T = f32>(*const T);

// SAFETY: a `Src` only hands out addresses; whoever reads through one vouches for the access.
unsafe impl<T> Send for Src<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Src<T> {}

impl<T: Copy> Src<T> {
    pub(crate) fn new(slice: &[T]) -> Self {
        Src(slice.as_ptr())
    }

    /// # Safety
    /// `index` must lie inside the buffer (or one past its end).
    #[inline(always)]
    pub(crate) unsafe fn at(self, index: usize) -> *const T {
        // SAFETY: the caller keeps the index in bounds.
        unsafe { self.0.add(index) }
    }
}

/// A buffer that tasks write disjoint parts of.
#[derive(Clone, Copy)]
pub(crate) struct Dst<T = f32>(*mut T);

// SAFETY: a `Dst` only hands out addresses; the tasks of a call write disjoint elements.
unsafe impl<T> Send for Dst<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Dst<T> {}

impl<T: Copy> Dst<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        Dst(slice.as_mut_ptr())
    }

    /// The same memory for reading: a task reads an element before it writes it.
    pub(crate) fn as_src(self) -> Src<T> {
        Src(self.0)
    }

    /// # Safety
    /// `index` must lie inside the buffer (or one past its end).
    #[inline(always)]
    pub(crate) unsafe fn at(self, index: usize) -> *mut T {
        // SAFETY: the caller keeps the index in bounds.
        unsafe { self.0.add(index) }
    }
}

/// `units` items in consecutive chunks of `chunk`, the last one shorter.
#[derive(Clone, Copy)]
pub(crate) struct Chunks {
    units: usize,
    chunk: usize,
}

impl Chunks {
    /// Chunks of at least `chunk` units, grown so that they come out about equally long.
    pub(crate) fn new(units: usize, chunk: usize) -> Self {
        let count = (units / chunk.max(1)).max(1);
        Chunks {
            units,
            chunk: units.div_ceil(count).max(1),
        }
    }

    pub(crate) fn count(self) -> usize {
        self.units.div_ceil(self.chunk)
    }

    pub(crate) fn range(self, index: usize) -> Range<usize> {
        let start = index * self.chunk;
        start..(start + self.chunk).min(self.units)
    }
}
