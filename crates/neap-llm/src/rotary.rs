//! Rotations of queries and keys: sines and cosines of a position, and turning heads by them.

use crate::{Config, config::Pairs};

/// Angles of one position for one kind of layer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Turn {
    cosines: Vec<f32>,
    sines: Vec<f32>,
}

/// Frequencies of both kinds of layers.
#[derive(Debug, Clone)]
pub(crate) struct Frequencies {
    /// Of layers that see everything, then of those with a window: one for each pair.
    by_kind: [Vec<f32>; 2],
    magnitude: f32,
    pairs: Pairs,
}

impl Frequencies {
    /// `factors` divide frequencies, where there are any.
    pub fn new(config: &Config, factors: &[f32]) -> Frequencies {
        let rotary = &config.rotary;
        let of = |base: f32, divisor: f32| {
            let pairs = rotary.dims / 2;
            let frequency = |pair: usize| {
                let exponent = -2.0 * pair as f64 / rotary.dims as f64;
                let factor = factors.get(pair).map_or(1.0, |&f| f64::from(f));
                (f64::from(base).powf(exponent) / factor / f64::from(divisor)) as f32
            };
            (0..pairs).map(frequency).collect()
        };
        Frequencies {
            by_kind: [
                of(rotary.base, rotary.position_divisor),
                of(rotary.window_base, 1.0),
            ],
            magnitude: rotary.magnitude,
            pairs: rotary.pairs,
        }
    }

    /// Angles of a position, into memory that is kept.
    pub fn turn(&self, position: usize, is_windowed: bool, turn: &mut Turn) {
        turn.cosines.clear();
        turn.sines.clear();
        for &frequency in &self.by_kind[usize::from(is_windowed)] {
            let angle = f64::from(frequency) * position as f64;
            turn.cosines.push(angle.cos() as f32 * self.magnitude);
            turn.sines.push(angle.sin() as f32 * self.magnitude);
        }
    }

    /// Turns each head of `[head][element]`.
    pub fn rotate(&self, heads: &mut [f32], head_width: usize, turn: &Turn) {
        let count = turn.cosines.len();
        for head in heads.chunks_exact_mut(head_width) {
            for (i, (cosine, sine)) in turn.cosines.iter().zip(&turn.sines).enumerate() {
                let (a, b) = match self.pairs {
                    Pairs::Neighbours => (2 * i, 2 * i + 1),
                    Pairs::Halves => (i, i + count),
                };
                let (x, y) = (head[a], head[b]);
                head[a] = x * cosine - y * sine;
                head[b] = x * sine + y * cosine;
            }
        }
    }
}
