//! Pairs of bfloat16: two k of a channel, or of a row, side by side in the 32 bits of a lane.
//!
//! ```text
//!   sum of a lane += x[k] * w[k] + x[k + 1] * w[k + 1]          products of 16 bits, sums of 32
//! ```
//! On x86-64 (AVX512-BF16) these are two fused multiply-adds, that of `k` first. Subnormal numbers count as zeros, operands and
//! sums alike; otherwise they have the bits that `fma` on floats gives. On 64-bit Arm (BFDOT) the processor adds both products
//! first, and rounds in a way of its own.

use super::{Isa, Simd};

/// Instructions on pairs beside those of [`Simd`]. Drivers take them only where [`Isa::has_pairs`].
pub(crate) trait Pairs: Simd {
    /// Rounds 32 numbers to the nearest bfloat16, ties to even: those of one pair lie side by side.
    fn round_pairs(self, first: Self::V, second: Self::V) -> Self::V;
    /// Pairs of 16 channels' bfloat16 of one k, and of the next.
    ///
    /// # Safety
    /// Both are readable for 32 bytes.
    unsafe fn load_pairs(self, first: *const u8, second: *const u8) -> Self::V;
    /// Adds the products of pairs.
    fn add_pairs(self, x: Self::V, w: Self::V, sums: Self::V) -> Self::V;
}

impl Isa {
    /// Whether the processor multiplies pairs of bfloat16.
    #[must_use]
    pub fn has_pairs(self) -> bool {
        match self.kind() {
            #[cfg(target_arch = "x86_64")]
            super::Kind::Avx512 => std::arch::is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_arch = "aarch64")]
            super::Kind::Neon => std::arch::is_aarch64_feature_detected!("bf16"),
            _ => false,
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Pairs;
    use crate::simd::Avx512;
    use std::arch::x86_64::*;
    use std::mem::transmute;

    macro_rules! has {
        ($e:expr) => {
            // SAFETY: the token exists only where the processor has AVX-512, and drivers use it for pairs only where it has
            // AVX512-BF16 too; vectors of one size may be taken for another; pointers are the caller's promise.
            unsafe { $e }
        };
    }

    /// The instruction adds the product of the upper halves first: `k` is there.
    impl Pairs for Avx512 {
        #[inline(always)]
        fn round_pairs(self, first: __m512, second: __m512) -> __m512 {
            has! {{
                let halves: __m512i = transmute(_mm512_cvtne2ps_pbh(second, first));
                _mm512_castsi512_ps(_mm512_rol_epi32::<16>(halves))
            }}
        }

        #[inline(always)]
        unsafe fn load_pairs(self, first: *const u8, second: *const u8) -> __m512 {
            has! {{
                let first = _mm512_cvtepu16_epi32(_mm256_loadu_si256(first.cast()));
                let second = _mm512_cvtepu16_epi32(_mm256_loadu_si256(second.cast()));
                let both = _mm512_or_si512(_mm512_slli_epi32::<16>(first), second);
                _mm512_castsi512_ps(both)
            }}
        }

        #[inline(always)]
        fn add_pairs(self, x: __m512, w: __m512, sums: __m512) -> __m512 {
            has!(_mm512_dpbf16_ps(
                sums,
                transmute::<__m512, __m512bh>(w),
                transmute::<__m512, __m512bh>(x)
            ))
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::Pairs;
    use crate::simd::Neon;
    use std::arch::aarch64::*;
    use std::arch::asm;

    macro_rules! has {
        ($e:expr) => {
            // SAFETY: drivers use the token for pairs only where the processor has FEAT_BF16; pointers are the caller's promise.
            unsafe { $e }
        };
    }

    /// Rounds eight numbers. A function, not a closure: it must become part of code that is compiled for these instructions.
    #[inline(always)]
    fn eight(low: float32x4_t, high: float32x4_t) -> float32x4_t {
        let halves: float32x4_t;
        has!(asm!(
            "bfcvtn {to:v}.4h, {low:v}.4s",
            "bfcvtn2 {to:v}.8h, {high:v}.4s",
            to = out(vreg) halves, low = in(vreg) low, high = in(vreg) high,
            options(pure, nomem, nostack, preserves_flags),
        ));
        halves
    }

    impl Pairs for Neon {
        #[inline(always)]
        fn round_pairs(self, first: Self::V, second: Self::V) -> Self::V {
            [
                eight(first[0], first[1]),
                eight(first[2], first[3]),
                eight(second[0], second[1]),
                eight(second[2], second[3]),
            ]
        }

        #[inline(always)]
        unsafe fn load_pairs(self, first: *const u8, second: *const u8) -> Self::V {
            has! {{
                let (first, second) = (first.cast::<u16>(), second.cast::<u16>());
                let mut pairs = [vdupq_n_f32(0.0); 4];
                for half in 0..2 {
                    let a = vld1q_u16(first.add(8 * half));
                    let b = vld1q_u16(second.add(8 * half));
                    pairs[2 * half] = vreinterpretq_f32_u16(vzip1q_u16(a, b));
                    pairs[2 * half + 1] = vreinterpretq_f32_u16(vzip2q_u16(a, b));
                }
                pairs
            }}
        }

        #[inline(always)]
        fn add_pairs(self, x: Self::V, w: Self::V, mut sums: Self::V) -> Self::V {
            for ((sums, w), x) in sums.iter_mut().zip(w).zip(x) {
                has!(asm!(
                    "bfdot {sums:v}.4s, {w:v}.8h, {x:v}.8h",
                    sums = inout(vreg) *sums, w = in(vreg) w, x = in(vreg) x,
                    options(pure, nomem, nostack, preserves_flags),
                ));
            }
            sums
        }
    }
}
