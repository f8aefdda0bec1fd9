//! The transform of one line of complex numbers, of any length, in O(n log n).
//!
//! Lengths whose prime factors are small are transformed factor by factor (Stockham's order, which needs no bit reversal).
//! Others become a convolution with a chirp (Bluestein), which is done by transforms whose length is a power of two.

use crate::OpError;
use crate::args::{Scratch, scratch_bytes};
use std::f64::consts::TAU;

/// Real and imaginary part.
pub(super) type Complex = [f64; 2];

/// Larger prime factors are left to the chirp.
const MAX_FACTOR: usize = 31;
/// More than any length has.
const MAX_FACTORS: usize = 64;

/// How lines of some length are transformed.
#[derive(Clone, Copy)]
pub(super) struct Way {
    length: usize,
    /// Of the transforms by factors: the length itself, or that of the convolution.
    inner: usize,
    factors: [usize; MAX_FACTORS],
    count: usize,
}

impl Way {
    pub fn of(length: usize) -> Way {
        let length = length.max(1);
        let mut way = Way::by_factors(length);
        if way.factors[..way.count].iter().any(|&f| f > MAX_FACTOR) {
            way = Way::by_factors((2 * length - 1).next_power_of_two());
            way.length = length;
        }
        way
    }

    fn by_factors(length: usize) -> Way {
        let mut way = Way {
            length,
            inner: length,
            factors: [1; MAX_FACTORS],
            count: 0,
        };
        let mut rest = length;
        let mut factor = 4;
        while rest > 1 {
            if rest.is_multiple_of(factor) {
                way.factors[way.count] = factor;
                way.count += 1;
                rest /= factor;
            } else {
                factor = match factor {
                    4 => 2,
                    2 => 3,
                    // What is left is a prime.
                    f if f * f > rest => rest,
                    f => f + 2,
                };
            }
        }
        way
    }

    fn is_chirp(&self) -> bool {
        self.inner != self.length
    }

    /// Complex numbers that a worker needs for a line.
    pub fn line(&self) -> usize {
        2 * self.inner
    }

    fn table(&self) -> usize {
        let chirp = if self.is_chirp() {
            self.length + self.inner
        } else {
            0
        };
        self.inner + chirp
    }

    pub fn workspace_bytes(&self, workers: usize) -> usize {
        scratch_bytes::<Complex>(self.table())
            + scratch_bytes::<Complex>(self.line().saturating_mul(workers.saturating_add(1)))
    }
}

/// Tables for lines of one length.
#[derive(Clone, Copy)]
pub(super) struct Transform<'a> {
    way: Way,
    /// `exp(-2πi k / inner)`.
    turns: &'a [Complex],
    /// `exp(-πi k² / length)`.
    chirp: &'a [Complex],
    /// The transform of the chirp's conjugate, divided by its length.
    filter: &'a [Complex],
}

