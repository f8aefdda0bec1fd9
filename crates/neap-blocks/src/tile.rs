//! Sums of a few rows of activations with a lane of output rows each, from blocks or from what they were unpacked to.

use crate::activations::Span;
use crate::machine::Machine;
use crate::weights::{QUADS, Unpacked, Weights};
use std::mem::size_of;

/// The blocks of [`Machine::LANES`] output rows.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) at: *const u8,
    /// From a row to the next.
    pub(crate) stride: usize,
    pub(crate) spans: usize,
}

/// What is done with each span.
trait Sink<M: Machine> {
    /// # Safety
    /// As of the function that makes the sink.
    unsafe fn take(&mut self, m: M, span: usize, unpacked: &Unpacked<M>);
}

/// Unpacks the spans of blocks, one after the other.
///
/// # Safety
/// The rows may be read, and the sink takes so many spans.
#[inline(always)]
unsafe fn each_span<M: Machine, T: Weights>(m: M, rows: Rows, sink: &mut impl Sink<M>) {
    for block in 0..rows.spans / T::SPANS {
        // SAFETY: blocks of the rows, which the caller vouches for.
        unsafe {
            let at = rows.at.add(block * T::BLOCK_BYTES);
            let head = T::head(m, at, rows.stride);
            for chunk in 0..T::SPANS / T::CHUNK {
                let raw = T::raw(m, at, rows.stride, chunk);
                for span in chunk * T::CHUNK..(chunk + 1) * T::CHUNK {
                    let unpacked = T::span(m, &head, &raw, span);
                    sink.take(m, block * T::SPANS + span, &unpacked);
                }
            }
        }
    }
}

/// Sums of `R` rows of activations.
struct Sums<M: Machine, T, const R: usize> {
    x: [*const Span; R],
    sums: [M::F; R],
    of: std::marker::PhantomData<T>,
}

impl<M: Machine, T: Weights, const R: usize> Sums<M, T, R> {
    #[inline(always)]
    fn none(m: M, x: [*const Span; R]) -> Self {
        Sums {
            x,
            sums: [m.splat_float(0.0); R],
            of: std::marker::PhantomData,
        }
    }

    /// Adds a span, as the crate's documentation defines it.
    ///
    /// # Safety
    /// The rows of activations have the span; eight quads and each group's scale and minimum may be read.
    #[inline(always)]
    unsafe fn add(
        &mut self,
        m: M,
        span: usize,
        quads: *const M::V,
        scales: *const M::F,
        minima: *const M::F,
    ) {
        let mut values = [m.splat_float(0.0); R];
        // SAFETY: the caller's promise.
        unsafe {
            for group in 0..T::GROUPS {
                let totals = self.products(m, span, quads, group);
                let scale = *scales.add(group);
                for r in 0..R {
                    let s = m.number(totals[r]);
                    values[r] = match group {
                        0 => m.mul(s, scale),
                        _ => m.fma(s, scale, values[r]),
                    };
                }
            }
            if T::HAS_MINIMA {
                for group in 0..T::GROUPS {
                    let minimum = *minima.add(group);
                    for r in 0..R {
                        let t = m.number(m.splat(self.sum(span, r, group)));
                        values[r] = m.fma(t, minimum, values[r]);
                    }
                }
            }
            for r in 0..R {
                let unit = m.splat_float((*self.x[r].add(span)).unit);
                self.sums[r] = m.fma(values[r], unit, self.sums[r]);
            }
        }
    }

    /// Sums of products of a group.
    ///
    /// # Safety
    /// As [`Sums::add`].
    #[inline(always)]
    unsafe fn products(&self, m: M, span: usize, quads: *const M::V, group: usize) -> [M::V; R] {
        let mut totals = [m.splat(0); R];
        let in_group = QUADS / T::GROUPS;
        let run = M::run(T::MOST).min(in_group);
        // SAFETY: the caller's promise.
        unsafe {
            for part in 0..in_group / run {
                let mut sums = [m.none(); R];
                for quad in 0..run {
                    let quad = group * in_group + part * run + quad;
                    let w = *quads.add(quad);
                    for r in 0..R {
                        let x = self.x[r].add(span).cast::<i8>().add(4 * quad);
                        sums[r] = m.dot(sums[r], w, x, T::SIGNED);
                    }
                }
                for r in 0..R {
                    let total = m.total(sums[r]);
                    totals[r] = match part {
                        0 => total,
                        _ => m.add(totals[r], total),
                    };
                }
            }
            let zero_bits = match T::SIGNED {
                true => M::SIGNED_ZERO_BITS,
                false => T::ZERO_BITS,
            };
            if zero_bits > 0 {
                for r in 0..R {
                    let zero = m.splat(self.sum(span, r, group) << zero_bits);
                    totals[r] = m.sub(totals[r], zero);
                }
            }
        }
        totals
    }

