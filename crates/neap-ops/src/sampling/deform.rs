//! DeformConv: a convolution each of whose taps has an offset of its own at each place.
//!
//! The elements that some places read are gathered into columns, a few places at a time; these are multiplied with all
//! weights.

use crate::args::{Args, Scratch, scratch_bytes};
use crate::nd::{Ptr, split};
use crate::scalar::{Scalar, with_float};
use crate::{Context, OpError};
use neap_ir::TensorType;
use neap_ir::op::Window;

/// Places whose columns are gathered together.
const PLACES: usize = 16;

fn column(window: &Window, channels: usize) -> usize {
    let taps = window
        .kernel
        .iter()
        .fold(channels, |n, &k| n.saturating_mul(k));
    taps.saturating_mul(PLACES)
}

pub(super) fn workspace_bytes(window: &Window, x: &TensorType, workers: usize) -> usize {
    let channels = x.shape.get(1).copied().unwrap_or(0);
    scratch_bytes::<f64>(column(window, channels).saturating_mul(workers))
}

/// Between four elements of a plane; what is outside is 0.
fn between(plane: [usize; 2], at: [f64; 2], element: impl Fn(usize) -> f64) -> f64 {
    let inside = |i: usize| at[i] > -1.0 && at[i] < plane[i] as f64;
    if !(inside(0) && inside(1)) {
        return 0.0;
    }
    let floor = at.map(f64::floor);
    let part = [at[0] - floor[0], at[1] - floor[1]];
    let mut sum = 0.0;
    for corner in 0..4 {
        let step = [corner / 2, corner % 2];
        let mut weight = 1.0;
        let mut place = [0; 2];
        let mut is_there = true;
        for i in 0..2 {
            let index = floor[i] + step[i] as f64;
            is_there &= index >= 0.0 && index < plane[i] as f64;
            place[i] = index.max(0.0) as usize;
            weight *= if step[i] == 1 { part[i] } else { 1.0 - part[i] };
        }
        if is_there {
            sum += weight * element(place[0] * plane[1] + place[1]);
        }
    }
    sum
}

pub(super) fn deform_conv(
    window: &Window,
    groups: usize,
    offset_groups: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, w, offsets) = (args.input(0)?, args.input(1)?, args.input(2)?);
    let (bias, mask, y) = (args.opt_input(3), args.opt_input(4), args.output(0)?);
    let (channels, filters) = (x.shape()[1], w.shape()[0]);
    let (plane, out) = ([x.shape()[2], x.shape()[3]], [y.shape()[2], y.shape()[3]]);
    let [rows, columns] = [window.kernel[0], window.kernel[1]];
    let (taps, places) = (rows * columns, out[0] * out[1]);
    if y.elements() == 0 {
        return Ok(());
    }
    let length = column(window, channels);
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let gathered = Ptr(scratch
        .take::<f64>(length * ctx.par.workers())?
        .as_mut_ptr());
    let chunks = places.div_ceil(PLACES);
    with_float!(args.op, x.dtype(), T => {
        let (from, weights) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>::of(w.as_ptr()));
        let moved = Ptr::<T>::of(offsets.as_ptr());
        let optional = |tensor: Option<crate::TensorRef>| tensor.map(|t| Ptr::<T>::of(t.as_ptr()));
        let (bias, mask, to) = (optional(bias), optional(mask), Ptr::<T>(y.as_ptr().cast()));
        split(ctx.par, x.shape()[0] * chunks, 1, &|range, worker| {
            // SAFETY: every worker has its own part of the scratch.
            let gathered = unsafe { gathered.slice_mut(worker * length, length) };
            for unit in range {
                let (image, first) = (unit / chunks, unit % chunks * PLACES);
                let count = PLACES.min(places - first);
                for entry in 0..channels * taps * count {
                    let (row, place) = (entry / count, first + entry % count);
                    let (channel, tap) = (row / taps, row % taps);
                    let group = channel / (channels / offset_groups);
                    let at = |part: usize| {
                        let row = ((image * offset_groups + group) * taps + tap) * 2 + part;
                        let (axis, k) = (part, [tap / columns, tap % columns][part]);
                        let place = [place / out[1], place % out[1]][axis];
                        let origin = (place * window.strides[axis] + k * window.dilations[axis]) as f64;
                        let index = row * places + first + entry % count;
                        // SAFETY: there are two offsets for each tap at each place.
                        origin - window.pads_begin[axis] as f64 + unsafe { moved.read(index) }.to_f64()
                    };
                    // SAFETY: elements are inside the plane.
                    let element = |i: usize| unsafe {
                        from.read((image * channels + channel) * plane[0] * plane[1] + i)
                    }.to_f64();
                    let scale = mask.map_or(1.0, |mask| {
                        let row = (image * offset_groups + group) * taps + tap;
                        // SAFETY: the mask has a number for each tap at each place.
                        unsafe { mask.read(row * places + place) }.to_f64()
                    });
                    gathered[row * PLACES + entry % count] = scale * between(plane, [at(0), at(1)], element);
                }
                let terms = channels / groups * taps;
                for filter in 0..filters {
                    let group = filter / (filters / groups);
                    // SAFETY: there is a bias for each filter.
                    let start = bias.map_or(0.0, |bias| unsafe { bias.read(filter) }.to_f64());
                    let mut sums = [start; PLACES];
                    for term in 0..terms {
                        // SAFETY: a filter has as many weights.
                        let weight = unsafe { weights.read(filter * terms + term) }.to_f64();
                        let row = &gathered[(group * terms + term) * PLACES..][..PLACES];
                        for (sum, value) in sums.iter_mut().zip(row) {
                            *sum += weight * value;
                        }
                    }
                    for (i, &sum) in sums[..count].iter().enumerate() {
                        // SAFETY: each place of the output is written once.
                        unsafe { to.write((image * filters + filter) * places + first + i, T::from_f64(sum)) };
                    }
                }
            }
        });
        Ok(())
    })
}
