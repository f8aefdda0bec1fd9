//! Weights of a chunk as `f32`, on the stack: widened once for all tiles of a task.
//!
//! They are the numbers that kernels of their format make in registers, in the same order, so the bits are the same.

use crate::panel::format::{Format, Stored, by_any_format};
use crate::simd::{LANES, Simd, prefetch_far, simd_kernel};
use std::mem::MaybeUninit;

/// Stacks are charged to the budget as they are touched: two panels of 192 k with their biases, or one of 385, and no more.
pub(super) const WIDE_BYTES: usize = 2 * (1 + 192) * LANES * size_of::<f32>();

/// Nothing, until a chunk is widened.
#[repr(align(64))]
pub(super) struct Wide(pub MaybeUninit<[f32; WIDE_BYTES / size_of::<f32>()]>);

impl Wide {
    pub(super) const NONE: Wide = Wide(MaybeUninit::uninit());
}

/// Most k of a chunk with so many panels: each has its bias, too.
pub(super) fn most_k(panels: usize) -> usize {
    WIDE_BYTES / (panels.max(1) * LANES * size_of::<f32>()) - 1
}

/// A chunk of some panels as they are packed.
#[derive(Clone, Copy)]
pub(super) struct Narrow {
    pub format: Format,
    /// The first panel's head, and its first weights or block of the chunk.
    pub head: *const u8,
    pub weights: *const u8,
    pub panels: usize,
    pub panel_bytes: usize,
    /// k of the chunk, of which the first `block_len` and so on have a head of their own in formats of blocks.
    pub k: usize,
    pub block_len: usize,
}

impl Narrow {
    /// Bytes from panel to panel when widened.
    pub(super) fn wide_panel_bytes(&self) -> usize {
        (1 + self.k) * LANES * size_of::<f32>()
    }
}

simd_kernel! {
    /// Widens a chunk: for each panel the bias, then its k.
    ///
    /// # Safety
    /// The panels are readable for the chunk, which has at most [`most_k`] k.
    pub(super) unsafe fn widen(narrow: Narrow, to: &mut Wide) = widen_generic;
}

#[inline(always)]
unsafe fn widen_generic<S: Simd>(s: S, narrow: Narrow, to: &mut Wide) {
    // SAFETY: the caller's promise.
    by_any_format!(narrow.format, W => unsafe { widen_as::<S, W>(s, &narrow, to) });
}

#[inline(always)]
unsafe fn widen_as<S: Simd, W: Stored>(s: S, narrow: &Narrow, to: &mut Wide) {
    let bytes = narrow.wide_panel_bytes();
    assert!(narrow.panels * bytes <= WIDE_BYTES, "a chunk too long");
    let begin: *mut f32 = to.0.as_mut_ptr().cast();
    for p in 0..narrow.panels {
        // SAFETY: the caller's promise; the panel's part holds the bias and each k.
        unsafe {
            let head = narrow.head.add(p * narrow.panel_bytes).cast::<f32>();
            let mut from = narrow.weights.add(p * narrow.panel_bytes);
            let mut to = begin.byte_add(p * bytes);
            s.store(to, s.load(head));
            to = to.add(LANES);
            let mut left = narrow.k;
            while left > 0 {
                let (len, head) = match W::RUN_HEAD_BYTES {
                    0 => (left, head),
                    _ => (left.min(narrow.block_len), from.cast()),
                };
                from = from.add(W::RUN_HEAD_BYTES);
                run::<S, W>(s, from, head, len, to);
                from = from.add(len * W::STEP_BYTES);
                to = to.add(len * LANES);
                left -= len;
            }
        }
    }
}

#[inline(always)]
unsafe fn run<S: Simd, W: Stored>(
    s: S,
    from: *const u8,
    head: *const f32,
    len: usize,
    to: *mut f32,
) {
    const AHEAD: usize = 1024;
    // Four are loaded before one is stored, so that the head is read once for them.
    const TOGETHER: usize = 4;
    // SAFETY: the caller has `len` k there, and room for them.
    unsafe {
        let mut k = 0;
        while k + TOGETHER <= len {
            let at = from.add(k * W::STEP_BYTES);
            prefetch_far(at.wrapping_add(AHEAD).cast());
            let mut four = [s.zero(); TOGETHER];
            for (i, v) in four.iter_mut().enumerate() {
                // These are in lines of their own, and the hardware is late with them.
                if i > 0 && TOGETHER * W::STEP_BYTES > 128 {
                    let ahead = AHEAD + i * W::STEP_BYTES;
                    prefetch_far(at.wrapping_add(ahead).cast());
                }
                *v = W::load(s, at.add(i * W::STEP_BYTES), head);
            }
            for (i, v) in four.into_iter().enumerate() {
                s.store(to.add((k + i) * LANES), v);
            }
            k += TOGETHER;
        }
        while k < len {
            let v = W::load(s, from.add(k * W::STEP_BYTES), head);
            s.store(to.add(k * LANES), v);
            k += 1;
        }
    }
}
