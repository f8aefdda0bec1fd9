//! MaxRoiPool: the largest element of each bin of a box, whose corners are rounded to elements.

use super::Rounding;
use crate::args::Args;
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Scalar, with_float};
use crate::{Context, OpError};
use std::ops::Range;

/// A box along one axis.
#[derive(Clone, Copy)]
struct Span {
    start: f64,
    bin: f64,
}

impl Span {
    fn of(corners: [f64; 2], scale: f64, bins: usize, r: Rounding) -> Span {
        let [start, end] = corners.map(|corner| r.to(corner * scale).round());
        let size = (end - start + 1.0).max(1.0);
        let bin = r.to(size / bins as f64);
        Span { start, bin }
    }

    /// The elements of a bin that the image has.
    fn elements(&self, bin: usize, size: usize, r: Rounding) -> Range<usize> {
        let inside = |x: f64| (x + self.start).clamp(0.0, size as f64) as usize;
        inside(r.to(bin as f64 * self.bin).floor())
            ..inside(r.to((bin + 1) as f64 * self.bin).ceil())
    }
}

pub(super) fn max_roi_pool(
    [rows, columns]: [usize; 2],
    scale: f32,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, boxes, y) = (args.input(0)?, args.input(1)?, args.output(0)?);
    if y.elements() == 0 {
        return Ok(());
    }
    let (count, channels) = (x.shape()[0], x.shape()[1]);
    let (height, width) = (x.shape()[2], x.shape()[3]);
    let cells = channels * rows * columns;
    with_float!(args.op, x.dtype(), T => {
        let (from, corners) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>::of(boxes.as_ptr()));
        let to = Ptr::<T>(y.as_ptr().cast());
        // SAFETY: a box has five numbers.
        let number = |index: usize, i: usize| unsafe { corners.read(index * 5 + i) }.to_f64();
        let r = Rounding::of(x.dtype());
        let scale = f64::from(scale);
        for index in 0..boxes.shape()[0] {
            let image = number(index, 0);
            if !(0.0..count as f64).contains(&image) {
                return Err(OpError::data(args.op, format!("box {index} is of image {image}, of {count}")));
            }
            if (1..5).any(|i| !number(index, i).is_finite()) {
                return Err(OpError::data(args.op, format!("box {index} is none of an image")));
            }
        }
        split(ctx.par, y.elements(), GRAIN / 64, &|range, _| {
            for unit in range {
                let index = unit / cells;
                let (channel, row) = (unit / (rows * columns) % channels, unit / columns % rows);
                let down = Span::of([number(index, 2), number(index, 4)], scale, rows, r);
                let across = Span::of([number(index, 1), number(index, 3)], scale, columns, r);
                let plane = (number(index, 0) as usize * channels + channel) * height * width;
                let mut largest = None;
                for i in down.elements(row, height, r) {
                    for j in across.elements(unit % columns, width, r) {
                        // SAFETY: elements of a bin are inside the image, which was found to be there.
                        let x = unsafe { from.read(plane + i * width + j) }.to_f64();
                        largest = Some(largest.map_or(x, |most: f64| most.max(x)));
                    }
                }
                // SAFETY: each element of the output is written once.
                unsafe { to.write(unit, T::from_f64(largest.unwrap_or(0.0))) };
            }
        });
        Ok(())
    })
}
