//! One tile: sums of rows times panels, and what becomes of the sums.

use super::dot::{Dot, QUAD};
use super::{Rounding, Steps};
use crate::epilogue::Activation;
use crate::simd::{LANES, prefetch_far};

/// Most rows and panels of a tile, for any instruction set.
pub(super) const MAX_ROWS: usize = 12;
pub(super) const MAX_PANELS: usize = 4;

/// As many rows or fewer read panels as they are packed: bringing them into order would cost more than computing.
pub(super) const FEW_ROWS: usize = 4;

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

    /// Where the first `R` rows read.
    #[inline(always)]
    fn runs<const R: usize>(&self, tap: &Tap, step: usize) -> [*const u8; R] {
        let mut x = [std::ptr::null(); R];
        if tap.inside.trailing_ones() as usize >= R {
            let offset = tap.offset.wrapping_add(step);
            for r in 0..R {
                x[r] = self.corners[r].wrapping_add(offset);
            }
        } else {
            for r in 0..R {
                x[r] = self.run(tap, r, step);
            }
        }
        x
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

/// Adds up a tile of `R` rows and `P` panels into `sums`, row by row. Quads of the panels lie side by side: those of one k,
/// then those of the next.
///
/// # Safety
/// Every run is readable for its k, the panels for all quads, and `sums` writable for `R * P * 16` integers.
#[inline(always)]
pub(super) unsafe fn add_up<D: Dot, const P: usize, const R: usize>(
    d: D,
    reads: &Reads<'_>,
    quads: *const u8,
    sums: *mut i32,
) {
    let mut acc = [[d.no_sums(); P]; R];
    let mut at = quads;
    for block in 0..reads.blocks {
        let len = reads.len(block);
        let step = block * reads.block_step;
        for tap in reads.taps {
            let x = reads.runs::<R>(tap, step);
            // SAFETY: `len` bytes of each run, as many quads of each panel.
            unsafe {
                let mut k = 0;
                while k + 4 * QUAD <= len {
                    for i in 0..4 {
                        let w = load::<D, P>(d, at.add(i * P * D::QUAD_BYTES));
                        add_quad::<D, P, R>(d, &mut acc, &x, k + i * QUAD, &w);
                    }
                    at = at.add(4 * P * D::QUAD_BYTES);
                    k += 4 * QUAD;
                }
                while k + QUAD <= len {
                    let w = load::<D, P>(d, at);
                    add_quad::<D, P, R>(d, &mut acc, &x, k, &w);
                    at = at.add(P * D::QUAD_BYTES);
                    k += QUAD;
                }
                if k < len {
                    let w = load::<D, P>(d, at);
                    add_last::<D, P, R>(d, &mut acc, &x, k, len - k, &w);
                    at = at.add(P * D::QUAD_BYTES);
                }
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { store::<D, P, R>(d, sums, &acc) };
}

/// As [`add_up`], of panels as they are packed, each of which begins at its pointer; `columns` gets the sums of
/// their weights, panel by panel.
///
/// # Safety
/// As [`add_up`], and `columns` is writable for `P * 16` integers.
#[inline(always)]
pub(super) unsafe fn add_up_few<D: Dot, const P: usize, const R: usize>(
    d: D,
    reads: &Reads<'_>,
    panels: &[*const u8; MAX_PANELS],
    sums: *mut i32,
    columns: *mut i32,
) {
    const AHEAD: usize = 1024;
    let mut acc = [[d.no_sums(); P]; R];
    let mut column = [[d.no_sums(); P]; 1];
    let ones = 0x0101_0101;
    // From the panels' first k on, in bytes.
    let mut at = 0;
    for block in 0..reads.blocks {
        let len = reads.len(block);
        let step = block * reads.block_step;
        for tap in reads.taps {
            let x = reads.runs::<R>(tap, step);
            // SAFETY: `len` bytes of each run, as many k of each panel; the last, fewer than four, are copied out.
            unsafe {
                let mut k = 0;
                while k + QUAD <= len {
                    let mut w = [d.in_order(panels[0].add(at)); P];
                    prefetch_far(panels[0].wrapping_add(at + AHEAD).cast());
                    for p in 1..P {
                        w[p] = d.in_order(panels[p].add(at));
                        prefetch_far(panels[p].wrapping_add(at + AHEAD).cast());
                    }
                    add_quad::<D, P, R>(d, &mut acc, &x, k, &w);
                    for p in 0..P {
                        column[0][p] = d.dot(column[0][p], ones, w[p]);
                    }
                    at += QUAD * LANES;
                    k += QUAD;
                }
                if k < len {
                    let mut w = [last_in_order(d, panels[0].add(at), len - k); P];
                    for p in 1..P {
                        w[p] = last_in_order(d, panels[p].add(at), len - k);
                    }
                    add_last::<D, P, R>(d, &mut acc, &x, k, len - k, &w);
                    for p in 0..P {
                        column[0][p] = d.dot(column[0][p], ones, w[p]);
                    }
                    at += (len - k) * LANES;
                }
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        store::<D, P, R>(d, sums, &acc);
        store::<D, P, 1>(d, columns, &column);
    }
}

/// Fewer than four k of a panel, and zeros.
///
/// # Safety
/// `from` is readable for `len` k.
#[inline(always)]
unsafe fn last_in_order<D: Dot>(d: D, from: *const u8, len: usize) -> D::Quad {
    let mut rest = [0; QUAD * LANES];
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from, rest.as_mut_ptr(), len * LANES);
        d.in_order(rest.as_ptr())
    }
}

#[inline(always)]
unsafe fn load<D: Dot, const P: usize>(d: D, at: *const u8) -> [D::Quad; P] {
    // SAFETY: the caller has `P` quads there.
    unsafe {
        let mut w = [d.load_quad(at); P];
        for (p, w) in w.iter_mut().enumerate().skip(1) {
            *w = d.load_quad(at.add(p * D::QUAD_BYTES));
        }
        w
    }
}

#[inline(always)]
unsafe fn add_quad<D: Dot, const P: usize, const R: usize>(
    d: D,
    acc: &mut [[D::Sums; P]; R],
    x: &[*const u8; R],
    k: usize,
    w: &[D::Quad; P],
) {
    for r in 0..R {
        // SAFETY: the caller's runs have four bytes there.
        let four = unsafe { x[r].add(k).cast::<u32>().read_unaligned() }.to_le();
        for p in 0..P {
            acc[r][p] = d.dot(acc[r][p], four, w[p]);
        }
    }
}

#[inline(always)]
unsafe fn add_last<D: Dot, const P: usize, const R: usize>(
    d: D,
    acc: &mut [[D::Sums; P]; R],
    x: &[*const u8; R],
    k: usize,
    len: usize,
    w: &[D::Quad; P],
) {
    for r in 0..R {
        // SAFETY: the caller's runs have as many bytes there.
        let four = unsafe { last(x[r].add(k), len) };
        for p in 0..P {
            acc[r][p] = d.dot(acc[r][p], four, w[p]);
        }
    }
}

#[inline(always)]
unsafe fn store<D: Dot, const P: usize, const R: usize>(
    d: D,
    sums: *mut i32,
    acc: &[[D::Sums; P]; R],
) {
    for r in 0..R {
        for p in 0..P {
            // SAFETY: the caller has so many there.
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

impl Head {
    pub const NONE: Head = Head {
        bias: [0.0; LANES],
        scale: [0.0; LANES],
        offset: [0; LANES],
        zero: [0; LANES],
    };
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
    let tile = Finished {
        // Of its own, so that results are known not to change it.
        target: *target,
        last: Rounding::of(target.activation),
        first,
        rows,
        panels: heads.len(),
        sums,
        row_sums,
    };
    let is_plain = target.before.is_none() && target.residual.is_null() && row_sums.is_null();
    for (p, head) in heads.iter().enumerate() {
        let lanes = if p + 1 == heads.len() {
            last_lanes
        } else {
            LANES
        };
        // SAFETY: the caller's promise.
        unsafe {
            if is_plain {
                tile.panel::<D, true>(d, p, head, lanes);
            } else {
                tile.panel::<D, false>(d, p, head, lanes);
            }
        }
    }
}

/// A tile whose sums are there.
struct Finished {
    target: Target,
    last: Option<Rounding>,
    first: usize,
    rows: usize,
    panels: usize,
    sums: *const i32,
    row_sums: *const i32,
}

impl Finished {
    /// Results of a panel. `PLAIN`: nothing is rounded or added before the activation, and there are no zero points.
    ///
    /// # Safety
    /// As [`finish`].
    #[inline(always)]
    unsafe fn panel<D: Dot, const PLAIN: bool>(&self, d: D, p: usize, head: &Head, lanes: usize) {
        let target = &self.target;
        let mut at = self.first + p * target.panel_elements;
        let mut r = 0;
        // SAFETY: the caller's promise.
        unsafe {
            if target.gives_steps && lanes == LANES {
                if target.row_elements == LANES {
                    while r + 4 <= self.rows {
                        let mut four = [d.zero(); 4];
                        for (i, v) in four.iter_mut().enumerate() {
                            let at = at + i * LANES;
                            *v =
                                self.step(d, self.number::<D, PLAIN>(d, p, head, r + i, at, lanes));
                        }
                        d.store_bytes_of_four(target.out.add(at), four);
                        r += 4;
                        at += 4 * LANES;
                    }
                }
                while r < self.rows {
                    let v = self.number::<D, PLAIN>(d, p, head, r, at, lanes);
                    d.store_bytes(target.out.add(at), self.step(d, v));
                    r += 1;
                    at += target.row_elements;
                }
            } else {
                while r < self.rows {
                    let v = self.number::<D, PLAIN>(d, p, head, r, at, lanes);
                    if target.gives_steps {
                        let mut bytes = [0; LANES];
                        d.store_bytes(bytes.as_mut_ptr(), self.step(d, v));
                        std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.out.add(at), lanes);
                    } else {
                        let to = target.out.cast::<f32>().add(at);
                        d.store_partial(to, lanes, target.activation.apply(d, v));
                    }
                    r += 1;
                    at += target.row_elements;
                }
            }
        }
    }

    #[inline(always)]
    fn step<D: Dot>(&self, d: D, v: D::V) -> D::V {
        match self.last {
            Some(rounding) => rounding.step(d, v),
            None => v,
        }
    }

    /// What a row's sums are, before the activation. Its results lie `at`.
    ///
    /// # Safety
    /// As [`finish`].
    #[inline(always)]
    unsafe fn number<D: Dot, const PLAIN: bool>(
        &self,
        d: D,
        p: usize,
        head: &Head,
        r: usize,
        at: usize,
        lanes: usize,
    ) -> D::V {
        // SAFETY: the caller's promise.
        unsafe {
            let sums = self.sums.add((r * self.panels + p) * LANES);
            let offset = head.offset.as_ptr();
            let centred = if PLAIN || self.row_sums.is_null() {
                d.centred(sums, offset)
            } else {
                d.centred_by(sums, offset, head.zero.as_ptr(), *self.row_sums.add(r))
            };
            // Two roundings everywhere: not every instruction set has a fused one.
            let mut v = d.mul(centred, d.load(head.scale.as_ptr()));
            v = d.add(v, d.load(head.bias.as_ptr()));
            if PLAIN {
                return v;
            }
            if let Some(rounding) = self.target.before {
                v = rounding.value(d, rounding.step(d, v));
            }
            if !self.target.residual.is_null() {
                v = d.add(v, residual(d, &self.target, at, lanes));
            }
            v
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
