//! Learning rates over the steps of a training.

use std::f64::consts::PI;

/// A rate for each step. Every schedule may begin with a warm-up that rises linearly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The highest rate.
    pub rate: f64,
    /// Steps of warm-up.
    pub warm_up: u64,
    pub decay: Decay,
}

/// What follows the warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decay {
    Constant,
    /// Times `factor` after every `every` steps.
    Stairs {
        every: u64,
        factor: f64,
    },
    /// In a line to `last` at step `steps` of the training, and `last` from then on.
    Linear {
        steps: u64,
        last: f64,
    },
    /// Half a cosine to `last` at step `steps` (Loshchilov & Hutter, *SGDR*, equation 5, without restarts).
    Cosine {
        steps: u64,
        last: f64,
    },
}

impl Schedule {
    /// The rate of a step, counted from 1.
    pub fn at(&self, step: u64) -> f64 {
        if step <= self.warm_up {
            return self.rate * step as f64 / self.warm_up as f64;
        }
        let since = step - self.warm_up - 1;
        let share = |steps: u64| {
            let whole = steps.saturating_sub(self.warm_up).saturating_sub(1).max(1);
            (since as f64 / whole as f64).min(1.0)
        };
        match self.decay {
            Decay::Constant => self.rate,
            Decay::Stairs { every, factor } => {
                self.rate * factor.powf((since / every.max(1)) as f64)
            }
            Decay::Linear { steps, last } => self.rate + (last - self.rate) * share(steps),
            Decay::Cosine { steps, last } => {
                last + (self.rate - last) * (1.0 + (PI * share(steps)).cos()) / 2.0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(decay: Decay, warm_up: u64, steps: &[u64]) -> Vec<f64> {
        let schedule = Schedule {
            rate: 8.0,
            warm_up,
            decay,
        };
        let rates = steps.iter().map(|&s| schedule.at(s));
        rates.map(|r| (r * 1e9).round() / 1e9).collect()
    }

    #[test]
    fn rates_rise_and_fall() {
        assert_eq!(
            rates(Decay::Constant, 4, &[1, 2, 4, 5, 99]),
            [2.0, 4.0, 8.0, 8.0, 8.0]
        );
        let stairs = Decay::Stairs {
            every: 3,
            factor: 0.5,
        };
        assert_eq!(
            rates(stairs, 0, &[1, 3, 4, 6, 7]),
            [8.0, 8.0, 4.0, 4.0, 2.0]
        );
        let linear = Decay::Linear {
            steps: 11,
            last: 0.0,
        };
        assert_eq!(
            rates(linear, 2, &[2, 3, 7, 11, 12]),
            [8.0, 8.0, 4.0, 0.0, 0.0]
        );
        let cosine = Decay::Cosine {
            steps: 9,
            last: 2.0,
        };
        assert_eq!(rates(cosine, 0, &[1, 5, 9, 50]), [8.0, 5.0, 2.0, 2.0]);
    }
}
