//! Products of pixels and weights lane by lane, four taps at a time, for each instruction set.
//!
//! ```text
//!   pixels   four pixels in a row, 16 channels each, unsigned bytes      w   four taps of 16 channels, signed bytes
//!   acc[channel] += x[0][channel] * w[0][channel] + ... + x[3][channel] * w[3][channel]
//! ```

use super::dot::{Dot, QUAD};
use crate::simd::{LANES, Portable};

pub(super) trait Lanes: Dot {
    /// Four pixels, in the order of [`Dot::Quad`].
    type Pixels: Copy;

    /// # Safety
    /// `at` is readable for 64 bytes.
    unsafe fn pixels(self, at: *const u8) -> Self::Pixels;
    fn dot_lanes(self, sums: Self::Sums, x: Self::Pixels, w: Self::Quad) -> Self::Sums;
}

impl Lanes for Portable {
    type Pixels = [[u8; LANES]; QUAD];

    #[inline(always)]
    unsafe fn pixels(self, at: *const u8) -> Self::Pixels {
        // SAFETY: the caller's promise.
        unsafe { at.cast::<Self::Pixels>().read_unaligned() }
    }

    #[inline(always)]
    fn dot_lanes(self, mut sums: Self::Sums, x: Self::Pixels, w: Self::Quad) -> Self::Sums {
        for (x, w) in x.into_iter().zip(w) {
            for (sum, (x, w)) in sums.iter_mut().zip(x.into_iter().zip(w)) {
                *sum = sum.wrapping_add(i32::from(x) * i32::from(w));
            }
        }
        sums
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
    use crate::integer::dot::Dot;
    use crate::simd::{Avx2Fma, Avx512, LANES};
    use std::arch::x86_64::*;

    macro_rules! has {
        ($e:expr) => {
            // SAFETY: the token exists only where the processor has these instructions, and the driver takes the
            // AVX-512 one only where it has VNNI too; pointers are the caller's promise.
            unsafe { $e }
        };
    }

    impl Lanes for Avx512 {
        type Pixels = __m512i;

        #[inline(always)]
        unsafe fn pixels(self, at: *const u8) -> __m512i {
            has!(self.in_order(at))
        }

        #[inline(always)]
        fn dot_lanes(self, sums: __m512i, x: __m512i, w: __m512i) -> __m512i {
            has!(_mm512_dpbusd_epi32(sums, x, w))
        }
    }

    impl Lanes for Avx2Fma {
        type Pixels = [__m256i; 4];

        #[inline(always)]
        unsafe fn pixels(self, at: *const u8) -> Self::Pixels {
            has! {{
                let mut pixels = [_mm256_setzero_si256(); 4];
                for pair in 0..2 {
                    let first = _mm_loadu_si128(at.add(2 * pair * LANES).cast());
                    let second = _mm_loadu_si128(at.add((2 * pair + 1) * LANES).cast());
                    pixels[2 * pair] = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(first, second));
                    pixels[2 * pair + 1] = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(first, second));
                }
                pixels
            }}
        }

        #[inline(always)]
        fn dot_lanes(self, mut sums: Self::Sums, x: Self::Pixels, w: Self::Quad) -> Self::Sums {
            has! {{
                for half in 0..2 {
                    for pair in [half, 2 + half] {
                        let products = _mm256_madd_epi16(x[pair], w[pair]);
                        sums[half] = _mm256_add_epi32(sums[half], products);
                    }
                }
                sums
            }}
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::Lanes;
    use crate::integer::dot::QUAD;
    use crate::simd::{LANES, Neon};
    use std::arch::aarch64::*;

    macro_rules! has {
        ($e:expr) => {
            // SAFETY: every processor of this architecture has NEON; pointers are the caller's promise.
            unsafe { $e }
        };
    }

    impl Lanes for Neon {
        type Pixels = [int16x8_t; 8];

        #[inline(always)]
        unsafe fn pixels(self, at: *const u8) -> Self::Pixels {
            has! {{
                let mut pixels = [vdupq_n_s16(0); 8];
                for k in 0..QUAD {
                    let row = vld1q_u8(at.add(k * LANES));
                    pixels[2 * k] = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(row)));
                    pixels[2 * k + 1] = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(row)));
                }
                pixels
            }}
        }

        #[inline(always)]
        fn dot_lanes(self, mut sums: Self::Sums, x: Self::Pixels, w: Self::Quad) -> Self::Sums {
            has! {{
                for k in 0..QUAD {
                    for half in 0..2 {
                        let (x, w) = (x[2 * k + half], w[2 * k + half]);
                        let (low, high) = (2 * half, 2 * half + 1);
                        sums[low] = vmlal_s16(sums[low], vget_low_s16(x), vget_low_s16(w));
                        sums[high] = vmlal_s16(sums[high], vget_high_s16(x), vget_high_s16(w));
                    }
                }
                sums
            }}
        }
    }
}
