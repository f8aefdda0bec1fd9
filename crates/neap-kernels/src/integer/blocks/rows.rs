//! Rows of floats become steps of 8 bits, with a scale for each block.

use super::drive::Space;
use crate::linear::LinearShape;
use crate::parallel::{Parallel, Serial};
use crate::share::Chunks;
use crate::simd::{Isa, LANES, Simd, simd_kernel};

/// The largest step.
const MOST: f32 = 127.0;

/// Numbers that are worth a task of their own.
const TASK_NUMBERS: usize = 16 * 1024;

/// Scale of a block of a row, and the sum of its steps.
pub(super) type Fact = [f32; 2];

#[derive(Clone, Copy)]
struct Work {
    a: *const f32,
    scratch: *mut u8,
}

// SAFETY: tasks read the rows, and write scratch of different ones.
unsafe impl Sync for Work {}

/// Rounds all rows into scratch, whose length and that of `a` were checked.
pub(super) fn round(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &LinearShape,
    len: usize,
    a: &[f32],
    space: &Space,
    scratch: *mut u8,
) {
    let s = *shape;
    let work = Work {
        a: a.as_ptr(),
        scratch,
    };
    let rows = Chunks::new(s.m, (TASK_NUMBERS / s.k.max(1)).max(1));
    let parallel = match rows.count() {
        1 => &Serial,
        _ => parallel,
    };
    parallel.run(rows.count(), &|task, _| {
        let work = &work;
        for row in rows.range(task) {
            // SAFETY: the row lies in `a`, and scratch holds steps and facts of each row.
            unsafe {
                let from = work.a.add(row * s.a_stride);
                let steps = work.scratch.add(space.steps_of(row)).cast();
                let facts = work.scratch.add(space.facts_of(row)).cast();
                round_row(isa, s.k, len, from, steps, facts);
            }
        }
    });
}

simd_kernel! {
    /// One row: `k` numbers, as many steps in whole vectors, zeros behind the last, and a fact for each block of `len`.
    ///
    /// # Safety
    /// The pointers reach so many; `len` is a multiple of 16.
    unsafe fn round_row(k: usize, len: usize, from: *const f32, steps: *mut i8, facts: *mut Fact) = round_row_generic;
}

#[inline(always)]
unsafe fn round_row_generic<S: Simd>(
    s: S,
    k: usize,
    len: usize,
    from: *const f32,
    steps: *mut i8,
    facts: *mut Fact,
) {
    let mut at = 0;
    let mut fact = facts;
    while at < k {
        let here = len.min(k - at);
        // SAFETY: `here` numbers from `at` on, and steps in whole vectors.
        unsafe {
            *fact = round_block(s, from.add(at), here, steps.add(at));
            fact = fact.add(1);
        }
        at += here;
    }
}

/// # Safety
/// As [`round_row`], for one block of `len` numbers.
#[inline(always)]
unsafe fn round_block<S: Simd>(s: S, from: *const f32, len: usize, steps: *mut i8) -> Fact {
    let endless = s.splat(f32::INFINITY);
    let mut largest = s.zero();
    let mut i = 0;
    while i < len {
        // SAFETY: the block has `len - i` numbers there.
        let x = s.abs(unsafe { s.load_partial(from.add(i), len - i) });
        // What is no number counts as infinite.
        let x = s.select(s.le(x, s.splat(f32::MAX)), x, endless);
        largest = s.max(largest, x);
        i += LANES;
    }
    let largest = s.reduce_max(largest);
    let mut scale = largest / MOST;
    // Smaller ones have no finite inverse: such numbers count as zeros.
    let is_sound = (f32::MIN_POSITIVE..=f32::MAX).contains(&scale);
    if !is_sound {
        scale = if scale > 1.0 { f32::NAN } else { 0.0 };
    }
    let inverse = s.splat(if is_sound { 1.0 / scale } else { 0.0 });
    let mut sum = 0i32;
    let mut i = 0;
    while i < len {
        // SAFETY: as above; steps are in whole vectors.
        unsafe {
            let x = s.load_partial(from.add(i), len - i);
            let mut whole = [0i8; LANES];
            if is_sound {
                let step = s.to_array(s.round(s.mul(x, inverse)));
                for (whole, step) in whole.iter_mut().zip(step) {
                    // SAFETY: at most 127, as the scale is the largest number's.
                    *whole = step.to_int_unchecked::<i32>() as i8;
                }
            }
            sum += whole.iter().map(|&x| i32::from(x)).sum::<i32>();
            steps.add(i).cast::<[i8; LANES]>().write_unaligned(whole);
        }
        i += LANES;
    }
    [scale, sum as f32]
}
