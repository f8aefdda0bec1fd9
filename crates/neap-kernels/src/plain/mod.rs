//! Convolutions of plain tensors whose weights are tensors, too, forward and backward: what training computes.
//!
//! | function | computes |
//! |---|---|
//! | [`forward`] | the results, of inputs and weights |
//! | [`by_input`] | the derivative by inputs, of results' derivatives and weights: a transposed convolution |
//! | [`by_weight`] | the derivative by weights, of inputs and results' derivatives |
//!
//! ```text
//! forward     W  [c_out][c_in·taps]  ×  unfolded x   [c_in·taps][positions]
//! by_input    Wᵀ [c_in][c_out·taps]  ×  unfolded dy  [c_out·taps][positions]     for each phase of the strides
//! by_weight   dy [c_out][positions]  ×  unfolded xᵀ  [positions][c_in·taps]
//! ```
//! The right-hand matrix never exists whole: each task unfolds some of it into panels in its worker's scratch, and the
//! micro-kernels of all products take it from there. Where each channel is a group, planes are correlated instead.
//! Layouts are `[batch][channels][positions]` and `[c_out][c_in per group][taps]`. Results have the same bits for any number
//! of workers.

mod batch_norm;
mod by_input;
mod by_weight;
mod depthwise;
mod forward;
mod grid;
mod product;

pub use batch_norm::{Channels, Derivatives, Statistics, batch_norm, batch_norm_backward};

use crate::error::{KernelError, check_len, checked_product};
use crate::parallel::Parallel;
use crate::simd::Isa;
use crate::window::Window;

/// Spatial axes; those that are absent lead and have size 1.
pub const AXES: usize = 3;

/// Sizes of a convolution: the window's `input` is the forward pass's, whatever is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub batch: usize,
    pub groups: usize,
    /// Channels of a group.
    pub c_in: usize,
    pub c_out: usize,
    pub window: Window<AXES>,
}

impl Shape {
    fn inside(&self) -> usize {
        self.window.input.iter().product()
    }

    fn outside(&self) -> usize {
        self.window.output.iter().product()
    }

    /// Whether each channel is a group of its own.
    fn is_depthwise(&self) -> bool {
        self.c_in == 1 && self.c_out == 1
    }

    fn check(&self) -> Result<(), KernelError> {
        for axis in 0..AXES {
            self.window.axis(axis).check()?;
        }
        let planes = |channels: usize, plane: &[usize; AXES]| {
            checked_product(&[
                self.batch,
                self.groups,
                channels,
                plane[0],
                plane[1],
                plane[2],
            ])
        };
        let weights = checked_product(&[self.groups, self.c_out, self.c_in, self.window.taps()]);
        let sizes = [
            planes(self.c_in, &self.window.input),
            planes(self.c_out, &self.window.output),
            weights,
        ];
        match sizes.iter().any(Option::is_none) {
            true => Err(KernelError::Invalid("a size overflows")),
            false => Ok(()),
        }
    }

    fn check_all(&self, [x, w, y]: [(&'static str, usize); 3]) -> Result<(), KernelError> {
        self.check()?;
        let all = self.batch * self.groups;
        check_len(x.0, x.1, Some(all * self.c_in * self.inside()))?;
        check_len(y.0, y.1, Some(all * self.c_out * self.outside()))?;
        let taps = self.window.taps();
        check_len(w.0, w.1, Some(self.groups * self.c_out * self.c_in * taps))
    }
}

/// Floats of scratch for so many workers; of a shape that no call takes, any number.
#[must_use]
pub fn forward_scratch_floats(shape: &Shape, workers: usize) -> usize {
    match shape.check() {
        Err(_) => 0,
        Ok(()) if shape.is_depthwise() => depthwise::forward_floats(shape).saturating_mul(workers),
        Ok(()) => forward::floats(shape, workers),
    }
}

/// As [`forward_scratch_floats`], enough for any smaller sizes of batch and space too.
#[must_use]
pub fn most_forward_scratch_floats(shape: &Shape, workers: usize) -> usize {
    match shape.check() {
        Ok(()) if !shape.is_depthwise() => forward::most_floats(shape, workers),
        _ => forward_scratch_floats(shape, workers),
    }
}

/// As [`by_input_scratch_floats`], enough for any smaller sizes of batch and space too.
#[must_use]
pub fn most_by_input_scratch_floats(shape: &Shape, workers: usize) -> usize {
    match shape.check() {
        Ok(()) if !shape.is_depthwise() => by_input::most_floats(shape, workers),
        _ => by_input_scratch_floats(shape, workers),
    }
}

/// As [`forward_scratch_floats`].
#[must_use]
pub fn by_input_scratch_floats(shape: &Shape, workers: usize) -> usize {
    match shape.check() {
        Err(_) => 0,
        Ok(()) if shape.is_depthwise() => depthwise::by_input_floats(shape).saturating_mul(workers),
        Ok(()) => by_input::floats(shape, workers),
    }
}

/// As [`forward_scratch_floats`].
#[must_use]
pub fn by_weight_scratch_floats(shape: &Shape, workers: usize) -> usize {
    match shape.check() {
        Err(_) => 0,
        Ok(()) if shape.is_depthwise() => {
            depthwise::by_weight_floats(shape).saturating_mul(workers)
        }
        Ok(()) => by_weight::floats(shape, workers),
    }
}

/// `y = conv(x, w) + bias`.
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers.
pub fn forward(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &Shape,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
    scratch: &mut [f32],
) -> Result<(), KernelError> {
    shape.check_all([("x", x.len()), ("w", w.len()), ("y", y.len())])?;
    if let Some(bias) = bias {
        check_len("bias", bias.len(), Some(shape.groups * shape.c_out))?;
    }
    let floats = forward_scratch_floats(shape, parallel.workers());
    check_len("scratch", scratch.len(), Some(floats))?;
    match shape.is_depthwise() {
        true => depthwise::forward(isa, parallel, shape, x, w, bias, y, scratch),
        false => forward::run(isa, parallel, shape, x, w, bias, y, scratch),
    }
    Ok(())
}

/// `dx`, of `dy` and `w`; a bias is added for each input channel.
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers.
pub fn by_input(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &Shape,
    dy: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    dx: &mut [f32],
    scratch: &mut [f32],
) -> Result<(), KernelError> {
    shape.check_all([("dx", dx.len()), ("w", w.len()), ("dy", dy.len())])?;
    if let Some(bias) = bias {
        check_len("bias", bias.len(), Some(shape.groups * shape.c_in))?;
    }
    let floats = by_input_scratch_floats(shape, parallel.workers());
    check_len("scratch", scratch.len(), Some(floats))?;
    match shape.is_depthwise() {
        true => depthwise::by_input(isa, parallel, shape, dy, w, bias, dx, scratch),
        false => by_input::run(isa, parallel, shape, dy, w, bias, dx, scratch),
    }
    Ok(())
}

/// `dw`, of `x` and `dy`.
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers.
pub fn by_weight(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &Shape,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    scratch: &mut [f32],
) -> Result<(), KernelError> {
    shape.check_all([("x", x.len()), ("dw", dw.len()), ("dy", dy.len())])?;
    let floats = by_weight_scratch_floats(shape, parallel.workers());
    check_len("scratch", scratch.len(), Some(floats))?;
    match shape.is_depthwise() {
        true => depthwise::by_weight(isa, parallel, shape, x, dy, dw, scratch),
        false => by_weight::run(isa, parallel, shape, x, dy, dw, scratch),
    }
    Ok(())
}
