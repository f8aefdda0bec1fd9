//! Byte-pair encoding: a word's bytes, or characters, are merged in the order of ranks.

use crate::index::Index;
use crate::merges::Merges;
use crate::merging::{Merging, NO_TOKEN};
use crate::packed::U24;
use crate::pre::Pre;
use crate::vocabulary::Vocabulary;
use std::borrow::Cow;
use unicode_normalization::{UnicodeNormalization, is_nfc};

#[derive(Debug)]
pub(crate) struct Bpe {
    pub pre: &'static Pre,
    pub merges: Merges,
    /// The token of each byte.
    pub bytes: Box<[U24; 256]>,
    /// Where whole words or characters are looked up.
    pub index: Option<Index>,
    /// Words begin as characters, and bytes stand for those without a token.
    pub of_characters: bool,
}

impl Bpe {
    pub fn encode(&self, vocabulary: &Vocabulary, text: &str, ids: &mut Vec<u32>) {
        let text = match self.pre.composes && !is_nfc(text) {
            true => Cow::Owned(text.nfc().collect()),
            false => Cow::Borrowed(text),
        };
        let mut merging = Merging::default();
        let mut rest = &*text;
        while !rest.is_empty() {
            let (word, after) = rest.split_at((self.pre.split)(rest));
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
        let is_whole = self.pre.whole_words || self.of_characters && word.starts_with('\n');
        if let Some(id) = self
            .index
            .as_ref()
            .filter(|_| is_whole)
            .and_then(|index| index.find(vocabulary, word.as_bytes()))
        {
            ids.push(id);
            return;
        }
        merging.clear();
        match self.index.as_ref().filter(|_| self.of_characters) {
            Some(index) => {
                for (at, c) in word.char_indices() {
                    let end = at + c.len_utf8();
                    let id = index.find(vocabulary, &word.as_bytes()[at..end]);
                    merging.push(id.unwrap_or(NO_TOKEN), at, end);
                }
            }
            None => {
                // Bytes without a token are left out, as they always were.
                for (at, byte) in word.bytes().enumerate() {
                    if let Some(id) = self.bytes[usize::from(byte)].some() {
                        merging.push(id, at, at + 1);
                    }
                }
            }
        }
        merging.run(|left, right| match NO_TOKEN {
            none if left.id == none || right.id == none => None,
            _ => self.merges.find(left.id, right.id),
        });
        for symbol in merging.symbols() {
            match symbol.id {
                NO_TOKEN => {
                    let bytes = &word.as_bytes()[symbol.begin as usize..symbol.end as usize];
                    ids.extend(
                        bytes
                            .iter()
                            .filter_map(|byte| self.bytes[usize::from(*byte)].some()),
                    );
                }
                id => ids.push(id),
            }
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.merges.memory_bytes()
            + size_of_val(&*self.bytes)
            + self.index.as_ref().map_or(0, Index::memory_bytes)
    }
}
