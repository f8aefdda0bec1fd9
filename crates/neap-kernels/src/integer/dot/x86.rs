//! Products and results of x86: AVX-512 with VNNI, and AVX2.

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
    const TALL: [usize; MAX_PANELS] = [12, 12, 16, 12];
    const BESIDE: bool = true;

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
    unsafe fn store_quad(self, at: *mut u8, quad: __m512i) {
        has!(_mm512_storeu_si512(at.cast(), quad));
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
            self.store_quad(to, self.in_order(from));
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
    unsafe fn store_quad(self, at: *mut u8, quad: Self::Quad) {
        has! {{
            for (i, part) in quad.into_iter().enumerate() {
                _mm256_storeu_si256(at.add(32 * i).cast(), part);
            }
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
