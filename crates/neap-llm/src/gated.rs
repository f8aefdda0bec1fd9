//! The gated inner layer between its products: `to = activation(gate) · up`.

use crate::Activation;
use neap_kernels::simd::{Isa, LANES, Simd, math};
use neap_kernels::simd_kernel;

/// Of one row; its lengths are whole vectors.
pub(crate) fn gated(isa: Isa, activation: Activation, gate: &[f32], up: &[f32], to: &mut [f32]) {
    match activation {
        Activation::Silu => silu_times(isa, gate, up, to),
        Activation::GeluTanh => gelu_times(isa, gate, up, to),
        Activation::ClampedSwiglu => swiglu_times(isa, gate, up, to),
    }
}

simd_kernel! {
    /// `to = silu(gate) * up`
    fn silu_times(gate: &[f32], up: &[f32], to: &mut [f32]) = silu_generic;
}

simd_kernel! {
    /// `to = gelu(gate) * up`, by the hyperbolic tangent.
    fn gelu_times(gate: &[f32], up: &[f32], to: &mut [f32]) = gelu_generic;
}

#[inline(always)]
fn silu_generic<S: Simd>(s: S, gate: &[f32], up: &[f32], to: &mut [f32]) {
    for (at, to) in (0..).step_by(LANES).zip(to.chunks_exact_mut(LANES)) {
        let (gate, up) = (&gate[at..][..LANES], &up[at..][..LANES]);
        // SAFETY: each slice is a vector.
        unsafe {
            let y = s.mul(math::silu(s, s.load(gate.as_ptr())), s.load(up.as_ptr()));
            s.store(to.as_mut_ptr(), y);
        }
    }
}

#[inline(always)]
fn gelu_generic<S: Simd>(s: S, gate: &[f32], up: &[f32], to: &mut [f32]) {
    for (at, to) in (0..).step_by(LANES).zip(to.chunks_exact_mut(LANES)) {
        let (gate, up) = (&gate[at..][..LANES], &up[at..][..LANES]);
        // SAFETY: each slice is a vector.
        unsafe {
            let y = s.mul(
                math::gelu_tanh(s, s.load(gate.as_ptr())),
                s.load(up.as_ptr()),
            );
            s.store(to.as_mut_ptr(), y);
        }
    }
}

simd_kernel! {
    /// As [`Activation::ClampedSwiglu`] says.
    fn swiglu_times(gate: &[f32], up: &[f32], to: &mut [f32]) = swiglu_generic;
}

/// Of the sigmoid's slope, and where gate and up end.
const SLOPE: f32 = 1.702;
const LIMIT: f32 = 7.0;

#[inline(always)]
fn swiglu_generic<S: Simd>(s: S, gate: &[f32], up: &[f32], to: &mut [f32]) {
    let (limit, least) = (s.splat(LIMIT), s.splat(-LIMIT));
    let (slope, inverse, one) = (s.splat(SLOPE), s.splat(1.0 / SLOPE), s.splat(1.0));
    for (at, to) in (0..).step_by(LANES).zip(to.chunks_exact_mut(LANES)) {
        let (gate, up) = (&gate[at..][..LANES], &up[at..][..LANES]);
        // SAFETY: each slice is a vector.
        unsafe {
            let gate = s.min(s.load(gate.as_ptr()), limit);
            let up = s.max(s.min(s.load(up.as_ptr()), limit), least);
            let steep = math::silu(s, s.mul(gate, slope));
            let y = s.mul(s.mul(steep, inverse), s.add(up, one));
            s.store(to.as_mut_ptr(), y);
        }
    }
}
