//! Sums of products of unsigned weights and signed steps, four k at a time, for each instruction set.

use crate::integer::dot::QUAD;
use crate::simd::{LANES, Portable, Simd};

/// Most panels of a tile, for any instruction set.
pub(super) const MAX_PANELS: usize = 4;

/// Turns signed bytes into unsigned ones, 128 more.
const SIGN: u8 = 0x80;

/// Integer instructions beside those of [`Simd`].
pub(super) trait BlockDot: Simd {
    /// 16 sums.
    type Sums: Copy;
    /// Four k of 16 channels, unsigned bytes.
    type Quad: Copy;

    /// Most panels of a tile, and most rows of a tile of one panel, of two, and so on.
    const PANELS: usize;
    const ROWS: [usize; MAX_PANELS];

    fn no_sums(self) -> Self::Sums;
    fn no_quad(self) -> Self::Quad;
    /// Four k of four bits, as panels have them.
    ///
    /// # Safety
    /// `at` is readable for 32 bytes.
    unsafe fn four_bits(self, at: *const u8) -> Self::Quad;
    /// Four k of eight bits, as panels have them, and 128 more.
    ///
    /// # Safety
    /// `at` is readable for 64 bytes.
    unsafe fn eight_bits(self, at: *const u8) -> Self::Quad;
    /// # Safety
    /// `to` is writable for 64 bytes.
    unsafe fn store_quad(self, to: *mut u8, w: Self::Quad);
    /// # Safety
    /// [`BlockDot::store_quad`] wrote there.
    unsafe fn load_quad(self, at: *const u8) -> Self::Quad;
    /// Adds the products with four signed steps, the first in the lowest byte. Weights are below 16 unless `EIGHT`.
    fn dot<const EIGHT: bool>(self, sums: Self::Sums, w: Self::Quad, x: i32) -> Self::Sums;
    fn numbers(self, sums: Self::Sums) -> Self::V;
}

impl BlockDot for Portable {
    type Sums = [i32; LANES];
    type Quad = [[u8; LANES]; QUAD];

