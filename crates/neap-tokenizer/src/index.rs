//! From texts to ids: a hash table of ids, three bytes a slot.

use crate::packed::U24;
use crate::vocabulary::Vocabulary;

#[derive(Debug)]
pub(crate) struct Index {
    slots: Box<[U24]>,
}

/// A hash that grows with its text, so that all beginnings of a text are looked up in one pass.
#[derive(Clone, Copy)]
pub(crate) struct Hash(u64);

impl Hash {
    /// Of no bytes.
    pub const EMPTY: Hash = Hash(0xCBF2_9CE4_8422_2325);

    pub fn of(text: &[u8]) -> Self {
        text.iter().fold(Self::EMPTY, |hash, byte| hash.then(*byte))
    }

    /// FNV-1a's step.
    pub fn then(self, byte: u8) -> Self {
        Hash((self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
    }

    fn slot(self, slots: usize) -> usize {
        let spread = (self.0 ^ (self.0 >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (((spread >> 32) * slots as u64) >> 32) as usize
    }
}

impl Index {
    /// Of the tokens that `has` allows. Of equal texts the first one counts.
    pub fn new(vocabulary: &Vocabulary, has: impl Fn(u32) -> bool) -> Self {
        let tokens = vocabulary.ids().filter(|id| has(*id)).count();
        // A quarter stays empty, so that what is missing is seen soon.
        let mut slots = vec![U24::NONE; tokens + tokens / 3 + 1].into_boxed_slice();
        for id in vocabulary.ids().filter(|id| has(*id)) {
            let text = vocabulary.text(id);
            let mut at = Hash::of(text).slot(slots.len());
            while let Some(other) = slots[at].some() {
                if vocabulary.text(other) == text {
                    break;
                }
                at = following(at, slots.len());
            }
            if slots[at] == U24::NONE {
                slots[at] = U24::new(id);
            }
        }
        Index { slots }
    }

    pub fn find(&self, vocabulary: &Vocabulary, text: &[u8]) -> Option<u32> {
        self.find_hashed(vocabulary, text, Hash::of(text))
    }

    /// With the text's hash.
    pub fn find_hashed(&self, vocabulary: &Vocabulary, text: &[u8], hash: Hash) -> Option<u32> {
        let mut at = hash.slot(self.slots.len());
        while let Some(id) = self.slots[at].some() {
            if vocabulary.text(id) == text {
                return Some(id);
            }
            at = following(at, self.slots.len());
        }
        None
    }

    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }
}

fn following(at: usize, slots: usize) -> usize {
    if at + 1 == slots { 0 } else { at + 1 }
}
