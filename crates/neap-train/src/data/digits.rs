//! Digits that are drawn when they are asked for: data to try a training with, without any file.
//!
//! A digit is a few strokes, turned, sheared, stretched and moved a little, drawn with a pen of some width over noise.

use super::prepare::Prepare;
use super::sample::{SampleType, Samples};
use crate::error::{Result, bad};
use crate::random::{Draw, Purpose};
use std::f32::consts::PI;

const SIDE: usize = 28;
const CLASSES: usize = 10;

/// `count` digits; another `seed` draws others.
pub struct Digits {
    count: usize,
    seed: u64,
    prepare: Prepare,
}

impl Digits {
    /// # Errors
    /// The model does not take pictures of 28 x 28, or has not ten classes.
    pub fn new(wanted: &SampleType, prepare: Prepare, count: usize, seed: u64) -> Result<Digits> {
        let fits = wanted.input.elements() == SIDE * SIDE
            && wanted.classes == Some(CLASSES)
            && wanted.target.elements() == 1;
        if !fits {
            return Err(bad(
                "drawn digits are for models of pictures of 28 x 28 and ten classes",
            ));
        }
        Ok(Digits {
            count,
            seed,
            prepare,
        })
    }
}

impl Samples for Digits {
    fn count(&self) -> usize {
        self.count
    }

    fn fill(
        &self,
        index: usize,
        draw: Option<Draw>,
        input: &mut [u8],
        target: &mut [u8],
    ) -> Result<()> {
        let mut pen = Draw::new(Purpose::Digit, self.seed, 0, index as u64);
        let digit = pen.below(CLASSES);
        let pixels = drawn(digit, &mut pen);
        self.prepare
            .write(&pixels, neap_picture::OF_BYTES, draw, input);
        target.copy_from_slice(&(digit as i64).to_le_bytes());
        Ok(())
    }
}

type Point = (f32, f32);

/// Strokes in a square from -1 to 1, y downwards.
fn strokes(digit: usize) -> Vec<Vec<Point>> {
    // From one angle to another, in parts of a full turn from the right, clockwise.
    let arc = |x: f32, y: f32, rx: f32, ry: f32, from: f32, to: f32| -> Vec<Point> {
        let at = |i: i32| 2.0 * PI * (from + (to - from) * i as f32 / 12.0);
        (0..=12)
            .map(|i| (x + rx * at(i).cos(), y + ry * at(i).sin()))
            .collect()
    };
    match digit {
        0 => vec![arc(0.0, 0.0, 0.55, 0.85, 0.0, 1.0)],
        1 => vec![vec![(-0.35, -0.5), (0.05, -0.85), (0.05, 0.85)]],
        2 => vec![
            arc(0.0, -0.4, 0.5, 0.45, 0.5, 1.08),
            vec![(0.42, -0.15), (-0.55, 0.85), (0.55, 0.85)],
        ],
        3 => vec![
            arc(0.0, -0.42, 0.48, 0.42, 0.58, 1.25),
            arc(0.0, 0.42, 0.55, 0.44, -0.25, 0.45),
        ],
        4 => vec![vec![(0.2, 0.85), (0.2, -0.85), (-0.55, 0.3), (0.6, 0.3)]],
        5 => vec![
            vec![(0.5, -0.85), (-0.4, -0.85), (-0.45, -0.1)],
            arc(-0.02, 0.35, 0.52, 0.5, -0.4, 0.42),
        ],
        6 => vec![
            vec![(0.35, -0.85), (-0.2, -0.35), (-0.5, 0.25)],
            arc(0.0, 0.38, 0.5, 0.47, 0.0, 1.0),
        ],
        7 => vec![vec![(-0.55, -0.85), (0.55, -0.85), (-0.15, 0.85)]],
        8 => vec![
            arc(0.0, -0.42, 0.42, 0.4, 0.0, 1.0),
            arc(0.0, 0.42, 0.52, 0.44, 0.0, 1.0),
        ],
        _ => vec![
            arc(0.0, -0.38, 0.48, 0.45, 0.0, 1.0),
            vec![(0.48, -0.38), (0.4, 0.3), (0.1, 0.85)],
        ],
    }
}

/// 28 x 28 values from 0 to 255.
fn drawn(digit: usize, pen: &mut Draw) -> Vec<f32> {
    let mut between =
        |low: f32, high: f32| low + (high - low) * (pen.below(1 << 16) as f32 / 65_536.0);
    let (turn, shear) = (between(-0.3, 0.3), between(-0.25, 0.25));
    let (wide, high) = (between(6.5, 11.0), between(7.5, 11.0));
    let (right, down) = (13.5 + between(-3.0, 3.0), 13.5 + between(-2.5, 2.5));
    let (width, noise) = (between(0.7, 1.8), between(5.0, 60.0));
    let place = |(x, y): Point| -> Point {
        let x = (x + shear * y) * wide;
        let y = y * high;
        let (sin, cos) = turn.sin_cos();
        (right + cos * x - sin * y, down + sin * x + cos * y)
    };
    let lines: Vec<Vec<Point>> = strokes(digit)
        .into_iter()
        .map(|line| line.into_iter().map(place).collect())
        .collect();
    let mut values = Vec::with_capacity(SIDE * SIDE);
    for y in 0..SIDE {
        for x in 0..SIDE {
            let at = (x as f32, y as f32);
            let pairs = lines.iter().flat_map(|line| line.windows(2));
            let nearest = pairs
                .map(|p| distance(at, p[0], p[1]))
                .fold(f32::MAX, f32::min);
            let ink = (width + 0.5 - nearest).clamp(0.0, 1.0);
            let ground = between(0.0, noise);
            values.push((ground + ink * (255.0 - ground)).round());
        }
    }
    values
}

/// Of a point from a line between two.
fn distance(p: Point, a: Point, b: Point) -> f32 {
    let (dx, dy) = (b.0 - a.0, b.1 - a.1);
    let along = ((p.0 - a.0) * dx + (p.1 - a.1) * dy) / (dx * dx + dy * dy).max(1e-12);
    let t = along.clamp(0.0, 1.0);
    (p.0 - a.0 - t * dx).hypot(p.1 - a.1 - t * dy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_seen_and_differ() {
        for digit in 0..CLASSES {
            let mut pen = Draw::new(Purpose::Digit, 1, 0, digit as u64);
            let values = drawn(digit, &mut pen);
            let ink = values.iter().filter(|&&v| v > 200.0).count();
            assert!((15..400).contains(&ink), "{digit}: {ink} pixels of ink");
            let mut again = Draw::new(Purpose::Digit, 1, 0, digit as u64);
            assert_eq!(drawn(digit, &mut again), values);
            assert_ne!(drawn(digit, &mut again), values);
        }
    }
}
