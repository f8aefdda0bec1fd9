//! CLIP's tokens (Radford et al. 2021, *Learning Transferable Visual Models From Natural Language Supervision*, section 2.4): words in lower
//! case, whose bytes are merged in the order of a list; the last piece of a word ends in `</w>`.

use crate::{Error, Result};
use std::collections::HashMap;
use unicode_general_category::{GeneralCategory as Category, get_general_category};
use unicode_normalization::UnicodeNormalization;

const BEGIN: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";
const END_OF_WORD: &str = "</w>";

/// A vocabulary and its merges.
pub struct Clip {
    ids: HashMap<String, u32>,
    /// The rank of a pair of ids, and the id that it becomes.
    merges: HashMap<(u32, u32), (u32, u32)>,
    begin: u32,
    end: u32,
    pad: u32,
}

/// A prompt as a text encoder takes it.
#[derive(Debug, PartialEq, Eq)]
pub struct Encoded {
    /// As many as there are places.
    pub ids: Vec<u32>,
    /// Tokens that had no place.
    pub left_out: usize,
}

impl Clip {
    /// Of the texts of `vocab.json` and `merges.txt`. `pad` is what fills places after the end; by default the end itself.
    ///
    /// # Errors
    /// They are no such files, or do not belong together.
    pub fn new(vocabulary: &str, merges: &str, pad: Option<&str>) -> Result<Clip> {
        let ids: HashMap<String, u32> = serde_json::from_str(vocabulary)
            .map_err(|e| Error::new(format!("the vocabulary: {e}")))?;
        let find = |token: &str| {
            let found = ids.get(token).copied();
            found.ok_or_else(|| Error::new(format!("the vocabulary has no token {token}")))
        };
        let lines = merges
            .lines()
            .filter(|line| !line.starts_with("#version") && !line.is_empty());
        let mut known = HashMap::new();
        for (rank, line) in lines.enumerate() {
            let (left, right) = line
                .split_once(' ')
                .ok_or_else(|| Error::new(format!("the merges: '{line}' is no pair")))?;
            let merged = find(&format!("{left}{right}"))?;
            let pair = (find(left)?, find(right)?);
            known.entry(pair).or_insert((rank as u32, merged));
        }
        let (begin, end) = (find(BEGIN)?, find(END)?);
        let pad = pad.map_or(Ok(end), find)?;
        Ok(Clip {
            ids,
            merges: known,
            begin,
            end,
            pad,
        })
    }

    /// Begin, as much of the text as has a place, end, and the rest filled.
    pub fn encode(&self, text: &str, places: usize) -> Encoded {
        let mut tokens = Vec::new();
        let composed: String = text.nfc().flat_map(char::to_lowercase).collect();
        let mut rest = composed.trim_start();
        while !rest.is_empty() {
            let (word, after) = rest.split_at(word_bytes(rest));
            self.encode_word(word, &mut tokens);
            rest = after.trim_start();
        }
        let room = places.saturating_sub(2);
        let left_out = tokens.len().saturating_sub(room);
        tokens.truncate(room);
        let mut ids = vec![self.begin];
        ids.extend(tokens);
        ids.push(self.end);
        ids.resize(places, self.pad);
        Encoded { ids, left_out }
    }

    fn encode_word(&self, word: &str, tokens: &mut Vec<u32>) {
        let last = word.len() - 1;
        let mut pieces: Vec<u32> = (word.bytes().enumerate())
            .map(|(at, byte)| {
                let mut text = String::from(letter(byte));
                if at == last {
                    text.push_str(END_OF_WORD);
                }
                // What has no token is the end, as others have it.
                self.ids.get(&text).copied().unwrap_or(self.end)
            })
            .collect();
        loop {
            let pairs = pieces.windows(2).enumerate().filter_map(|(at, pair)| {
                let (rank, merged) = self.merges.get(&(pair[0], pair[1]))?;
                Some((*rank, at, *merged))
            });
            let Some((_, at, merged)) = pairs.min() else {
                break;
            };
            pieces[at] = merged;
            pieces.remove(at + 1);
        }
        tokens.extend(pieces);
    }
}

/// How many bytes the first word of a text has: an ending such as `'s`, letters, one digit, or signs. The text begins with none of
/// white space.
fn word_bytes(text: &str) -> usize {
    const ENDINGS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];
    if let Some(ending) = ENDINGS.iter().find(|ending| text.starts_with(**ending)) {
        return ending.len();
    }
    let kind = |c: char| match () {
        () if c.is_whitespace() => Class::Space,
        () if is_letter(c) => Class::Letter,
        () if is_digit(c) => Class::Digit,
        () => Class::Sign,
    };
    let mut chars = text.char_indices();
    let Some((_, first)) = chars.next() else {
        return 0;
    };
    let class = kind(first);
    if class == Class::Digit {
        return first.len_utf8();
    }
    let end = chars.find(|(_, c)| kind(*c) != class);
    end.map_or(text.len(), |(at, _)| at)
}

#[derive(PartialEq, Eq)]
enum Class {
    Space,
    Letter,
    Digit,
    Sign,
}

fn is_letter(c: char) -> bool {
    matches!(
        get_general_category(c),
        Category::UppercaseLetter
            | Category::LowercaseLetter
            | Category::TitlecaseLetter
            | Category::ModifierLetter
            | Category::OtherLetter
    )
}

fn is_digit(c: char) -> bool {
    matches!(
        get_general_category(c),
        Category::DecimalNumber | Category::LetterNumber | Category::OtherNumber
    )
}

/// The sign that stands for a byte: itself where it can be printed, and those behind Latin-1 for the rest.
fn letter(byte: u8) -> char {
    let is_printed = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..);
    match is_printed(byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|b| !is_printed(*b)).count();
            char::from_u32(256 + before as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    }
}
