//! Random numbers for one individual of one generation: the same for a seed, whoever draws them and when.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of its own for each (generation, individual), so that neither the number of threads nor the
/// order in which they work changes what is drawn.
pub struct Random(ChaCha8Rng);

impl Random {
    pub fn new(seed: u64, generation: u32, individual: u32) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(u64::from(generation) << 32 | u64::from(individual));
        Self(rng)
    }

    /// From 0 up to and without `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.0.next_u64()) * bound as u128;
        (wide >> 64) as usize
    }

    /// From 0 up to and without 1.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Mean 0, standard deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_reproducible_and_differ() {
        let draw = |g, i| {
            let mut r = Random::new(7, g, i);
            (0..8).map(|_| r.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(2, 1));
        assert_ne!(draw(0, 1), draw(0, 2));
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let mut r = Random::new(3, 0, 0);
        let n = 20_000;
        let drawn: Vec<f64> = (0..n).map(|_| r.normal()).collect();
        let mean = drawn.iter().sum::<f64>() / n as f64;
        let var = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        assert!(
            mean.abs() < 0.03 && (var - 1.0).abs() < 0.05,
            "{mean} {var}"
        );
        let sum: usize = (0..n).map(|_| r.below(10)).sum();
        assert!((sum as f64 / n as f64 - 4.5).abs() < 0.1);
    }
}
