//! Activations in fixed point: two planes of signed bytes, with a unit for 32 elements.

use crate::SPAN;
use std::mem::{align_of, size_of};

/// The largest magnitude of an element of a span, in units: 127 · 128, so that the upper plane is never -128.
const MOST: f32 = 16256.0;
/// Spans of smaller elements are zeros: 2^-100. `MOST` ÷ this is still an `f32`.
const LEAST: f32 = f32::from_bits((127 - 100) << 23);

/// 32 elements of a row.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Span {
    /// 128 of these …
    pub(crate) high: [i8; SPAN],
    /// … and one of these are an element.
    pub(crate) low: [i8; SPAN],
    pub(crate) unit: f32,
    /// Of both halves, in units.
    pub(crate) half_sums: [i32; 2],
    pub(crate) sum: i32,
}

/// Rows of activations, as `f32` and in fixed point, in memory of the caller. Copies may be used by many threads.
#[derive(Debug, Clone, Copy)]
pub struct Activations<'a> {
    pub(crate) x: &'a [f32],
    /// `[row][k / 32]`.
    pub(crate) spans: &'a [Span],
    pub(crate) rows: usize,
    pub(crate) k: usize,
}

impl<'a> Activations<'a> {
    /// Bytes of memory that [`Activations::quantise`] needs, at any address.
    #[must_use]
    pub fn bytes(rows: usize, k: usize) -> usize {
        rows * k.div_ceil(SPAN) * size_of::<Span>() + align_of::<Span>() - 1
    }

    /// `x`, `[rows][k]`, and its fixed point, which is written to `buffer`.
    ///
    /// # Panics
    /// `k` is no multiple of 32, `x` has another size, or `buffer` is smaller than [`Activations::bytes`].
    #[must_use]
    pub fn quantise(x: &'a [f32], rows: usize, k: usize, buffer: &'a mut [u8]) -> Self {
        check(x, rows, k);
        let places = place_mut(buffer, rows * k / SPAN);
        for (from, to) in x.chunks_exact(SPAN).zip(places.iter_mut()) {
            let from = from.try_into().expect("chunks of so many elements");
            *to = in_fixed_point(from);
        }
        let spans = places;
        Activations { x, spans, rows, k }
    }

    /// What [`Activations::quantise`] left in `buffer` for the same `x`. The buffer must not have moved since.
    ///
    /// # Panics
    /// As [`Activations::quantise`].
    #[must_use]
    pub fn view(x: &'a [f32], rows: usize, k: usize, buffer: &'a [u8]) -> Self {
        check(x, rows, k);
        // SAFETY: any bytes are a `Span`.
        let (_, spans, _) = unsafe { buffer.align_to::<Span>() };
        let spans = &spans[..rows * k / SPAN];
        Activations { x, spans, rows, k }
    }

    /// How many rows there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }
}

fn check(x: &[f32], rows: usize, k: usize) {
    assert!(k.is_multiple_of(SPAN), "whole spans of {SPAN} elements");
    assert_eq!(Some(x.len()), rows.checked_mul(k), "[rows][k]");
}

fn place_mut(buffer: &mut [u8], spans: usize) -> &mut [Span] {
    // SAFETY: any bytes are a `Span`, and a `Span` has no padding.
    let (_, places, _) = unsafe { buffer.align_to_mut::<Span>() };
    &mut places[..spans]
}

/// Loops of the same few operations on each element: compilers make vectors of them.
fn in_fixed_point(x: &[f32; SPAN]) -> Span {
    const INFINITE: u32 = f32::INFINITY.to_bits();
    /// 1.5 · 2^23: a sum with it has no bits for fractions, so adding rounds, ties to even.
    const ROUNDING: f32 = 12_582_912.0;
    let most = x.iter().fold(0, |m, x| m.max(x.abs().to_bits()));
    let most_value = f32::from_bits(most);
    let (inverse, unit) = match most {
        INFINITE.. => (0.0, f32::NAN),
        _ if most_value < LEAST => (0.0, 0.0),
        _ => (MOST / most_value, most_value / MOST),
    };
    let mut span = Span {
        high: [0; SPAN],
        low: [0; SPAN],
        unit,
        half_sums: [0; 2],
        sum: 0,
    };
    let mut steps = [0i32; SPAN];
    for (step, x) in steps.iter_mut().zip(x) {
        let rounded = x * inverse + ROUNDING;
        *step = rounded
            .to_bits()
            .wrapping_sub(ROUNDING.to_bits())
            .cast_signed();
    }
    if most >= INFINITE {
        steps = [0; SPAN];
    }
    for (i, step) in steps.into_iter().enumerate() {
        let low = ((step + 64) & 127) - 64;
        span.low[i] = low as i8;
        span.high[i] = ((step - low) >> 7) as i8;
        span.half_sums[i / 16] += step;
    }
    span.sum = span.half_sums[0] + span.half_sums[1];
    span
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(span: &Span) -> Vec<i32> {
        let planes = span.high.iter().zip(&span.low);
        planes
            .map(|(&high, &low)| 128 * i32::from(high) + i32::from(low))
            .collect()
    }

    #[test]
    fn elements_are_rounded_to_even_and_planes_keep_their_bounds() {
        let mut x = [0.0; SPAN];
        x[..6].copy_from_slice(&[16256.0, -16256.0, 0.5, 1.5, -2.5, 191.4]);
        x[31] = 64.0;
        let span = in_fixed_point(&x);
        assert_eq!(span.unit, 1.0);
        let mut right = vec![0; SPAN];
        right[..6].copy_from_slice(&[16256, -16256, 0, 2, -2, 191]);
        right[31] = 64;
        assert_eq!(steps(&span), right);
        assert_eq!((span.high[0], span.low[0]), (127, 0));
        assert_eq!((span.high[31], span.low[31]), (1, -64));
        assert_eq!((span.half_sums, span.sum), ([191, 64], 255));
        for scale in [1e-30, 1.0 / 3.0, 1e30] {
            let x: [f32; SPAN] = std::array::from_fn(|i| (i as f32 - 16.0) * scale);
            let span = in_fixed_point(&x);
            assert!(steps(&span).iter().all(|q| q.abs() <= 16256));
            assert!(span.low.iter().all(|low| (-64..64).contains(low)));
            for (q, x) in steps(&span).into_iter().zip(x) {
                assert!((q as f32 * span.unit - x).abs() <= span.unit * 0.5001);
            }
        }
    }

    #[test]
    fn what_is_no_finite_number_makes_the_unit_none() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; SPAN];
            x[7] = bad;
            let span = in_fixed_point(&x);
            assert!(span.unit.is_nan());
            assert_eq!(steps(&span), [0; SPAN]);
        }
        for small in [0.0, -0.0, 1e-45, 7e-31] {
            let span = in_fixed_point(&[small; SPAN]);
            assert_eq!((span.unit, span.sum), (0.0, 0));
        }
    }
}
