//! The 16-lane vector as one AVX-512 register.

use super::{LANES, Simd};
use std::arch::x86_64::*;

/// Proof that the processor has AVX-512 F, BW, DQ and VL.
#[derive(Debug, Clone, Copy)]
pub struct Avx512(());

impl Avx512 {
    /// # Safety
    /// Callable without `unsafe` only where the caller is compiled for these features;
    /// elsewhere the processor must have them.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    #[must_use]
    pub fn new() -> Self {
        Self(())
    }
}

macro_rules! has {
    ($e:expr) => {
        // SAFETY: an `Avx512` exists only where the processor has these instructions; pointers
        // are the caller's promise.
        unsafe { $e }
    };
}

/// The low `n` bits set, all 16 for larger `n`.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    if n >= LANES { !0 } else { (1 << n) - 1 }
}

impl Simd for Avx512 {
    type V = __m512;
    type M = __mmask16;

    const VECTOR_REGISTERS: usize = 32;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        has!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        has!(_mm512_loadu_ps(p))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        has!(_mm512_storeu_ps(p, v))
    }

    #[inline(always)]
    unsafe fn load_partial(self, p: *const f32, n: usize) -> __m512 {
        has!(_mm512_maskz_loadu_ps(first(n), p))
    }

    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, n: usize, v: __m512) {
        has!(_mm512_mask_storeu_ps(p, first(n), v))
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> __m512 {
        has!(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast())))
    }

    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> __m512 {
        has!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(
            p.cast()
        ))))
    }

    #[inline(always)]
    unsafe fn load_u4(self, p: *const u8) -> __m512 {
        has!(self.load_u4_less(p, self.zero()))
    }

    /// Bits that are put under the exponent of a large float count its last units: 2^23 + x, and 2^19 + x where the
    /// integer is in the high half of its byte. Neither sum nor difference rounds.
    #[inline(always)]
    unsafe fn load_u4_less(self, p: *const u8, zero: __m512) -> __m512 {
        has!({
            let (low, high) = (0x4b00_0000, 0x4900_0000);
            let large = _mm512_mask_set1_epi32(_mm512_set1_epi32(low), 0xff00, high);
            let half = _mm512_mask_set1_epi32(_mm512_set1_epi32(0x0f), 0xff00, 0xf0);
            let twice = _mm_broadcastq_epi64(_mm_loadl_epi64(p.cast()));
            let bytes = _mm512_cvtepu8_epi32(twice);
            // bytes & half | large
            let x = _mm512_ternarylogic_epi32::<0xea>(bytes, half, large);
            let large = _mm512_castsi512_ps(large);
            _mm512_sub_ps(_mm512_castsi512_ps(x), _mm512_add_ps(zero, large))
        })
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        has!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        has!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        has!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        has!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        has!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn fnma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        has!(_mm512_fnmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        has!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        has!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn neg(self, a: __m512) -> __m512 {
        has!(_mm512_xor_ps(a, _mm512_set1_ps(-0.0)))
    }

    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        has!(_mm512_andnot_ps(_mm512_set1_ps(-0.0), a))
    }

    #[inline(always)]
    fn copysign(self, a: __m512, sign: __m512) -> __m512 {
        has!({
            let bit = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(bit, a), _mm512_and_ps(bit, sign))
        })
    }

    #[inline(always)]
    fn sqrt(self, a: __m512) -> __m512 {
        has!(_mm512_sqrt_ps(a))
    }

    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        has!(_mm512_roundscale_ps::<
            { _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC },
        >(a))
    }

    #[inline(always)]
    fn floor(self, a: __m512) -> __m512 {
        has!(_mm512_roundscale_ps::<
            { _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC },
        >(a))
    }

    #[inline(always)]
    fn ceil(self, a: __m512) -> __m512 {
        has!(_mm512_roundscale_ps::<
            { _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC },
        >(a))
    }

    #[inline(always)]
    fn pow2(self, n: __m512) -> __m512 {
        has!({
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        })
    }

    #[inline(always)]
    fn split_exponent(self, a: __m512) -> (__m512, __m512) {
        has!({
            let bits = _mm512_castps_si512(a);
            let e = _mm512_sub_epi32(_mm512_srli_epi32::<23>(bits), _mm512_set1_epi32(127));
            let m = _mm512_or_si512(
                _mm512_and_si512(bits, _mm512_set1_epi32(0x007f_ffff)),
                _mm512_set1_epi32(0x3f80_0000),
            );
            (_mm512_castsi512_ps(m), _mm512_cvtepi32_ps(e))
        })
    }

    #[inline(always)]
    fn lt(self, a: __m512, b: __m512) -> __mmask16 {
        has!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b))
    }

    #[inline(always)]
    fn le(self, a: __m512, b: __m512) -> __mmask16 {
        has!(_mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b))
    }

    #[inline(always)]
    fn eq(self, a: __m512, b: __m512) -> __mmask16 {
        has!(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b))
    }

    #[inline(always)]
    fn select(self, mask: __mmask16, yes: __m512, no: __m512) -> __m512 {
        has!(_mm512_mask_blend_ps(mask, no, yes))
    }

    #[inline(always)]
    fn reduce_sum(self, v: __m512) -> f32 {
        has!({
            let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        })
    }

    #[inline(always)]
    fn reduce_max(self, v: __m512) -> f32 {
        has!({
            let v = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        })
    }

    #[inline(always)]
    fn reduce_min(self, v: __m512) -> f32 {
        has!({
            let v = _mm256_min_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let v = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_min_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_min_ss(v, _mm_movehdup_ps(v)))
        })
    }

    #[inline(always)]
    fn group_broadcast(self, v: __m512, width: usize, j: usize) -> __m512 {
        has!(match (width, j) {
            (4, 0) => _mm512_permute_ps::<0b00_00_00_00>(v),
            (4, 1) => _mm512_permute_ps::<0b01_01_01_01>(v),
            (4, 2) => _mm512_permute_ps::<0b10_10_10_10>(v),
            (4, _) => _mm512_permute_ps::<0b11_11_11_11>(v),
            (2, 0) => _mm512_permute_ps::<0b10_10_00_00>(v),
            _ => _mm512_permute_ps::<0b11_11_01_01>(v),
        })
    }

    #[inline(always)]
    fn spread_quarter(self, v: __m512, quarter: usize) -> __m512 {
        has!(match quarter {
            0 => _mm512_shuffle_f32x4::<0b10_10_00_00>(v, v),
            _ => _mm512_shuffle_f32x4::<0b11_11_01_01>(v, v),
        })
    }
}
