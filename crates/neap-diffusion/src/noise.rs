//! Gaussian noise as PyTorch's generator of the processor makes it, so that a seed means the same picture here and there.

use crate::twister::Twister;
use std::f32::consts::PI;

/// Numbers that are made together; fewer than that are made one by one.
const BLOCK: usize = 16;

/// Draws one tensor after another from a seed.
pub struct Noise {
    twister: Twister,
    /// Numbers made one by one come in pairs; the second of a pair waits here.
    second: Option<f64>,
}

impl Noise {
    /// PyTorch's generator takes 32 bits of a seed, too.
    pub fn new(seed: u64) -> Noise {
        Noise {
            twister: Twister::new(seed as u32),
            second: None,
        }
    }

    /// The numbers of one tensor, as `torch.randn`.
    pub fn draw(&mut self, count: usize) -> Vec<f32> {
        if count < BLOCK {
            return (0..count).map(|_| self.one() as f32).collect();
        }
        let mut values: Vec<f32> = (0..count).map(|_| self.unit()).collect();
        for block in values.chunks_exact_mut(BLOCK) {
            pairs(block);
        }
        if !count.is_multiple_of(BLOCK) {
            // The last block is made anew, over some of the one before.
            let last = &mut values[count - BLOCK..];
            last.fill_with(|| self.unit());
            pairs(last);
        }
        values
    }

    /// From 0 to below 1, of 24 bits.
    fn unit(&mut self) -> f32 {
        (self.twister.word() & 0x00FF_FFFF) as f32 / 16_777_216.0
    }

    /// The same of 53 bits.
    fn long_unit(&mut self) -> f64 {
        let (high, low) = (self.twister.word(), self.twister.word());
        let bits = (u64::from(high) << 32 | u64::from(low)) & ((1 << 53) - 1);
        bits as f64 / 9_007_199_254_740_992.0
    }

    /// Box and Muller 1958, *A Note on the Generation of Random Normal Deviates*.
    fn one(&mut self) -> f64 {
        if let Some(second) = self.second.take() {
            return second;
        }
        let angle = std::f64::consts::TAU * self.long_unit();
        let radius = (-2.0 * (-self.long_unit()).ln_1p()).sqrt();
        self.second = Some(radius * angle.sin());
        radius * angle.cos()
    }
}

/// The same of a whole block: its first half with its second.
fn pairs(block: &mut [f32]) {
    let (first, second) = block.split_at_mut(BLOCK / 2);
    for (a, b) in first.iter_mut().zip(second) {
        let radius = (-2.0 * (1.0 - *a).ln()).sqrt();
        let angle = 2.0 * PI * *b;
        (*a, *b) = (radius * angle.cos(), radius * angle.sin());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: &[f32], printed: &[f32]) {
        for (a, b) in found.iter().zip(printed) {
            // PyTorch prints four digits.
            assert!((a - b).abs() < 6e-5, "{found:?} {printed:?}");
        }
    }

    /// As PyTorch's documentation and tutorials print them: `torch.manual_seed(0); torch.randn(4, 4)`, and seed 42.
    #[test]
    fn blocks_are_torch_s() {
        let of_0 = [
            -1.1258, -1.1524, -0.2506, -0.4339, 0.8487, 0.6920, -0.3160, -2.1152, 0.3223, -1.2633,
            0.3500, 0.3081, 0.1198, 1.2377, 1.1168, -0.2473,
        ];
        near(&Noise::new(0).draw(16), &of_0);
        let of_42 = [1.9269, 1.4873, 0.9007, -2.1055, 0.6784, -1.2345];
        near(&Noise::new(42).draw(32), &of_42);
    }

    #[test]
    fn few_numbers_are_torch_s() {
        near(
            &Noise::new(0).draw(6),
            &[1.5410, -0.2934, -2.1788, 0.5684, -1.0845, -1.3986],
        );
        near(
            &Noise::new(42).draw(6),
            &[0.3367, 0.1288, 0.2345, 0.2303, -1.1229, -0.1863],
        );
    }

    /// The tail is a block that overlaps the one before.
    #[test]
    fn a_tail_takes_sixteen_more_words() {
        let (mut whole, mut tailed) = (Noise::new(7), Noise::new(7));
        let whole = whole.draw(64);
        let tailed_values = tailed.draw(20);
        assert_eq!(whole[..4], tailed_values[..4]);
        assert!(tailed_values.iter().all(|v| v.is_finite()));
        // 20 + 16 words are gone.
        let mut other = Noise::new(7);
        for _ in 0..36 {
            other.unit();
        }
        assert_eq!(tailed.unit(), other.unit());
    }
}
