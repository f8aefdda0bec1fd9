//! Four lanes of NEON, with and without products of bytes that are added to 32 bits.

use super::{Machine, TO_LOW, four};
use std::arch::aarch64::*;

/// Every processor of this architecture has it.
#[derive(Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    /// Callable without `unsafe` only where the caller is compiled for NEON.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(crate) fn new() -> Self {
        Self(())
    }
}

/// Proof that the processor has `sdot`.
#[derive(Clone, Copy)]
pub(crate) struct NeonDot(Neon);

impl NeonDot {
    /// Callable without `unsafe` only where the caller is compiled for these features; elsewhere the processor must have them.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    pub(crate) fn new() -> Self {
        Self(Neon::new())
    }
}

macro_rules! has {
    ($e:expr) => {
        // SAFETY: the token exists only where the processor has these instructions; pointers are the caller's promise.
        unsafe { $e }
    };
}

type V = int32x4_t;
type F = float32x4_t;

/// What both machines do alike.
macro_rules! alike {
    () => {
        type V = V;
        type F = F;

        const LANES: usize = 4;
        const ROWS: usize = 4;
        const SIGNED_ZERO_BITS: u32 = 0;

        #[inline(always)]
        unsafe fn columns(self, at: *const u8, stride: usize) -> [V; 4] {
            has!({
                let a = vreinterpretq_s32_u8(vld1q_u8(at));
                let b = vreinterpretq_s32_u8(vld1q_u8(at.add(stride)));
                let c = vreinterpretq_s32_u8(vld1q_u8(at.add(2 * stride)));
                let d = vreinterpretq_s32_u8(vld1q_u8(at.add(3 * stride)));
                let (ab0, ab1) = (vzip1q_s32(a, b), vzip2q_s32(a, b));
                let (cd0, cd1) = (vzip1q_s32(c, d), vzip2q_s32(c, d));
                [
                    halves(vget_low_s32(ab0), vget_low_s32(cd0)),
                    halves(vget_high_s32(ab0), vget_high_s32(cd0)),
                    halves(vget_low_s32(ab1), vget_low_s32(cd1)),
                    halves(vget_high_s32(ab1), vget_high_s32(cd1)),
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
            has!(vdupq_n_s32(x))
        }

        #[inline(always)]
        fn and(self, a: V, b: V) -> V {
            has!(vandq_s32(a, b))
        }

        #[inline(always)]
        fn or(self, a: V, b: V) -> V {
            has!(vorrq_s32(a, b))
        }

        #[inline(always)]
        fn add(self, a: V, b: V) -> V {
            has!(vaddq_s32(a, b))
        }

        #[inline(always)]
        fn sub(self, a: V, b: V) -> V {
            has!(vsubq_s32(a, b))
        }

        #[inline(always)]
        fn shl(self, a: V, bits: u32) -> V {
            has!(vshlq_s32(a, vdupq_n_s32(bits as i32)))
        }

        #[inline(always)]
        fn shr(self, a: V, bits: u32) -> V {
            has!(vreinterpretq_s32_u32(vshlq_u32(
                vreinterpretq_u32_s32(a),
                vdupq_n_s32(-(bits as i32))
            )))
        }

        #[inline(always)]
        fn sar(self, a: V, bits: u32) -> V {
            has!(vshlq_s32(a, vdupq_n_s32(-(bits as i32))))
        }

        #[inline(always)]
        fn look_up(self, bytes: V, table: &[i8; 16]) -> V {
            has!({
                let table = vld1q_s8(table.as_ptr());
                vreinterpretq_s32_s8(vqtbl1q_s8(table, vreinterpretq_u8_s32(bytes)))
            })
        }

        #[inline(always)]
        fn bits_as_16(self, v: V, quad: usize) -> V {
            has!({
                let lanes = [0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c];
                let byte = vdupq_n_s32(0x0101_0101 * (quad as i32 / 2));
                let places = vaddq_s32(vld1q_s32(lanes.as_ptr()), byte);
                let repeated = vqtbl1q_u8(vreinterpretq_u8_s32(v), vreinterpretq_u8_s32(places));
                let bits = vdupq_n_s32(0x0804_0201 << (4 * (quad % 2)));
                let is_set = vtstq_u8(repeated, vreinterpretq_u8_s32(bits));
                vreinterpretq_s32_u8(vandq_u8(is_set, vdupq_n_u8(16)))
            })
        }

        #[inline(always)]
        fn signed(self, v: V) -> V {
            v
        }

        #[inline(always)]
        fn splat_float(self, x: f32) -> F {
            has!(vdupq_n_f32(x))
        }

        #[inline(always)]
        fn number(self, v: V) -> F {
            has!(vcvtq_f32_s32(v))
        }

        /// The exponent's place is right after a shift; its bias is by a product, which makes subnormal numbers normal.
        #[inline(always)]
        fn half(self, v: V) -> F {
            has!({
                let v = vreinterpretq_u32_s32(v);
                let sign = vshlq_n_u32::<16>(vandq_u32(v, vdupq_n_u32(0x8000)));
                let rest = vandq_u32(v, vdupq_n_u32(0x7fff));
                let shifted = vreinterpretq_f32_u32(vshlq_n_u32::<13>(rest));
                let finite = vmulq_n_f32(shifted, f32::from_bits((127 + 112) << 23));
                let others = vorrq_u32(vreinterpretq_u32_f32(shifted), vdupq_n_u32(0x7f80_0000));
                let is_finite = vcltq_u32(rest, vdupq_n_u32(0x7c00));
                let magnitude = vbslq_u32(is_finite, vreinterpretq_u32_f32(finite), others);
                vreinterpretq_f32_u32(vorrq_u32(magnitude, sign))
            })
        }

        #[inline(always)]
        fn float(self, v: V) -> F {
            has!(vreinterpretq_f32_s32(v))
        }

        #[inline(always)]
        fn mul(self, a: F, b: F) -> F {
            has!(vmulq_f32(a, b))
        }

        #[inline(always)]
        fn fma(self, a: F, b: F, c: F) -> F {
            has!(vfmaq_f32(c, a, b))
        }

        #[inline(always)]
        unsafe fn load(self, p: *const f32) -> F {
            has!(vld1q_f32(p))
        }

        #[inline(always)]
        unsafe fn load_f16(self, p: *const u8) -> F {
            has!(
                self.half(vreinterpretq_s32_u32(vmovl_u16(vreinterpret_u16_u8(
                    vld1_u8(p)
                ))))
            )
        }

        #[inline(always)]
        unsafe fn load_bf16(self, p: *const u8) -> F {
            has!(vreinterpretq_f32_u32(vshll_n_u16::<16>(
                vreinterpret_u16_u8(vld1_u8(p))
            )))
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut f32, v: F) {
            has!(vst1q_f32(p, v));
        }
    };
}

#[inline(always)]
fn halves(low: int32x2_t, high: int32x2_t) -> V {
    has!(vcombine_s32(low, high))
}

impl Machine for Neon {
    alike!();

    /// Of both planes: of the first two lanes and of the others, in 16 bits.
    type Sums = [[int16x8_t; 2]; 2];

    #[inline(always)]
    fn run(most: i32) -> usize {
        // A product of the upper plane in 16 bits.
        (32767 / (127 * most)).min(8) as usize
    }

    #[inline(always)]
    fn none(self) -> Self::Sums {
        has!([[vdupq_n_s16(0); 2]; 2])
    }

    #[inline(always)]
    unsafe fn dot(self, mut sums: Self::Sums, w: V, x: *const i8, _: bool) -> Self::Sums {
        has!({
            let w = vreinterpretq_s8_s32(w);
            for (plane, sums) in sums.iter_mut().enumerate() {
                let x = vreinterpretq_s8_s32(vdupq_n_s32(four(x.add(plane * TO_LOW))));
                sums[0] = vmlal_s8(sums[0], vget_low_s8(w), vget_low_s8(x));
                sums[1] = vmlal_high_s8(sums[1], w, x);
            }
            sums
        })
    }

    #[inline(always)]
    fn total(self, sums: Self::Sums) -> V {
        has!({
            let [high, low] = [0, 1].map(|plane| {
                let [a, b]: [int16x8_t; 2] = sums[plane];
                vpaddq_s32(vpaddlq_s16(a), vpaddlq_s16(b))
            });
            vaddq_s32(vshlq_n_s32::<7>(high), low)
        })
    }
}

impl Machine for NeonDot {
    alike!();

    /// Of the upper plane and the lower one.
    type Sums = [V; 2];

    #[inline(always)]
    fn run(_: i32) -> usize {
        8
    }

    #[inline(always)]
    fn none(self) -> [V; 2] {
        has!([vdupq_n_s32(0); 2])
    }

    #[inline(always)]
    unsafe fn dot(self, sums: [V; 2], w: V, x: *const i8, _: bool) -> [V; 2] {
        has!([
            four_products(sums[0], w, vdupq_n_s32(four(x))),
            four_products(sums[1], w, vdupq_n_s32(four(x.add(TO_LOW)))),
        ])
    }

    #[inline(always)]
    fn total(self, [high, low]: [V; 2]) -> V {
        has!(vaddq_s32(vshlq_n_s32::<7>(high), low))
    }
}

/// `sdot`, which the standard library has no stable function for.
///
/// # Safety
/// The processor has it.
#[inline(always)]
unsafe fn four_products(mut sums: V, w: V, x: V) -> V {
    // SAFETY: the instruction touches nothing but its operands.
    unsafe {
        std::arch::asm!(
            ".arch_extension dotprod",
            "sdot {sums:v}.4s, {w:v}.16b, {x:v}.16b",
            sums = inout(vreg) sums,
            w = in(vreg) w,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}
