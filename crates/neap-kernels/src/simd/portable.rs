//! The 16-lane vector in plain Rust, for processors without a path of their own.

use super::{LANES, Simd};

/// Plain Rust; needs nothing of the processor.
#[derive(Debug, Clone, Copy)]
pub struct Portable;

type V = [f32; LANES];

macro_rules! lanes {
    (|$i:ident| $e:expr) => {{
        let mut out = [Default::default(); LANES];
        let mut $i = 0;
        while $i < LANES {
            out[$i] = $e;
            $i += 1;
        }
        out
    }};
}

impl Simd for Portable {
    type V = V;
    type M = [bool; LANES];

    const VECTOR_REGISTERS: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> V {
        // SAFETY: the caller says 16 floats are readable; an unaligned read needs no more.
        unsafe { p.cast::<V>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: V) {
        // SAFETY: the caller says 16 floats are writable; an unaligned write needs no more.
        unsafe { p.cast::<V>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn load_partial(self, p: *const f32, n: usize) -> V {
        let mut v = [0.0; LANES];
        // SAFETY: the caller says `min(n, 16)` floats are readable, and `v` has 16.
        unsafe { std::ptr::copy_nonoverlapping(p, v.as_mut_ptr(), n.min(LANES)) };
        v
    }

    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, n: usize, v: V) {
        // SAFETY: the caller says `min(n, 16)` floats are writable, and `v` has 16.
        unsafe { std::ptr::copy_nonoverlapping(v.as_ptr(), p, n.min(LANES)) };
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        lanes!(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        lanes!(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        lanes!(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        lanes!(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        // Without a fused instruction `mul_add` is a slow library call.
        if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
            lanes!(|i| a[i].mul_add(b[i], c[i]))
        } else {
            lanes!(|i| a[i] * b[i] + c[i])
        }
    }

    #[inline(always)]
    fn fnma(self, a: V, b: V, c: V) -> V {
        self.fma(self.neg(a), b, c)
    }

    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        lanes!(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        lanes!(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn neg(self, a: V) -> V {
        lanes!(|i| -a[i])
    }

    #[inline(always)]
    fn abs(self, a: V) -> V {
        lanes!(|i| a[i].abs())
    }

    #[inline(always)]
    fn copysign(self, a: V, sign: V) -> V {
        lanes!(|i| a[i].copysign(sign[i]))
    }

    #[inline(always)]
    fn sqrt(self, a: V) -> V {
        lanes!(|i| a[i].sqrt())
    }

    #[inline(always)]
    fn round(self, a: V) -> V {
        lanes!(|i| a[i].round_ties_even())
    }

    #[inline(always)]
    fn floor(self, a: V) -> V {
        lanes!(|i| a[i].floor())
    }

    #[inline(always)]
    fn ceil(self, a: V) -> V {
        lanes!(|i| a[i].ceil())
    }

    #[inline(always)]
    fn pow2(self, n: V) -> V {
        lanes!(|i| f32::from_bits(((n[i] as i32).wrapping_add(127) as u32) << 23))
    }

    #[inline(always)]
    fn split_exponent(self, a: V) -> (V, V) {
        let m = lanes!(|i| f32::from_bits(a[i].to_bits() & 0x007f_ffff | 0x3f80_0000));
        let e = lanes!(|i| ((a[i].to_bits() >> 23) as i32 - 127) as f32);
        (m, e)
    }

    #[inline(always)]
    fn lt(self, a: V, b: V) -> Self::M {
        lanes!(|i| a[i] < b[i])
    }

    #[inline(always)]
    fn le(self, a: V, b: V) -> Self::M {
        lanes!(|i| a[i] <= b[i])
    }

    #[inline(always)]
    fn eq(self, a: V, b: V) -> Self::M {
        lanes!(|i| a[i] == b[i])
    }

    #[inline(always)]
    fn select(self, mask: Self::M, yes: V, no: V) -> V {
        lanes!(|i| if mask[i] { yes[i] } else { no[i] })
    }

    #[inline(always)]
    fn reduce_sum(self, mut v: V) -> f32 {
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                v[i] += v[i + half];
            }
            half /= 2;
        }
        v[0]
    }

    #[inline(always)]
    fn reduce_max(self, mut v: V) -> f32 {
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                v[i] = if v[i] > v[i + half] {
                    v[i]
                } else {
                    v[i + half]
                };
            }
            half /= 2;
        }
        v[0]
    }

    #[inline(always)]
    fn reduce_min(self, mut v: V) -> f32 {
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                v[i] = if v[i] < v[i + half] {
                    v[i]
                } else {
                    v[i + half]
                };
            }
            half /= 2;
        }
        v[0]
    }

    #[inline(always)]
    fn group_broadcast(self, v: V, width: usize, j: usize) -> V {
        lanes!(|i| v[i / width * width + j])
    }

    #[inline(always)]
    fn spread_quarter(self, v: V, quarter: usize) -> V {
        lanes!(|i| v[i / 8 * 8 + quarter * 4 + i % 4])
    }
}
