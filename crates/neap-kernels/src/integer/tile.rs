//! One tile: sums of rows times panels, and what becomes of the sums.

use super::dot::{Dot, QUAD};
use super::{Rounding, Steps};
use crate::epilogue::Activation;
use crate::simd::LANES;

/// Most rows and panels of a tile, for any instruction set.
pub(super) const MAX_ROWS: usize = 12;
pub(super) const MAX_PANELS: usize = 2;

/// Where one kernel tap reads, from the corners on.
#[derive(Clone, Copy, Default)]
pub(super) struct Tap {
    pub offset: usize,
    /// A bit for each row that reads input; the others are in the padding.
    pub inside: u32,
}

/// Where the rows of a tile read. A panel has k in this order: blocks, in them taps, in them channels.
pub(super) struct Reads<'a> {
    pub corners: [*const u8; MAX_ROWS],
    pub taps: &'a [Tap],
    pub blocks: usize,
    /// From block to block.
    pub block_step: usize,
    /// k of a tap in one block, and in the last.
    pub block_len: usize,
    pub last_len: usize,
    /// As many zero points as a block is long, where a tap may be outside.
    pub outside: *const u8,
}

impl Reads<'_> {
    pub(super) fn len(&self, block: usize) -> usize {
        if block + 1 == self.blocks {
            self.last_len
        } else {
            self.block_len
        }
    }

    #[inline(always)]
    pub(super) fn run(&self, tap: &Tap, row: usize, step: usize) -> *const u8 {
        if tap.inside >> row & 1 != 0 {
            self.corners[row].wrapping_add(tap.offset.wrapping_add(step))
        } else {
            self.outside
        }
    }
}

/// Adds up a tile of `R` rows and `P` panels, whose quads are `panel_bytes` apart, into `sums`, row by row.
///
/// # Safety
/// Every run is readable for its k, the panels for all quads, and `sums` writable for `R * P * 16` integers.
#[inline(always)]
pub(super) unsafe fn add_up<D: Dot, const P: usize, const R: usize>(
    d: D,
    reads: &Reads<'_>,
    quads: *const u8,
    panel_bytes: usize,
    sums: *mut i32,
) {
    let mut acc = [[d.no_sums(); P]; R];
    let mut at = quads;
    let mut x = [std::ptr::null(); R];
    for block in 0..reads.blocks {
        let len = reads.len(block);
        let step = block * reads.block_step;
        for tap in reads.taps {
            for (row, x) in x.iter_mut().enumerate() {
                *x = reads.run(tap, row, step);
            }
            // SAFETY: `len` bytes of each run, as many quads of each panel.
            unsafe {
                let mut k = 0;
                while k + QUAD <= len {
                    let mut w = [d.load_quad(at); P];
                    for (p, w) in w.iter_mut().enumerate().skip(1) {
                        *w = d.load_quad(at.add(p * panel_bytes));
                    }
                    for r in 0..R {
                        let four = x[r].add(k).cast::<u32>().read_unaligned().to_le();
                        for p in 0..P {
                            acc[r][p] = d.dot(acc[r][p], four, w[p]);
                        }
                    }
                    at = at.add(D::QUAD_BYTES);
                    k += QUAD;
                }
                if k < len {
                    for p in 0..P {
                        let w = d.load_quad(at.add(p * panel_bytes));
                        for r in 0..R {
                            acc[r][p] = d.dot(acc[r][p], last(x[r].add(k), len - k), w);
                        }
                    }
                    at = at.add(D::QUAD_BYTES);
                }
            }
        }
    }
    for r in 0..R {
        for p in 0..P {
            // SAFETY: the caller's promise.
            unsafe { d.store_sums(sums.add((r * P + p) * LANES), acc[r][p]) };
        }
    }
}

/// Fewer than four bytes, and zeros.
#[inline(always)]
unsafe fn last(x: *const u8, len: usize) -> u32 {
    let mut four = 0;
    for i in 0..len {
        // SAFETY: the caller's run has as many bytes.
        four |= u32::from(unsafe { *x.add(i) }) << (8 * i);
    }
    four
}

/// What makes numbers of a panel's sums, a value for each channel.
#[repr(align(64))]
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub bias: [f32; LANES],
    pub scale: [f32; LANES],
    pub offset: [i32; LANES],
    pub zero: [i32; LANES],
}

