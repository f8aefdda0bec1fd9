//! One tile: some rows of steps times some panels in blocks.

use super::dot::{BlockDot, MAX_PANELS};
use super::quad_bytes;
use super::rows::Fact;
use crate::epilogue::Activation;
use crate::integer::dot::QUAD;
use crate::panel::{BlockFormat, Format};
use crate::simd::{LANES, prefetch_far};

/// Bytes of four k of a panel that is widened: 16 bytes each.
pub(super) const WIDE_QUAD: usize = QUAD * LANES;

/// Most panels whose weights are widened for many rows.
pub(super) const WIDE_PANELS: usize = 2;

/// Rows and panels of a tile.
pub(super) struct Tile {
    /// Steps of the first row.
    pub steps: *const i8,
    pub row_bytes: usize,
    pub facts: *const Fact,
    pub k: usize,
    pub blocks: usize,
    pub format: BlockFormat,
    /// As packed.
    pub panels: [*const u8; MAX_PANELS],
    /// Their quads side by side, widened: those of one k, then those of the next.
    pub wide: *const u8,
    pub last_lanes: usize,
    /// At the first row and panel.
    pub out: *mut f32,
    /// Null, or as `out`.
    pub residual: *const f32,
    pub row_floats: usize,
    pub activation: Activation,
}

impl Tile {
    /// Channels of a panel that are stored.
    fn lanes(&self, panel: usize, panels: usize) -> usize {
        if panel + 1 == panels {
            self.last_lanes
        } else {
            LANES
        }
    }
}

/// Bytes before a panel's first block.
pub(super) const fn bias_bytes(format: BlockFormat) -> usize {
    Format::Blocks(format).head_bytes()
}

/// Four k of a panel.
///
/// # Safety
/// They are readable, in the bits that `EIGHT` says.
#[inline(always)]
unsafe fn quad<D: BlockDot, const EIGHT: bool>(d: D, at: *const u8) -> D::Quad {
    // SAFETY: the caller's promise.
    unsafe {
        match EIGHT {
            true => d.eight_bits(at),
            false => d.four_bits(at),
        }
    }
}

/// The last `len` k of a panel, fewer than four, and zeros.
///
/// # Safety
/// So many are readable.
#[inline(always)]
unsafe fn last_quad<D: BlockDot, const EIGHT: bool>(d: D, at: *const u8, len: usize) -> D::Quad {
    let step = if EIGHT { LANES } else { LANES / 2 };
    let mut rest = [0; WIDE_QUAD];
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(at, rest.as_mut_ptr(), len * step);
        quad::<D, EIGHT>(d, rest.as_ptr())
    }
}

/// Widens a panel, its quads `step` bytes apart.
///
/// # Safety
/// The panel has `k`, and `to` room for its quads.
#[inline(always)]
pub(super) unsafe fn widen<D: BlockDot, const EIGHT: bool>(
    d: D,
    format: BlockFormat,
    k: usize,
    panel: *const u8,
    to: *mut u8,
    step: usize,
) {
    const AHEAD: usize = 1024;
    let (mut at, mut to) = (panel.wrapping_add(bias_bytes(format)), to);
    let mut left = k;
    while left > 0 {
        let len = left.min(format.len);
        left -= len;
        at = at.wrapping_add(format.head_bytes());
        // SAFETY: the panel's k.
        unsafe {
            for _ in 0..len / QUAD {
                prefetch_far(at.wrapping_add(AHEAD).cast());
                d.store_quad(to, quad::<D, EIGHT>(d, at));
                at = at.add(quad_bytes(format));
                to = to.wrapping_add(step);
            }
            if !len.is_multiple_of(QUAD) {
                d.store_quad(to, last_quad::<D, EIGHT>(d, at, len % QUAD));
            }
        }
    }
}

/// Scales and zero points of a block, which begins at `head`.
///
/// # Safety
/// It is readable.
#[inline(always)]
unsafe fn head_of<D: BlockDot, const EIGHT: bool>(
    d: D,
    format: BlockFormat,
    head: *const u8,
) -> (D::V, D::V) {
    // SAFETY: the caller's promise; zero points stand behind the scales.
    unsafe {
        let scale = match format.has_half_scales {
            true => d.load_f16(head),
            false => d.load(head.cast()),
        };
        let zero = d.load_i8(head.add(format.head_bytes() - LANES));
        match EIGHT {
            // Weights are counted from -128.
            true => (scale, d.add(zero, d.splat(128.0))),
            false => (scale, zero),
        }
    }
}

/// Results of `R` rows and `P` panels.
///
/// # Safety
/// The tile's pointers reach all that it says.
#[inline(always)]
pub(super) unsafe fn add_tile<
    D: BlockDot,
    const EIGHT: bool,
    const WIDE: bool,
    const P: usize,
    const R: usize,
>(
    d: D,
    t: &Tile,
) {
    const AHEAD: usize = 1024;
    let mut acc = [[d.zero(); P]; R];
    for p in 0..P {
        // SAFETY: a panel begins with its bias; the residual has the lanes that are stored.
        unsafe {
            let bias = d.load(t.panels[p].cast());
            for r in 0..R {
                acc[r][p] = bias;
                if !t.residual.is_null() {
                    let from = t.residual.add(r * t.row_floats + p * LANES);
                    acc[r][p] = d.add(bias, d.load_partial(from, t.lanes(p, P)));
                }
            }
        }
    }
    let (mut at, mut wide) = (bias_bytes(t.format), t.wide);
    let mut k = 0;
    for block in 0..t.blocks {
        let len = t.format.len.min(t.k - k);
        let head = at;
        at += t.format.head_bytes();
        let mut sums = [[d.no_sums(); P]; R];
        // SAFETY: the panels' k, widened or not, and as many steps of each row, in whole vectors.
        unsafe {
            for i in 0..len.div_ceil(QUAD) {
                let mut w = [d.no_quad(); P];
                for p in 0..P {
                    w[p] = if WIDE {
                        d.load_quad(wide.add(p * WIDE_QUAD))
                    } else if len - i * QUAD >= QUAD {
                        prefetch_far(t.panels[p].wrapping_add(at + AHEAD).cast());
                        quad::<D, EIGHT>(d, t.panels[p].add(at))
                    } else {
                        last_quad::<D, EIGHT>(d, t.panels[p].add(at), len % QUAD)
                    };
                }
                for r in 0..R {
                    let x = t.steps.add(r * t.row_bytes + k + i * QUAD);
                    let x = x.cast::<i32>().read_unaligned();
                    for p in 0..P {
                        sums[r][p] = d.dot::<EIGHT>(sums[r][p], w[p], x);
                    }
                }
                at += quad_bytes(t.format);
                wide = wide.wrapping_add(P * WIDE_QUAD);
            }
            for p in 0..P {
                let (scale, zero) = head_of::<D, EIGHT>(d, t.format, t.panels[p].add(head));
                for r in 0..R {
                    let [own, sum] = *t.facts.add(r * t.blocks + block);
                    // Whole numbers below 2^24.
                    let whole = d.fnma(zero, d.splat(sum), d.numbers(sums[r][p]));
                    let both = d.mul(scale, d.splat(own));
                    acc[r][p] = d.add(acc[r][p], d.mul(whole, both));
                }
            }
        }
        k += len;
    }
    for r in 0..R {
        for p in 0..P {
            // SAFETY: the tile's results.
            unsafe {
                let to = t.out.add(r * t.row_floats + p * LANES);
                let v = t.activation.apply_light(d, acc[r][p]);
                d.store_partial(to, t.lanes(p, P), v);
            }
        }
    }
}
