//! MT19937 (Matsumoto and Nishimura 1998, *Mersenne Twister*), seeded and read as numpy's legacy generator does: ONNX's reference
//! draws with it.

const WORDS: usize = 624;
/// A word is made of the one so far behind it.
const REACH: usize = 397;

pub(crate) struct Twister {
    words: [u32; WORDS],
    next: usize,
}

impl Twister {
    pub(crate) fn new(seed: u32) -> Twister {
        let mut words = [seed; WORDS];
        for i in 1..WORDS {
            let before = words[i - 1];
            words[i] = (before ^ before >> 30)
                .wrapping_mul(1_812_433_253)
                .wrapping_add(i as u32);
        }
        Twister { words, next: WORDS }
    }

    fn word(&mut self) -> u32 {
        if self.next == WORDS {
            self.turn();
        }
        let mut w = self.words[self.next];
        self.next += 1;
        w ^= w >> 11;
        w ^= w << 7 & 0x9D2C_5680;
        w ^= w << 15 & 0xEFC6_0000;
        w ^ w >> 18
    }

    /// All words anew.
    fn turn(&mut self) {
        for i in 0..WORDS {
            let joined = self.words[i] & 0x8000_0000 | self.words[(i + 1) % WORDS] & 0x7FFF_FFFF;
            let odd = if joined & 1 == 1 { 0x9908_B0DF } else { 0 };
            self.words[i] = self.words[(i + REACH) % WORDS] ^ joined >> 1 ^ odd;
        }
        self.next = 0;
    }

    /// From 0 to below 1, of 53 bits.
    pub(crate) fn unit(&mut self) -> f64 {
        let (high, low) = (self.word() >> 5, self.word() >> 6);
        (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
    }
}

#[cfg(test)]
mod tests {
    use super::Twister;

    /// The first word of the authors' default seed, and C++'s definition of `mt19937`: its ten thousandth word.
    #[test]
    fn words_are_the_generator_s() {
        let mut twister = Twister::new(5489);
        assert_eq!(twister.word(), 3_499_211_612);
        let last = (1..10_000).map(|_| twister.word()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    /// What numpy's `RandomState(0)` and `RandomState(42)` give.
    #[test]
    fn numbers_are_numpy_s() {
        let mut of_0 = Twister::new(0);
        assert_eq!(
            [of_0.unit(), of_0.unit()],
            [0.548_813_503_927_324_8, 0.715_189_366_372_419_5]
        );
        assert_eq!(Twister::new(42).unit(), 0.374_540_118_847_362_5);
    }
}
