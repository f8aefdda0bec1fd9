//! Sums of a few rows of activations with a lane of output rows each, from blocks or from what they were unpacked to.

use crate::activations::Span;
use crate::machine::Machine;
use crate::weights::{Form, QUADS, Unpacked, Weights};
use std::marker::PhantomData;
use std::mem::size_of;

/// Blocks of [`Machine::LANES`] output rows.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) at: *const u8,
    /// From a row to the next.
    pub(crate) stride: usize,
    pub(crate) spans: usize,
    /// As many bytes that are needed next. They are asked for block by block, so that asking never waits.
    pub(crate) next: Option<*const u8>,
}

const LINE: usize = 64;

#[inline(always)]
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing as far as the program can see, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags));
    }
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
            if let Some(next) = rows.next {
                let bytes = M::LANES * T::BLOCK_BYTES;
                let begin = next.wrapping_add(block * bytes);
                (0..bytes.div_ceil(LINE)).for_each(|i| prefetch(begin.wrapping_add(i * LINE)));
            }
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
struct Sums<M: Machine, F, const R: usize> {
    x: [*const Span; R],
    sums: [M::F; R],
    of: PhantomData<F>,
}

impl<M: Machine, F: Form, const R: usize> Sums<M, F, R> {
    /// Continues sums of `rows` rows, `R` at most. The last row stands for those that lack.
    ///
    /// # Safety
    /// There are a float of each lane at `sums`, and `x_stride` spans at `x`, for each of the rows.
    #[inline(always)]
    unsafe fn load(m: M, rows: usize, x: *const Span, x_stride: usize, sums: *const f32) -> Self {
        let mut loaded = Sums {
            x: [x; R],
            sums: [m.splat_float(0.0); R],
            of: PhantomData,
        };
        for r in 0..R {
            let row = r.min(rows - 1);
            // SAFETY: the caller's promise.
            unsafe {
                loaded.x[r] = x.add(row * x_stride);
                loaded.sums[r] = m.load(sums.add(row * M::LANES));
            }
        }
        loaded
    }

