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

    /// Saturating; what is no number becomes the lowest step.
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
                // By way of 32 bits and without the checks of `as`, so that it is computed in vectors.
                let x = if x > Self::LOW { x } else { Self::LOW };
                let x = if x < Self::HIGH { x } else { Self::HIGH };
                // SAFETY: a number that 32 bits hold.
                unsafe { x.to_int_unchecked::<i32>() as $t }
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
    let len = x.len().min(out.len());
    let mut blocks = x[..len].chunks_exact(LANES);
    let mut out_blocks = out[..len].chunks_exact_mut(LANES);
    for (x, out) in (&mut blocks).zip(&mut out_blocks) {
        // SAFETY: a block is 16 floats.
        let steps = steps_of::<S, T>(s, unsafe { s.load(x.as_ptr()) }, scale, zero);
        out.copy_from_slice(&steps);
    }
    let (x, out) = (blocks.remainder(), out_blocks.into_remainder());
    // SAFETY: as many floats as are left.
    let x = unsafe { s.load_partial(x.as_ptr(), x.len()) };
    let steps = steps_of::<S, T>(s, x, scale, zero);
    out.copy_from_slice(&steps[..out.len()]);
}

#[inline(always)]
fn steps_of<S: Simd, T: Step>(s: S, x: S::V, scale: f32, zero: f32) -> [T; LANES] {
    let step = s.add(s.round(s.div(x, s.splat(scale))), s.splat(zero));
    let floats = s.to_array(s.min(s.max(step, s.splat(T::LOW)), s.splat(T::HIGH)));
    let mut steps = [T::of(0.0); LANES];
    for i in 0..LANES {
        steps[i] = T::of(floats[i]);
    }
    steps
}

#[inline(always)]
fn dequantize_generic<S: Simd, T: Step>(s: S, x: &[T], scale: f32, zero: f32, out: &mut [f32]) {
    let len = x.len().min(out.len());
    let mut blocks = x[..len].chunks_exact(LANES);
    let mut out_blocks = out[..len].chunks_exact_mut(LANES);
    for (x, out) in (&mut blocks).zip(&mut out_blocks) {
        let mut steps = [T::of(0.0); LANES];
        steps.copy_from_slice(x);
        // SAFETY: a block is 16 floats.
        unsafe { s.store(out.as_mut_ptr(), value_of(s, steps, scale, zero)) };
    }
    let (x, out) = (blocks.remainder(), out_blocks.into_remainder());
    let mut steps = [T::of(0.0); LANES];
    steps[..x.len()].copy_from_slice(x);
    let value = value_of(s, steps, scale, zero);
    // SAFETY: as many floats as are left.
    unsafe { s.store_partial(out.as_mut_ptr(), out.len(), value) };
}

#[inline(always)]
fn value_of<S: Simd, T: Step>(s: S, steps: [T; LANES], scale: f32, zero: f32) -> S::V {
    let mut floats = [0.0; LANES];
    for i in 0..LANES {
        floats[i] = steps[i].widened();
    }
    s.mul(s.sub(s.from_array(floats), s.splat(zero)), s.splat(scale))
}

macro_rules! kernels {
    ($($t:ident $quantize:ident $dequantize:ident)*) => {$(
        simd_kernel! {
            /// The steps of numbers; as many as the shorter slice has. NaN becomes the lowest step.
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
