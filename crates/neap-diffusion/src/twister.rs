//! MT19937 (Matsumoto and Nishimura 1998, *Mersenne Twister*), as C++'s `mt19937` is seeded and read: 32 bits at a time. What ONNX's
//! random operators draw with gives 53 bits at a time, and is `neap-ops`' own.

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

    pub(crate) fn word(&mut self) -> u32 {
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
}
