//! Derivatives of functions that let through or stop: what passes where the result was inside of limits.

use super::TASK_ELEMENTS;
use crate::error::{KernelError, check_len};
use crate::parallel::Parallel;
use crate::share::{Chunks, Dst, Src};
use crate::simd::{Isa, LANES, Simd, simd_kernel};

/// Which results `y` let their derivative through.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gate {
    /// Those above 0.
    Relu,
    /// Those above `low` and below `high`.
    Clip { low: f32, high: f32 },
}

/// `dx = dy` where the gate is open for `y`, 0 elsewhere; NaN where `y` is. What `y` or `dy` lacks is what `dx` holds.
///
/// # Errors
/// Lengths that differ.
pub fn gate(
    isa: Isa,
    parallel: &dyn Parallel,
    gate: Gate,
    [y, dy]: [Option<&[f32]>; 2],
    dx: &mut [f32],
) -> Result<(), KernelError> {
    let len = dx.len();
    check_len("y", y.map_or(len, <[f32]>::len), Some(len))?;
    check_len("dy", dy.map_or(len, <[f32]>::len), Some(len))?;
    let dx = Dst::new(dx);
    let [y, dy] = [y, dy].map(|from| from.map_or(dx.as_src(), Src::new));
    let chunks = Chunks::new(len, TASK_ELEMENTS);
    let (low, high) = match gate {
        Gate::Relu => (0.0, f32::INFINITY),
        Gate::Clip { low, high } => (low, high),
    };
    let is_relu = gate == Gate::Relu;
    parallel.run(chunks.count(), &|task, _| {
        let range = chunks.range(task);
        // SAFETY: ranges are inside all three and differ between tasks; an element is written after it was read.
        unsafe {
            let (y, dy) = (y.at(range.start), dy.at(range.start));
            run(
                isa,
                y,
                dy,
                dx.at(range.start),
                range.len(),
                is_relu,
                low,
                high,
            );
        }
    });
    Ok(())
}

simd_kernel! {
    /// # Safety
    /// All three are accessible for `len` floats; `dx` may be one of the others.
    unsafe fn run(
        y: *const f32,
        dy: *const f32,
        dx: *mut f32,
        len: usize,
        is_relu: bool,
        low: f32,
        high: f32,
    ) = run_generic;
}

#[inline(always)]
unsafe fn run_generic<S: Simd>(
    s: S,
    y: *const f32,
    dy: *const f32,
    dx: *mut f32,
    len: usize,
    is_relu: bool,
    low: f32,
    high: f32,
) {
    let (low, high) = (s.splat(low), s.splat(high));
    let mut at = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while at + LANES <= len {
            let v = passed(s, s.load(y.add(at)), s.load(dy.add(at)), is_relu, low, high);
            s.store(dx.add(at), v);
            at += LANES;
        }
        let rest = len - at;
        if rest > 0 {
            let (y, dy) = (
                s.load_partial(y.add(at), rest),
                s.load_partial(dy.add(at), rest),
            );
            s.store_partial(dx.add(at), rest, passed(s, y, dy, is_relu, low, high));
        }
    }
}

#[inline(always)]
fn passed<S: Simd>(s: S, y: S::V, dy: S::V, is_relu: bool, low: S::V, high: S::V) -> S::V {
    // What is not a number stays so; infinity is above 0, but not below itself.
    if is_relu {
        return s.select(s.gt(y, low), dy, s.mul(s.zero(), y));
    }
    let below = s.select(s.lt(y, high), dy, s.zero());
    let inside = s.select(s.gt(y, low), below, s.zero());
    s.select(s.eq(y, y), inside, y)
}
