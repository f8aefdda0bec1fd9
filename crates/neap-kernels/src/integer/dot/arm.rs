//! Products and results of NEON.

use super::{Dot, MAX_PANELS, QUAD};
use crate::simd::{LANES, Neon, Simd};
use std::arch::aarch64::*;

macro_rules! has {
    ($e:expr) => {
        // SAFETY: every processor of this architecture has NEON; pointers are the caller's promise.
        unsafe { $e }
    };
}

/// NEON, widening products of 16-bit lanes: `[4 k][channel]`.
impl Dot for Neon {
    type Sums = [int32x4_t; 4];
    type Quad = [int16x8_t; 8];

    const QUAD_BYTES: usize = QUAD * LANES;
    const PANELS: usize = 1;
    const ROWS: [usize; MAX_PANELS] = [4; MAX_PANELS];

    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        has!([vdupq_n_s32(0); 4])
    }

    #[inline(always)]
    unsafe fn order(self, from: *const u8, to: *mut u8) {
        has!(std::ptr::copy_nonoverlapping(from, to, Self::QUAD_BYTES));
    }

    #[inline(always)]
    unsafe fn in_order(self, from: *const u8) -> Self::Quad {
        has!(self.load_quad(from))
    }

    #[inline(always)]
    unsafe fn load_quad(self, at: *const u8) -> Self::Quad {
        has! {{
            let mut quad = [vdupq_n_s16(0); 8];
            for k in 0..QUAD {
                let row = vld1q_s8(at.add(k * LANES).cast());
                quad[2 * k] = vmovl_s8(vget_low_s8(row));
                quad[2 * k + 1] = vmovl_s8(vget_high_s8(row));
            }
            quad
        }}
    }

    #[inline(always)]
    unsafe fn store_quad(self, at: *mut u8, quad: Self::Quad) {
        has! {{
            for k in 0..QUAD {
                let row = vcombine_s8(vmovn_s16(quad[2 * k]), vmovn_s16(quad[2 * k + 1]));
                vst1q_s8(at.add(k * LANES).cast(), row);
            }
        }}
    }

    #[inline(always)]
    fn dot(self, mut sums: Self::Sums, x: u32, w: Self::Quad) -> Self::Sums {
        has! {{
            for (k, x) in x.to_le_bytes().into_iter().enumerate() {
                let x = vdup_n_s16(i16::from(x));
                for half in 0..2 {
                    let w = w[2 * k + half];
                    sums[2 * half] = vmlal_s16(sums[2 * half], vget_low_s16(w), x);
                    sums[2 * half + 1] = vmlal_s16(sums[2 * half + 1], vget_high_s16(w), x);
                }
            }
            sums
        }}
    }

    #[inline(always)]
    unsafe fn load_sums(self, p: *const i32) -> Self::Sums {
        has!([
            vld1q_s32(p),
            vld1q_s32(p.add(4)),
            vld1q_s32(p.add(8)),
            vld1q_s32(p.add(12))
        ])
    }

    #[inline(always)]
    unsafe fn store_sums(self, p: *mut i32, sums: Self::Sums) {
        for (i, sum) in sums.into_iter().enumerate() {
            has!(vst1q_s32(p.add(4 * i), sum));
        }
    }

    #[inline(always)]
    unsafe fn numbers_less(self, sums: *const i32, zero: *const i32, row: i32) -> Self::V {
        let mut floats = [0.0; LANES];
        has! {{
            for i in (0..LANES).step_by(4) {
                let sums = vld1q_s32(sums.add(i));
                let less = vmlsq_s32(sums, vld1q_s32(zero.add(i)), vdupq_n_s32(row));
                vst1q_f32(floats.as_mut_ptr().add(i), vcvtq_f32_s32(less));
            }
        }}
        self.from_array(floats)
    }

    #[inline(always)]
    unsafe fn store_bytes(self, p: *mut u8, v: Self::V) {
        for (i, x) in self.to_array(v).into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { *p.add(i) = x as u8 };
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> Self::V {
        let mut floats = [0.0; LANES];
        for (i, float) in floats.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *float = f32::from(unsafe { *p.add(i) });
        }
        self.from_array(floats)
    }
}
