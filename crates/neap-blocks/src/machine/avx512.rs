//! Sixteen lanes of AVX-512 with VNNI: products of unsigned with signed bytes, added to 32 bits.

use super::{Machine, TO_LOW, four};
use std::arch::x86_64::*;

/// Proof that the processor has AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Vnni(());

impl Avx512Vnni {
    /// Callable without `unsafe` only where the caller is compiled for these features; elsewhere the processor must have them.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub(crate) fn new() -> Self {
        Self(())
    }
}

macro_rules! has {
    ($e:expr) => {
        // SAFETY: an `Avx512Vnni` exists only where the processor has these instructions; pointers are the caller's promise.
        unsafe { $e }
    };
}

type V = __m512i;
type F = __m512;

/// Rows i, i + 4, i + 8 and i + 12 in the quarters of a vector.
#[inline(always)]
unsafe fn four_rows(at: *const u8, stride: usize, i: usize) -> V {
    has!({
        let row = |j: usize| _mm_loadu_si128(at.add((i + 4 * j) * stride).cast());
        let v = _mm512_castsi128_si512(row(0));
        let v = _mm512_inserti32x4::<1>(v, row(1));
        let v = _mm512_inserti32x4::<2>(v, row(2));
        _mm512_inserti32x4::<3>(v, row(3))
    })
}

impl Machine for Avx512Vnni {
    type V = V;
    type F = F;
    /// Of the upper plane and the lower one.
    type Sums = [V; 2];

    const LANES: usize = 16;
    const ROWS: usize = 6;
    const SIGNED_ZERO_BITS: u32 = 7;

    #[inline(always)]
    unsafe fn columns(self, at: *const u8, stride: usize) -> [V; 4] {
        has!({
            let (a, b) = (four_rows(at, stride, 0), four_rows(at, stride, 1));
            let (c, d) = (four_rows(at, stride, 2), four_rows(at, stride, 3));
            let (ab0, ab1) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (cd0, cd1) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            [
                _mm512_unpacklo_epi64(ab0, cd0),
                _mm512_unpackhi_epi64(ab0, cd0),
                _mm512_unpacklo_epi64(ab1, cd1),
                _mm512_unpackhi_epi64(ab1, cd1),
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
        has!(_mm512_set1_epi32(x))
    }

    #[inline(always)]
    fn and(self, a: V, b: V) -> V {
        has!(_mm512_and_si512(a, b))
    }

    #[inline(always)]
    fn or(self, a: V, b: V) -> V {
        has!(_mm512_or_si512(a, b))
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        has!(_mm512_add_epi32(a, b))
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        has!(_mm512_sub_epi32(a, b))
    }

    #[inline(always)]
    fn shl(self, a: V, bits: u32) -> V {
        has!(_mm512_sll_epi32(a, _mm_cvtsi32_si128(bits as i32)))
    }

    #[inline(always)]
    fn shr(self, a: V, bits: u32) -> V {
        has!(_mm512_srl_epi32(a, _mm_cvtsi32_si128(bits as i32)))
    }

    #[inline(always)]
    fn sar(self, a: V, bits: u32) -> V {
        has!(_mm512_sra_epi32(a, _mm_cvtsi32_si128(bits as i32)))
    }

    #[inline(always)]
    fn look_up(self, bytes: V, table: &[i8; 16]) -> V {
        has!({
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), bytes)
        })
    }

    #[inline(always)]
    fn bits_as_16(self, v: V, quad: usize) -> V {
        has!({
            let byte = _mm512_set1_epi32(0x0101_0101 * (quad as i32 / 2));
            let lanes =
                _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c));
            let repeated = _mm512_shuffle_epi8(v, _mm512_or_si512(byte, lanes));
            let bits = _mm512_set1_epi32(0x0804_0201 << (4 * (quad % 2)));
            _mm512_maskz_set1_epi8(_mm512_test_epi8_mask(repeated, bits), 16)
        })
    }

    #[inline(always)]
    fn signed(self, v: V) -> V {
        has!(_mm512_xor_si512(v, _mm512_set1_epi8(-128)))
    }

    #[inline(always)]
    fn splat_float(self, x: f32) -> F {
        has!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    fn number(self, v: V) -> F {
        has!(_mm512_cvtepi32_ps(v))
    }

    #[inline(always)]
    fn half(self, v: V) -> F {
        has!(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)))
    }

    #[inline(always)]
    fn float(self, v: V) -> F {
        has!(_mm512_castsi512_ps(v))
    }

    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        has!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        has!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F {
        has!(_mm512_loadu_ps(p))
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> F {
        has!(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast())))
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u8) -> F {
        has!({
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: F) {
        has!(_mm512_storeu_ps(p, v));
    }

    #[inline(always)]
    fn run(_: i32) -> usize {
        8
    }

    #[inline(always)]
    fn none(self) -> [V; 2] {
        has!([_mm512_setzero_si512(); 2])
    }

    #[inline(always)]
    unsafe fn dot(self, sums: [V; 2], w: V, x: *const i8, _: bool) -> [V; 2] {
        has!([
            _mm512_dpbusd_epi32(sums[0], w, _mm512_set1_epi32(four(x))),
            _mm512_dpbusd_epi32(sums[1], w, _mm512_set1_epi32(four(x.add(TO_LOW)))),
        ])
    }

    #[inline(always)]
    fn total(self, [high, low]: [V; 2]) -> V {
        has!(_mm512_add_epi32(_mm512_slli_epi32::<7>(high), low))
    }
}
