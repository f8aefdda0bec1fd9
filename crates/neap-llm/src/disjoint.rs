//! Rows of a buffer for tasks that run side by side: each gets its own.

use neap_kernels::parallel::Parallel;
use std::marker::PhantomData;

/// A buffer in rows of equal length, each of which is handed out to one task at a time.
pub(crate) struct Rows<'a, T> {
    first: *mut T,
    width: usize,
    count: usize,
    of: PhantomData<&'a mut [T]>,
}

// SAFETY: rows are disjoint, and whoever takes one says that nobody else has it.
unsafe impl<T: Send> Sync for Rows<'_, T> {}

impl<'a, T> Rows<'a, T> {
    pub fn new(data: &'a mut [T], width: usize) -> Rows<'a, T> {
        Rows {
            first: data.as_mut_ptr(),
            width,
            count: data.len() / width.max(1),
            of: PhantomData,
        }
    }

    /// # Safety
    /// No other task has the row.
    ///
    /// # Panics
    /// There are fewer rows.
    #[allow(clippy::mut_from_ref)] // Rows are disjoint, and the caller has this one alone.
    pub unsafe fn take(&self, row: usize) -> &mut [T] {
        assert!(row < self.count, "row {row} of {}", self.count);
        // SAFETY: the row is in the buffer, and the caller's alone.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(row * self.width), self.width) }
    }
}

/// Calls `body` with each row of `data`, side by side.
pub(crate) fn for_rows<T: Send>(
    par: &dyn Parallel,
    data: &mut [T],
    width: usize,
    body: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    let rows = Rows::new(data, width);
    par.run(rows.count, &|row, _| {
        // SAFETY: each task has its own row.
        body(row, unsafe { rows.take(row) });
    });
}