    const PANELS: usize = 1;
    const ROWS: [usize; MAX_PANELS] = [2, 0, 0, 0];

    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        [0; LANES]
    }

    #[inline(always)]
    fn no_quad(self) -> Self::Quad {
        [[0; LANES]; QUAD]
    }

    #[inline(always)]
    unsafe fn four_bits(self, at: *const u8) -> Self::Quad {
        // SAFETY: the caller's promise.
        let bytes = unsafe { at.cast::<[[u8; LANES / 2]; QUAD]>().read_unaligned() };
        bytes.map(|k| {
            let mut lanes = [0; LANES];
            for (i, byte) in k.into_iter().enumerate() {
                lanes[i] = byte & 15;
                lanes[i + LANES / 2] = byte >> 4;
            }
            lanes
        })
    }

    #[inline(always)]
    unsafe fn eight_bits(self, at: *const u8) -> Self::Quad {
        // SAFETY: the caller's promise.
        let bytes = unsafe { at.cast::<Self::Quad>().read_unaligned() };
        bytes.map(|k| k.map(|w| w ^ SIGN))
    }

    #[inline(always)]
    unsafe fn store_quad(self, to: *mut u8, w: Self::Quad) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<Self::Quad>().write_unaligned(w) };
    }

    #[inline(always)]
    unsafe fn load_quad(self, at: *const u8) -> Self::Quad {
        // SAFETY: the caller's promise.
        unsafe { at.cast::<Self::Quad>().read_unaligned() }
    }

    #[inline(always)]
    fn dot<const EIGHT: bool>(self, mut sums: Self::Sums, w: Self::Quad, x: i32) -> Self::Sums {
        for (x, w) in x.to_ne_bytes().into_iter().zip(w) {
            for (sum, w) in sums.iter_mut().zip(w) {
                *sum += i32::from(x as i8) * i32::from(w);
            }
        }
        sums
    }

    #[inline(always)]
    fn numbers(self, sums: Self::Sums) -> Self::V {
        self.from_array(sums.map(|sum| sum as f32))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BlockDot, MAX_PANELS, SIGN};
    use crate::integer::dot::Dot;
    use crate::simd::{Avx2Fma, Avx512, LANES, Simd};
    use std::arch::x86_64::*;

    macro_rules! has {
        ($e:expr) => {
            // SAFETY: the token exists only where the processor has these instructions, and the driver takes the
            // AVX-512 one only where it has VNNI too; pointers are the caller's promise.
            unsafe { $e }
        };
    }

    /// AVX-512 with VNNI: `[channel][4 k]`.
    impl BlockDot for Avx512 {
        type Sums = __m512i;
        type Quad = __m512i;

        const PANELS: usize = 4;
        const ROWS: [usize; MAX_PANELS] = [6, 6, 1, 1];

        #[inline(always)]
        fn no_sums(self) -> __m512i {
            has!(_mm512_setzero_si512())
        }

        #[inline(always)]
        fn no_quad(self) -> __m512i {
            has!(_mm512_setzero_si512())
        }

        #[inline(always)]
        unsafe fn four_bits(self, at: *const u8) -> __m512i {
            has! {{
                // Two channels of four bits in a byte: first their four k side by side, then channels 0 to 7 and 8 to 15.
                let packed = _mm512_castsi256_si512(_mm256_loadu_si256(at.cast()));
                let lanes = _mm512_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7, 0, 2, 4, 6, 1, 3, 5, 7);
                let quarters = _mm512_permutexvar_epi32(lanes, packed);
                let bytes = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
                let pairs = _mm512_shuffle_epi8(quarters, _mm512_broadcast_i32x4(bytes));
                let halves = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
                _mm512_and_si512(_mm512_srlv_epi64(pairs, halves), _mm512_set1_epi8(15))
            }}
        }

        #[inline(always)]
        unsafe fn eight_bits(self, at: *const u8) -> __m512i {
            has!(_mm512_xor_si512(
                self.in_order(at),
                _mm512_set1_epi8(SIGN as i8)
            ))
        }

        #[inline(always)]
        unsafe fn store_quad(self, to: *mut u8, w: __m512i) {
            has!(_mm512_storeu_si512(to.cast(), w));
        }

        #[inline(always)]
        unsafe fn load_quad(self, at: *const u8) -> __m512i {
            has!(_mm512_loadu_si512(at.cast()))
        }

        #[inline(always)]
        fn dot<const EIGHT: bool>(self, sums: __m512i, w: __m512i, x: i32) -> __m512i {
            has!(_mm512_dpbusd_epi32(sums, w, _mm512_set1_epi32(x)))
        }

        #[inline(always)]
        fn numbers(self, sums: __m512i) -> __m512 {
            has!(_mm512_cvtepi32_ps(sums))
        }
    }

    /// AVX2: `[channel][4 k]`, channels 0 to 7 and 8 to 15.
    impl BlockDot for Avx2Fma {
        type Sums = [__m256i; 2];
        type Quad = [__m256i; 2];

        const PANELS: usize = 1;
        const ROWS: [usize; MAX_PANELS] = [2, 0, 0, 0];

        #[inline(always)]
        fn no_sums(self) -> Self::Sums {
            has!([_mm256_setzero_si256(); 2])
        }

        #[inline(always)]
        fn no_quad(self) -> Self::Quad {
            has!([_mm256_setzero_si256(); 2])
        }

        #[inline(always)]
        unsafe fn four_bits(self, at: *const u8) -> Self::Quad {
            has! {{
                let packed = _mm256_loadu_si256(at.cast());
                let lanes = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
                let quarters = _mm256_permutevar8x32_epi32(packed, lanes);
                let bytes = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
                let pairs = _mm256_shuffle_epi8(quarters, _mm256_broadcastsi128_si256(bytes));
                let low = _mm256_set1_epi8(15);
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(pairs), low);
                [_mm256_and_si256(pairs, low), high]
            }}
        }

        #[inline(always)]
        unsafe fn eight_bits(self, at: *const u8) -> Self::Quad {
            has! {{
                // Each half has two k: bring four k of four channels side by side, then channels 0 to 7 together.
                let bytes = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
                let bytes = _mm256_broadcastsi128_si256(bytes);
                let first = _mm256_loadu_si256(at.cast());
                let second = _mm256_loadu_si256(at.add(32).cast());
                let lanes = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
                let first = _mm256_permutevar8x32_epi32(first, lanes);
                let second = _mm256_permutevar8x32_epi32(second, lanes);
                // Quads 0 and 2 in the lower halves, 1 and 3 in the upper ones.
                let even = _mm256_unpacklo_epi64(first, second);
                let odd = _mm256_unpackhi_epi64(first, second);
                let low = _mm256_permute2x128_si256::<0x20>(even, odd);
                let high = _mm256_permute2x128_si256::<0x31>(even, odd);
                let sign = _mm256_set1_epi8(SIGN as i8);
                [low, high].map(|half| _mm256_xor_si256(_mm256_shuffle_epi8(half, bytes), sign))
            }}
        }

        #[inline(always)]
        unsafe fn store_quad(self, to: *mut u8, w: Self::Quad) {
            has! {{
                _mm256_storeu_si256(to.cast(), w[0]);
                _mm256_storeu_si256(to.add(32).cast(), w[1]);
            }}
        }

        #[inline(always)]
        unsafe fn load_quad(self, at: *const u8) -> Self::Quad {
            has!([
                _mm256_loadu_si256(at.cast()),
                _mm256_loadu_si256(at.add(32).cast())
            ])
        }

        #[inline(always)]
        fn dot<const EIGHT: bool>(self, mut sums: Self::Sums, w: Self::Quad, x: i32) -> Self::Sums {
            has! {{
                let (x, ones) = (_mm256_set1_epi32(x), _mm256_set1_epi16(1));
                for half in 0..2 {
                    // Sums of two products with weights below 128 fit in 16 bits, and so do those with their highest bits.
                    let low = match EIGHT {
                        true => _mm256_and_si256(w[half], _mm256_set1_epi8(127)),
                        false => w[half],
                    };
                    let pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(low, x), ones);
                    sums[half] = _mm256_add_epi32(sums[half], pairs);
                    if EIGHT {
                        let high = _mm256_andnot_si256(_mm256_set1_epi8(127), w[half]);
                        let pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(high, x), ones);
                        sums[half] = _mm256_add_epi32(sums[half], pairs);
                    }
                }
                sums
            }}
        }

        #[inline(always)]
        fn numbers(self, sums: Self::Sums) -> Self::V {
            let mut floats = [0.0; LANES];
            has! {{
                _mm256_storeu_ps(floats.as_mut_ptr(), _mm256_cvtepi32_ps(sums[0]));
                _mm256_storeu_ps(floats.as_mut_ptr().add(8), _mm256_cvtepi32_ps(sums[1]));
            }}
            self.from_array(floats)
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{BlockDot, MAX_PANELS, SIGN};
    use crate::integer::dot::QUAD;
    use crate::simd::{LANES, Neon, Simd};
    use std::arch::aarch64::*;

    macro_rules! has {
        ($e:expr) => {
            // SAFETY: every processor of this architecture has NEON; pointers are the caller's promise.
            unsafe { $e }
        };
    }

    /// NEON, widening products of 16-bit lanes: `[4 k][channel]`.
    impl BlockDot for Neon {
        type Sums = [int32x4_t; 4];
        type Quad = [uint8x16_t; QUAD];

        const PANELS: usize = 1;
        const ROWS: [usize; MAX_PANELS] = [2, 0, 0, 0];

        #[inline(always)]
        fn no_sums(self) -> Self::Sums {
            has!([vdupq_n_s32(0); 4])
        }

        #[inline(always)]
        fn no_quad(self) -> Self::Quad {
            has!([vdupq_n_u8(0); QUAD])
        }

        #[inline(always)]
        unsafe fn four_bits(self, at: *const u8) -> Self::Quad {
            has! {{
                let mut quad = self.no_quad();
                for (k, lanes) in quad.iter_mut().enumerate() {
                    let pairs = vld1_u8(at.add(k * LANES / 2));
                    *lanes = vcombine_u8(vand_u8(pairs, vdup_n_u8(15)), vshr_n_u8::<4>(pairs));
                }
                quad
            }}
        }

        #[inline(always)]
        unsafe fn eight_bits(self, at: *const u8) -> Self::Quad {
            has! {{
                let mut quad = self.no_quad();
                for (k, lanes) in quad.iter_mut().enumerate() {
                    *lanes = veorq_u8(vld1q_u8(at.add(k * LANES)), vdupq_n_u8(SIGN));
                }
                quad
            }}
        }

        #[inline(always)]
        unsafe fn store_quad(self, to: *mut u8, w: Self::Quad) {
            for (k, lanes) in w.into_iter().enumerate() {
                has!(vst1q_u8(to.add(k * LANES), lanes));
            }
        }

        #[inline(always)]
        unsafe fn load_quad(self, at: *const u8) -> Self::Quad {
            has! {{
                let mut quad = self.no_quad();
                for (k, lanes) in quad.iter_mut().enumerate() {
                    *lanes = vld1q_u8(at.add(k * LANES));
                }
                quad
            }}
        }

        #[inline(always)]
        fn dot<const EIGHT: bool>(self, mut sums: Self::Sums, w: Self::Quad, x: i32) -> Self::Sums {
            has! {{
                for (x, w) in x.to_ne_bytes().into_iter().zip(w) {
                    let x = vdup_n_s16(i16::from(x as i8));
                    let halves = [vmovl_u8(vget_low_u8(w)), vmovl_u8(vget_high_u8(w))];
                    for (half, w) in halves.into_iter().enumerate() {
                        let w = vreinterpretq_s16_u16(w);
                        sums[2 * half] = vmlal_s16(sums[2 * half], vget_low_s16(w), x);
                        sums[2 * half + 1] = vmlal_s16(sums[2 * half + 1], vget_high_s16(w), x);
                    }
                }
                sums
            }}
        }

        #[inline(always)]
        fn numbers(self, sums: Self::Sums) -> Self::V {
            let mut floats = [0.0; LANES];
            for (i, sum) in sums.into_iter().enumerate() {
                has!(vst1q_f32(
                    floats.as_mut_ptr().add(4 * i),
                    vcvtq_f32_s32(sum)
                ));
            }
            self.from_array(floats)
        }
    }
}
