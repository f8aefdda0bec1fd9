//! WordPiece, as BERT has it: words are cut into the longest pieces, from the left.

use crate::classes::is_mark;
use crate::index::Index;
use crate::vocabulary::Vocabulary;
use unicode_general_category::{GeneralCategory as Category, get_general_category};
use unicode_normalization::UnicodeNormalization;

#[derive(Debug)]
pub(crate) struct WordPiece {
    /// Pieces that begin a word have a space before them.
    pub index: Index,
    pub unknown: Option<u32>,
    /// Capital letters stay.
    pub cased: bool,
    pub keeps_accents: bool,
}

/// Longer words are unknown.
const MOST_CHARACTERS: usize = 100;

impl WordPiece {
    pub fn encode(&self, vocabulary: &Vocabulary, text: &str, ids: &mut Vec<u32>) {
        let text = self.normalize(text);
        let mut word = String::new();
        let mut end_word = |word: &mut String| {
            if !word.is_empty() {
                self.encode_word(vocabulary, word, ids);
                word.clear();
            }
        };
        for c in text.chars() {
            if c.is_whitespace() {
                end_word(&mut word);
            } else if is_punctuation(c) || is_ideograph(c) {
                end_word(&mut word);
                word.push(c);
                end_word(&mut word);
            } else {
                word.push(c);
            }
        }
        end_word(&mut word);
    }

    fn normalize(&self, text: &str) -> String {
        let kept = text
            .chars()
            .filter(|c| c.is_whitespace() || !is_ignored(*c));
        let plain: String = match self.keeps_accents {
            true => kept.collect(),
            false => kept.nfd().filter(|c| !is_accent(*c)).collect(),
        };
        match self.cased {
            true => plain,
            false => plain.chars().flat_map(char::to_lowercase).collect(),
        }
    }

    fn encode_word(&self, vocabulary: &Vocabulary, word: &str, ids: &mut Vec<u32>) {
        let first = ids.len();
        if word.chars().count() > MOST_CHARACTERS {
            ids.extend(self.unknown);
            return;
        }
        let word = format!(" {word}");
        let mut rest = &*word;
        while !rest.is_empty() {
            let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8()).rev();
            let mut pieces = ends.map(|end| &rest[..end]);
            let found = pieces.find_map(|piece| {
                let id = self.index.find(vocabulary, piece.as_bytes())?;
                Some((id, piece.len()))
            });
            let Some((id, bytes)) = found else {
                ids.truncate(first);
                ids.extend(self.unknown);
                return;
            };
            ids.push(id);
            rest = &rest[bytes..];
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.index.memory_bytes()
    }
}

fn is_ignored(c: char) -> bool {
    let is_control = matches!(
        get_general_category(c),
        Category::Control | Category::Format | Category::PrivateUse
    );
    is_control || c == char::REPLACEMENT_CHARACTER
}

fn is_accent(c: char) -> bool {
    is_mark(c) && get_general_category(c) == Category::NonspacingMark
}

fn is_punctuation(c: char) -> bool {
    let category = get_general_category(c);
    c.is_ascii_punctuation()
        || matches!(
            category,
            Category::ConnectorPunctuation
                | Category::DashPunctuation
                | Category::OpenPunctuation
                | Category::ClosePunctuation
                | Category::InitialPunctuation
                | Category::FinalPunctuation
                | Category::OtherPunctuation
        )
}

/// Characters that are words of their own.
fn is_ideograph(c: char) -> bool {
    matches!(
        u32::from(c),
        0x3400..=0x4DBF
            | 0x4E00..=0x9FFF
            | 0xF900..=0xFAFF
            | 0x20000..=0x2A6DF
            | 0x2A700..=0x2B73F
            | 0x2B740..=0x2B81F
            | 0x2B920..=0x2CEAF
            | 0x2F800..=0x2FA1F
    )
}
