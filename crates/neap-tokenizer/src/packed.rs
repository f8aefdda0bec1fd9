//! Numbers below 2^24 in three bytes each: ids of tokens, ranks of merges, offsets of texts.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct U24([u8; 3]);

impl U24 {
    /// Larger than every number that is stored: stands for none.
    pub const NONE: U24 = U24([0xFF; 3]);
    /// Numbers are below it.
    pub const LIMIT: u64 = 0xFF_FFFF;

    /// Callers check numbers against [`U24::LIMIT`] where they enter.
    pub fn new(number: u32) -> Self {
        debug_assert!(u64::from(number) < Self::LIMIT);
        let [a, b, c, _] = number.to_le_bytes();
        U24([a, b, c])
    }

    pub fn get(self) -> u32 {
        let [a, b, c] = self.0;
        u32::from_le_bytes([a, b, c, 0])
    }

    pub fn at(self) -> usize {
        self.get() as usize
    }

    pub fn some(self) -> Option<u32> {
        (self != Self::NONE).then(|| self.get())
    }
}
