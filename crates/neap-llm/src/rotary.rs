//! Rotations of queries and keys: sines and cosines of a position, and turning heads by them.

use crate::config::{Pairs, Scaling};
use crate::{Config, Rotary};

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
    magnitudes: [f32; 2],
    pairs: Pairs,
}

impl Frequencies {
    /// `factors` divide frequencies, where there are any.
    pub fn new(config: &Config, factors: &[f32]) -> Frequencies {
        let rotary = &config.rotary;
        let [whole, window] = rotary.scaling;
        Frequencies {
            by_kind: [
                frequencies(rotary, rotary.base, whole, factors),
                frequencies(rotary, rotary.window_base, window, factors),
            ],
            magnitudes: [whole.magnitude, window.magnitude],
            pairs: rotary.pairs,
        }
    }

    /// Angles of a position, into memory that is kept.
    pub fn turn(&self, position: usize, is_windowed: bool, turn: &mut Turn) {
        turn.cosines.clear();
        turn.sines.clear();
        let magnitude = self.magnitudes[usize::from(is_windowed)];
        for &frequency in &self.by_kind[usize::from(is_windowed)] {
            let angle = f64::from(frequency) * position as f64;
            turn.cosines.push(angle.cos() as f32 * magnitude);
            turn.sines.push(angle.sin() as f32 * magnitude);
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

fn frequencies(rotary: &Rotary, base: f32, scaling: Scaling, factors: &[f32]) -> Vec<f32> {
    let frequency = |pair: usize| {
        let exponent = -2.0 * pair as f64 / rotary.dims as f64;
        let factor = factors.get(pair).map_or(1.0, |&f| f64::from(f));
        let whole = f64::from(base).powf(exponent) / factor;
        let divided = whole / f64::from(scaling.divisor);
        let share = scaling.ramp.map_or(0.0, |ramp| {
            let length = f64::from((ramp.last - ramp.first).max(0.001));
            let along = (pair as f64 - f64::from(ramp.first)) / length;
            (1.0 - along.clamp(0.0, 1.0)) * f64::from(ramp.share)
        });
        (divided * (1.0 - share) + whole * share) as f32
    };
    (0..rotary.dims / 2).map(frequency).collect()
}
