//! How a training went, in few numbers however long it was.

use serde::{Deserialize, Serialize};

/// Curves have at most so many points; then every other one goes.
const MOST_POINTS: usize = 512;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    pub points: Vec<Point>,
    /// Steps from point to point, as a power of 2.
    spacing: u32,
    pub epochs: Vec<Epoch>,
}

/// Loss and accuracy while training, at a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub step: u64,
    pub loss: f32,
    pub accuracy: Option<f32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    pub epoch: u64,
    pub step: u64,
    pub train_loss: f32,
    pub train_accuracy: Option<f32>,
    pub validation_loss: Option<f32>,
    pub validation_accuracy: Option<f32>,
}

impl History {
    /// Keeps a step's figures, if it is one of those that are kept.
    pub fn add(&mut self, point: Point) {
        if !point.step.is_multiple_of(1 << self.spacing) {
            return;
        }
        self.points.push(point);
        if self.points.len() > MOST_POINTS {
            self.spacing += 1;
            let spacing = 1 << self.spacing;
            self.points.retain(|p| p.step.is_multiple_of(spacing));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_few_and_even() {
        let mut history = History::default();
        for step in 1..=100_000 {
            history.add(Point {
                step,
                loss: 0.0,
                accuracy: None,
            });
        }
        let steps: Vec<u64> = history.points.iter().map(|p| p.step).collect();
        assert!((MOST_POINTS / 2..=MOST_POINTS).contains(&steps.len()));
        let gap = steps[1] - steps[0];
        assert!(steps.windows(2).all(|w| w[1] - w[0] == gap));
        assert!(steps[steps.len() - 1] + gap > 100_000);
    }
}
