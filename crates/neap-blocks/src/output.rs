//! Where results go: some columns of a matrix, which threads may fill side by side.

use std::marker::PhantomData;
use std::ops::Range;

/// Columns of `rows` rows of a row-major matrix, that nobody else reads or writes.
pub struct Output<'a> {
    first: *mut f32,
    rows: usize,
    ld: usize,
    columns: usize,
    of: PhantomData<&'a mut [f32]>,
}

// SAFETY: an `Output` is the only one with its columns, as a `&mut [f32]` is with its elements.
unsafe impl Send for Output<'_> {}

impl<'a> Output<'a> {
    /// The columns `columns` of `y`, which is `[rows][ld]`.
    ///
    /// # Panics
    /// `y` is shorter, or has fewer columns.
    #[must_use]
    pub fn new(y: &'a mut [f32], rows: usize, ld: usize, columns: Range<usize>) -> Self {
        assert!(columns.start <= columns.end && columns.end <= ld, "columns");
        assert!(rows.checked_mul(ld).is_some_and(|n| n <= y.len()), "rows");
        Output {
            first: y.as_mut_ptr().wrapping_add(columns.start),
            rows,
            ld,
            columns: columns.len(),
            of: PhantomData,
        }
    }

    /// The first `columns` of these, and the others: one for each thread.
    ///
    /// # Panics
    /// There are fewer.
    #[must_use]
    pub fn split_at(self, columns: usize) -> (Self, Self) {
        assert!(columns <= self.columns, "so many columns");
        let right = Output {
            first: self.first.wrapping_add(columns),
            columns: self.columns - columns,
            ..self
        };
        (Output { columns, ..self }, right)
    }

    /// How many rows there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many columns there are.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Writes some neighbouring elements of a row.
    #[inline(always)]
    pub(crate) fn put(&mut self, row: usize, column: usize, values: &[f32]) {
        assert!(row < self.rows && column + values.len() <= self.columns);
        // SAFETY: the elements are in the matrix and in the columns that are this value's alone.
        unsafe {
            let to = self.first.add(row * self.ld + column);
            std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
        }
    }
}
