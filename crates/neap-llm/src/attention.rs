//! Attention of one query row over the cache's blocks: `softmax(scale * q·K) · V`, block by block.
//!
//! ```text
//!   block of 64 positions:   scores = sum over elements of q[e] * K[e][64]     lanes are positions
//!                            weights = exp(scores - largest so far)
//!                            out = out * exp(largest before - largest so far) + weights · V
//! ```
//! What a row gets depends on its own query and on the positions that it sees, in blocks that begin at multiples of 64. So it has the
//! same bits in whatever chunk, batch or number of threads it is computed.

use crate::cache::{BLOCK_POSITIONS, CacheType, Page};
use crate::sequence::{Cache, Sequence};
use neap_kernels::simd::{LANES, Simd, math};
use neap_kernels::simd_kernel;
use std::ops::Range;

const VECTORS: usize = BLOCK_POSITIONS / LANES;

/// The positions that a row sees: `from..to`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sight {
    pub from: usize,
    pub to: usize,
}

/// One query head over its sequence. `query` is scaled; `out` is as long.
pub(crate) struct Head<'a> {
    pub query: &'a [f32],
    pub out: &'a mut [f32],
    pub cache: &'a Cache,
    pub sequence: &'a Sequence,
    pub layer: usize,
    pub kv_head: usize,
    pub sight: Sight,
    /// The score of a position that has no value, where heads have one.
    pub sink: Option<f32>,
}

