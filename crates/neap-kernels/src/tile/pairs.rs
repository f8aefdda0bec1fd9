//! Products of bfloat16: rows that are rounded to it once, times weights that a task brings into pairs of k.
//!
//! ```text
//!   a row as floats     x0 x1 x2 x3 x4 ...        a panel as packed    w0[16] w1[16] w2[16] w3[16] ...      16 bits each
//!   in pairs           (x0 x1)(x2 x3)(x4 0)       in pairs            (w0 w1)[16] (w2 w3)[16] ...           32 bits each
//! ```
//! A pair takes the place of a float, so what cuts a product into tiles and finds their inputs is the same for both.

use super::widen::{WIDE_BYTES, Wide};
use crate::panel::format::Stored;
use crate::parallel::Parallel;
use crate::share::Chunks;
use crate::simd::pairs::Pairs;
use crate::simd::{Isa, Kind, LANES, Simd, prefetch_far};

/// Weights as micro-kernels multiply them.
pub(super) trait Weights<S: Simd>: Copy + 'static {
    const STEP_BYTES: usize;
    const RUN_HEAD_BYTES: usize;

    /// # Safety
    /// As [`Stored::load`].
    unsafe fn load(s: S, at: *const u8, head: *const f32) -> S::V;
    /// Adds the products with an input.
    fn add(s: S, x: S::V, w: S::V, sums: S::V) -> S::V;
}

impl<S: Simd, W: Stored> Weights<S> for W {
    const STEP_BYTES: usize = W::STEP_BYTES;
    const RUN_HEAD_BYTES: usize = W::RUN_HEAD_BYTES;

    #[inline(always)]
    unsafe fn load(s: S, at: *const u8, head: *const f32) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { <W as Stored>::load(s, at, head) }
    }

    #[inline(always)]
    fn add(s: S, x: S::V, w: S::V, sums: S::V) -> S::V {
        s.fma(x, w, sums)
    }
}

/// Those that [`pair_up`] made.
#[derive(Clone, Copy)]
pub(super) struct InPairs;

impl<S: Pairs> Weights<S> for InPairs {
    const STEP_BYTES: usize = LANES * size_of::<f32>();
    const RUN_HEAD_BYTES: usize = 0;

    #[inline(always)]
    unsafe fn load(s: S, at: *const u8, _: *const f32) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load(at.cast()) }
    }

    #[inline(always)]
    fn add(s: S, x: S::V, w: S::V, sums: S::V) -> S::V {
        s.add_pairs(x, w, sums)
    }
}

/// A chunk of some panels of bfloat16 as they are packed.
#[derive(Clone, Copy)]
pub(super) struct Halves {
    /// The first panel's head, and its first weights of the chunk.
    pub head: *const u8,
    pub weights: *const u8,
    pub panels: usize,
    pub panel_bytes: usize,
    pub k: usize,
}

impl Halves {
    /// Bytes from panel to panel when in pairs.
    pub(super) fn paired_panel_bytes(&self) -> usize {
        (1 + self.k.div_ceil(2)) * LANES * size_of::<f32>()
    }
}

/// Brings a chunk into pairs: for each panel the bias, then its k. A last one without a partner gets zeros.
///
/// # Safety
/// The panels are readable for the chunk, and the instruction set has pairs.
pub(super) unsafe fn pair_up(isa: Isa, halves: Halves, to: &mut Wide) {
    match isa.kind() {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => {
            #[target_feature(
                enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c"
            )]
            unsafe fn run(halves: Halves, to: &mut Wide) {
                // SAFETY: the caller keeps the contract, which is the generic's own.
                unsafe { pair_up_generic(crate::simd::Avx512::new(), halves, to) }
            }
            // SAFETY: the caller's promise.
            unsafe { run(halves, to) }
        }
        #[cfg(target_arch = "aarch64")]
        Kind::Neon => {
            #[target_feature(enable = "neon,bf16")]
            unsafe fn run(halves: Halves, to: &mut Wide) {
                // SAFETY: the caller keeps the contract, which is the generic's own.
                unsafe { pair_up_generic(crate::simd::Neon::new(), halves, to) }
            }
            // SAFETY: the caller's promise.
            unsafe { run(halves, to) }
        }
        _ => unreachable!("pairs without instructions for them"),
    }
}