    /// # Safety
    /// As [`Sums::load`], for writing.
    #[inline(always)]
    unsafe fn store(&self, m: M, rows: usize, to: *mut f32) {
        for (r, sums) in self.sums.iter().enumerate() {
            if r < rows {
                // SAFETY: the caller's promise.
                unsafe { m.store(to.add(r * M::LANES), *sums) };
            }
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
            for group in 0..F::GROUPS {
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
            if F::HAS_MINIMA {
                for group in 0..F::GROUPS {
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
        let in_group = QUADS / F::GROUPS;
        let run = M::run(F::MOST).min(in_group);
        // SAFETY: the caller's promise.
        unsafe {
            for part in 0..in_group / run {
                let mut sums = [m.none(); R];
                for quad in 0..run {
                    let quad = group * in_group + part * run + quad;
                    let w = *quads.add(quad);
                    for r in 0..R {
                        let x = self.x[r].add(span).cast::<i8>().add(4 * quad);
                        sums[r] = m.dot(sums[r], w, x, F::SIGNED);
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
            let zero_bits = match F::SIGNED {
                true => M::SIGNED_ZERO_BITS,
                false => F::ZERO_BITS,
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
            match F::GROUPS {
                1 => (*x).sum,
                _ => (*x).half_sums[group],
            }
        }
    }
}

impl<M: Machine, F: Form, const R: usize> Sink<M> for Sums<M, F, R> {
    #[inline(always)]
    unsafe fn take(&mut self, m: M, span: usize, from: &Unpacked<M>) {
        let (quads, scales) = (from.quads.as_ptr(), from.scales.as_ptr());
        // SAFETY: the caller's promise.
        unsafe { self.add(m, span, quads, scales, from.minima.as_ptr()) };
    }
}

/// Adds the products of a row of activations with blocks, which are unpacked in registers.
///
/// # Safety
/// The blocks may be read, the row of activations has as many spans, and there is a sum for each lane.
#[inline(always)]
pub(crate) unsafe fn one_row<M: Machine, T: Weights>(
    m: M,
    rows: Rows,
    x: *const Span,
    sums: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut added = Sums::<M, T::Form, 1>::load(m, 1, x, 0, sums);
        each_span::<M, T>(m, rows, &mut added);
        added.store(m, 1, sums);
    }
}

/// Bytes of a span in scratch: quads, scales, minima.
pub(crate) const fn unpacked_bytes<M: Machine, F: Form>() -> usize {
    QUADS * size_of::<M::V>() + F::FLOATS * size_of::<M::F>()
}

/// Puts spans into scratch.
struct Store<F> {
    to: *mut u8,
    of: PhantomData<F>,
}

impl<M: Machine, F: Form> Sink<M> for Store<F> {
    #[inline(always)]
    unsafe fn take(&mut self, _: M, span: usize, from: &Unpacked<M>) {
        // SAFETY: the caller's promise.
        unsafe {
            let to = self.to.add(span * unpacked_bytes::<M, F>());
            to.cast::<[M::V; QUADS]>().write(from.quads);
            let floats = to.cast::<M::V>().add(QUADS).cast::<M::F>();
            for group in 0..F::GROUPS {
                floats.add(group).write(from.scales[group]);
                if F::HAS_MINIMA {
                    floats.add(F::GROUPS + group).write(from.minima[group]);
                }
            }
        }
    }
}

/// Unpacks blocks to scratch.
///
/// # Safety
/// The blocks may be read; `to` has [`unpacked_bytes`] for each span and is aligned as vectors are.
#[inline(always)]
pub(crate) unsafe fn unpack<M: Machine, T: Weights>(m: M, rows: Rows, to: *mut u8) {
    let of = PhantomData::<T::Form>;
    // SAFETY: the caller's promise.
    unsafe { each_span::<M, T>(m, rows, &mut Store { to, of }) };
}

/// Some rows of activations, and what they are multiplied with.
pub(crate) struct Group {
    /// What [`unpack`] left.
    pub(crate) from: *const u8,
    pub(crate) spans: usize,
    /// The first row of activations, whose next ones are so many spans further.
    pub(crate) x: *const Span,
    pub(crate) x_stride: usize,
    pub(crate) rows: usize,
    /// A float of each lane for each row.
    pub(crate) sums: *mut f32,
}

/// Adds the products of at most [`Machine::ROWS`] rows: 2, 4 or 6.
///
/// # Safety
/// All that the group names is there.
#[inline(always)]
pub(crate) unsafe fn few_rows<M: Machine, F: Form>(m: M, group: &Group) {
    // SAFETY: the caller's promise.
    unsafe {
        match group.rows {
            1 => in_registers::<M, F, 1>(m, group),
            2 => in_registers::<M, F, 2>(m, group),
            3 | 4 if M::ROWS >= 4 => in_registers::<M, F, 4>(m, group),
            5 | 6 if M::ROWS >= 6 => in_registers::<M, F, 6>(m, group),
            _ => unreachable!("no more rows than a machine takes"),
        }
    }
}

/// # Safety
/// As [`few_rows`].
#[inline(always)]
unsafe fn in_registers<M: Machine, F: Form, const R: usize>(m: M, group: &Group) {
    let &Group {
        rows, x, x_stride, ..
    } = group;
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = Sums::<M, F, R>::load(m, rows, x, x_stride, group.sums);
        for span in 0..group.spans {
            let quads = group.from.add(span * unpacked_bytes::<M, F>());
            let quads = quads.cast::<M::V>();
            let scales = quads.add(QUADS).cast::<M::F>();
            sums.add(m, span, quads, scales, scales.add(F::GROUPS));
        }
        sums.store(m, rows, group.sums);
    }
}
