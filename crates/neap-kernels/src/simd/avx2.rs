//! The 16-lane vector as two AVX2 registers.

use super::{Simd, coded};
use std::arch::x86_64::*;

/// Proof that the processor has AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub struct Avx2Fma(());

impl Avx2Fma {
    /// # Safety
    /// Callable without `unsafe` only where the caller is compiled for these features;
    /// elsewhere the processor must have them.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    #[must_use]
    pub fn new() -> Self {
        Self(())
    }
}

macro_rules! has {
    ($e:expr) => {
        // SAFETY: an `Avx2Fma` exists only where the processor has these instructions; pointers
        // are the caller's promise.
        unsafe { $e }
    };
}

type V = [__m256; 2];

/// Lanes below `n` all ones, for masked loads: a window into this array.
static WINDOW: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// Mask of the first `n` of 8 lanes.
#[inline(always)]
fn first(n: usize) -> __m256i {
    // SAFETY: the window starts at 0..=8 and is 8 long, inside the array of 16.
    unsafe { _mm256_loadu_si256(WINDOW.as_ptr().add(8 - n.min(8)).cast()) }
}

macro_rules! both {
    ($op:ident, $a:expr) => {
        has!([$op($a[0]), $op($a[1])])
    };
    ($op:ident, $a:expr, $b:expr) => {
        has!([$op($a[0], $b[0]), $op($a[1], $b[1])])
    };
    ($op:ident, $a:expr, $b:expr, $c:expr) => {
        has!([$op($a[0], $b[0], $c[0]), $op($a[1], $b[1], $c[1])])
    };
}

#[inline(always)]
fn low_of_four(v: __m128, max: bool) -> f32 {
    has!(if max {
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
    } else {
        let v = _mm_min_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_min_ss(v, _mm_movehdup_ps(v)))
    })
}

impl Simd for Avx2Fma {
    type V = V;
    type M = V;

