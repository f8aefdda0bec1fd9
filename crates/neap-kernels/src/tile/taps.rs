//! The table of a tile's taps: where each kernel tap reads, for each position.

use super::micro::{Tap, ZERO_RUN};
use std::mem::MaybeUninit;

/// Taps that a table holds; larger kernels run in chunks of taps.
pub(super) const TABLE_TAPS: usize = 32;

/// Memory for the taps of one tile.
pub(super) struct Table([MaybeUninit<Tap>; TABLE_TAPS]);

impl Table {
    pub fn new() -> Self {
        Table([const { MaybeUninit::uninit() }; TABLE_TAPS])
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
    pub fn as_ptr(&self) -> *const Tap {
        self.0.as_ptr().cast()
    }
}

/// Collects the taps of a tile that touch the image.
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

    /// Taps added.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a tap: `run(row)` is where a position of the tile reads in channel block 0, `None`
    /// outside the image. A tap outside for the whole tile is dropped.
    #[inline(always)]
    pub(crate) fn tap(&mut self, index: usize, run: impl Fn(usize) -> Option<*const f32>) {
        let entry = self.table.0[self.len].as_mut_ptr();
        let mut touched = false;
        // SAFETY: `entry` is writable and has room for `rows` positions. Its fields are plain
        // data, of which the micro-kernel reads only what is written here.
        unsafe {
            (*entry).index = index - self.first_tap;
            for row in 0..self.rows {
                let inside = run(row);
                touched |= inside.is_some();
                (*entry).moves[row] = if inside.is_some() { usize::MAX } else { 0 };
                (*entry).base[row] = inside.unwrap_or(ZERO_RUN.0.as_ptr());
            }
        }
        self.len += usize::from(touched);
    }
}
