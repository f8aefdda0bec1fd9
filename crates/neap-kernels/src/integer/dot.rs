//! Sums of products of bytes, four steps of k at a time, for each instruction set.
//!
//! ```text
//!   x   four activations, unsigned bytes       w   four weights of each of 16 channels, signed bytes
//!   acc[channel] += x[0] * w[0][channel] + x[1] * w[1][channel] + x[2] * w[2][channel] + x[3] * w[3][channel]
//! ```
//! Sums are exact, so all instruction sets give the same. Panels hold the 16 channels of one k after the other; each
//! set brings four k at a time into the order that its instructions want.

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

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Dot, MAX_PANELS, QUAD, Ready};
    use crate::simd::{Avx2Fma, Avx512, LANES};
    use std::arch::x86_64::*;

    macro_rules! has {
        ($e:expr) => {
            // SAFETY: the token exists only where the processor has these instructions, and the driver takes the
            // AVX-512 one only where it has VNNI too; pointers are the caller's promise.
            unsafe { $e }
        };
    }

    /// The places of four bytes that go to the first quarter, to the second, and so on. They are read where they are needed: a
    /// compiler that knows them makes seven shuffles of two.
    #[repr(C, align(64))]
    union Quarters {
        places: [i32; LANES],
        vector: __m512i,
    }

    static QUARTERS: Quarters = Quarters {
        places: [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15],
    };

    /// Steps of two vectors, in words, without their lower bound. Bounds are whole, so numbers may be bounded before they
    /// are rounded. What is no number, or too low for an integer, becomes the lowest one.
    ///
    /// # Safety
    /// The processor has the instructions.
    #[inline(always)]
    unsafe fn pair(a: __m512, b: __m512, to: &Ready) -> __m512i {
        has! {{
            let (inverse, most) = (_mm512_set1_ps(to.inverse), _mm512_set1_ps(to.most));
            let a = _mm512_cvtps_epi32(_mm512_min_ps(most, _mm512_mul_ps(a, inverse)));
            let b = _mm512_cvtps_epi32(_mm512_min_ps(most, _mm512_mul_ps(b, inverse)));
            let zero = _mm512_set1_epi16(to.rounding.zero as i16);
            _mm512_adds_epi16(_mm512_packs_epi32(a, b), zero)
        }}
    }

    /// Steps in words as bytes, not below the lower bound.
    ///
    /// # Safety
    /// The processor has the instructions.
    #[inline(always)]
    unsafe fn narrow(a: __m512i, b: __m512i, to: &Ready) -> __m512i {
        has! {{
            let low = _mm512_set1_epi8(to.rounding.low as u8 as i8);
            _mm512_max_epu8(_mm512_packus_epi16(a, b), low)
        }}
    }

    /// AVX-512 with VNNI: `[channel][4 k]`.
    impl Dot for Avx512 {
        type Sums = __m512i;
        type Quad = __m512i;

        const QUAD_BYTES: usize = QUAD * LANES;
        const PANELS: usize = 4;
        const ROWS: [usize; MAX_PANELS] = [12, 12, 8, 6];

        #[inline(always)]
        fn no_sums(self) -> __m512i {
            has!(_mm512_setzero_si512())
        }

        #[inline(always)]
        unsafe fn order(self, from: *const u8, to: *mut u8) {
            has!(_mm512_storeu_si512(to.cast(), self.in_order(from)));
        }

        #[inline(always)]
        unsafe fn in_order(self, from: *const u8) -> __m512i {
            has! {{
                let rows = _mm512_loadu_si512(from.cast());
                let lanes = std::ptr::read_volatile(&raw const QUARTERS.vector);
                let quarters = _mm512_permutexvar_epi32(lanes, rows);
                let bytes = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
                _mm512_shuffle_epi8(quarters, _mm512_broadcast_i32x4(bytes))
            }}
        }

        #[inline(always)]
        unsafe fn load_quad(self, at: *const u8) -> __m512i {
            has!(_mm512_loadu_si512(at.cast()))
        }

        #[inline(always)]
        fn dot(self, sums: __m512i, x: u32, w: __m512i) -> __m512i {
            has!(_mm512_dpbusd_epi32(sums, _mm512_set1_epi32(x as i32), w))
        }

        #[inline(always)]
        unsafe fn load_sums(self, p: *const i32) -> __m512i {
            has!(_mm512_loadu_si512(p.cast()))
        }

        #[inline(always)]
        unsafe fn store_sums(self, p: *mut i32, sums: __m512i) {
            has!(_mm512_storeu_si512(p.cast(), sums))
        }

        #[inline(always)]
        unsafe fn numbers(self, sums: *const i32) -> __m512 {
            has!(_mm512_cvtepi32_ps(_mm512_loadu_si512(sums.cast())))
        }

        #[inline(always)]
        unsafe fn numbers_less(self, sums: *const i32, zero: *const i32, row: i32) -> __m512 {
            has! {{
                let zero = _mm512_loadu_si512(zero.cast());
                let less = _mm512_mullo_epi32(zero, _mm512_set1_epi32(row));
                _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(sums.cast()), less))
            }}
        }

        #[inline(always)]
        unsafe fn store_bytes(self, p: *mut u8, v: __m512) {
            // Some processors take long to narrow into memory in one instruction.
            has! {{
                let words = _mm512_packus_epi32(_mm512_cvttps_epi32(v), _mm512_setzero_si512());
                let bytes = _mm512_packus_epi16(words, words);
                let lanes = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
                let bytes = _mm512_permutexvar_epi32(lanes, bytes);
                _mm_storeu_si128(p.cast(), _mm512_castsi512_si128(bytes));
            }}
        }

        #[inline(always)]
        unsafe fn store_steps<const N: usize>(self, p: *mut u8, numbers: [__m512; N], to: &Ready) {
            has! {{
                // Each quarter holds four channels of every vector.
                let lanes = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
                if let [a, b, c, d] = numbers[..] {
                    let bytes = narrow(pair(a, b, to), pair(c, d, to), to);
                    _mm512_storeu_si512(p.cast(), _mm512_permutexvar_epi32(lanes, bytes));
                } else if let [a, b] = numbers[..] {
                    let words = pair(a, b, to);
                    let bytes = _mm512_permutexvar_epi32(lanes, narrow(words, words, to));
                    _mm256_storeu_si256(p.cast(), _mm512_castsi512_si256(bytes));
                } else {
                    for (i, v) in numbers.into_iter().enumerate() {
                        self.store_bytes(p.add(i * LANES), to.step(self, v));
                    }
                }
            }}
        }

        #[inline(always)]
        unsafe fn load_bytes(self, p: *const u8) -> __m512 {
            has!(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(
                p.cast()
            ))))
        }
    }

    /// AVX2, products of 16-bit pairs: `[k 0 and 1][channel][2]`, `[k 2 and 3][channel][2]`, widened.
    impl Dot for Avx2Fma {
        type Sums = [__m256i; 2];
        type Quad = [__m256i; 4];

        const QUAD_BYTES: usize = 2 * QUAD * LANES;
        const PANELS: usize = 1;
        const ROWS: [usize; MAX_PANELS] = [4; MAX_PANELS];

        #[inline(always)]
        fn no_sums(self) -> Self::Sums {
            has!([_mm256_setzero_si256(); 2])
        }

        #[inline(always)]
        unsafe fn order(self, from: *const u8, to: *mut u8) {
            has! {{
                for (i, part) in self.in_order(from).into_iter().enumerate() {
                    _mm256_storeu_si256(to.add(32 * i).cast(), part);
                }
            }}
        }

        #[inline(always)]
        unsafe fn in_order(self, from: *const u8) -> Self::Quad {
            has! {{
                let mut quad = [_mm256_setzero_si256(); 4];
                for pair in 0..2 {
                    let first = _mm_loadu_si128(from.add(2 * pair * LANES).cast());
                    let second = _mm_loadu_si128(from.add((2 * pair + 1) * LANES).cast());
                    quad[2 * pair] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(first, second));
                    quad[2 * pair + 1] = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(first, second));
                }
                quad
            }}
        }

        #[inline(always)]
        unsafe fn load_quad(self, at: *const u8) -> Self::Quad {
            has! {{
                let mut quad = [_mm256_setzero_si256(); 4];
                for (i, part) in quad.iter_mut().enumerate() {
                    *part = _mm256_loadu_si256(at.add(32 * i).cast());
                }
                quad
            }}
        }

        #[inline(always)]
        fn dot(self, mut sums: Self::Sums, x: u32, w: Self::Quad) -> Self::Sums {
            has! {{
                // x0 x1 x2 x3, four times; then its first and its second pair everywhere.
                let x = _mm256_cvtepu8_epi16(_mm_set1_epi32(x as i32));
                let (a, b) = (
                    _mm256_shuffle_epi32::<0b10_10_00_00>(x),
                    _mm256_shuffle_epi32::<0b11_11_01_01>(x),
                );
                for half in 0..2 {
                    sums[half] = _mm256_add_epi32(sums[half], _mm256_madd_epi16(a, w[half]));
                    sums[half] = _mm256_add_epi32(sums[half], _mm256_madd_epi16(b, w[2 + half]));
                }
                sums
            }}
        }

        #[inline(always)]
        unsafe fn load_sums(self, p: *const i32) -> Self::Sums {
            has!([
                _mm256_loadu_si256(p.cast()),
                _mm256_loadu_si256(p.add(8).cast())
            ])
        }

        #[inline(always)]
        unsafe fn store_sums(self, p: *mut i32, sums: Self::Sums) {
            has! {{
                _mm256_storeu_si256(p.cast(), sums[0]);
                _mm256_storeu_si256(p.add(8).cast(), sums[1]);
            }}
        }

        #[inline(always)]
        unsafe fn numbers_less(self, sums: *const i32, zero: *const i32, row: i32) -> Self::V {
            let mut floats = [0.0; LANES];
            has! {{
                for half in [0, 8] {
                    let sums = _mm256_loadu_si256(sums.add(half).cast());
                    let zero = _mm256_loadu_si256(zero.add(half).cast());
                    let rest = _mm256_mullo_epi32(zero, _mm256_set1_epi32(row));
                    let numbers = _mm256_cvtepi32_ps(_mm256_sub_epi32(sums, rest));
                    _mm256_storeu_ps(floats.as_mut_ptr().add(half), numbers);
                }
            }}
            crate::simd::Simd::from_array(self, floats)
        }

        #[inline(always)]
        unsafe fn store_bytes(self, p: *mut u8, v: Self::V) {
            let floats = crate::simd::Simd::to_array(self, v);
            has! {{
                let low = _mm256_cvttps_epi32(_mm256_loadu_ps(floats.as_ptr()));
                let high = _mm256_cvttps_epi32(_mm256_loadu_ps(floats.as_ptr().add(8)));
                let words = _mm256_packus_epi32(low, high);
                let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
                let bytes = _mm_packus_epi16(
                    _mm256_castsi256_si128(words),
                    _mm256_extracti128_si256::<1>(words),
                );
                _mm_storeu_si128(p.cast(), bytes);
            }}
        }

        #[inline(always)]
        unsafe fn load_bytes(self, p: *const u8) -> Self::V {
            let mut floats = [0.0; LANES];
            has! {{
                for half in [0, 8] {
                    let bytes = _mm_loadl_epi64(p.add(half).cast());
                    let wide = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
                    _mm256_storeu_ps(floats.as_mut_ptr().add(half), wide);
                }
            }}
            crate::simd::Simd::from_array(self, floats)
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{Dot, MAX_PANELS, QUAD};
    use crate::simd::{LANES, Neon, Simd};
    use std::arch::aarch64::*;

    macro_rules! has {
        ($e:expr) => {
            // SAFETY: every processor of this architecture has NEON; pointers are the caller's promise.
            unsafe { $e }
        };
    }

    /// NEON, widening products of 16-bit lanes: `[4 k][channel]`.
    impl Dot for Neon {
        type Sums = [int32x4_t; 4];
        type Quad = [int16x8_t; 8];

        const QUAD_BYTES: usize = QUAD * LANES;
        const PANELS: usize = 1;
        const ROWS: [usize; MAX_PANELS] = [4; MAX_PANELS];

        #[inline(always)]
        fn no_sums(self) -> Self::Sums {
            has!([vdupq_n_s32(0); 4])
        }

        #[inline(always)]
        unsafe fn order(self, from: *const u8, to: *mut u8) {
            has!(std::ptr::copy_nonoverlapping(from, to, Self::QUAD_BYTES));
        }

        #[inline(always)]
        unsafe fn in_order(self, from: *const u8) -> Self::Quad {
            has!(self.load_quad(from))
        }

        #[inline(always)]
        unsafe fn load_quad(self, at: *const u8) -> Self::Quad {
            has! {{
                let mut quad = [vdupq_n_s16(0); 8];
                for k in 0..QUAD {
                    let row = vld1q_s8(at.add(k * LANES).cast());
                    quad[2 * k] = vmovl_s8(vget_low_s8(row));
                    quad[2 * k + 1] = vmovl_s8(vget_high_s8(row));
                }
                quad
            }}
        }

        #[inline(always)]
        fn dot(self, mut sums: Self::Sums, x: u32, w: Self::Quad) -> Self::Sums {
            has! {{
                for (k, x) in x.to_le_bytes().into_iter().enumerate() {
                    let x = vdup_n_s16(i16::from(x));
                    for half in 0..2 {
                        let w = w[2 * k + half];
                        sums[2 * half] = vmlal_s16(sums[2 * half], vget_low_s16(w), x);
                        sums[2 * half + 1] = vmlal_s16(sums[2 * half + 1], vget_high_s16(w), x);
                    }
                }
                sums
            }}
        }

        #[inline(always)]
        unsafe fn load_sums(self, p: *const i32) -> Self::Sums {
            has!([
                vld1q_s32(p),
                vld1q_s32(p.add(4)),
                vld1q_s32(p.add(8)),
                vld1q_s32(p.add(12))
            ])
        }

        #[inline(always)]
        unsafe fn store_sums(self, p: *mut i32, sums: Self::Sums) {
            for (i, sum) in sums.into_iter().enumerate() {
                has!(vst1q_s32(p.add(4 * i), sum));
            }
        }

        #[inline(always)]
        unsafe fn numbers_less(self, sums: *const i32, zero: *const i32, row: i32) -> Self::V {
            let mut floats = [0.0; LANES];
            has! {{
                for i in (0..LANES).step_by(4) {
                    let sums = vld1q_s32(sums.add(i));
                    let less = vmlsq_s32(sums, vld1q_s32(zero.add(i)), vdupq_n_s32(row));
                    vst1q_f32(floats.as_mut_ptr().add(i), vcvtq_f32_s32(less));
                }
            }}
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
}
