//! Resampling with antialiasing, one axis after the other, in integers: the usual way in which photos are prepared for
//! networks (Pillow's, which torchvision uses), to the same bytes.

use crate::orientation::Orientation;
use crate::recipe::Filter;
use std::borrow::Cow;

/// Interleaved 8-bit pixels.
#[derive(Debug, Clone, PartialEq)]
pub struct Pixels {
    pub width: usize,
    pub height: usize,
    /// 1 or 3.
    pub channels: usize,
    pub data: Vec<u8>,
    /// How `data` lie, where the picture was turned when it was taken. Width and height are those of the upright picture.
    pub(crate) stored: Orientation,
}

impl Pixels {
    /// Of rows of `channels` interleaved bytes.
    ///
    /// # Errors
    /// They are no pixels of that size, or have neither 1 nor 3 channels.
    pub fn new(
        width: usize,
        height: usize,
        channels: usize,
        data: Vec<u8>,
    ) -> Result<Pixels, String> {
        let is_right = matches!(channels, 1 | 3) && data.len() == width * height * channels;
        match is_right && !data.is_empty() {
            true => Ok(Pixels {
                width,
                height,
                channels,
                data,
                stored: Orientation::Upright,
            }),
            false => Err(format!("{height}x{width}x{channels} are no pixels")),
        }
    }

    /// A row of the upright picture.
    fn row(&self, y: usize) -> Cow<'_, [u8]> {
        if self.stored == Orientation::Upright {
            return Cow::Borrowed(
                &self.data[y * self.width * self.channels..][..self.width * self.channels],
            );
        }
        let mut row = Vec::with_capacity(self.width * self.channels);
        for x in 0..self.width {
            let at = self.stored.place(x, y, self.width, self.height) * self.channels;
            row.extend_from_slice(&self.data[at..at + self.channels]);
        }
        Cow::Owned(row)
    }
}

/// A part of the resized picture: the resized size, and the window of it that is wanted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    pub full: [usize; 2],
    pub top: usize,
    pub left: usize,
    pub height: usize,
    pub width: usize,
}

/// Fractional bits of coefficients: 8 are taken by the values, 2 keep sums from overflowing.
const PRECISION_BITS: u32 = 32 - 8 - 2;

/// Source positions and weights of one output position.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

pub fn resample(source: &Pixels, window: &Window, filter: Filter) -> Pixels {
    let channels = source.channels;
    let columns = taps(
        filter,
        source.width,
        window.full[1],
        window.left,
        window.width,
    );
    let rows = taps(
        filter,
        source.height,
        window.full[0],
        window.top,
        window.height,
    );
    // Only these rows of the source have a part in the result.
    let first = rows.iter().map(|t| t.first).min().unwrap_or(0);
    let end = rows
        .iter()
        .map(|t| t.first + t.weights.len())
        .max()
        .unwrap_or(0);

    let narrow_row = window.width * channels;
    let mut narrow = vec![0u8; (end - first) * narrow_row];
    for (y, out) in (first..end).zip(narrow.chunks_exact_mut(narrow_row)) {
        let row = source.row(y);
        for (taps, pixel) in columns.iter().zip(out.chunks_exact_mut(channels)) {
            for (c, value) in pixel.iter_mut().enumerate() {
                let inputs = row[taps.first * channels + c..].iter().step_by(channels);
                *value = weigh(&taps.weights, inputs);
            }
        }
    }
    let mut data = vec![0u8; window.height * narrow_row];
    for (taps, out) in rows.iter().zip(data.chunks_exact_mut(narrow_row)) {
        for (x, value) in out.iter_mut().enumerate() {
            let inputs = narrow[(taps.first - first) * narrow_row + x..]
                .iter()
                .step_by(narrow_row);
            *value = weigh(&taps.weights, inputs);
        }
    }
    Pixels {
        width: window.width,
        height: window.height,
        channels,
        data,
        stored: Orientation::Upright,
    }
}

fn weigh<'a>(weights: &[i32], inputs: impl Iterator<Item = &'a u8>) -> u8 {
    let half = 1 << (PRECISION_BITS - 1);
    let sum: i32 = weights
        .iter()
        .zip(inputs)
        .map(|(w, &v)| w * i32::from(v))
        .sum();
    ((sum + half) >> PRECISION_BITS).clamp(0, 255) as u8
}

