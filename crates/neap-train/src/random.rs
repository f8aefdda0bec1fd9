//! Random choices that depend on nothing but numbers: a training that goes on makes those that it would have made.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of choices for one purpose.
pub struct Draw(ChaCha8Rng);

/// What a stream is for, so that two never agree by chance.
#[derive(Debug, Clone, Copy)]
pub enum Purpose {
    Order,
    Split,
    Augment,
    Digit,
    /// First values of a new layer.
    Layer,
}

impl Draw {
    /// The stream of a purpose: `epoch` and `sample` are 0 where there is none.
    pub fn new(purpose: Purpose, seed: u64, epoch: u64, sample: u64) -> Draw {
        let mut key = [0; 32];
        for (part, number) in key
            .chunks_exact_mut(8)
            .zip([purpose as u64, seed, epoch, sample])
        {
            part.copy_from_slice(&number.to_le_bytes());
        }
        Draw(ChaCha8Rng::from_seed(key))
    }

    /// A number below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        let wide = u128::from(self.0.next_u64()) * count as u128;
        (wide >> 64) as usize
    }

    /// Numbers between `-bound` and `bound`, evenly.
    pub fn between(&mut self, bound: f32, count: usize) -> Vec<f32> {
        let one = |_| {
            let part = (self.0.next_u32() >> 8) as f32 / (1 << 24) as f32;
            (2.0 * part - 1.0) * bound
        };
        (0..count).map(one).collect()
    }

    /// Numbers `0..count`, shuffled (Fisher & Yates, in Durstenfeld's form).
    pub fn permutation(&mut self, count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count as u32).collect();
        for i in (1..count).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_everything_once_and_is_the_epochs_own() {
        let of = |epoch| Draw::new(Purpose::Order, 7, epoch, 0).permutation(1000);
        let mut sorted = of(1);
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1000));
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert!(Draw::new(Purpose::Order, 7, 1, 0).permutation(0).is_empty());
    }

    #[test]
    fn numbers_are_even() {
        let mut draw = Draw::new(Purpose::Augment, 0, 0, 0);
        let mut counts = [0; 10];
        (0..10_000).for_each(|_| counts[draw.below(10)] += 1);
        assert!(counts.iter().all(|n| (900..1100).contains(n)), "{counts:?}");
    }
}