    /// The sum of a group's activations.
    ///
    /// # Safety
    /// The row has the span.
    #[inline(always)]
    unsafe fn sum(&self, span: usize, r: usize, group: usize) -> i32 {
        // SAFETY: the caller's promise.
        unsafe {
            let x = self.x[r].add(span);
            match T::GROUPS {
                1 => (*x).sum,
                _ => (*x).half_sums[group],
            }
        }
    }
}

impl<M: Machine, T: Weights, const R: usize> Sink<M> for Sums<M, T, R> {
    #[inline(always)]
    unsafe fn take(&mut self, m: M, span: usize, from: &Unpacked<M>) {
        let (quads, scales) = (from.quads.as_ptr(), from.scales.as_ptr());
        // SAFETY: the caller's promise.
        unsafe { self.add(m, span, quads, scales, from.minima.as_ptr()) };
    }
}

/// Sums of rows of activations with blocks, which are unpacked in registers.
///
/// # Safety
/// The blocks may be read, and each row of activations has as many spans.
#[inline(always)]
pub(crate) unsafe fn from_blocks<M: Machine, T: Weights, const R: usize>(
    m: M,
    rows: Rows,
    x: [*const Span; R],
) -> [M::F; R] {
    let mut sums = Sums::<M, T, R>::none(m, x);
    // SAFETY: the caller's promise.
    unsafe { each_span::<M, T>(m, rows, &mut sums) };
    sums.sums
}

/// Floats of a span in scratch.
const fn floats<T: Weights>() -> usize {
    T::GROUPS * (1 + T::HAS_MINIMA as usize)
}

/// Bytes of a span in scratch: quads, scales, minima.
pub(crate) const fn unpacked_bytes<M: Machine, T: Weights>() -> usize {
    QUADS * size_of::<M::V>() + floats::<T>() * size_of::<M::F>()
}

/// Puts spans into scratch.
struct Store<T> {
    to: *mut u8,
    of: std::marker::PhantomData<T>,
}

impl<M: Machine, T: Weights> Sink<M> for Store<T> {
    #[inline(always)]
    unsafe fn take(&mut self, _: M, span: usize, from: &Unpacked<M>) {
        // SAFETY: the caller's promise.
        unsafe {
            let to = self.to.add(span * unpacked_bytes::<M, T>());
            to.cast::<[M::V; QUADS]>().write(from.quads);
            let floats = to.cast::<M::V>().add(QUADS).cast::<M::F>();
            for group in 0..T::GROUPS {
                floats.add(group).write(from.scales[group]);
                if T::HAS_MINIMA {
                    floats.add(T::GROUPS + group).write(from.minima[group]);
                }
            }
        }
    }
}

/// Unpacks whole rows to scratch.
///
/// # Safety
/// The blocks may be read; `to` has [`unpacked_bytes`] for each span and is aligned as vectors are.
#[inline(always)]
pub(crate) unsafe fn unpack<M: Machine, T: Weights>(m: M, rows: Rows, to: *mut u8) {
    let of = std::marker::PhantomData;
    // SAFETY: the caller's promise.
    unsafe { each_span::<M, T>(m, rows, &mut Store::<T> { to, of }) };
}

/// Sums of rows of activations with what [`unpack`] left.
///
/// # Safety
/// `from` is such scratch of so many spans, and each row of activations has as many.
#[inline(always)]
pub(crate) unsafe fn from_scratch<M: Machine, T: Weights, const R: usize>(
    m: M,
    from: *const u8,
    spans: usize,
    x: [*const Span; R],
) -> [M::F; R] {
    let mut sums = Sums::<M, T, R>::none(m, x);
    for span in 0..spans {
        // SAFETY: the caller's promise.
        unsafe {
            let quads = from.add(span * unpacked_bytes::<M, T>()).cast::<M::V>();
            let scales = quads.add(QUADS).cast::<M::F>();
            sums.add(m, span, quads, scales, scales.add(T::GROUPS));
        }
    }
    sums.sums
}
