//! From numbers to steps of a scale, and back.
//!
//! ```text
//!   quantise      saturate(round(x / scale) + zero)      round: to the nearest, ties to even
//!   dequantise    (step - zero) * scale
//! ```
//! ONNX's QuantizeLinear and DequantizeLinear, in `f32` as they are defined.

use crate::simd::{LANES, Simd, simd_kernel};

/// An integer that steps are stored as, of at most 16 bits: an `f32` holds it exactly.
pub trait Step: Copy {
    const LOW: f32;
    const HIGH: f32;

    fn of(x: f32) -> Self;
    fn widened(self) -> f32;
}

macro_rules! steps {
    ($($t:ident)*) => {$(
        impl Step for $t {
            const LOW: f32 = $t::MIN as f32;
            const HIGH: f32 = $t::MAX as f32;

            #[inline(always)]
            fn of(x: f32) -> Self {
                x as $t
            }

            #[inline(always)]
            fn widened(self) -> f32 {
                f32::from(self)
            }
        }
    )*};
}
steps!(i8 u8 i16 u16);

#[inline(always)]
fn quantize_generic<S: Simd, T: Step>(s: S, x: &[f32], scale: f32, zero: f32, out: &mut [T]) {
    let (scale, zero) = (s.splat(scale), s.splat(zero));
    let (low, high) = (s.splat(T::LOW), s.splat(T::HIGH));
    for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
        // SAFETY: as many floats as the chunk has.
        let x = unsafe { s.load_partial(x.as_ptr(), x.len()) };
        let step = s.add(s.round(s.div(x, scale)), zero);
        let steps = s.to_array(s.clamp(step, low, high));
        for (out, step) in out.iter_mut().zip(steps) {
            *out = T::of(step);
        }
    }
}

#[inline(always)]
fn dequantize_generic<S: Simd, T: Step>(s: S, x: &[T], scale: f32, zero: f32, out: &mut [f32]) {
    let (scale, zero) = (s.splat(scale), s.splat(zero));
    for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
        let mut steps = [0.0; LANES];
        for (step, x) in steps.iter_mut().zip(x) {
            *step = x.widened();
        }
        let value = s.mul(s.sub(s.from_array(steps), zero), scale);
        // SAFETY: as many floats as the chunk has.
        unsafe { s.store_partial(out.as_mut_ptr(), out.len(), value) };
    }
}

macro_rules! kernels {
    ($($t:ident $quantize:ident $dequantize:ident)*) => {$(
        simd_kernel! {
            /// The steps of numbers; as many as the shorter slice has. NaN becomes 0.
            pub fn $quantize(x: &[f32], scale: f32, zero: f32, out: &mut [$t]) = quantize_generic;
        }
        simd_kernel! {
            /// The numbers of steps; as many as the shorter slice has.
            pub fn $dequantize(x: &[$t], scale: f32, zero: f32, out: &mut [f32]) = dequantize_generic;
        }
    )*};
}
kernels! {
    i8 quantize_i8 dequantize_i8
    u8 quantize_u8 dequantize_u8
    i16 quantize_i16 dequantize_i16
    u16 quantize_u16 dequantize_u16
}
