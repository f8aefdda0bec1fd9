//! `Arrived`: which of the actions in flight are complete, though some before them are not.

/// One bit per number, modulo a power of two.
pub(crate) struct Arrived {
    bits: Box<[u64]>,
    mask: u64,
}

impl Arrived {
    /// For so many numbers at once, a power of two and at least 64.
    pub(crate) fn new(window: usize) -> Arrived {
        Arrived {
            bits: vec![0; window / 64].into_boxed_slice(),
            mask: window as u64 - 1,
        }
    }

    /// How many numbers there is room for.
    pub(crate) fn window(&self) -> u64 {
        self.mask + 1
    }

    pub(crate) fn clear(&mut self) {
        self.bits.fill(0);
    }

    pub(crate) fn set(&mut self, number: u64) {
        let at = number & self.mask;
        self.bits[(at / 64) as usize] |= 1 << (at % 64);
    }

    /// Whether the bit was set; clears it.
    pub(crate) fn take(&mut self, number: u64) -> bool {
        let at = number & self.mask;
        let word = &mut self.bits[(at / 64) as usize];
        let bit = 1 << (at % 64);
        let was_set = *word & bit != 0;
        *word &= !bit;
        was_set
    }
}
