//! One axis of a resize: which inputs every output is made of, with which weights.

use neap_ir::op::{CoordinateTransform, NearestMode, ResizeAttrs, ResizeMode};
use neap_ir::strips::ResizeStrip;

/// Inputs that one output may be made of: more means that an image is shrunk beyond all reason.
pub(crate) const MAX_TAPS: usize = 1 << 12;

/// What rounding up takes for half, though it is so much less: onnxruntime does, where an f32 fell short of it.
const TIE: f64 = 1e-6;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Axis<'a> {
    attrs: &'a ResizeAttrs,
    pub input: usize,
    pub output: usize,
    /// Output size over input size, unrounded unless places are.
    scale: f64,
    /// What the corners of the output are those of: its size, or size times scale where that is another.
    width: f64,
    /// Whether places are computed as `f32`.
    rounds: bool,
    roi: (f64, f64),
    /// The axis stays as it is.
    pub identity: bool,
    /// The outputs that are made, and the input that the given ones begin with.
    pub made: (usize, usize),
    pub given_from: usize,
}

impl<'a> Axis<'a> {
    pub fn of(attrs: &'a ResizeAttrs, axis: usize, input: usize) -> Axis<'a> {
        let output = attrs.output_shape[axis];
        let ratio = output as f64 / input as f64;
        let given = f64::from(attrs.scales[axis]);
        let crops = attrs.coordinates == CoordinateTransform::TfCropAndResize;
        // Where a hair decides, between two neighbours or inside and outside, other runtimes compute as f32 does. Longer axes have
        // places that it does not tell apart.
        let rounds = (attrs.mode == ResizeMode::Nearest || crops) && input.max(output) < 1 << 24;
        // Scales are f32; where one stands for the ratio of the sizes, the ratio is exact.
        let is_ratio = (given / ratio - 1.0).abs() < 1e-6;
        let (exact, width) = if is_ratio {
            (ratio, output as f64)
        } else {
            (given, given * input as f64)
        };
        let (start, end) = match attrs.roi.get(axis) {
            Some(&roi) if crops => roi,
            _ => (0.0, 1.0),
        };
        Axis {
            attrs,
            input,
            output,
            scale: if rounds { given } else { exact },
            width,
            rounds,
            roi: (f64::from(start), f64::from(end)),
            identity: input == output && exact == 1.0 && (start, end) == (0.0, 1.0),
            made: (0, output),
            given_from: 0,
        }
    }

    /// As [`Axis::of`]; along the strip's axis, of which `given` inputs are there, only the strip.
    pub fn of_strip(
        attrs: &'a ResizeAttrs,
        strip: Option<&ResizeStrip>,
        axis: usize,
        given: usize,
    ) -> Axis<'a> {
        match strip.filter(|strip| strip.axis == axis) {
            None => Axis::of(attrs, axis, given),
            Some(strip) => Axis {
                made: (strip.start, strip.len),
                given_from: strip.input_start,
                ..Axis::of(attrs, axis, strip.input_rows)
            },
        }
    }

    /// How many outputs are made.
    pub fn len(&self) -> usize {
        self.made.1
    }

    /// Fills the taps of the output made at `at`, as inputs that are given; `None` where one of `given` is wanted that is not there, or
    /// whether the output lies inside.
    pub fn fill_made(
        &self,
        at: usize,
        given: usize,
        indices: &mut [u32],
        weights: &mut [f64],
    ) -> Option<bool> {
        let inside = self.fill(self.made.0 + at, indices, weights);
        for index in indices {
            let own = (*index as usize).checked_sub(self.given_from);
            *index = own.filter(|&own| own < given)? as u32;
        }
        Some(inside)
    }

    /// Entries for each output.
    pub fn taps(&self) -> usize {
        if self.identity {
            return 1;
        }
        let (first, last) = self.reach();
        (last - first + 1) as usize
    }

