//! `GatherRows`: rows of an embedding table, from memory or straight from storage.
//!
//! ```text
//!   file    |  4096  |  4096  |  4096  |  4096  |
//!   row            ▒▒▒▒▒▒▒▒▒▒▒▒
//!   window  └────────────────────────┘            whole blocks, read to the step's workspace
//! ```
//! A run needs few rows of a large table, so they are read in batches of as many windows as fit the
//! workspace, each checked against its checksums, and copied to the output.

use crate::RuntimeError;
use crate::load_lane::LoadLane;
use neap_ir::DType;
use neap_kernels::simd::f16_to_f32;
use neap_store::{BLOCK, RangeRead};

/// Most windows in one batch.
pub(crate) const MAX_WINDOWS: usize = 256;

/// A table in the packed file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    pub file_offset: u64,
    pub rows: usize,
    pub row_bytes: usize,
    /// Half floats are widened as they are copied.
    pub stored: DType,
}

/// Where a run of the step finds its indices and puts its rows.
pub(crate) struct Gather<'a> {
    pub node: &'a str,
    pub table: Table,
    pub index_type: DType,
    pub indices: *const u8,
    pub count: usize,
    pub output: *mut u8,
}

impl Table {
    /// What the elements of a gathered row are.
    pub(crate) fn row_type(stored: DType) -> DType {
        if stored.is_float() {
            DType::F32
        } else {
            stored
        }
    }

    /// Most bytes that the window of one row takes; `None` if that is absurd.
    pub(crate) fn window_bytes(&self) -> Option<usize> {
        let block = BLOCK as u64;
        if self.file_offset.is_multiple_of(block) && (self.row_bytes as u64).is_multiple_of(block) {
            return Some(self.row_bytes);
        }
        // A row that begins at any byte of a block touches at most one block more than its length.
        let blocks = self.row_bytes.checked_add(2 * (BLOCK - 1))? / BLOCK;
        blocks.checked_mul(BLOCK)
    }

    fn window(&self, row: usize) -> (u64, usize, usize) {
        let begin = self.file_offset + (row * self.row_bytes) as u64;
        let end = begin + self.row_bytes as u64;
        let block = BLOCK as u64;
        let window_begin = begin / block * block;
        let window_end = end.div_ceil(block) * block;
        (
            window_begin,
            (window_end - window_begin) as usize,
            (begin - window_begin) as usize,
        )
    }
}

