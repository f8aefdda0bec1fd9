//! Writes vocabularies as GGUF files, in memory.

use neap_gguf::Header;
use neap_tokenizer::{Error, Tokenizer};
use std::io::Cursor;

pub enum Pair {
    Number(u32),
    Flag(bool),
    Text(&'static str),
    Texts(Vec<Vec<u8>>),
    Numbers(Vec<i32>),
    Floats(Vec<f32>),
    Bytes(Vec<u8>),
}

use Pair::{Bytes, Flag, Floats, Number, Numbers, Text, Texts};

pub const NORMAL: i32 = 1;
pub const UNKNOWN: i32 = 2;
pub const CONTROL: i32 = 3;
pub const USER_DEFINED: i32 = 4;
pub const BYTE: i32 = 6;

fn text(bytes: &[u8], file: &mut Vec<u8>) {
    file.extend((bytes.len() as u64).to_le_bytes());
    file.extend(bytes);
}

fn array<T>(kind: u32, items: &[T], file: &mut Vec<u8>, mut each: impl FnMut(&T, &mut Vec<u8>)) {
    file.extend(9u32.to_le_bytes());
    file.extend(kind.to_le_bytes());
    file.extend((items.len() as u64).to_le_bytes());
    for item in items {
        each(item, file);
    }
}

/// A file of these pairs, whose names begin with `tokenizer.ggml.`.
pub fn gguf(pairs: &[(&str, Pair)]) -> Vec<u8> {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend(0u64.to_le_bytes());
    file.extend((pairs.len() as u64).to_le_bytes());
    for (name, value) in pairs {
        text(format!("tokenizer.ggml.{name}").as_bytes(), &mut file);
        match value {
            Number(number) => {
                file.extend(4u32.to_le_bytes());
                file.extend(number.to_le_bytes());
            }
            Flag(flag) => {
                file.extend(7u32.to_le_bytes());
                file.push(u8::from(*flag));
            }
            Text(value) => {
                file.extend(8u32.to_le_bytes());
                text(value.as_bytes(), &mut file);
            }
            Texts(texts) => array(8, texts, &mut file, |item, file| text(item, file)),
            Numbers(numbers) => array(5, numbers, &mut file, |n, file| {
                file.extend(n.to_le_bytes())
            }),
            Floats(numbers) => array(6, numbers, &mut file, |n, file| {
                file.extend(n.to_le_bytes())
            }),
            Bytes(bytes) => array(0, bytes, &mut file, |n, file| file.push(*n)),
        }
    }
    file
}

pub fn open(pairs: &[(&str, Pair)]) -> Result<Tokenizer, Error> {
    let file = gguf(pairs);
    let header = Header::read(Cursor::new(&file), file.len() as u64).unwrap();
    Tokenizer::open(&header, Cursor::new(&file))
}

pub fn texts<T: AsRef<[u8]>>(texts: impl IntoIterator<Item = T>) -> Pair {
    Texts(
        texts
            .into_iter()
            .map(|text| text.as_ref().to_vec())
            .collect(),
    )
}

/// How byte-level vocabularies write bytes.
pub fn letters(bytes: &[u8]) -> String {
    let is_visible = |byte: u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let letter = |byte: u8| match is_visible(byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|other| !is_visible(*other)).count();
            char::from_u32(256 + before as u32).unwrap()
        }
    };
    bytes.iter().map(|byte| letter(*byte)).collect()
}

/// A byte-level vocabulary: control tokens, the 256 bytes, and what the merges make.
pub struct ByteLevel {
    pub tokens: Vec<Vec<u8>>,
    pub merges: Vec<(u32, u32, u32)>,
}

pub const NAMES: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

impl ByteLevel {
    /// Merges the pairs that are most frequent in a text, words apart.
    pub fn trained(text: &str, merges: usize) -> Self {
        let mut made = ByteLevel {
            tokens: NAMES.iter().map(|name| name.as_bytes().to_vec()).collect(),
            merges: Vec::new(),
        };
        made.tokens.extend((0..=255u8).map(|byte| vec![byte]));
        let first = NAMES.len() as u32;
        let words = text.split_inclusive(' ');
        let mut words: Vec<Vec<u32>> = words
            .map(|word| word.bytes().map(|byte| first + u32::from(byte)).collect())
            .collect();
        for _ in 0..merges {
            let mut counts = std::collections::BTreeMap::new();
            for pair in words.iter().flat_map(|word| word.windows(2)) {
                *counts.entry((pair[0], pair[1])).or_insert(0) += 1;
            }
            let Some((&(left, right), _)) = counts.iter().max_by_key(|(_, count)| **count) else {
                break;
            };
            let both = [&*made.tokens[left as usize], &*made.tokens[right as usize]].concat();
            let known = made.tokens.iter().position(|token| *token == both);
            let id = known.unwrap_or(made.tokens.len()) as u32;
            if known.is_none() {
                made.tokens.push(both);
            }
            made.merges.push((left, right, id));
            for word in &mut words {
                merge(word, (left, right), id);
            }
        }
        made
    }

    pub fn pairs(&self, pre: &'static str) -> Vec<(&'static str, Pair)> {
        let names = NAMES.len();
        let written = |id: u32| letters(&self.tokens[id as usize]);
        let tokens = (0..self.tokens.len()).map(|id| match id < names {
            true => NAMES[id].to_owned(),
            false => written(id as u32),
        });
        let merges = self
            .merges
            .iter()
            .map(|(left, right, _)| format!("{} {}", written(*left), written(*right)));
        let kinds = (0..self.tokens.len()).map(|id| if id < names { CONTROL } else { NORMAL });
        vec![
            ("model", Text("gpt2")),
            ("pre", Text(pre)),
            ("tokens", texts(tokens)),
            ("token_type", Numbers(kinds.collect())),
            ("merges", texts(merges)),
            ("bos_token_id", Number(1)),
            ("eos_token_id", Number(2)),
        ]
    }

    /// Tokens of a word: the first pair of the lowest rank is merged, until there is none.
    pub fn encode_word(&self, word: &str) -> Vec<u32> {
        let mut ids: Vec<u32> = word
            .bytes()
            .map(|byte| NAMES.len() as u32 + u32::from(byte))
            .collect();
        let place = |ids: &[u32], pair| ids.windows(2).position(|two| (two[0], two[1]) == pair);
        while let Some((at, merged)) = self
            .merges
            .iter()
            .find_map(|(left, right, merged)| Some((place(&ids, (*left, *right))?, *merged)))
        {
            ids[at] = merged;
            ids.remove(at + 1);
        }
        ids
    }
}

fn merge(ids: &mut Vec<u32>, pair: (u32, u32), merged: u32) {
    let mut at = 0;
    while at + 1 < ids.len() {
        if (ids[at], ids[at + 1]) == pair {
            ids[at] = merged;
            ids.remove(at + 1);
        }
        at += 1;
    }
}
