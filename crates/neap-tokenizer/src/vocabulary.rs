//! The texts of all tokens, one after another.

use crate::packed::U24;
use crate::{Error, Result};

/// What a token is for, as files number it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    /// Stands for what has no token.
    Unknown,
    /// Tells the model something: text of users never gives it.
    Control,
    /// Found in text before anything else.
    UserDefined,
    Unused,
    /// One byte, for text that has no other token.
    Byte,
}

impl Kind {
    /// By its number in files. A few files have numbers of their own, which mean nothing.
    pub fn of_number(number: f64) -> Self {
        match number {
            2.0 => Kind::Unknown,
            3.0 => Kind::Control,
            4.0 => Kind::UserDefined,
            5.0 => Kind::Unused,
            6.0 => Kind::Byte,
            _ => Kind::Normal,
        }
    }

    /// Text may be turned into such tokens by merging and matching.
    pub fn is_of_text(self) -> bool {
        matches!(self, Kind::Normal | Kind::UserDefined | Kind::Unused)
    }
}

#[derive(Debug)]
pub(crate) struct Vocabulary {
    bytes: Box<[u8]>,
    /// Where each token's text ends in `bytes`.
    ends: Box<[U24]>,
}

impl Vocabulary {
    /// For so many tokens whose texts have so many bytes together.
    pub fn builder(tokens: usize, bytes: usize) -> Result<Builder> {
        if tokens as u64 >= U24::LIMIT || bytes as u64 >= U24::LIMIT {
            return Err(Error::damaged(format!(
                "{tokens} tokens of {bytes} bytes are more than are supported"
            )));
        }
        Ok(Builder {
            bytes: Vec::with_capacity(bytes),
            ends: Vec::with_capacity(tokens),
        })
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn ids(&self) -> std::ops::Range<u32> {
        0..self.ends.len() as u32
    }

    /// Nothing, for ids that are none.
    pub fn text(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(end) = self.ends.get(id) else {
            return &[];
        };
        let begin = id.checked_sub(1).map_or(0, |before| self.ends[before].at());
        &self.bytes[begin..end.at()]
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.ends)
    }
}

/// Takes texts in the order of their ids.
pub(crate) struct Builder {
    bytes: Vec<u8>,
    ends: Vec<U24>,
}

impl Builder {
    pub fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(U24::new(self.bytes.len() as u32));
    }

    pub fn finish(self) -> Vocabulary {
        Vocabulary {
            bytes: self.bytes.into_boxed_slice(),
            ends: self.ends.into_boxed_slice(),
        }
    }
}
