//! Sums of products of bytes, four steps of k at a time, for each instruction set.
//!
//! ```text
//!   x   four activations, unsigned bytes       w   four weights of each of 16 channels, signed bytes
//!   acc[channel] += x[0] * w[0][channel] + x[1] * w[1][channel] + x[2] * w[2][channel] + x[3] * w[3][channel]
//! ```
//! Sums are exact, so all instruction sets give the same. Panels hold the 16 channels of one k after the other; each
//! set brings four k at a time into the order that its instructions want.

#[cfg(target_arch = "aarch64")]
mod arm;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::ready::Ready;
use crate::simd::{LANES, Portable, Simd};

/// Steps of k that are computed at once.
pub(super) const QUAD: usize = 4;

/// Most panels of a tile, for any instruction set.
pub(super) const MAX_PANELS: usize = 4;

/// Integer instructions beside those of [`Simd`].
pub(super) trait Dot: Simd {
    /// 16 sums.
    type Sums: Copy;
    /// Weights of four k.
    type Quad: Copy;

    /// Bytes of four k in order.
    const QUAD_BYTES: usize;
    /// Most panels of a tile, and most rows of a tile of one panel, of two, and so on.
    const PANELS: usize;
    const ROWS: [usize; MAX_PANELS];
    /// Most rows of a tile that is added up in parts, where [`Dot::BESIDE`].
    const TALL: [usize; MAX_PANELS] = Self::ROWS;
    /// Whether results are made beside products of the next tile.
    const BESIDE: bool = false;

    fn no_sums(self) -> Self::Sums;
    /// Brings four k, 16 channels each, into order.
    ///
    /// # Safety
    /// `from` is readable for 64 bytes, `to` writable for `QUAD_BYTES`.
    unsafe fn order(self, from: *const u8, to: *mut u8);
    /// As [`Dot::order`], and loads them.
    ///
    /// # Safety
    /// `from` is readable for 64 bytes.
    unsafe fn in_order(self, from: *const u8) -> Self::Quad;
    /// # Safety
    /// `at` is readable for `QUAD_BYTES`.
    unsafe fn load_quad(self, at: *const u8) -> Self::Quad;
    /// # Safety
    /// `at` is writable for `QUAD_BYTES`.
    unsafe fn store_quad(self, at: *mut u8, quad: Self::Quad);
    /// Adds the products of four activations, the first in the lowest byte.
    fn dot(self, sums: Self::Sums, x: u32, w: Self::Quad) -> Self::Sums;
    /// # Safety
    /// `p` is readable for 16 integers.
    unsafe fn load_sums(self, p: *const i32) -> Self::Sums;
    /// # Safety
    /// `p` is writable for 16 integers.
    unsafe fn store_sums(self, p: *mut i32, sums: Self::Sums);
    /// Integers as floats.
    ///
    /// # Safety
    /// `sums` is readable for 16 integers.
    #[inline(always)]
    unsafe fn numbers(self, sums: *const i32) -> Self::V {
        const NONE: [i32; LANES] = [0; LANES];
        // SAFETY: the caller's promise.
        unsafe { self.numbers_less(sums, NONE.as_ptr(), 0) }
    }
    /// The integers `sums - zero * row`, wrapping, as floats.
    ///
    /// # Safety
    /// `sums` and `zero` are readable for 16 integers.
    unsafe fn numbers_less(self, sums: *const i32, zero: *const i32, row: i32) -> Self::V;
    /// Stores 16 whole numbers of 0 to 255 as bytes.
    ///
    /// # Safety
    /// `p` is writable for 16 bytes.
    unsafe fn store_bytes(self, p: *mut u8, v: Self::V);
    /// Stores the steps of numbers, which are bytes, one vector after the other.
    ///
    /// # Safety
    /// `p` is writable for 16 bytes of each vector.
    #[inline(always)]
    unsafe fn store_steps<const N: usize>(self, p: *mut u8, numbers: [Self::V; N], to: &Ready) {
        for (i, v) in numbers.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.store_bytes(p.add(i * LANES), to.step(self, v)) };
        }
    }
    /// # Safety
    /// `p` is readable for 16 bytes.
    unsafe fn load_bytes(self, p: *const u8) -> Self::V;
}

impl Dot for Portable {
    type Sums = [i32; LANES];
    type Quad = [[i8; LANES]; QUAD];

    const QUAD_BYTES: usize = QUAD * LANES;
    const PANELS: usize = 1;
    const ROWS: [usize; MAX_PANELS] = [2; MAX_PANELS];

    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        [0; LANES]
    }

    #[inline(always)]
    unsafe fn order(self, from: *const u8, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, Self::QUAD_BYTES) };
    }

    #[inline(always)]
    unsafe fn in_order(self, from: *const u8) -> Self::Quad {
        // SAFETY: the caller's promise.
        unsafe { self.load_quad(from) }
    }

    #[inline(always)]
    unsafe fn load_quad(self, at: *const u8) -> Self::Quad {
        // SAFETY: the caller's promise; any bytes are signed bytes.
        unsafe { at.cast::<Self::Quad>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_quad(self, at: *mut u8, quad: Self::Quad) {
        // SAFETY: the caller's promise.
        unsafe { at.cast::<Self::Quad>().write_unaligned(quad) }
    }

    #[inline(always)]
    fn dot(self, mut sums: Self::Sums, x: u32, w: Self::Quad) -> Self::Sums {
        for (x, w) in x.to_le_bytes().into_iter().zip(w) {
            for (sum, w) in sums.iter_mut().zip(w) {
                *sum = sum.wrapping_add(i32::from(x) * i32::from(w));
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn load_sums(self, p: *const i32) -> Self::Sums {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self::Sums>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_sums(self, p: *mut i32, sums: Self::Sums) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self::Sums>().write_unaligned(sums) };
    }

    #[inline(always)]
    unsafe fn numbers_less(self, sums: *const i32, zero: *const i32, row: i32) -> Self::V {
        let mut floats = [0.0; LANES];
        for (i, float) in floats.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let (sum, zero) = unsafe { (*sums.add(i), *zero.add(i)) };
            *float = sum.wrapping_sub(zero.wrapping_mul(row)) as f32;
        }
        self.from_array(floats)
    }

    #[inline(always)]
    unsafe fn store_bytes(self, p: *mut u8, v: Self::V) {
        for (i, x) in self.to_array(v).into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { *p.add(i) = x as u8 };
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> Self::V {
        let mut floats = [0.0; LANES];
        for (i, float) in floats.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *float = f32::from(unsafe { *p.add(i) });
        }
        self.from_array(floats)
    }
}