simd_kernel! {
    /// Fills `head.out`.
    pub(crate) fn attend(head: &mut Head<'_>) = attend_generic;
}

#[inline(always)]
fn attend_generic<S: Simd>(s: S, head: &mut Head<'_>) {
    let width = head.query.len();
    let Sight { from, to } = head.sight;
    head.out.fill(0.0);
    let (mut largest, mut sum) = head.sink.map_or((f32::NEG_INFINITY, 0.0f32), |s| (s, 1.0));
    for index in from / BLOCK_POSITIONS..to.div_ceil(BLOCK_POSITIONS) {
        let begin = index * BLOCK_POSITIONS;
        let page = (head.cache).page(head.sequence, index, head.layer, head.kv_head);
        let ty = head.cache.ty();
        let mut scores = scores(s, ty, &page, head.query);
        let seen = from.saturating_sub(begin)..(to - begin).min(BLOCK_POSITIONS);
        let mut most = s.splat(f32::NEG_INFINITY);
        for (v, score) in scores.iter_mut().enumerate() {
            *score = only(s, *score, v * LANES, seen.start, seen.end);
            most = s.max(most, *score);
        }
        let most = s.reduce_max(most).max(largest);
        let shrink = match largest == f32::NEG_INFINITY {
            true => 0.0,
            false => s.to_array(math::exp(s, s.splat(largest - most)))[0],
        };
        let mut weights = [0.0; BLOCK_POSITIONS];
        let mut block_sum = s.zero();
        for (v, score) in scores.iter().enumerate() {
            let weight = math::exp(s, s.sub(*score, s.splat(most)));
            let weight = only_weights(s, weight, v * LANES, seen.start, seen.end);
            block_sum = s.add(block_sum, weight);
            // SAFETY: the array is so many vectors.
            unsafe { s.store(weights.as_mut_ptr().add(v * LANES), weight) };
        }
        sum = sum.mul_add(shrink, s.reduce_sum(block_sum));
        add_values(s, ty, &page, &weights, seen.clone(), shrink, head.out);
        largest = most;
    }
    let inverse = s.splat(1.0 / sum);
    for at in (0..width).step_by(LANES) {
        // SAFETY: a head's width is whole vectors.
        unsafe {
            let to = head.out.as_mut_ptr().add(at);
            s.store(to, s.mul(s.load(to), inverse));
        }
    }
}

/// Lanes that are no positions of `from..to` become minus infinity.
#[inline(always)]
fn only<S: Simd>(s: S, v: S::V, first: usize, from: usize, to: usize) -> S::V {
    select(s, v, s.splat(f32::NEG_INFINITY), first, from, to)
}

#[inline(always)]
fn only_weights<S: Simd>(s: S, v: S::V, first: usize, from: usize, to: usize) -> S::V {
    select(s, v, s.zero(), first, from, to)
}

#[inline(always)]
fn select<S: Simd>(s: S, v: S::V, other: S::V, first: usize, from: usize, to: usize) -> S::V {
    const INDEX: [f32; LANES] = [
        0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
    ];
    if from <= first && first + LANES <= to {
        return v;
    }
    let index = s.add(s.from_array(INDEX), s.splat(first as f32));
    let v = s.select(s.lt(index, s.splat(to as f32)), v, other);
    s.select(s.lt(index, s.splat(from as f32)), other, v)
}

/// Of all positions of a block, seen or not.
#[inline(always)]
fn scores<S: Simd>(s: S, ty: CacheType, page: &Page<'_>, query: &[f32]) -> [S::V; VECTORS] {
    let mut sums = [s.zero(); VECTORS];
    let bytes = ty.element_bytes();
    for (e, q) in query.iter().enumerate() {
        let q = s.splat(*q);
        let row = &page.keys[e * BLOCK_POSITIONS * bytes..][..BLOCK_POSITIONS * bytes];
        for (v, sum) in sums.iter_mut().enumerate() {
            // SAFETY: a row of keys has an element of each position of the block.
            let keys = unsafe { load(s, ty, row.as_ptr().add(v * LANES * bytes)) };
            *sum = s.fma(q, keys, *sum);
        }
    }
    if ty == CacheType::Int8 {
        for (v, sum) in sums.iter_mut().enumerate() {
            let scales = page.key_scales[v * LANES * 4..][..LANES * 4].as_ptr();
            // SAFETY: the slice is sixteen floats.
            *sum = s.mul(*sum, unsafe { load(s, CacheType::F32, scales) });
        }
    }
    sums
}

/// `out = out * shrink + weights · values`, position by position; up to four vectors of `out` at a time stay in registers.
#[inline(always)]
fn add_values<S: Simd>(
    s: S,
    ty: CacheType,
    page: &Page<'_>,
    weights: &[f32; BLOCK_POSITIONS],
    seen: Range<usize>,
    shrink: f32,
    out: &mut [f32],
) {
    let width = out.len();
    let mut at = 0;
    while at + 4 * LANES <= width {
        add_vectors::<S, 4>(s, ty, page, weights, seen.clone(), shrink, out, at);
        at += 4 * LANES;
    }
    while at < width {
        add_vectors::<S, 1>(s, ty, page, weights, seen.clone(), shrink, out, at);
        at += LANES;
    }
}

#[inline(always)]
fn add_vectors<S: Simd, const N: usize>(
    s: S,
    ty: CacheType,
    page: &Page<'_>,
    weights: &[f32; BLOCK_POSITIONS],
    seen: Range<usize>,
    shrink: f32,
    out: &mut [f32],
    at: usize,
) {
    let width = out.len();
    let bytes = ty.element_bytes();
    let out = out[at..][..N * LANES].as_mut_ptr();
    let mut sums = [s.zero(); N];
    for (v, sum) in sums.iter_mut().enumerate() {
        // SAFETY: `out` is so many vectors.
        *sum = s.mul(unsafe { s.load(out.add(v * LANES)) }, s.splat(shrink));
    }
    for position in seen {
        let mut weight = weights[position];
        if ty == CacheType::Int8 {
            weight *= scale_of(page.value_scales, position);
        }
        let weight = s.splat(weight);
        let row = page.values[(position * width + at) * bytes..][..N * LANES * bytes].as_ptr();
        for (v, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the row is so many vectors.
            let values = unsafe { load(s, ty, row.add(v * LANES * bytes)) };
            *sum = s.fma(weight, values, *sum);
        }
    }
    for (v, sum) in sums.iter().enumerate() {
        // SAFETY: as above.
        unsafe { s.store(out.add(v * LANES), *sum) };
    }
}

#[inline(always)]
fn scale_of(scales: &[u8], position: usize) -> f32 {
    let at = 4 * position;
    f32::from_le_bytes([scales[at], scales[at + 1], scales[at + 2], scales[at + 3]])
}

/// Sixteen elements as floats, exactly.
///
/// # Safety
/// `p` is so many elements.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, ty: CacheType, p: *const u8) -> S::V {
    // SAFETY: passed on; loads need no alignment.
    unsafe {
        match ty {
            CacheType::F32 => s.load(p.cast()),
            CacheType::F16 => s.load_f16(p),
            CacheType::Int8 => s.load_i8(p),
        }
    }
}
