//! SentencePiece's byte-pair encoding: characters are merged to the token with the best score.

use crate::index::Index;
use crate::merging::{Merging, NO_TOKEN, Symbol};
use crate::packed::U24;
use crate::vocabulary::Vocabulary;

#[derive(Debug)]
pub(crate) struct Spm {
    index: Index,
    /// By id.
    scores: Box<[f32]>,
    bytes: Box<[U24; 256]>,
    unknown: Option<u32>,
    /// No token has a space after another character, so that words are encoded one by one.
    words_apart: bool,
}

impl Spm {
    pub fn new(
        vocabulary: &Vocabulary,
        index: Index,
        scores: Box<[f32]>,
        bytes: Box<[U24; 256]>,
        unknown: Option<u32>,
        is_of_text: impl Fn(u32) -> bool,
    ) -> Self {
        let mut texts = vocabulary.ids().filter(|id| is_of_text(*id));
        let words_apart =
            texts.all(|id| next_word(vocabulary.text(id)) == vocabulary.text(id).len());
        Spm {
            index,
            scores,
            bytes,
            unknown,
            words_apart,
        }
    }

    pub fn encode(&self, vocabulary: &Vocabulary, text: &str, ids: &mut Vec<u32>) {
        let mut merging = Merging::default();
        let mut rest = text;
        while !rest.is_empty() {
            let bytes = match self.words_apart {
                true => next_word(rest.as_bytes()),
                false => rest.len(),
            };
            let (word, after) = rest.split_at(bytes);
            self.encode_word(vocabulary, word, &mut merging, ids);
            rest = after;
        }
    }

    fn encode_word(
        &self,
        vocabulary: &Vocabulary,
        word: &str,
        merging: &mut Merging,
        ids: &mut Vec<u32>,
    ) {
        let bytes_of = |begin: u32, end: u32| &word.as_bytes()[begin as usize..end as usize];
        merging.clear();
        for (at, c) in word.char_indices() {
            let end = at + c.len_utf8();
            let id = self.index.find(vocabulary, &word.as_bytes()[at..end]);
            merging.push(id.unwrap_or(NO_TOKEN), at, end);
        }
        merging.run(|left: &Symbol, right: &Symbol| {
            let id = self
                .index
                .find(vocabulary, bytes_of(left.begin, right.end))?;
            Some((best_first(self.scores[id as usize]), id))
        });
        for symbol in merging.symbols() {
            if symbol.id == NO_TOKEN {
                self.encode_unknown(bytes_of(symbol.begin, symbol.end), ids);
            } else {
                ids.push(symbol.id);
            }
        }
    }

    /// Bytes for a character without a token; where there are none, one unknown token for all that follow each other.
    fn encode_unknown(&self, character: &[u8], ids: &mut Vec<u32>) {
        let bytes = character
            .iter()
            .map(|byte| self.bytes[usize::from(*byte)].some());
        if bytes.clone().all(|id| id.is_some()) {
            ids.extend(bytes.flatten());
        } else if ids.last().copied() != self.unknown {
            ids.extend(self.unknown);
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.index.memory_bytes() + size_of_val(&*self.scores) + size_of_val(&*self.bytes)
    }
}

/// Bytes before the first space that follows another character.
fn next_word(text: &[u8]) -> usize {
    let spaces = text.iter().take_while(|byte| **byte == b' ').count();
    let others = text[spaces..].iter().take_while(|byte| **byte != b' ');
    spaces + others.count()
}

/// A number that is lower the higher the score is.
fn best_first(score: f32) -> u32 {
    // Adding makes one zero of two.
    let bits = (score + 0.0).to_bits();
    let negative = bits >> 31 == 1;
    // Bits of floats are in order but for the sign.
    if negative { bits } else { !bits & 0x7FFF_FFFF }
}