impl Gather<'_> {
    /// The row that index number `at` asks for; negative ones count from the end.
    fn row(&self, at: usize) -> Result<usize, RuntimeError> {
        // SAFETY: `at < count`, and the indices were checked to be `count` elements of the type.
        let index = unsafe {
            match self.index_type {
                DType::I32 => i64::from(self.indices.cast::<i32>().add(at).read_unaligned()),
                _ => self.indices.cast::<i64>().add(at).read_unaligned(),
            }
        };
        let wrapped = if index < 0 {
            index.checked_add_unsigned(self.table.rows as u64)
        } else {
            Some(index)
        };
        wrapped
            .and_then(|i| usize::try_from(i).ok())
            .filter(|&i| i < self.table.rows)
            .ok_or_else(|| RuntimeError::RowIndex {
                node: self.node.to_string(),
                index,
                rows: self.table.rows,
            })
    }

    /// # Safety
    /// `row` holds a whole row, and the output holds `count` of them.
    unsafe fn put(&self, at: usize, row: *const u8) {
        let bytes = self.table.row_bytes;
        let widen: fn(u16) -> f32 = match self.table.stored {
            DType::F16 => f16_to_f32,
            DType::BF16 => |half| f32::from_bits(u32::from(half) << 16),
            _ => {
                // SAFETY: by the contract; the table is never in the output's memory.
                unsafe { std::ptr::copy_nonoverlapping(row, self.output.add(at * bytes), bytes) };
                return;
            }
        };
        let elements = bytes / size_of::<u16>();
        for i in 0..elements {
            // SAFETY: by the contract; an output element is twice as long as a stored one.
            unsafe {
                let half = row.cast::<u16>().add(i).read_unaligned();
                let to = self.output.cast::<f32>().add(at * elements + i);
                to.write_unaligned(widen(half));
            }
        }
    }

    /// Copies rows out of the table, which lies in memory at `table`.
    ///
    /// # Safety
    /// All of the table, the indices and the output are where this says, in memory that nothing else
    /// writes.
    pub(crate) unsafe fn copy_from_memory(&self, table: *const u8) -> Result<(), RuntimeError> {
        for at in 0..self.count {
            let row = self.row(at)?;
            // SAFETY: the row lies in the table, by the check of the index.
            unsafe { self.put(at, table.add(row * self.table.row_bytes)) };
        }
        Ok(())
    }

    /// Reads rows from storage into `workspace` and copies them out. A row wanted twice in a batch is
    /// read once.
    ///
    /// # Safety
    /// The indices and the output are where this says, in memory that nothing else writes.
    /// `workspace` is that many bytes of the arena at a multiple of [`BLOCK`], used by nothing else.
    pub(crate) unsafe fn copy_from_storage(
        &self,
        lane: &mut LoadLane,
        workspace: (*mut u8, usize),
        batch: &mut RowBatch,
    ) -> Result<(), RuntimeError> {
        let (base, bytes) = workspace;
        let mut next = 0;
        while next < self.count {
            batch.clear();
            let mut used = 0;
            let first = next;
            while next < self.count {
                let row = self.row(next)?;
                if let Some(&(_, same)) = batch.rows.iter().find(|(r, _)| *r == row) {
                    batch.sources.push(same);
                } else {
                    let (file_offset, len_bytes, skip_bytes) = self.table.window(row);
                    if batch.windows.len() == MAX_WINDOWS || used + len_bytes > bytes {
                        break;
                    }
                    // SAFETY: the window ends within the workspace.
                    let dst = unsafe { base.add(used) };
                    batch.windows.push(RangeRead {
                        file_offset,
                        dst,
                        len_bytes,
                    });
                    batch.rows.push((row, used + skip_bytes));
                    batch.sources.push(used + skip_bytes);
                    used += len_bytes;
                }
                next += 1;
                if batch.sources.len() == MAX_WINDOWS * 4 {
                    break;
                }
            }
            if batch.windows.is_empty() {
                return Err(RuntimeError::Mismatch {
                    what: "plan",
                    reason: format!("the workspace of '{}' holds no row", self.node),
                });
            }
            // SAFETY: the windows lie in the workspace, apart from each other.
            unsafe { lane.read_now(&batch.windows)? };
            for (i, &source) in batch.sources.iter().enumerate() {
                // SAFETY: `source` is where the row lies in its window, which was read whole.
                unsafe { self.put(first + i, base.add(source)) };
            }
        }
        Ok(())
    }
}

/// Lists of one batch, allocated when the session opens.
#[derive(Default)]
pub(crate) struct RowBatch {
    windows: Vec<RangeRead>,
    /// Rows read, and where each lies in the workspace.
    rows: Vec<(usize, usize)>,
    /// For each index of the batch, where its row lies in the workspace.
    sources: Vec<usize>,
}

impl RowBatch {
    pub(crate) fn new() -> RowBatch {
        RowBatch {
            windows: Vec::with_capacity(MAX_WINDOWS),
            rows: Vec::with_capacity(MAX_WINDOWS),
            sources: Vec::with_capacity(MAX_WINDOWS * 4),
        }
    }

    /// Whether it has no memory for a batch.
    pub(crate) fn is_empty(&self) -> bool {
        self.windows.capacity() == 0
    }

    fn clear(&mut self) {
        self.windows.clear();
        self.rows.clear();
        self.sources.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_their_rows() {
        for row_bytes in [4, 100, 4096, 4100, 3072, 8192] {
            let table = Table {
                file_offset: 8192,
                rows: 500,
                row_bytes,
                stored: DType::F32,
            };
            for row in 0..table.rows {
                let (offset, len_bytes, skip_bytes) = table.window(row);
                assert!(offset.is_multiple_of(BLOCK as u64) && len_bytes.is_multiple_of(BLOCK));
                assert!(len_bytes <= table.window_bytes().unwrap());
                assert_eq!(offset + skip_bytes as u64, 8192 + (row * row_bytes) as u64);
                assert!(skip_bytes + row_bytes <= len_bytes);
            }
        }
    }
}
