//! The 16-lane vector as four NEON registers.

use super::{LANES, Simd};
use std::arch::aarch64::*;

/// NEON, which every 64-bit Arm processor has.
#[derive(Debug, Clone, Copy)]
pub struct Neon(());

impl Neon {
    #[inline(always)]
    #[must_use]
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self(())
    }
}

macro_rules! has {
    ($e:expr) => {{
        // SAFETY: NEON is part of the architecture; pointers are the caller's promise.
        #[allow(unused_unsafe)]
        unsafe {
            $e
        }
    }};
}

type V = [float32x4_t; 4];

macro_rules! each {
    (|$i:ident| $e:expr) => {
        has!([
            { const $i: usize = 0; $e },
            { const $i: usize = 1; $e },
            { const $i: usize = 2; $e },
            { const $i: usize = 3; $e },
        ])
    };
}

impl Simd for Neon {
    type V = V;
    type M = [uint32x4_t; 4];

    const VECTOR_REGISTERS: usize = 8;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        has!([vdupq_n_f32(x); 4])
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> V {
        each!(|I| vld1q_f32(p.add(4 * I)))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: V) {
        each!(|I| vst1q_f32(p.add(4 * I), v[I]));
    }

    #[inline(always)]
    unsafe fn load_partial(self, p: *const f32, n: usize) -> V {
        let mut a = [0.0f32; LANES];
        // SAFETY: the caller says `min(n, 16)` floats are readable, and `a` has 16.
        unsafe { std::ptr::copy_nonoverlapping(p, a.as_mut_ptr(), n.min(LANES)) };
        each!(|I| vld1q_f32(a.as_ptr().add(4 * I)))
    }

    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, n: usize, v: V) {
        let mut a = [0.0f32; LANES];
        each!(|I| vst1q_f32(a.as_mut_ptr().add(4 * I), v[I]));
        // SAFETY: the caller says `min(n, 16)` floats are writable, and `a` has 16.
        unsafe { std::ptr::copy_nonoverlapping(a.as_ptr(), p, n.min(LANES)) };
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> V {
        each!(|I| {
            let half = vmovl_u16(vld1_u16(p.add(8 * I).cast()));
            let magnitude = vshlq_n_u32::<13>(vandq_u32(half, vdupq_n_u32(0x7fff)));
            // From the exponent bias of half floats to that of f32.
            let rebias = vreinterpretq_f32_u32(vdupq_n_u32((127 + 112) << 23));
            let finite = vmulq_f32(vreinterpretq_f32_u32(magnitude), rebias);
            let infinite = vorrq_u32(magnitude, vdupq_n_u32(0x7f80_0000));
            let is_finite = vcltq_u32(magnitude, vdupq_n_u32(0x7c00 << 13));
            let sign = vshlq_n_u32::<16>(vandq_u32(half, vdupq_n_u32(0x8000)));
            let bits = vbslq_u32(is_finite, vreinterpretq_u32_f32(finite), infinite);
            vreinterpretq_f32_u32(vorrq_u32(bits, sign))
        })
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u8) -> V {
        each!(|I| vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.add(8 * I).cast()))))
    }

    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> V {
        has!({
            let bytes = vld1q_s8(p.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))),
            ]
        })
    }

    #[inline(always)]
    unsafe fn load_u4(self, p: *const u8) -> V {
        has!({
            let bytes = vld1_u8(p);
            let (low, high) = (
                vmovl_u8(vand_u8(bytes, vdup_n_u8(15))),
                vmovl_u8(vshr_n_u8::<4>(bytes)),
            );
            [
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
                vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
                vcvtq_f32_u32(vmovl_u16(vget_high_u16(high))),
            ]
        })
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        each!(|I| vaddq_f32(a[I], b[I]))
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        each!(|I| vsubq_f32(a[I], b[I]))
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        each!(|I| vmulq_f32(a[I], b[I]))
    }

    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        each!(|I| vdivq_f32(a[I], b[I]))
    }

    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        each!(|I| vfmaq_f32(c[I], a[I], b[I]))
    }

    #[inline(always)]
    fn fnma(self, a: V, b: V, c: V) -> V {
        each!(|I| vfmsq_f32(c[I], a[I], b[I]))
    }

    // Comparison and selection, because the native instructions treat NaN differently.
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        each!(|I| vbslq_f32(vcgtq_f32(a[I], b[I]), a[I], b[I]))
    }

    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        each!(|I| vbslq_f32(vcltq_f32(a[I], b[I]), a[I], b[I]))
    }

    #[inline(always)]
    fn neg(self, a: V) -> V {
        each!(|I| vnegq_f32(a[I]))
    }

    #[inline(always)]
    fn abs(self, a: V) -> V {
        each!(|I| vabsq_f32(a[I]))
    }

    #[inline(always)]
    fn copysign(self, a: V, sign: V) -> V {
        each!(|I| vbslq_f32(vdupq_n_u32(0x8000_0000), sign[I], a[I]))
    }

    #[inline(always)]
    fn sqrt(self, a: V) -> V {
        each!(|I| vsqrtq_f32(a[I]))
    }

    #[inline(always)]
    fn round(self, a: V) -> V {
        each!(|I| vrndnq_f32(a[I]))
    }

    #[inline(always)]
    fn floor(self, a: V) -> V {
        each!(|I| vrndmq_f32(a[I]))
    }

    #[inline(always)]
    fn ceil(self, a: V) -> V {
        each!(|I| vrndpq_f32(a[I]))
    }

    #[inline(always)]
    fn pow2(self, n: V) -> V {
        each!(|I| {
            let biased = vaddq_s32(vcvtnq_s32_f32(n[I]), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
        })
    }

    #[inline(always)]
    fn split_exponent(self, a: V) -> (V, V) {
        let m = each!(|I| {
            let bits = vreinterpretq_u32_f32(a[I]);
            let mantissa = vandq_u32(bits, vdupq_n_u32(0x007f_ffff));
            vreinterpretq_f32_u32(vorrq_u32(mantissa, vdupq_n_u32(0x3f80_0000)))
        });
        let e = each!(|I| {
            let bits = vreinterpretq_s32_f32(a[I]);
            vcvtq_f32_s32(vsubq_s32(vshrq_n_s32::<23>(bits), vdupq_n_s32(127)))
        });
        (m, e)
    }

    #[inline(always)]
    fn lt(self, a: V, b: V) -> Self::M {
        each!(|I| vcltq_f32(a[I], b[I]))
    }

    #[inline(always)]
    fn le(self, a: V, b: V) -> Self::M {
        each!(|I| vcleq_f32(a[I], b[I]))
    }

    #[inline(always)]
    fn eq(self, a: V, b: V) -> Self::M {
        each!(|I| vceqq_f32(a[I], b[I]))
    }

    #[inline(always)]
    fn select(self, mask: Self::M, yes: V, no: V) -> V {
        each!(|I| vbslq_f32(mask[I], yes[I], no[I]))
    }

    #[inline(always)]
    fn reduce_sum(self, v: V) -> f32 {
        has!({
            let v = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
            let v = vadd_f32(vget_low_f32(v), vget_high_f32(v));
            vget_lane_f32::<0>(v) + vget_lane_f32::<1>(v)
        })
    }

    #[inline(always)]
    fn reduce_max(self, v: V) -> f32 {
        has!(vmaxvq_f32(vmaxq_f32(
            vmaxq_f32(v[0], v[2]),
            vmaxq_f32(v[1], v[3])
        )))
    }

    #[inline(always)]
    fn reduce_min(self, v: V) -> f32 {
        has!(vminvq_f32(vminq_f32(
            vminq_f32(v[0], v[2]),
            vminq_f32(v[1], v[3])
        )))
    }

    #[inline(always)]
    fn group_broadcast(self, v: V, width: usize, j: usize) -> V {
        match width {
            4 => each!(|I| match j {
                0 => vdupq_laneq_f32::<0>(v[I]),
                1 => vdupq_laneq_f32::<1>(v[I]),
                2 => vdupq_laneq_f32::<2>(v[I]),
                _ => vdupq_laneq_f32::<3>(v[I]),
            }),
            _ => each!(|I| if j == 0 {
                vtrn1q_f32(v[I], v[I])
            } else {
                vtrn2q_f32(v[I], v[I])
            }),
        }
    }

    #[inline(always)]
    fn spread_quarter(self, v: V, quarter: usize) -> V {
        [v[quarter], v[quarter], v[2 + quarter], v[2 + quarter]]
    }
}
