//! GridSample.

use super::Rounding;
use crate::args::Args;
use crate::nd::{GRAIN, Ptr, Strides, split};
use crate::scalar::{Scalar, with_float};
use crate::{Context, OpError};
use neap_ir::sampling::{GridMode, GridPadding};

/// Spatial axes.
pub(super) const MAX_SPATIAL: usize = 3;

/// Elements that one output is made of: cubic over two axes.
const MAX_TAPS: usize = 16;

/// As for images that are resized.
const CUBIC: f64 = -0.75;

/// One spatial axis.
#[derive(Clone, Copy)]
struct Axis {
    size: usize,
    stride: usize,
    mode: GridMode,
    padding: GridPadding,
    align_corners: bool,
    rounding: Rounding,
}

/// Offsets of elements and what each is multiplied with.
struct Taps {
    count: usize,
    entries: [(usize, f64); MAX_TAPS],
}

impl Axis {
    /// Where outside begins: coordinates are reflected there.
    fn borders(&self) -> (f64, f64) {
        let size = self.size as f64;
        match self.align_corners {
            true => (0.0, size - 1.0),
            false => (-0.5, size - 0.5),
        }
    }

    /// A place from -1 to 1 as a coordinate, brought inside where the padding says so.
    fn coordinate(&self, place: f64) -> f64 {
        let (size, r) = (self.size as f64, self.rounding);
        let shifted = r.to(place + 1.0);
        let x = match self.align_corners {
            true => r.to(shifted / 2.0 * (size - 1.0)),
            false => r.to((r.to(r.to(shifted * size) - 1.0)) / 2.0),
        };
        let x = match self.mode {
            GridMode::Nearest => x.round_ties_even(),
            _ => x,
        };
        let (low, high) = self.borders();
        if x >= low && x <= high {
            return x;
        }
        match self.padding {
            GridPadding::Zeros => x,
            GridPadding::Border => x.clamp(0.0, size - 1.0),
            GridPadding::Reflection => reflected(x, low, high),
        }
    }

    /// The element at a whole coordinate; `None` outside.
    fn element(&self, x: f64) -> Option<usize> {
        let last = self.size as f64 - 1.0;
        let inside = (0.0..=last).contains(&x);
        let x = match self.padding {
            GridPadding::Zeros if inside => x,
            GridPadding::Zeros => return None,
            GridPadding::Border => x,
            GridPadding::Reflection if inside => x,
            GridPadding::Reflection => {
                let (low, high) = self.borders();
                reflected(x, low, high).trunc()
            }
        };
        // NaN becomes the first element.
        Some(x.clamp(0.0, last) as usize)
    }

    /// Each of the taps so far with those of this axis.
    fn spread(&self, place: f64, taps: &mut Taps) {
        let x = self.coordinate(place);
        let first = x.floor();
        let t = x - first;
        let (start, weights): (f64, [f64; 4]) = match self.mode {
            GridMode::Nearest => (x, [1.0, 0.0, 0.0, 0.0]),
            GridMode::Linear => (first, [1.0 - t, t, 0.0, 0.0]),
            GridMode::Cubic => (first - 1.0, cubic(t)),
        };
        let count = match self.mode {
            GridMode::Nearest => 1,
            GridMode::Linear => 2,
            GridMode::Cubic => 4,
        };
        let mut made = Taps {
            count: 0,
            entries: [(0, 0.0); MAX_TAPS],
        };
        for (i, weight) in weights.into_iter().enumerate().take(count) {
            let Some(element) = self.element(start + i as f64) else {
                continue;
            };
            for &(offset, other) in &taps.entries[..taps.count] {
                made.entries[made.count] = (offset + element * self.stride, other * weight);
                made.count += 1;
            }
        }
        *taps = made;
    }
}

/// Weights of the four elements around a place `t` behind the second.
fn cubic(t: f64) -> [f64; 4] {
    let near = |x: f64| ((CUBIC + 2.0) * x - (CUBIC + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((CUBIC * x - 5.0 * CUBIC) * x + 8.0 * CUBIC) * x - 4.0 * CUBIC;
    [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]
}

/// Back and forth between the borders.
fn reflected(x: f64, low: f64, high: f64) -> f64 {
    let width = high - low;
    if width <= 0.0 {
        return low;
    }
    let beyond = if x < low { low - x } else { x - high };
    let times = (beyond / width).trunc();
    let rest = beyond - times * width;
    let from_low = (x < low) == (times % 2.0 == 0.0);
    if from_low { low + rest } else { high - rest }
}

pub(super) fn grid_sample(
    mode: GridMode,
    padding: GridPadding,
    align_corners: bool,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, grid, y) = (args.input(0)?, args.input(1)?, args.output(0)?);
    if y.elements() == 0 {
        return Ok(());
    }
    let (channels, spatial) = (x.shape()[1], &x.shape()[2..]);
    let strides = Strides::row_major(spatial, 1);
    let mut axes = [Axis {
        size: 1,
        stride: 0,
        mode,
        padding,
        align_corners,
        rounding: Rounding::of(grid.dtype()),
    }; MAX_SPATIAL];
    for (i, axis) in axes.iter_mut().enumerate().take(spatial.len()) {
        axis.size = spatial[i];
        axis.stride = strides[i] as usize;
    }
    let axes = &axes[..spatial.len()];
    let plane: usize = spatial.iter().product();
    let places: usize = y.shape()[2..].iter().product();
    let units = x.shape()[0] * places;
    with_float!(args.op, x.dtype(), T => with_float!(args.op, grid.dtype(), G => {
        let (from, at) = (Ptr::<T>::of(x.as_ptr()), Ptr::<G>::of(grid.as_ptr()));
        let to = Ptr::<T>(y.as_ptr().cast());
        split(ctx.par, units, GRAIN / (channels * 4).max(1), &|range, _| {
            for unit in range {
                let (image, place) = (unit / places, unit % places);
                let mut taps = Taps { count: 1, entries: [(0, 1.0); MAX_TAPS] };
                for (i, axis) in axes.iter().enumerate() {
                    // SAFETY: the grid has a number for each axis of each place, the last axis first.
                    let place = unsafe { at.read((unit + 1) * axes.len() - 1 - i) };
                    axis.spread(place.to_f64(), &mut taps);
                }
                for channel in 0..channels {
                    let plane_at = (image * channels + channel) * plane;
                    let mut sum = 0.0;
                    for &(offset, weight) in &taps.entries[..taps.count] {
                        // SAFETY: taps are inside their axes.
                        sum += weight * unsafe { from.read(plane_at + offset) }.to_f64();
                    }
                    let index = (image * channels + channel) * places + place;
                    // SAFETY: each place of the output is written once.
                    unsafe { to.write(index, T::from_f64(sum)) };
                }
            }
        });
        Ok(())
    }))
}
