//! Eight lanes of AVX2: products of unsigned with signed bytes, added in pairs to 16 bits.

use super::{Machine, TO_LOW, four};
use std::arch::x86_64::*;

/// Proof that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// Callable without `unsafe` only where the caller is compiled for these features; elsewhere the processor must have them.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn new() -> Self {
        Self(())
    }
}

macro_rules! has {
    ($e:expr) => {
        // SAFETY: an `Avx2` exists only where the processor has these instructions; pointers are the caller's promise.
        unsafe { $e }
    };
}

type V = __m256i;
type F = __m256;

/// Rows i and i + 4 in the halves of a vector.
#[inline(always)]
unsafe fn two_rows(at: *const u8, stride: usize, i: usize) -> V {
    has!({
        let low = _mm_loadu_si128(at.add(i * stride).cast());
        let high = _mm_loadu_si128(at.add((i + 4) * stride).cast());
        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
    })
}

impl Machine for Avx2 {
    type V = V;
    type F = F;
    /// Of the upper plane and the lower one, in 16 bits.
    type Sums = [V; 2];

    const LANES: usize = 8;
    const ROWS: usize = 4;
    const SIGNED_ZERO_BITS: u32 = 0;

    #[inline(always)]
    unsafe fn columns(self, at: *const u8, stride: usize) -> [V; 4] {
        has!({
            let (a, b) = (two_rows(at, stride, 0), two_rows(at, stride, 1));
            let (c, d) = (two_rows(at, stride, 2), two_rows(at, stride, 3));
            let (ab0, ab1) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (cd0, cd1) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            [
                _mm256_unpacklo_epi64(ab0, cd0),
                _mm256_unpackhi_epi64(ab0, cd0),
                _mm256_unpacklo_epi64(ab1, cd1),
                _mm256_unpackhi_epi64(ab1, cd1),
            ]
        })
    }

    #[inline(always)]
    unsafe fn column(self, at: *const u8, stride: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { self.columns(at, stride)[0] }
    }

    #[inline(always)]
    fn splat(self, x: i32) -> V {
        has!(_mm256_set1_epi32(x))
    }

    #[inline(always)]
    fn and(self, a: V, b: V) -> V {
        has!(_mm256_and_si256(a, b))
    }

    #[inline(always)]
    fn or(self, a: V, b: V) -> V {
        has!(_mm256_or_si256(a, b))
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        has!(_mm256_add_epi32(a, b))
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        has!(_mm256_sub_epi32(a, b))
    }

    #[inline(always)]
    fn shl(self, a: V, bits: u32) -> V {
        has!(_mm256_sll_epi32(a, _mm_cvtsi32_si128(bits as i32)))
    }

    #[inline(always)]
    fn shr(self, a: V, bits: u32) -> V {
        has!(_mm256_srl_epi32(a, _mm_cvtsi32_si128(bits as i32)))
    }

    #[inline(always)]
    fn sar(self, a: V, bits: u32) -> V {
        has!(_mm256_sra_epi32(a, _mm_cvtsi32_si128(bits as i32)))
    }

    #[inline(always)]
    fn look_up(self, bytes: V, table: &[i8; 16]) -> V {
        has!({
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), bytes)
        })
    }

    #[inline(always)]
    fn bits_as_16(self, v: V, quad: usize) -> V {
        has!({
            let byte = _mm256_set1_epi32(0x0101_0101 * (quad as i32 / 2));
            let lanes = _mm256_broadcastsi128_si256(_mm_setr_epi32(
                0,
                0x0404_0404,
                0x0808_0808,
                0x0c0c_0c0c,
            ));
            let repeated = _mm256_shuffle_epi8(v, _mm256_or_si256(byte, lanes));
            let bits = _mm256_set1_epi32(0x0804_0201 << (4 * (quad % 2)));
            let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(repeated, bits), bits);
            _mm256_and_si256(is_set, _mm256_set1_epi8(16))
        })
    }

    #[inline(always)]
    fn signed(self, v: V) -> V {
        v
    }

    #[inline(always)]
    fn splat_float(self, x: f32) -> F {
        has!(_mm256_set1_ps(x))
    }

    #[inline(always)]
    fn number(self, v: V) -> F {
        has!(_mm256_cvtepi32_ps(v))
    }

    #[inline(always)]
    fn half(self, v: V) -> F {
        has!({
            let low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
            let halves = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(low, low));
            _mm256_cvtph_ps(_mm256_castsi256_si128(halves))
        })
    }

    #[inline(always)]
    fn float(self, v: V) -> F {
        has!(_mm256_castsi256_ps(v))
    }

    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        has!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        has!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F {
        has!(_mm256_loadu_ps(p))
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> F {
        has!(_mm256_cvtph_ps(_mm_loadu_si128(p.cast())))
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u8) -> F {
        has!({
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: F) {
        has!(_mm256_storeu_ps(p, v));
    }

    #[inline(always)]
    fn run(most: i32) -> usize {
        // Two products of the upper plane in 16 bits.
        (32767 / (2 * 127 * most)).min(8) as usize
    }

    #[inline(always)]
    fn none(self) -> [V; 2] {
        has!([_mm256_setzero_si256(); 2])
    }

    #[inline(always)]
    unsafe fn dot(self, sums: [V; 2], w: V, x: *const i8, signed: bool) -> [V; 2] {
        has!({
            let mut high = _mm256_set1_epi32(four(x));
            let mut low = _mm256_set1_epi32(four(x.add(TO_LOW)));
            let mut w = w;
            if signed {
                // No activation is -128; 128 is an unsigned byte.
                high = _mm256_sign_epi8(high, w);
                low = _mm256_sign_epi8(low, w);
                w = _mm256_abs_epi8(w);
            }
            [
                _mm256_add_epi16(sums[0], _mm256_maddubs_epi16(w, high)),
                _mm256_add_epi16(sums[1], _mm256_maddubs_epi16(w, low)),
            ]
        })
    }

    #[inline(always)]
    fn total(self, [high, low]: [V; 2]) -> V {
        has!(_mm256_add_epi32(
            _mm256_madd_epi16(high, _mm256_set1_epi16(128)),
            _mm256_madd_epi16(low, _mm256_set1_epi16(1)),
        ))
    }
}