/// How far a filter reaches, in pixels of the smaller picture.
fn support(filter: Filter) -> f64 {
    match filter {
        Filter::Bilinear => 1.0,
        Filter::Bicubic => 2.0,
        Filter::Nearest => 0.0,
    }
}

fn weight(filter: Filter, x: f64) -> f64 {
    /// Of the cubic, as Pillow's.
    const A: f64 = -0.5;
    let x = x.abs();
    match filter {
        Filter::Bicubic if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        Filter::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
        Filter::Bicubic => 0.0,
        _ => (1.0 - x).max(0.0),
    }
}

/// Taps of the output positions `begin..begin + len` of an axis resized from `from` to `to`.
fn taps(filter: Filter, from: usize, to: usize, begin: usize, len: usize) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    // When the picture shrinks, the filter widens: every source pixel counts.
    let widened = scale.max(1.0);
    let support = support(filter) * widened;
    let of = |x: usize| {
        let center = (x as f64 + 0.5) * scale;
        if filter == Filter::Nearest {
            return Taps {
                first: (center as usize).min(from - 1),
                weights: vec![1 << PRECISION_BITS],
            };
        }
        let first = (center - support + 0.5).max(0.0) as usize;
        let end = ((center + support + 0.5) as usize).min(from);
        let raw: Vec<f64> = (first..end)
            .map(|i| weight(filter, (i as f64 - center + 0.5) / widened))
            .collect();
        let total: f64 = raw.iter().sum();
        let fixed = |w: &f64| (w / total * f64::from(1 << PRECISION_BITS)).round() as i32;
        Taps {
            first,
            weights: raw.iter().map(fixed).collect(),
        }
    };
    (begin..begin + len).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(width: usize, height: usize, at: impl Fn(usize, usize) -> u8) -> Pixels {
        let data = (0..height)
            .flat_map(|y| (0..width).map(move |x| (x, y)))
            .map(|(x, y)| at(x, y))
            .collect();
        Pixels::new(width, height, 1, data).unwrap()
    }

    fn whole(height: usize, width: usize) -> Window {
        Window {
            full: [height, width],
            top: 0,
            left: 0,
            height,
            width,
        }
    }

    #[test]
    fn the_same_size_is_the_same_picture() {
        let source = picture(7, 5, |x, y| (x * 31 + y * 7) as u8);
        assert_eq!(resample(&source, &whole(5, 7), Filter::Bilinear), source);
    }

    #[test]
    fn halving_averages_with_neighbours() {
        // The triangle over 4 pixels has weights 1 3 3 1, of which the edge cuts one off.
        let source = picture(4, 1, |x, _| [0, 100, 200, 100][x]);
        let result = resample(&source, &whole(1, 2), Filter::Bilinear);
        assert_eq!(result.data, [71, 143]);
    }

    #[test]
    fn doubling_interpolates() {
        let source = picture(2, 1, |x, _| [0, 100][x]);
        assert_eq!(
            resample(&source, &whole(1, 4), Filter::Bilinear).data,
            [0, 25, 75, 100]
        );
    }

    #[test]
    fn a_window_is_a_part_of_the_whole() {
        let source = picture(40, 30, |x, y| ((x * x + 3 * y) % 251) as u8);
        let all = resample(&source, &whole(12, 16), Filter::Bilinear);
        let window = Window {
            top: 3,
            left: 5,
            height: 6,
            width: 7,
            ..whole(12, 16)
        };
        let part = resample(&source, &window, Filter::Bilinear);
        for y in 0..6 {
            for x in 0..7 {
                assert_eq!(part.data[y * 7 + x], all.data[(y + 3) * 16 + x + 5]);
            }
        }
    }

    #[test]
    fn other_filters_are_pillows() {
        // Image.fromarray(a).resize((3, 1), Image.BICUBIC), BILINEAR and NEAREST, of these seven values.
        let source = picture(7, 1, |x, _| [0, 50, 255, 100, 7, 90, 200][x]);
        let of = |filter| resample(&source, &whole(1, 3), filter).data;
        assert_eq!(of(Filter::Bicubic), [76, 114, 109]);
        assert_eq!(of(Filter::Bilinear), [76, 111, 112]);
        assert_eq!(of(Filter::Nearest), [50, 100, 90]);
        assert_eq!(resample(&source, &whole(1, 7), Filter::Bicubic), source);
    }
}
