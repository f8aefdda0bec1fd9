//! Where a tile reads: a corner for each position, and for each kernel tap an offset from there.

use super::micro::{MAX_ROWS, Tap};
use std::mem::MaybeUninit;

/// Taps that a table holds; larger kernels run in chunks of taps.
pub(super) const TABLE_TAPS: usize = 64;

/// The inputs of one tile.
pub(super) struct Table {
    pub corners: [*const f32; MAX_ROWS],
    taps: [MaybeUninit<Tap>; TABLE_TAPS],
}

impl Table {
    pub fn new() -> Self {
        Table {
            corners: [std::ptr::null(); MAX_ROWS],
            taps: [const { MaybeUninit::uninit() }; TABLE_TAPS],
        }
    }

    /// A writer for a tile of `rows` positions, of a chunk whose first tap is `first_tap`.
    pub fn writer(&mut self, rows: usize, first_tap: usize) -> TapWriter<'_> {
        TapWriter {
            table: self,
            len: 0,
            rows,
            first_tap,
        }
    }

    /// The taps that the last writer added.
    pub fn taps(&self) -> *const Tap {
        self.taps.as_ptr().cast()
    }
}

/// Collects the inputs of a tile.
pub(crate) struct TapWriter<'a> {
    table: &'a mut Table,
    len: usize,
    rows: usize,
    first_tap: usize,
}

impl TapWriter<'_> {
    /// Positions of the tile.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// A mask with a bit for every position of the tile.
    pub(crate) fn all(&self) -> u32 {
        (1 << self.rows) - 1
    }

    /// Taps added.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// From where position `row` counts its taps' offsets; it may lie outside the input.
    #[inline(always)]
    pub(crate) fn corner(&mut self, row: usize, pixel: *const f32) {
        self.table.corners[row] = pixel;
    }

    /// Adds a tap which reads `offset_floats` from the corner on, for the positions in the mask
    /// `inside`; for the others it is in the padding. Dropped where that is all of them.
    #[inline(always)]
    pub(crate) fn tap(&mut self, index: usize, offset_floats: usize, inside: u32) {
        let offset_bytes = offset_floats.wrapping_mul(size_of::<f32>());
        self.table.taps[self.len].write(Tap {
            index: index - self.first_tap,
            offset_bytes,
            inside,
        });
        self.len += usize::from(inside != 0);
    }
}
