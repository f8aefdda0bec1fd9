//! 2-D convolution over panel weights: blocked, first layer and narrow groups, with fused epilogue.
//!
//! All take one panel range of the layer and write only its output channels, so a layer may be
//! computed in any number of calls; the bits do not depend on how. Output is channel-blocked
//! `[N][ceil(C_out/16)][H][W][16]`. 1-D convolution is height 1.
//!
//! | function | input | panel k order | groups |
//! |---|---|---|---|
//! | [`conv_blocked`] | blocked `[N][ceil(C_in/16)][H][W][16]` | `[channel block][kh][kw][channel in block]` | 1, or in and out group widths multiples of 16 |
//! | [`conv_first_layer`] | plain `[N][C_in][H][W]`, `C_in <= 16` | `[kh][kw][c]` | 1 |
//! | [`conv_narrow_groups`] | blocked | `[kh][kw][channel in group]` | width 1, 2, 4 or 8, equal in and out |
//!
//! Each has a sibling for a band of rows of taller tensors, whose channel planes lie further apart.
//!
//! [`supports`] tells which serve a shape. Everything is row-major f32; pad lanes of blocked
//! outputs are written with finite values and never read.

mod blocked;
mod first_layer;
mod grouped;
mod pairs;

pub use blocked::{conv_blocked, conv_blocked_band};
pub(crate) use first_layer::{band_rows, band_width, interleave};
pub use first_layer::{conv_first_layer, conv_first_layer_band, conv_first_layer_scratch_bytes};
pub use grouped::{conv_narrow_groups, conv_narrow_groups_band};
pub use pairs::{conv_in_pairs, conv_pairs_scratch_bytes, takes_pairs};

use crate::epilogue::{Epilogue, Residual};
use crate::error::{KernelError, checked_product};
use crate::panel::Panels;
use crate::planes::{Planes, check_planes};
use crate::simd::LANES;
use crate::window::Window;
use std::ops::Range;

/// Sizes of a convolution. Whatever lies outside the input counts as zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvShape {
    pub batch: usize,
    pub c_in: usize,
    pub c_out: usize,
    pub groups: usize,
    pub window: Window,
}

/// Which kernel takes a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConvForm {
    Blocked,
    FirstLayer,
    NarrowGroups,
}

/// Most input channels of the first-layer kernel.
pub const FIRST_LAYER_CHANNELS: usize = 16;

/// True where the kernel of that form takes the shape.
#[must_use]
pub fn supports(form: ConvForm, shape: &ConvShape) -> bool {
    check_form(form, shape).is_ok() && shape.check().is_ok()
}

impl ConvShape {
    /// Panels of the whole layer.
    #[must_use]
    pub fn panels(&self) -> usize {
        self.c_out.div_ceil(LANES)
    }

    /// Inner length of a panel.
    #[must_use]
    pub fn k(&self) -> usize {
        self.c_in / self.groups.max(1) * self.window.kernel[0] * self.window.kernel[1]
    }

    /// Multiply-adds of the whole layer.
    #[must_use]
    pub fn multiply_adds(&self) -> usize {
        self.batch * self.window.output[0] * self.window.output[1] * self.c_out * self.k()
    }

    /// Refuses sizes that contradict each other or overflow.
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        if self.groups == 0
            || !self.c_in.is_multiple_of(self.groups)
            || !self.c_out.is_multiple_of(self.groups)
        {
            return Err(KernelError::Invalid(
                "channels are no multiple of the groups",
            ));
        }
        let w = &self.window;
        if w.kernel.contains(&0) || w.strides.contains(&0) || w.dilations.contains(&0) {
            return Err(KernelError::Invalid("kernel, stride or dilation of zero"));
        }
        // Coordinates are computed in signed arithmetic; half the range leaves room for sums.
        const MOST: usize = isize::MAX as usize / 4;
        for axis in 0..2 {
            let reach = (w.kernel[axis] - 1)
                .checked_mul(w.dilations[axis])
                .zip(w.output[axis].checked_mul(w.strides[axis]))
                .and_then(|(a, b)| a.checked_add(b))
                .and_then(|sum| sum.checked_add(w.pads_begin[axis]));
            if reach.is_none_or(|r| r > MOST) || w.input[axis] > MOST {
                return Err(KernelError::Invalid("a size overflows"));
            }
        }
        Ok(())
    }

    /// Blocked tensors that are just as high as the shape says.
    pub(crate) fn whole_planes(&self) -> Planes {
        Planes {
            input: plane_floats(self.window.input, LANES).unwrap_or(usize::MAX),
            output: plane_floats(self.window.output, LANES).unwrap_or(usize::MAX),
        }
    }

    pub(crate) fn check_blocked_input(
        &self,
        planes: &Planes,
        input: &[f32],
    ) -> Result<(), KernelError> {
        let count = self.batch.checked_mul(self.c_in.div_ceil(LANES));
        let plane = plane_floats(self.window.input, LANES);
        check_planes("input", input.len(), count, planes.input, plane)
    }

    /// Output and residual.
    pub(crate) fn check_blocked_output(
        &self,
        planes: &Planes,
        output: &[f32],
        epilogue: &Epilogue<'_>,
    ) -> Result<(), KernelError> {
        let count = self.batch.checked_mul(self.panels());
        let plane = plane_floats(self.window.output, LANES);
        let check = |what, len| check_planes(what, len, count, planes.output, plane);
        check("output", output.len())?;
        match epilogue.residual {
            Residual::Separate(residual) => check("residual", residual.len()),
            Residual::None | Residual::InPlace => Ok(()),
        }
    }

    /// Checks what all forms have in common: sizes, the panel range and its weights, output and residual.
    fn check_call(
        &self,
        form: ConvForm,
        planes: &Planes,
        panels: &Range<usize>,
        weights: &Panels<'_>,
        output: &[f32],
        epilogue: &Epilogue<'_>,
    ) -> Result<(), KernelError> {
        self.check()?;
        check_form(form, self)?;
        if panels.start > panels.end || panels.end > self.panels() {
            return Err(KernelError::Invalid("panel range outside the layer"));
        }
        let k = checked_product(&[
            self.c_in / self.groups,
            self.window.kernel[0],
            self.window.kernel[1],
        ]);
        weights.check(k, panels.len())?;
        debug_assert_eq!(k, Some(self.k()));
        self.check_blocked_output(planes, output, epilogue)
    }
}

fn plane_floats(size: [usize; 2], lanes: usize) -> Option<usize> {
    checked_product(&[size[0], size[1], lanes])
}

fn check_form(form: ConvForm, s: &ConvShape) -> Result<(), KernelError> {
    let groups = s.groups.max(1);
    let (width_in, width_out) = (s.c_in / groups, s.c_out / groups);
    let (fits, otherwise) = match form {
        ConvForm::Blocked => (
            groups == 1 || (width_in % LANES == 0 && width_out % LANES == 0),
            "blocked convolution whose group width is no multiple of 16",
        ),
        ConvForm::FirstLayer => (
            groups == 1 && (1..=FIRST_LAYER_CHANNELS).contains(&s.c_in),
            "first-layer convolution with groups or more than 16 input channels",
        ),
        ConvForm::NarrowGroups => (
            groups > 1 && width_in == width_out && [1, 2, 4, 8].contains(&width_in),
            "grouped convolution whose group width is not 1, 2, 4 or 8, equal in and out",
        ),
    };
    if fits {
        Ok(())
    } else {
        Err(KernelError::Unsupported(otherwise))
    }
}
