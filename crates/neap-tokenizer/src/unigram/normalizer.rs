//! How SentencePiece prepares text: a table of replacements that the file brings, and what is done with spaces.

use crate::{Error, Result};
use std::borrow::Cow;

#[derive(Debug)]
pub(crate) struct Normalizer {
    /// A double array over the bytes of what is replaced. Values are offsets into `replacements`.
    trie: Box<[u32]>,
    /// Texts that end with a zero each.
    replacements: Box<[u8]>,
    adds_space: bool,
    /// Spaces at both ends are left out, and one stands for several.
    merges_spaces: bool,
}

impl Normalizer {
    /// From the bytes of `precompiled_charsmap`: the trie's length in bytes, the trie, the replacements.
    pub fn new(map: &[u8], adds_space: bool, merges_spaces: bool) -> Result<Self> {
        let (trie, replacements) = match map.split_first_chunk() {
            None if map.is_empty() => (map, map),
            Some((len, rest)) => {
                let len = u32::from_le_bytes(*len) as usize;
                rest.split_at_checked(len)
                    .filter(|_| len.is_multiple_of(4))
                    .ok_or_else(|| Error::damaged("the table of characters ends early"))?
            }
            None => return Err(Error::damaged("the table of characters ends early")),
        };
        let (units, _) = trie.as_chunks();
        Ok(Normalizer {
            trie: units.iter().map(|unit| u32::from_le_bytes(*unit)).collect(),
            replacements: replacements.into(),
            adds_space,
            merges_spaces,
        })
    }

    pub fn normalize(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 1);
        if self.adds_space {
            out.push(' ');
        }
        let mut after_space = true;
        let mut rest = text;
        while !rest.is_empty() {
            let (bytes, replacement) = self.longest(rest);
            for c in replacement.chars() {
                let is_space = matches!(c, ' ' | '▁');
                if !(is_space && after_space && self.merges_spaces) {
                    out.push(if is_space { ' ' } else { c });
                }
                after_space = is_space;
            }
            rest = &rest[bytes..];
        }
        if self.merges_spaces {
            let kept = out.trim_end_matches(' ').len();
            out.truncate(kept);
        }
        out
    }

    /// The longest beginning of a text that has a replacement, in bytes, and the replacement; or the first character.
    fn longest<'a>(&'a self, text: &'a str) -> (usize, Cow<'a, str>) {
        let mut found = None;
        let mut at = 0;
        let unit = |at: usize| self.trie.get(at).copied();
        let Some(root) = unit(0) else {
            return first(text);
        };
        at ^= offset(root);
        for (index, byte) in text.bytes().enumerate() {
            at ^= usize::from(byte);
            let Some(here) = unit(at).filter(|here| label(*here) == u32::from(byte)) else {
                break;
            };
            at ^= offset(here);
            if here >> 8 & 1 == 1 {
                found = unit(at).map(|value| (index + 1, (value & 0x7FFF_FFFF) as usize));
            }
        }
        // A table may not cut characters.
        match found.filter(|(bytes, _)| text.is_char_boundary(*bytes)) {
            Some((bytes, value)) => {
                let replacement = self.replacements.get(value..).unwrap_or_default();
                let end = replacement.iter().position(|byte| *byte == 0);
                let replacement = &replacement[..end.unwrap_or(replacement.len())];
                (bytes, String::from_utf8_lossy(replacement))
            }
            None => first(text),
        }
    }

    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.trie) + self.replacements.len()
    }
}

fn first(text: &str) -> (usize, Cow<'_, str>) {
    let bytes = text.chars().next().map_or(0, char::len_utf8);
    (bytes, Cow::Borrowed(&text[..bytes]))
}

/// Source: the double arrays of the Darts-clone library.
fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & 1 << 9) >> 6)) as usize
}

/// Values are never equal to a byte.
fn label(unit: u32) -> u32 {
    unit & (1 << 31 | 0xFF)
}