/// Where results go and what is added to them.
#[derive(Clone, Copy)]
pub(super) struct Target {
    /// Bytes, or floats.
    pub out: *mut u8,
    pub gives_steps: bool,
    /// Laid out as the output; null for none. Bytes where there are steps.
    pub residual: *const u8,
    pub residual_steps: Option<Steps>,
    /// From row to row and from panel to panel, in elements.
    pub row_elements: usize,
    pub panel_elements: usize,
    pub before: Option<Rounding>,
    pub activation: Activation,
}

/// Makes results of the sums of `rows` rows and `heads.len()` panels, of which the last has `last_lanes` channels.
/// Output and residual begin `first` elements into the target's.
///
/// # Safety
/// `sums` and `row_sums` are readable for all of them (no row sums: every zero point is zero), and the target's memory
/// for all results.
#[inline(always)]
pub(super) unsafe fn finish<D: Dot>(
    d: D,
    target: &Target,
    heads: &[Head],
    first: usize,
    rows: usize,
    last_lanes: usize,
    sums: *const i32,
    row_sums: *const i32,
) {
    for (p, head) in heads.iter().enumerate() {
        let lanes = if p + 1 == heads.len() {
            last_lanes
        } else {
            LANES
        };
        for r in 0..rows {
            let at = first + r * target.row_elements + p * target.panel_elements;
            // SAFETY: the caller's promise.
            unsafe {
                let row = if row_sums.is_null() {
                    0
                } else {
                    *row_sums.add(r)
                };
                let sums = sums.add((r * heads.len() + p) * LANES);
                let centred = d.centred(sums, head.offset.as_ptr(), head.zero.as_ptr(), row);
                // Two roundings everywhere: not every instruction set has a fused one.
                let mut v = d.mul(centred, d.load(head.scale.as_ptr()));
                v = d.add(v, d.load(head.bias.as_ptr()));
                if let Some(rounding) = target.before {
                    v = rounding.value(d, rounding.step(d, v));
                }
                if !target.residual.is_null() {
                    v = d.add(v, residual(d, target, at, lanes));
                }
                if target.gives_steps {
                    if let Some(rounding) = Rounding::of(target.activation) {
                        v = rounding.step(d, v);
                    }
                    let to = target.out.add(at);
                    if lanes == LANES {
                        d.store_bytes(to, v);
                    } else {
                        let mut bytes = [0; LANES];
                        d.store_bytes(bytes.as_mut_ptr(), v);
                        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, lanes);
                    }
                } else {
                    v = target.activation.apply(d, v);
                    d.store_partial(target.out.cast::<f32>().add(at), lanes, v);
                }
            }
        }
    }
}

/// # Safety
/// The residual is readable for `lanes` elements at `at`.
#[inline(always)]
unsafe fn residual<D: Dot>(d: D, target: &Target, at: usize, lanes: usize) -> D::V {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(steps) = target.residual_steps else {
            return d.load_partial(target.residual.cast::<f32>().add(at), lanes);
        };
        let from = target.residual.add(at);
        let v = if lanes == LANES {
            d.load_bytes(from)
        } else {
            let mut bytes = [0; LANES];
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), lanes);
            d.load_bytes(bytes.as_ptr())
        };
        let centred = d.sub(v, d.splat(f32::from(steps.zero)));
        d.mul(centred, d.splat(steps.scale))
    }
}

impl Rounding {
    pub(super) fn of(activation: Activation) -> Option<Rounding> {
        match activation {
            Activation::Requantize {
                scale,
                zero,
                low,
                high,
            } => Some(Rounding {
                scale,
                zero,
                low,
                high,
            }),
            _ => None,
        }
    }

    /// The step of a number. Multiplied with the inverse of the scale, as other engines do where they requantise sums.
    #[inline(always)]
    fn step<D: Dot>(self, d: D, v: D::V) -> D::V {
        let step = d.round(d.mul(v, d.splat(1.0 / self.scale)));
        let step = d.add(step, d.splat(self.zero));
        // What is no number becomes the lowest step.
        d.min(d.max(step, d.splat(self.low)), d.splat(self.high))
    }

    #[inline(always)]
    fn value<D: Dot>(self, d: D, step: D::V) -> D::V {
        d.mul(d.sub(step, d.splat(self.zero)), d.splat(self.scale))
    }
}