    /// First and last tap relative to the input at or before the output's place.
    fn reach(&self) -> (i64, i64) {
        let radius = match self.attrs.mode {
            ResizeMode::Nearest => return (0, 0),
            ResizeMode::Linear => 1.0,
            ResizeMode::Cubic => 2.0,
        };
        let radius = radius / self.filter_scale();
        // Hostile scales are refused by MAX_TAPS; here the numbers only must stay small.
        let first = (-radius.min(1e9)).floor() as i64 + 1;
        (first, 1 - first)
    }

    /// Antialiasing widens the filter when shrinking.
    fn filter_scale(&self) -> f64 {
        if self.attrs.antialias {
            self.scale.min(1.0)
        } else {
            1.0
        }
    }

    /// Where output `at` lies among the inputs.
    fn place(&self, at: usize) -> f64 {
        let r = |v: f64| if self.rounds { f64::from(v as f32) } else { v };
        let (x, last) = (at as f64, self.input as f64 - 1.0);
        let gaps = r(self.width) - 1.0;
        let middle = r(r(x + 0.5) / self.scale);
        match self.attrs.coordinates {
            CoordinateTransform::HalfPixel => r(middle - 0.5),
            CoordinateTransform::HalfPixelSymmetric => {
                let (n, output) = (self.input as f64, self.output as f64);
                let offset = r(n / 2.0 * r(1.0 - r(output / r(self.scale * n))));
                r(offset + (x + 0.5) / self.scale - 0.5)
            }
            CoordinateTransform::PytorchHalfPixel if self.output == 1 => 0.0,
            CoordinateTransform::PytorchHalfPixel => r(middle - 0.5),
            CoordinateTransform::AlignCorners if self.output == 1 => 0.0,
            CoordinateTransform::AlignCorners => r(r(x * last) / r(gaps)),
            CoordinateTransform::Asymmetric => r(x / self.scale),
            CoordinateTransform::TfHalfPixelForNn => middle,
            CoordinateTransform::TfCropAndResize => {
                let (start, end) = self.roi;
                if self.output == 1 {
                    r(0.5 * r(start + end) * last)
                } else {
                    r(r(start * last) + r(r(r(x * r(end - start)) * last) / r(gaps)))
                }
            }
        }
    }

    /// Fills the taps of output `at`; false where it lies outside and takes the extrapolation value.
    pub fn fill(&self, at: usize, indices: &mut [u32], weights: &mut [f64]) -> bool {
        if self.identity {
            indices[0] = at as u32;
            weights[0] = 1.0;
            return true;
        }
        let place = self.place(at);
        let end = (self.input - 1) as f64;
        let crops = self.attrs.coordinates == CoordinateTransform::TfCropAndResize;
        let inside = !crops || (0.0..=end).contains(&place);
        let clamped = |p: f64| p.clamp(0.0, end) as u32;
        if self.attrs.mode == ResizeMode::Nearest {
            indices[0] = clamped(self.nearest(place));
            weights[0] = 1.0;
            return inside;
        }
        let base = place.floor();
        let (first, _) = self.reach();
        let mut sum = 0.0;
        for (tap, (index, weight)) in indices.iter_mut().zip(weights.iter_mut()).enumerate() {
            let p = base + (first + tap as i64) as f64;
            let outside = p < 0.0 || p > end;
            *index = clamped(p);
            *weight = if self.attrs.exclude_outside && outside {
                0.0
            } else {
                self.weight((p - place) * self.filter_scale())
            };
            sum += *weight;
        }
        if sum != 0.0 && (self.attrs.exclude_outside || self.attrs.antialias) {
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        inside
    }

    fn nearest(&self, place: f64) -> f64 {
        match self.attrs.nearest {
            NearestMode::Floor => place.floor(),
            NearestMode::Ceil => place.ceil(),
            NearestMode::RoundPreferFloor => (place - 0.5).ceil(),
            NearestMode::RoundPreferCeil => (place + 0.5 + TIE).floor(),
        }
    }

    fn weight(&self, distance: f64) -> f64 {
        let d = distance.abs();
        if self.attrs.mode == ResizeMode::Linear {
            return (1.0 - d).max(0.0);
        }
        let a = f64::from(self.attrs.cubic_a);
        if d <= 1.0 {
            ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
        } else if d < 2.0 {
            ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
        } else {
            0.0
        }
    }
}