    const VECTOR_REGISTERS: usize = 8;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        has!([_mm256_set1_ps(x); 2])
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> V {
        has!([_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))])
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: V) {
        has!({
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        })
    }

    #[inline(always)]
    unsafe fn load_partial(self, p: *const f32, n: usize) -> V {
        // `wrapping_add`: with few lanes the second half may start outside the allocation,
        // where the mask then reads nothing.
        has!([
            _mm256_maskload_ps(p, first(n)),
            _mm256_maskload_ps(p.wrapping_add(8), first(n.saturating_sub(8))),
        ])
    }

    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, n: usize, v: V) {
        has!({
            _mm256_maskstore_ps(p, first(n), v[0]);
            _mm256_maskstore_ps(p.wrapping_add(8), first(n.saturating_sub(8)), v[1]);
        })
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> V {
        has!([
            _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast())),
        ])
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u8) -> V {
        has!([p, p.add(16)].map(|p| {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }))
    }

    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> V {
        has!(
            [p, p.add(8)]
                .map(|p| { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) })
        )
    }

    #[inline(always)]
    unsafe fn load_u4(self, p: *const u8) -> V {
        has!({
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            let low = _mm256_and_si256(bytes, _mm256_set1_epi32(15));
            [low, _mm256_srli_epi32::<4>(bytes)].map(|v| _mm256_cvtepi32_ps(v))
        })
    }

    #[inline(always)]
    unsafe fn load_coded(self, at: *const u8, head: *const f32) -> V {
        has!({
            let low = _mm256_loadu_si256(at.cast());
            let signs = _mm_loadu_si128(at.add(coded::SIGNS).cast());
            let pairs = _mm_loadl_epi64(at.add(coded::CODES).cast());
            let codes = _mm_unpacklo_epi64(pairs, _mm_srli_epi64::<4>(pairs));
            let codes = _mm_and_si128(codes, _mm_set1_epi8(15));
            let table = _mm_loadu_si128(head.cast::<u8>().add(coded::TABLE).cast());
            let exponents = _mm256_cvtepu8_epi16(_mm_shuffle_epi8(table, codes));
            let exponents = _mm256_slli_epi16::<7>(exponents);
            let signs = _mm256_and_si256(_mm256_cvtepi8_epi16(signs), _mm256_set1_epi16(!0x7f80));
            let high = _mm256_or_si256(exponents, signs);
            let v = [
                _mm256_castsi256_ps(_mm256_unpacklo_epi16(low, high)),
                _mm256_castsi256_ps(_mm256_unpackhi_epi16(low, high)),
            ];
            let others = _mm_cmpeq_epi8(codes, _mm_set1_epi8(coded::OTHER as i8));
            if _mm_movemask_epi8(others) == 0 {
                return v;
            }
            let mut lanes = self.to_array(v);
            coded::put_others(&mut lanes, at, head);
            self.from_array(lanes)
        })
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        both!(_mm256_add_ps, a, b)
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        both!(_mm256_sub_ps, a, b)
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        both!(_mm256_mul_ps, a, b)
    }

    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        both!(_mm256_div_ps, a, b)
    }

    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        both!(_mm256_fmadd_ps, a, b, c)
    }

    #[inline(always)]
    fn fnma(self, a: V, b: V, c: V) -> V {
        both!(_mm256_fnmadd_ps, a, b, c)
    }

    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        both!(_mm256_max_ps, a, b)
    }

    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        both!(_mm256_min_ps, a, b)
    }

    #[inline(always)]
    fn neg(self, a: V) -> V {
        let bit = self.splat(-0.0);
        both!(_mm256_xor_ps, a, bit)
    }

    #[inline(always)]
    fn abs(self, a: V) -> V {
        let bit = self.splat(-0.0);
        both!(_mm256_andnot_ps, bit, a)
    }

    #[inline(always)]
    fn copysign(self, a: V, sign: V) -> V {
        let bit = self.splat(-0.0);
        let magnitude = both!(_mm256_andnot_ps, bit, a);
        let sign = both!(_mm256_and_ps, bit, sign);
        both!(_mm256_or_ps, magnitude, sign)
    }

    #[inline(always)]
    fn sqrt(self, a: V) -> V {
        both!(_mm256_sqrt_ps, a)
    }

    #[inline(always)]
    fn round(self, a: V) -> V {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        has!([
            _mm256_round_ps::<NEAREST>(a[0]),
            _mm256_round_ps::<NEAREST>(a[1])
        ])
    }

    #[inline(always)]
    fn floor(self, a: V) -> V {
        both!(_mm256_floor_ps, a)
    }

    #[inline(always)]
    fn ceil(self, a: V) -> V {
        both!(_mm256_ceil_ps, a)
    }

    #[inline(always)]
    fn pow2(self, n: V) -> V {
        let mut out = n;
        for half in &mut out {
            *half = has!({
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(*half), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
            });
        }
        out
    }

    #[inline(always)]
    fn split_exponent(self, a: V) -> (V, V) {
        let (mut m, mut e) = (a, a);
        for i in 0..2 {
            has!({
                let bits = _mm256_castps_si256(a[i]);
                let exponent =
                    _mm256_sub_epi32(_mm256_srli_epi32::<23>(bits), _mm256_set1_epi32(127));
                let mantissa = _mm256_or_si256(
                    _mm256_and_si256(bits, _mm256_set1_epi32(0x007f_ffff)),
                    _mm256_set1_epi32(0x3f80_0000),
                );
                m[i] = _mm256_castsi256_ps(mantissa);
                e[i] = _mm256_cvtepi32_ps(exponent);
            });
        }
        (m, e)
    }

    #[inline(always)]
    fn lt(self, a: V, b: V) -> V {
        has!([
            _mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]),
            _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1]),
        ])
    }

    #[inline(always)]
    fn le(self, a: V, b: V) -> V {
        has!([
            _mm256_cmp_ps::<_CMP_LE_OQ>(a[0], b[0]),
            _mm256_cmp_ps::<_CMP_LE_OQ>(a[1], b[1]),
        ])
    }

    #[inline(always)]
    fn eq(self, a: V, b: V) -> V {
        has!([
            _mm256_cmp_ps::<_CMP_EQ_OQ>(a[0], b[0]),
            _mm256_cmp_ps::<_CMP_EQ_OQ>(a[1], b[1]),
        ])
    }

    #[inline(always)]
    fn select(self, mask: V, yes: V, no: V) -> V {
        both!(_mm256_blendv_ps, no, yes, mask)
    }

    #[inline(always)]
    fn reduce_sum(self, v: V) -> f32 {
        has!({
            let v = _mm256_add_ps(v[0], v[1]);
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        })
    }

    #[inline(always)]
    fn reduce_max(self, v: V) -> f32 {
        has!({
            let v = _mm256_max_ps(v[0], v[1]);
            low_of_four(
                _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)),
                true,
            )
        })
    }

    #[inline(always)]
    fn reduce_min(self, v: V) -> f32 {
        has!({
            let v = _mm256_min_ps(v[0], v[1]);
            low_of_four(
                _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)),
                false,
            )
        })
    }

    #[inline(always)]
    fn group_broadcast(self, v: V, width: usize, j: usize) -> V {
        let mut out = v;
        for half in &mut out {
            *half = has!(match (width, j) {
                (4, 0) => _mm256_permute_ps::<0b00_00_00_00>(*half),
                (4, 1) => _mm256_permute_ps::<0b01_01_01_01>(*half),
                (4, 2) => _mm256_permute_ps::<0b10_10_10_10>(*half),
                (4, _) => _mm256_permute_ps::<0b11_11_11_11>(*half),
                (2, 0) => _mm256_permute_ps::<0b10_10_00_00>(*half),
                _ => _mm256_permute_ps::<0b11_11_01_01>(*half),
            });
        }
        out
    }

    #[inline(always)]
    fn spread_quarter(self, v: V, quarter: usize) -> V {
        has!(match quarter {
            0 => v.map(|half| _mm256_permute2f128_ps::<0x00>(half, half)),
            _ => v.map(|half| _mm256_permute2f128_ps::<0x11>(half, half)),
        })
    }
}
