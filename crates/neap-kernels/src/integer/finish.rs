//! What becomes of a tile's sums: numbers, maybe rounded and added to others, then floats or steps.

use super::dot::Dot;
use super::ready::Ready;
use super::{Rounding, Steps};
use crate::epilogue::Activation;
use crate::simd::LANES;

/// What makes numbers of a panel's sums, a value for each channel.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub bias: [f32; LANES],
    pub scale: [f32; LANES],
    /// Where sums begin.
    pub start: [i32; LANES],
    pub zero: [i32; LANES],
}

impl Head {
    pub const NONE: Head = Head {
        bias: [0.0; LANES],
        scale: [0.0; LANES],
        start: [0; LANES],
        zero: [0; LANES],
    };
}

/// Adds what the sums of few rows should have begun with: it is known only now.
pub(super) fn begin_few(sums: &mut [i32], heads: &[Head]) {
    for row in sums.chunks_exact_mut(heads.len() * LANES) {
        for (sums, head) in row.chunks_exact_mut(LANES).zip(heads) {
            for (sum, start) in sums.iter_mut().zip(head.start) {
                *sum = sum.wrapping_add(start);
            }
        }
    }
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

/// What a tile's numbers need before the activation.
const PLAIN: usize = 0;
/// A rounding to whole steps and a residual in steps; results are steps, no weight has a zero point.
const SUM: usize = 1;
const ANY: usize = 2;

/// Makes results of the sums of tiles.
pub(super) struct Finisher {
    target: Target,
    before: Option<Ready>,
    /// The rounding to bytes, where results are such.
    bytes: Option<Ready>,
}

/// Sums of a tile, row by row, and where its results begin, in elements of the target.
#[derive(Clone, Copy)]
pub(super) struct Summed {
    pub sums: *mut i32,
    /// Sums of activations; null: every zero point of the weights is zero.
    pub row_sums: *const i32,
    pub rows: usize,
    pub panels: usize,
    pub first: usize,
}

impl Summed {
    pub const NONE: Summed = Summed {
        sums: std::ptr::null_mut(),
        row_sums: std::ptr::null(),
        rows: 0,
        panels: 0,
        first: 0,
    };
}

impl Finisher {
    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    pub(super) fn bytes(&self) -> Option<Ready> {
        self.bytes
    }

    /// Whether nothing comes between sums and the activation.
    pub(super) fn is_plain(&self, no_zeros: bool) -> bool {
        self.before.is_none() && self.target.residual.is_null() && no_zeros
    }

    /// The rounding before a residual in steps, where results are [`SUM`].
    pub(super) fn sum(&self, no_zeros: bool) -> Option<(Ready, Steps)> {
        let before = self.before.filter(Ready::is_whole)?;
        let residual = self.target.residual_steps?;
        (self.target.gives_steps && no_zeros).then_some((before, residual))
    }

    pub(super) fn new(target: &Target) -> Finisher {
        let bytes = match target.activation {
            Activation::Requantize {
                scale,
                zero,
                low,
                high,
                ..
            } if target.gives_steps => Some(Ready::new(Rounding {
                scale,
                zero,
                low,
                high,
            })),
            _ => None,
        };
        Finisher {
            target: *target,
            before: target.before.map(Ready::new),
            bytes,
        }
    }

    /// Results of a tile, from panel `first` on. The last panel has `last_lanes` channels.
    ///
    /// # Safety
    /// Sums are readable for all rows and panels, and the target's memory for all results.
    #[inline(always)]
    pub(super) unsafe fn finish<D: Dot>(
        &self,
        d: D,
        heads: &[Head],
        first: usize,
        tile: Summed,
        last_lanes: usize,
    ) {
        let no_zeros = tile.row_sums.is_null();
        let is_plain = self.is_plain(no_zeros);
        let is_sum = self.sum(no_zeros).is_some();
        for (p, head) in heads.iter().enumerate().skip(first) {
            let is_last = p + 1 == heads.len();
            let lanes = if is_last { last_lanes } else { LANES };
            // SAFETY: the caller's promise.
            unsafe {
                match &self.bytes {
                    Some(last) if lanes == LANES => match (is_plain, is_sum) {
                        (true, _) => self.panel::<D, PLAIN>(d, p, head, tile, last),
                        (_, true) => self.panel::<D, SUM>(d, p, head, tile, last),
                        _ => self.panel::<D, ANY>(d, p, head, tile, last),
                    },
                    last => match is_plain {
                        true => self.any_panel::<D, PLAIN>(d, p, head, tile, last.as_ref(), lanes),
                        false => self.any_panel::<D, ANY>(d, p, head, tile, last.as_ref(), lanes),
                    },
                }
            }
        }
    }

    /// Steps of a whole panel.
    ///
    /// # Safety
    /// As [`Finisher::finish`], and the tile is of the kind.
    #[inline(always)]
    unsafe fn panel<D: Dot, const KIND: usize>(
        &self,
        d: D,
        p: usize,
        head: &Head,
        tile: Summed,
        last: &Ready,
    ) {
        let target = &self.target;
        let mut at = tile.first + p * target.panel_elements;
        let mut r = 0;
        // SAFETY: the caller's promise.
        unsafe {
            if target.row_elements == LANES {
                while r + 4 <= tile.rows {
                    self.steps::<D, KIND, 4>(d, p, head, tile, last, r, at);
                    r += 4;
                    at += 4 * LANES;
                }
                if r + 2 <= tile.rows {
                    self.steps::<D, KIND, 2>(d, p, head, tile, last, r, at);
                    r += 2;
                    at += 2 * LANES;
                }
            }
            while r < tile.rows {
                self.steps::<D, KIND, 1>(d, p, head, tile, last, r, at);
                r += 1;
                at += target.row_elements;
            }
        }
    }

    /// Results of any panel, one row at a time: floats, or steps of the layer's last channels.
    ///
    /// # Safety
    /// As [`Finisher::finish`].
    #[inline(always)]
    unsafe fn any_panel<D: Dot, const KIND: usize>(
        &self,
        d: D,
        p: usize,
        head: &Head,
        tile: Summed,
        last: Option<&Ready>,
        lanes: usize,
    ) {
        let target = &self.target;
        let mut at = tile.first + p * target.panel_elements;
        for r in 0..tile.rows {
            // SAFETY: the caller's promise.
            unsafe {
                let v = self.number::<D, KIND>(d, p, head, tile, r, at, lanes);
                if let Some(last) = last {
                    let mut bytes = [0; LANES];
                    d.store_steps(bytes.as_mut_ptr(), [v], last);
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.out.add(at), lanes);
                } else {
                    let to = target.out.cast::<f32>().add(at);
                    d.store_partial(to, lanes, target.activation.apply(d, v));
                }
            }
            at += target.row_elements;
        }
    }

    /// Steps of `N` rows from `r` on, which lie one after the other from `at` on.
    ///
    /// # Safety
    /// As [`Finisher::panel`].
    #[inline(always)]
    unsafe fn steps<D: Dot, const KIND: usize, const N: usize>(
        &self,
        d: D,
        p: usize,
        head: &Head,
        tile: Summed,
        last: &Ready,
        r: usize,
        at: usize,
    ) {
        let mut numbers = [d.zero(); N];
        // SAFETY: the caller's promise.
        unsafe {
            for (i, v) in numbers.iter_mut().enumerate() {
                *v = self.number::<D, KIND>(d, p, head, tile, r + i, at + i * LANES, LANES);
            }
            d.store_steps(self.target.out.add(at), numbers, last);
        }
    }

    /// What a row's sums are, before the activation. Its results lie `at`.
    ///
    /// # Safety
    /// As [`Finisher::panel`].
    #[inline(always)]
    unsafe fn number<D: Dot, const KIND: usize>(
        &self,
        d: D,
        p: usize,
        head: &Head,
        tile: Summed,
        r: usize,
        at: usize,
        lanes: usize,
    ) -> D::V {
        // SAFETY: the caller's promise.
        unsafe {
            let sums = tile.sums.add((r * tile.panels + p) * LANES);
            let numbers = if KIND != ANY || tile.row_sums.is_null() {
                d.numbers(sums)
            } else {
                d.numbers_less(sums, head.zero.as_ptr(), *tile.row_sums.add(r))
            };
            // Two roundings everywhere: not every instruction set has a fused one.
            let mut v = d.mul(numbers, d.load(head.scale.as_ptr()));
            v = d.add(v, d.load(head.bias.as_ptr()));
            match (KIND, &self.before) {
                (PLAIN, _) => return v,
                (SUM, Some(before)) => v = before.rounded_whole(d, v),
                (_, Some(before)) => v = before.rounded(d, v),
                (_, None) => {}
            }
            if KIND == SUM || !self.target.residual.is_null() {
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
