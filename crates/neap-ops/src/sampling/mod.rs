//! Operators that read images between their elements. All take plain tensors of any float type and compute in f64.
//!
//! Coordinates are rounded to f32 unless they are given in f64, as other runtimes compute them: a rounding decides which
//! elements are nearest, or how many samples a box has.

mod deform;
mod grid;
mod roi;
mod roi_pool;

use crate::args::Args;
use crate::{Context, OpError};
use neap_ir::DType;
use neap_ir::TensorType;
use neap_ir::sampling::Sampling;

pub(crate) fn sampling(of: &Sampling, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    match of {
        Sampling::Grid {
            mode,
            padding,
            align_corners,
        } => grid::grid_sample(*mode, *padding, *align_corners, args, ctx),
        Sampling::RoiAlign(attrs) => roi::roi_align(attrs, args, ctx),
        Sampling::MaxRoiPool { output, scale } => {
            roi_pool::max_roi_pool(*output, *scale, args, ctx)
        }
        Sampling::DeformConv {
            window,
            groups,
            offset_groups,
        } => deform::deform_conv(window, *groups, *offset_groups, args, ctx),
    }
}

/// Scratch for `x`, the first input.
pub(crate) fn workspace_bytes(of: &Sampling, x: &TensorType, workers: usize) -> usize {
    match of {
        Sampling::DeformConv { window, .. } => deform::workspace_bytes(window, x, workers),
        _ => 0,
    }
}

/// Says for which types there is no implementation.
pub(crate) fn supported(of: &Sampling, x: &TensorType) -> Result<(), String> {
    match of {
        Sampling::Grid { .. } if x.shape.len() > 2 + grid::MAX_SPATIAL => {
            Err(format!("for rank {}", x.shape.len()))
        }
        _ => Ok(()),
    }
}

/// Elements that each output reads, about.
pub(crate) fn taps(of: &Sampling, x: &TensorType) -> u64 {
    match of {
        Sampling::Grid { mode, .. } => match mode {
            neap_ir::sampling::GridMode::Nearest => 1,
            neap_ir::sampling::GridMode::Linear => 1 << x.shape.len().saturating_sub(2).min(8),
            neap_ir::sampling::GridMode::Cubic => 16,
        },
        // Without a number of samples about four are taken along each axis.
        Sampling::RoiAlign(attrs) => {
            let samples = if attrs.samples == 0 { 4 } else { attrs.samples } as u64;
            samples.saturating_mul(samples).saturating_mul(4)
        }
        // Bins are of any size.
        Sampling::MaxRoiPool { .. } => 16,
        Sampling::DeformConv { window, groups, .. } => {
            let channels = x.shape.get(1).copied().unwrap_or(1) / (*groups).max(1);
            let taps = window
                .kernel
                .iter()
                .fold(channels, |n, &k| n.saturating_mul(k));
            taps as u64
        }
    }
}

/// What coordinates of that type are rounded to.
#[derive(Clone, Copy)]
struct Rounding(bool);

impl Rounding {
    fn of(dtype: DType) -> Rounding {
        Rounding(dtype != DType::F64)
    }

    #[inline(always)]
    fn to(self, x: f64) -> f64 {
        if self.0 { f64::from(x as f32) } else { x }
    }
}