impl<'a> Transform<'a> {
    pub fn new(way: Way, scratch: &mut Scratch<'a>) -> Result<Transform<'a>, OpError> {
        let table = scratch.take::<Complex>(way.table())?;
        let (turns, rest) = table.split_at_mut(way.inner);
        for (k, turn) in turns.iter_mut().enumerate() {
            *turn = turned(k, way.inner);
        }
        let mut transform = Transform {
            way,
            turns,
            chirp: &[],
            filter: &[],
        };
        if way.is_chirp() {
            let (chirp, filter) = rest.split_at_mut(way.length);
            let circle = 2 * way.length;
            for (k, value) in chirp.iter_mut().enumerate() {
                let square = (k as u128 * k as u128 % circle as u128) as usize;
                *value = turned(square, circle);
            }
            scratch.lend::<Complex, _>(way.line(), |buffer| {
                let (a, b) = buffer.split_at_mut(way.inner);
                a.fill([0.0; 2]);
                for (k, &value) in chirp.iter().enumerate() {
                    let [re, im] = value;
                    a[k] = [re, -im];
                    a[(way.inner - k) % way.inner] = [re, -im];
                }
                let done = transform.by_factors(a, b);
                let scale = 1.0 / way.inner as f64;
                for (to, from) in filter.iter_mut().zip(done) {
                    *to = [from[0] * scale, from[1] * scale];
                }
                Ok(())
            })?;
            transform.chirp = chirp;
            transform.filter = filter;
        }
        Ok(transform)
    }

    pub fn line(&self) -> usize {
        self.way.line()
    }

    /// Transforms the first `length` numbers of a buffer of [`Transform::line`], and gives the results, which lie in it.
    pub fn run<'b>(&self, buffer: &'b mut [Complex]) -> &'b mut [Complex] {
        let Way { length, inner, .. } = self.way;
        let (a, b) = buffer.split_at_mut(inner);
        if !self.way.is_chirp() {
            return self.by_factors(a, b);
        }
        for (value, &chirp) in a.iter_mut().zip(self.chirp) {
            *value = times(*value, chirp);
        }
        a[length..].fill([0.0; 2]);
        let first = a.as_ptr();
        let product = self.by_factors(a, b);
        // The inverse is the transform with the parts exchanged, before and after.
        for (value, &filter) in product.iter_mut().zip(self.filter) {
            let [re, im] = times(*value, filter);
            *value = [im, re];
        }
        let in_first = std::ptr::eq(product.as_ptr(), first);
        let (from, to) = if in_first { (a, b) } else { (b, a) };
        let done = self.by_factors(from, to);
        for (value, &chirp) in done.iter_mut().zip(self.chirp) {
            let [im, re] = *value;
            *value = times([re, im], chirp);
        }
        done
    }

    /// By factors; the results are in one of both.
    fn by_factors<'b>(
        &self,
        mut from: &'b mut [Complex],
        mut to: &'b mut [Complex],
    ) -> &'b mut [Complex] {
        let mut stride = 1;
        let mut left = self.way.inner;
        for &factor in &self.way.factors[..self.way.count] {
            left /= factor;
            match factor {
                2 => self.by_two(stride, left, from, to),
                4 => self.by_four(stride, left, from, to),
                _ => self.by_any(factor, stride, left, from, to),
            }
            stride *= factor;
            std::mem::swap(&mut from, &mut to);
        }
        from
    }

    fn by_two(&self, stride: usize, left: usize, from: &[Complex], to: &mut [Complex]) {
        for q in 0..left {
            let turn = self.turns[stride * q];
            for k in 0..stride {
                let (a, b) = (from[k + stride * q], from[k + stride * (q + left)]);
                to[k + stride * 2 * q] = plus(a, b);
                to[k + stride * (2 * q + 1)] = times(minus(a, b), turn);
            }
        }
    }

    fn by_four(&self, stride: usize, left: usize, from: &[Complex], to: &mut [Complex]) {
        for q in 0..left {
            let turn = |r: usize| self.turns[stride * q * r];
            let (one, two, three) = (turn(1), turn(2), turn(3));
            for k in 0..stride {
                let x = |t: usize| from[k + stride * (q + left * t)];
                let (even, odd) = (plus(x(0), x(2)), plus(x(1), x(3)));
                let (a, [re, im]) = (minus(x(0), x(2)), minus(x(1), x(3)));
                // A quarter of a turn back.
                let b = [im, -re];
                let y = k + stride * 4 * q;
                to[y] = plus(even, odd);
                to[y + stride] = times(plus(a, b), one);
                to[y + 2 * stride] = times(minus(even, odd), two);
                to[y + 3 * stride] = times(minus(a, b), three);
            }
        }
    }

    fn by_any(
        &self,
        factor: usize,
        stride: usize,
        left: usize,
        from: &[Complex],
        to: &mut [Complex],
    ) {
        let step = self.way.inner / factor;
        for q in 0..left {
            for k in 0..stride {
                for r in 0..factor {
                    let mut sum = [0.0; 2];
                    for t in 0..factor {
                        let turn = self.turns[step * (t * r % factor)];
                        sum = plus(sum, times(from[k + stride * (q + left * t)], turn));
                    }
                    let turn = self.turns[stride * q * r];
                    to[k + stride * (factor * q + r)] = times(sum, turn);
                }
            }
        }
    }
}

/// `exp(-2πi part / whole)`.
fn turned(part: usize, whole: usize) -> Complex {
    let (sin, cos) = (TAU * part as f64 / whole as f64).sin_cos();
    [cos, -sin]
}

#[inline(always)]
fn plus(a: Complex, b: Complex) -> Complex {
    [a[0] + b[0], a[1] + b[1]]
}

#[inline(always)]
fn minus(a: Complex, b: Complex) -> Complex {
    [a[0] - b[0], a[1] - b[1]]
}

#[inline(always)]
fn times(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}
