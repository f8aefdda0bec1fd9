//! RoiAlign.

use super::Rounding;
use crate::args::Args;
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Num, Scalar, with_float};
use crate::{Context, OpError};
use neap_ir::sampling::RoiAlign;

/// Samples of a bin along an axis. Boxes that want more are no boxes of an image.
const MAX_SAMPLES: f64 = 65536.0;

/// A box along one axis.
#[derive(Clone, Copy)]
struct Span {
    start: f64,
    bin: f64,
    samples: usize,
}

impl Span {
    fn of(corners: [f64; 2], bins: usize, attrs: &RoiAlign, r: Rounding) -> Option<Span> {
        let offset = if attrs.half_pixel { 0.5 } else { 0.0 };
        let scale = f64::from(attrs.scale);
        let [start, end] = corners.map(|corner| r.to(r.to(corner * scale) - offset));
        let size = r.to(end - start);
        let size = if attrs.half_pixel {
            size
        } else {
            size.max(1.0)
        };
        let bin = r.to(size / bins as f64);
        let samples = match attrs.samples {
            0 => bin.ceil(),
            samples => samples as f64,
        };
        let is_box = start.is_finite() && end.is_finite() && samples <= MAX_SAMPLES;
        is_box.then_some(Span {
            start,
            bin,
            samples: samples.max(0.0) as usize,
        })
    }

    /// Two neighbours of a sample and the second's weight; `None` outside the image.
    fn neighbours(&self, bin: usize, sample: usize, size: usize) -> Option<(usize, usize, f64)> {
        let within = (sample as f64 + 0.5) * self.bin / self.samples as f64;
        let x = self.start + bin as f64 * self.bin + within;
        if x < -1.0 || x > size as f64 {
            return None;
        }
        let x = x.max(0.0);
        let low = x as usize;
        if low >= size - 1 {
            return Some((size - 1, size - 1, 0.0));
        }
        Some((low, low + 1, x - low as f64))
    }
}

pub(super) fn roi_align(attrs: &RoiAlign, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, boxes, images, y) = (
        args.input(0)?,
        args.input(1)?,
        args.input(2)?,
        args.output(0)?,
    );
    if y.elements() == 0 {
        return Ok(());
    }
    let (count, channels) = (x.shape()[0], x.shape()[1]);
    let (height, width) = (x.shape()[2], x.shape()[3]);
    let image_of = Ptr::<i64>::of(images.as_ptr());
    let [rows, columns] = attrs.output;
    with_float!(args.op, x.dtype(), T => {
        let (from, corners) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>::of(boxes.as_ptr()));
        let to = Ptr::<T>(y.as_ptr().cast());
        let spans = |index: usize| {
            // SAFETY: a box has four numbers.
            let corner = |i: usize| unsafe { corners.read(index * 4 + i) }.to_f64();
            let r = Rounding::of(x.dtype());
            let down = Span::of([corner(1), corner(3)], rows, attrs, r)?;
            Some((down, Span::of([corner(0), corner(2)], columns, attrs, r)?))
        };
        for index in 0..boxes.shape()[0] {
            // SAFETY: each box has an image.
            let image = unsafe { image_of.read(index) };
            if usize::try_from(image).is_ok_and(|image| image < count) && height * width > 0 {
                if spans(index).is_some() {
                    continue;
                }
                return Err(OpError::data(args.op, format!("box {index} is none of an image")));
            }
            return Err(OpError::data(args.op, format!("box {index} is of image {image}, of {count}")));
        }
        let cells = channels * rows * columns;
        split(ctx.par, y.elements(), GRAIN / 64, &|range, _| {
            for unit in range {
                let index = unit / cells;
                let Some((down, across)) = spans(index) else { continue };
                let (channel, row) = (unit / (rows * columns) % channels, unit / columns % rows);
                // SAFETY: each box has an image, which was found to be there.
                let image = unsafe { image_of.read(index) } as usize;
                let plane = (image * channels + channel) * height * width;
                // SAFETY: neighbours are inside the image.
                let element = |i: usize, j: usize| unsafe { from.read(plane + i * width + j) }.to_f64();
                let (mut sum, mut largest) = (0.0, None);
                for sample in 0..down.samples * across.samples {
                    let (iy, ix) = (sample / across.samples, sample % across.samples);
                    let places = down.neighbours(row, iy, height)
                        .zip(across.neighbours(unit % columns, ix, width));
                    let parts = places.map_or([0.0; 4], |((y0, y1, ty), (x0, x1, tx))| [
                        (1.0 - ty) * (1.0 - tx) * element(y0, x0),
                        (1.0 - ty) * tx * element(y0, x1),
                        ty * (1.0 - tx) * element(y1, x0),
                        ty * tx * element(y1, x1),
                    ]);
                    sum += parts.iter().sum::<f64>();
                    let most = parts.into_iter().fold(f64::NEG_INFINITY, Num::max_nan);
                    largest = Some(largest.map_or(most, |l: f64| l.max_nan(most)));
                }
                let samples = (down.samples * across.samples).max(1) as f64;
                let value = if attrs.largest { largest.unwrap_or(0.0) } else { sum / samples };
                // SAFETY: each element of the output is written once.
                unsafe { to.write(unit, T::from_f64(value)) };
            }
        });
        Ok(())
    })
}
