//! Sums and maxima over a contiguous row.
//!
//! Vector `i` of the row goes to accumulator `i % 4` while four whole vectors remain, then to
//! accumulator 0; the four are joined as `(0 1) (2 3)`, and the lanes in the tree that
//! [`crate::simd`] documents.

use crate::simd::{Isa, LANES, Simd, simd_kernel};

/// The mask of the first `n` lanes.
#[inline(always)]
pub(super) fn first_lanes<S: Simd>(s: S, n: usize) -> S::M {
    const INDEX: [f32; LANES] = [
        0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
    ];
    s.lt(s.from_array(INDEX), s.splat(n as f32))
}

/// Folds `$term` of every vector `$x` with `$join`; lanes past the end count as `$neutral`.
macro_rules! fold {
    ($s:ident, $p:ident, $n:ident, $neutral:expr, $join:ident, |$x:ident| $term:expr) => {{
        let neutral = $neutral;
        let mut sums = [neutral; 4];
        let mut i = 0;
        // SAFETY: whole vectors below `n`, then a partial one that ends at it.
        unsafe {
            while i + 4 * LANES <= $n {
                for j in 0..4 {
                    let $x = $s.load($p.add(i + j * LANES));
                    sums[j] = $s.$join(sums[j], $term);
                }
                i += 4 * LANES;
            }
            while i + LANES <= $n {
                let $x = $s.load($p.add(i));
                sums[0] = $s.$join(sums[0], $term);
                i += LANES;
            }
            if i < $n {
                let $x = $s.load_partial($p.add(i), $n - i);
                let term = $s.select(first_lanes($s, $n - i), $term, neutral);
                sums[0] = $s.$join(sums[0], term);
            }
        }
        $s.$join($s.$join(sums[0], sums[1]), $s.$join(sums[2], sums[3]))
    }};
}

/// # Safety
/// (all functions here) `p` is readable for `n` floats.
#[inline(always)]
pub(super) unsafe fn sum<S: Simd>(s: S, p: *const f32, n: usize) -> f32 {
    s.reduce_sum(fold!(s, p, n, s.zero(), add, |x| x))
}

/// `Σ (x - center)²`
///
/// # Safety
/// As [`sum`].
#[inline(always)]
pub(super) unsafe fn sum_squares<S: Simd>(s: S, p: *const f32, n: usize, center: f32) -> f32 {
    let center = s.splat(center);
    s.reduce_sum(fold!(s, p, n, s.zero(), add, |x| {
        let d = s.sub(x, center);
        s.mul(d, d)
    }))
}

/// # Safety
/// As [`sum`].
#[inline(always)]
pub(crate) unsafe fn max<S: Simd>(s: S, p: *const f32, n: usize) -> f32 {
    s.reduce_max(fold!(s, p, n, s.splat(f32::NEG_INFINITY), max, |x| x))
}

/// Smallest and largest; unspecified where there are NaN, of which the third tells: it is zero where all are finite.
#[inline(always)]
fn extremes_generic<S: Simd>(s: S, x: &[f32]) -> [f32; 3] {
    let (p, n) = (x.as_ptr(), x.len());
    [
        s.reduce_min(fold!(s, p, n, s.splat(f32::INFINITY), min, |x| x)),
        s.reduce_max(fold!(s, p, n, s.splat(f32::NEG_INFINITY), max, |x| x)),
        s.reduce_sum(fold!(s, p, n, s.zero(), add, |x| s.sub(x, x))),
    ]
}
simd_kernel! {
    /// As the generic.
    fn extremes_of(x: &[f32]) -> [f32; 3] = extremes_generic;
}

/// Smallest and largest number; `None` where not all are finite, and of no numbers.
#[must_use]
pub fn extremes(isa: Isa, x: &[f32]) -> Option<[f32; 2]> {
    /// What stays in the first-level cache while it is looked at three times.
    const PIECE: usize = 4096;
    let mut all: Option<[f32; 2]> = None;
    for piece in x.chunks(PIECE) {
        let [low, high, nothing] = extremes_of(isa, piece);
        if nothing != 0.0 {
            return None;
        }
        all = Some(match all {
            Some([least, most]) => [least.min(low), most.max(high)],
            None => [low, high],
        });
    }
    all
}

/// Applies a vector expression to every element `$x` of a row of `$n`. `$i` is the vector's column
/// and `$left` the number of columns from there on, for loads from other rows of the same length.
/// Expands inside an `unsafe` block that answers for both addresses.
macro_rules! each {
    ($s:ident, $src:expr, $dst:expr, $n:expr, |$x:ident, $i:ident, $left:ident| $result:expr) => {{
        let mut $i = 0;
        while $i < $n {
            let $left = $n - $i;
            if $left >= LANES {
                let $x = $s.load($src.add($i));
                $s.store($dst.add($i), $result);
            } else {
                let $x = $s.load_partial($src.add($i), $left);
                $s.store_partial($dst.add($i), $left, $result);
            }
            $i += LANES;
        }
    }};
}
pub(super) use each;
