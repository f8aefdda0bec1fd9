//! Results of a tile that are made while the next one is added up.
//!
//! ```text
//!   products, tile n      | 16 k | 16 k | 16 k | 16 k | ...
//!   results, tile n - 1          | panel 0 | panel 1 | ...     a panel after each 16 k
//! ```
//! A unit that multiplies bytes does nothing else, and results need it seldom: between the products of two tiles it would wait for them.
//! Only what most layers need is made so: whole panels of steps, of plain sums or with a residual in steps.

use super::Steps;
use super::dot::{Dot, MAX_PANELS};
use super::finish::{Finisher, Head, Summed};
use super::ready::Ready;
use super::tiled::Tiled;
use crate::simd::LANES;

/// Numbers below this are integers of 32 bits, however they are rounded.
const MOST: f32 = (1u32 << 30) as f32;

/// A panel of a tile, and what makes steps of its sums.
#[repr(C, align(64))]
pub(super) struct Piece {
    pub last: Bounds,
    pub sums: *const i32,
    /// From row to row, in bytes.
    pub step: usize,
    pub rows: usize,
    pub out: *mut u8,
    pub residual: *const u8,
    pub head: *const Head,
    pub sum: Sum,
    /// Whether there is a residual.
    pub is_sum: bool,
    /// From panel to panel, in results; and panels of the tile that are left.
    pub panel: usize,
    pub left: usize,
}

/// A rounding to bytes, with bounds for vectors of words and of bytes.
#[repr(C, align(64))]
pub(super) struct Bounds {
    pub zero: [i16; 2 * LANES],
    pub low: [u8; 4 * LANES],
    pub high: [u8; 4 * LANES],
    /// Which four bytes of four rows side by side, packed by quarters, come first.
    pub places: [i32; LANES],
    pub inverse: f32,
}

impl Bounds {
    fn new(ready: Ready) -> Bounds {
        let r = ready.rounding;
        Bounds {
            zero: [r.zero as i16; _],
            low: [r.low as u8; _],
            high: [r.high as u8; _],
            places: [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15],
            inverse: ready.inverse,
        }
    }
}

/// A rounding to whole steps, and a residual in steps that is added then.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    pub inverse: f32,
    pub least: i32,
    pub most: i32,
    pub scale: f32,
    pub residual_zero: i32,
    pub residual_scale: f32,
}

impl Sum {
    fn new(before: Ready, residual: Steps) -> Sum {
        Sum {
            inverse: before.inverse,
            least: before.least as i32,
            most: before.most as i32,
            scale: before.rounding.scale,
            residual_zero: i32::from(residual.zero),
            residual_scale: residual.scale,
        }
    }

    /// The largest sum.
    fn reach(&self) -> f32 {
        let own = self.least.unsigned_abs().max(self.most.unsigned_abs());
        own as f32 * self.scale.abs() + 255.0 * self.residual_scale.abs()
    }
}

/// A tile whose results are not made yet, of a part of a layer.
pub(super) struct Beside<'a> {
    finisher: &'a Finisher,
    tile: Summed,
    last_lanes: usize,
    /// Panels of a tile that may be finished beside products.
    quick: usize,
    piece: Piece,
}

impl<'a> Beside<'a> {
    pub(super) fn new<D: Dot>(finisher: &'a Finisher, no_zeros: bool, last_lanes: usize) -> Self {
        let target = finisher.target();
        let sum = finisher.sum(no_zeros);
        let (last, is_plain) = (finisher.bytes(), finisher.is_plain(no_zeros));
        let piece = Piece {
            last: Bounds::new(last.unwrap_or(Ready::none())),
            sums: std::ptr::null(),
            step: 0,
            rows: 0,
            out: target.out,
            residual: target.residual,
            head: std::ptr::null(),
            sum: sum.map_or(Sum::default(), |(before, of)| Sum::new(before, of)),
            is_sum: sum.is_some(),
            panel: target.panel_elements,
            left: 0,
        };
        let is_bounded = !piece.is_sum || piece.sum.reach() * piece.last.inverse.abs() < MOST;
        let fits = target.row_elements == LANES && last_lanes == LANES;
        let is_quick = D::BESIDE && last.is_some() && (is_plain || piece.is_sum);
        Beside {
            finisher,
            tile: Summed::NONE,
            last_lanes,
            quick: match is_quick && fits && is_bounded {
                true => MAX_PANELS,
                false => 0,
            },
            piece,
        }
    }

    /// Panels are finished beside products only where no sum becomes too large a number.
    pub(super) fn limit(&mut self, heads: &[Head]) {
        let inverse = match self.piece.is_sum {
            true => self.piece.sum.inverse,
            false => self.piece.last.inverse,
        };
        let is_bounded = |head: &Head| {
            let mut each = head.scale.iter().zip(&head.bias);
            each.all(|(scale, bias)| {
                (scale.abs() * -(i32::MIN as f32) + bias.abs()) * inverse.abs() < MOST
            })
        };
        let bounded = heads.iter().take_while(|head| is_bounded(head)).count();
        self.quick = self.quick.min(bounded);
    }

    /// The tile whose sums are all there now.
    pub(super) fn put(&mut self, tile: Summed, heads: &[Head; MAX_PANELS]) {
        let target = self.finisher.target();
        self.tile = tile;
        let piece = &mut self.piece;
        piece.left = self.quick.min(tile.panels);
        piece.sums = tile.sums;
        piece.step = tile.panels * LANES * size_of::<i32>();
        piece.rows = tile.rows;
        piece.out = target.out.wrapping_add(tile.first);
        piece.residual = target.residual.wrapping_add(tile.first);
        piece.head = heads.as_ptr();
    }

    /// Whose results may be made beside products.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "only kernels of VNNI look at it")
    )]
    pub(super) fn next(&mut self) -> &mut Piece {
        &mut self.piece
    }

    /// The results that are left.
    ///
    /// # Safety
    /// As [`Finisher::finish`].
    #[inline(always)]
    pub(super) unsafe fn rest<D: Tiled>(&mut self, d: D, heads: &[Head; MAX_PANELS]) {
        let tile = self.tile;
        // SAFETY: the caller's promise.
        unsafe {
            while D::BESIDE && self.piece.left > 0 {
                d.piece(&mut self.piece);
            }
            let first = self.quick.min(tile.panels);
            (self.finisher).finish(d, &heads[..tile.panels], first, tile, self.last_lanes);
        }
        self.tile = Summed::NONE;
    }
}
