//! From scores to weights: scale, soft cap and mask, then exponentials against the row's maximum.
//!
//! Each row keeps its maximum and the sum of its exponentials. A later block that raises the
//! maximum scales the sum, and the output row so far, down; the division by the sum comes last.

use crate::rows::{exp_row, row_max};
use crate::simd::{LANES, Simd, math, simd_kernel};

/// One block of scores of a tile.
#[derive(Clone, Copy)]
pub(super) struct Weighing {
    pub rows: usize,
    pub keys: usize,
    pub score_row: usize,
    pub scale: f32,
    pub softcap: f32,
    /// Keys of the block that row 0 sees (all where `None`); each row sees one more than the last.
    pub seen_first: Option<isize>,
    /// Values for row 0 and the block's first key, strides of rows and keys.
    pub mask: Option<(*const f32, usize, usize)>,
    pub first_block: bool,
    pub v_dim: usize,
    pub out_row: usize,
}

simd_kernel! {
    /// Turns scores into weights and keeps each row's maximum and sum.
    ///
    /// # Safety
    /// Scores, mask and output reach as far as the parameters say; maxima and sums have a float a row.
    pub(super) unsafe fn weigh(w: &Weighing, scores: *mut f32, maxima: *mut f32, sums: *mut f32, out: *mut f32) = weigh_generic;
}

/// Scores are scaled on the way below it. What a larger maximum is rounded by would be a power of e that no float holds.
const MOST_ON_THE_WAY: f32 = 1e6;

#[inline(always)]
unsafe fn weigh_generic<S: Simd>(
    s: S,
    w: &Weighing,
    scores: *mut f32,
    maxima: *mut f32,
    sums: *mut f32,
    out: *mut f32,
) {
    for row in 0..w.rows {
        let seen = match w.seen_first {
            Some(n) => n.saturating_add(row as isize).clamp(0, w.keys as isize) as usize,
            None => w.keys,
        };
        // SAFETY: the caller vouches for the row everywhere.
        unsafe {
            let line = scores.add(row * w.score_row);
            let output = out.add(row * w.out_row);
            let mask = w
                .mask
                .map(|(values, query, key)| (values.add(row * query), key));
            // Scaled on the way where nothing else is to be done to the scores.
            let plain = mask.is_none() && w.softcap == 0.0 && w.scale > 0.0;
            let mut scale = w.scale;
            let mut top = f32::INFINITY;
            if plain {
                top = row_max(s, line, seen) * scale;
            }
            if top.is_nan() || top.abs() >= MOST_ON_THE_WAY {
                (top, scale) = (adjust(s, w, mask, line, seen), 1.0);
            }
            // A row without a finite score keeps the smallest maximum there is.
            let old = if w.first_block {
                f32::MIN
            } else {
                *maxima.add(row)
            };
            let top = top.max(old);
            let sum = exp_row(s, line, line, seen, s.splat(scale), s.splat(top));
            if w.first_block {
                *sums.add(row) = sum;
                scale_row(s, output, w.v_dim, None);
            } else {
                let factor = if top > old { (old - top).exp() } else { 1.0 };
                *sums.add(row) = *sums.add(row) * factor + sum;
                if factor != 1.0 {
                    scale_row(s, output, w.v_dim, Some(factor));
                }
            }
            *maxima.add(row) = top;
            // The product with V may run over keys that only later rows see.
            std::ptr::write_bytes(line.add(seen), 0, w.keys - seen);
        }
    }
}

/// Scales, caps and masks `n` scores in place and returns the largest.
///
/// # Safety
/// `n` scores, and as many mask values at the given stride.
#[inline(always)]
unsafe fn adjust<S: Simd>(
    s: S,
    w: &Weighing,
    mask: Option<(*const f32, usize)>,
    line: *mut f32,
    n: usize,
) -> f32 {
    const LOWEST: f32 = f32::NEG_INFINITY;
    let scale = s.splat(w.scale);
    let mut top = s.splat(LOWEST);
    for i in (0..n).step_by(LANES) {
        let lanes = (n - i).min(LANES);
        // SAFETY: score rows are whole vectors long; the mask is read for `lanes` keys.
        unsafe {
            let mut x = s.mul(s.load(line.add(i)), scale);
            if w.softcap != 0.0 {
                let cap = s.splat(w.softcap);
                x = s.mul(cap, math::tanh(s, s.div(x, cap)));
            }
            match mask {
                None => {}
                Some((values, 0)) => x = s.add(x, s.splat(*values)),
                Some((values, 1)) => x = s.add(x, s.load_partial(values.add(i), lanes)),
                Some((values, key)) => {
                    let mut gathered = [0.0; LANES];
                    for (lane, value) in gathered.iter_mut().enumerate().take(lanes) {
                        *value = *values.add((i + lane) * key);
                    }
                    x = s.add(x, s.from_array(gathered));
                }
            }
            s.store(line.add(i), x);
            if lanes == LANES {
                top = s.max(top, x);
            } else {
                let x = s.to_array(x);
                for &x in &x[..lanes] {
                    top = s.max(top, s.splat(x));
                }
            }
        }
    }
    s.reduce_max(top)
}

/// Multiplies an output row by a factor, or clears it.
///
/// # Safety
/// `n` floats are there.
#[inline(always)]
unsafe fn scale_row<S: Simd>(s: S, row: *mut f32, n: usize, factor: Option<f32>) {
    for i in (0..n).step_by(LANES) {
        let lanes = n - i;
        // SAFETY: the partial operations end at `n`.
        unsafe {
            let at = row.add(i);
            let value = match factor {
                Some(factor) => s.mul(s.load_partial(at, lanes), s.splat(factor)),
                None => s.zero(),
            };
            s.store_partial(at, lanes, value);
        }
    }
}

simd_kernel! {
    /// Divides the output rows by their sums.
    ///
    /// # Safety
    /// As [`weigh`].
    pub(super) unsafe fn finish(rows: usize, v_dim: usize, out_row: usize, sums: *const f32, out: *mut f32) = finish_generic;
}

#[inline(always)]
unsafe fn finish_generic<S: Simd>(
    s: S,
    rows: usize,
    v_dim: usize,
    out_row: usize,
    sums: *const f32,
    out: *mut f32,
) {
    for row in 0..rows {
        // SAFETY: the caller vouches for the rows.
        unsafe { scale_row(s, out.add(row * out_row), v_dim, Some(1.0 / *sums.add(row))) };
    }
}