#[inline(always)]
unsafe fn pair_up_generic<S: Pairs>(s: S, halves: Halves, to: &mut Wide) {
    const AHEAD: usize = 1024;
    const STEP: usize = LANES * size_of::<u16>();
    static ZEROS: [u16; LANES] = [0; LANES];
    let bytes = halves.paired_panel_bytes();
    assert!(halves.panels * bytes <= WIDE_BYTES, "a chunk too long");
    let begin: *mut f32 = to.0.as_mut_ptr().cast();
    for p in 0..halves.panels {
        // SAFETY: the caller's promise; the panel's part holds the bias and each pair.
        unsafe {
            let skipped = p * halves.panel_bytes;
            let mut to = begin.byte_add(p * bytes);
            s.store(to, s.load(halves.head.add(skipped).cast()));
            let mut from = halves.weights.add(skipped);
            for _ in 0..halves.k / 2 {
                to = to.add(LANES);
                prefetch_far(from.wrapping_add(AHEAD).cast());
                s.store(to, s.load_pairs(from, from.add(STEP)));
                from = from.add(2 * STEP);
            }
            if !halves.k.is_multiple_of(2) {
                let last = s.load_pairs(from, ZEROS.as_ptr().cast());
                s.store(to.add(LANES), last);
            }
        }
    }
}

/// Numbers that are worth a task of their own.
const TASK_NUMBERS: usize = 16 * 1024;

/// What is rounded.
#[derive(Clone, Copy)]
struct Rows {
    k: usize,
    /// From row to row, in numbers and in pairs.
    stride: usize,
    pair_stride: usize,
    from: *const f32,
    to: *mut f32,
}

// SAFETY: tasks read the rows, and write pairs of different ones.
unsafe impl Sync for Rows {}

/// Rounds `rows` rows of `k` floats to pairs: `ceil(k / 2)` for each, the last one with a zero where `k` is odd.
///
/// # Safety
/// The pointers reach all rows, of which those of pairs do not overlap, and the instruction set has pairs.
pub(crate) unsafe fn round_pairs(
    isa: Isa,
    parallel: &dyn Parallel,
    rows: usize,
    k: usize,
    (from, stride): (*const f32, usize),
    (to, pair_stride): (*mut f32, usize),
) {
    let all = Rows {
        k,
        stride,
        pair_stride,
        from,
        to,
    };
    let tasks = Chunks::new(rows, (TASK_NUMBERS / k.max(1)).max(1));
    parallel.run(tasks.count(), &|task, _| {
        let mut part = all;
        let range = tasks.range(task);
        part.from = all.from.wrapping_add(range.start * stride);
        part.to = all.to.wrapping_add(range.start * pair_stride);
        // SAFETY: the caller's promise.
        unsafe { round_some(isa, part, range.len()) };
    });
}

/// # Safety
/// As [`round_pairs`].
unsafe fn round_some(isa: Isa, rows: Rows, count: usize) {
    match isa.kind() {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => {
            #[target_feature(
                enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c"
            )]
            unsafe fn run(rows: Rows, count: usize) {
                // SAFETY: the caller keeps the contract, which is the generic's own.
                unsafe { round_generic(crate::simd::Avx512::new(), rows, count) }
            }
            // SAFETY: the caller's promise.
            unsafe { run(rows, count) }
        }
        #[cfg(target_arch = "aarch64")]
        Kind::Neon => {
            #[target_feature(enable = "neon,bf16")]
            unsafe fn run(rows: Rows, count: usize) {
                // SAFETY: the caller keeps the contract, which is the generic's own.
                unsafe { round_generic(crate::simd::Neon::new(), rows, count) }
            }
            // SAFETY: the caller's promise.
            unsafe { run(rows, count) }
        }
        _ => unreachable!("pairs without instructions for them"),
    }
}

#[inline(always)]
unsafe fn round_generic<S: Pairs>(s: S, rows: Rows, count: usize) {
    for row in 0..count {
        let mut left = rows.k;
        // SAFETY: the row has `left` numbers from `from` on, and half as many pairs, rounded up, from `to` on.
        unsafe {
            let mut from = rows.from.add(row * rows.stride);
            let mut to = rows.to.add(row * rows.pair_stride);
            while left >= 2 * LANES {
                s.store(to, s.round_pairs(s.load(from), s.load(from.add(LANES))));
                (from, to) = (from.add(2 * LANES), to.add(LANES));
                left -= 2 * LANES;
            }
            if left > 0 {
                let first = s.load_partial(from, left);
                let second = s.load_partial(from.wrapping_add(LANES), left.saturating_sub(LANES));
                s.store_partial(to, left.div_ceil(2), s.round_pairs(first, second));
            }
        }
    }
}
