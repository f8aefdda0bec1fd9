//! Tokens that are found in text before anything else: control tokens, and those that a vocabulary's maker defined.

use crate::packed::U24;
use crate::vocabulary::{Kind, Vocabulary};

/// What a text may hold beside text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// Control tokens are found by their names, as in a text that a chat template made.
    Parse,
    /// Names of control tokens are text like any other, as in what a user wrote.
    AsText,
}

#[derive(Debug)]
pub(crate) struct Specials {
    /// All of them.
    parsed: Matcher,
    /// Those that are found in what users write, too.
    defined: Matcher,
    /// Control and unknown tokens, by id.
    control: Box<[U24]>,
}

/// Finds the first of some texts, and of those that begin there the longest.
#[derive(Debug)]
struct Matcher {
    /// Sorted by text.
    ids: Box<[U24]>,
    /// Which bytes they begin with.
    first: [bool; 256],
}

impl Specials {
    pub fn new(vocabulary: &Vocabulary, kinds: &[Kind]) -> Self {
        let of = |is: fn(Kind) -> bool| {
            let ids = vocabulary
                .ids()
                .zip(kinds)
                .filter(move |(_, kind)| is(**kind));
            ids.map(|(id, _)| id)
        };
        let is_control = |kind| matches!(kind, Kind::Control | Kind::Unknown);
        let is_parsed = |kind| matches!(kind, Kind::Control | Kind::Unknown | Kind::UserDefined);
        Specials {
            parsed: Matcher::new(vocabulary, of(is_parsed)),
            defined: Matcher::new(vocabulary, of(|kind| kind == Kind::UserDefined)),
            control: of(is_control).map(U24::new).collect(),
        }
    }

    /// Where the first special token of a text is, and which.
    pub fn find(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        special: Special,
    ) -> Option<(usize, u32)> {
        match special {
            Special::Parse => self.parsed.find(vocabulary, text.as_bytes()),
            Special::AsText => self.defined.find(vocabulary, text.as_bytes()),
        }
    }

    /// A control or unknown token.
    pub fn is_control(&self, id: u32) -> bool {
        self.control
            .binary_search_by_key(&id, |other| other.get())
            .is_ok()
    }

    pub fn memory_bytes(&self) -> usize {
        [&self.parsed.ids, &self.defined.ids, &self.control]
            .map(|ids| size_of_val(&**ids))
            .iter()
            .sum()
    }
}

/// Whole characters, so that a text is never cut inside one.
fn is_findable(text: &[u8]) -> bool {
    !text.is_empty() && std::str::from_utf8(text).is_ok()
}

impl Matcher {
    fn new(vocabulary: &Vocabulary, ids: impl Iterator<Item = u32>) -> Self {
        let mut ids: Box<[U24]> = ids
            .filter(|id| is_findable(vocabulary.text(*id)))
            .map(U24::new)
            .collect();
        ids.sort_unstable_by_key(|id| (vocabulary.text(id.get()), id.get()));
        let mut first = [false; 256];
        for id in &ids {
            first[usize::from(vocabulary.text(id.get())[0])] = true;
        }
        Matcher { ids, first }
    }

    fn find(&self, vocabulary: &Vocabulary, text: &[u8]) -> Option<(usize, u32)> {
        let begins = text.iter().enumerate();
        begins
            .filter(|(_, byte)| self.first[usize::from(**byte)])
            .find_map(|(at, _)| Some((at, self.longest(vocabulary, &text[at..])?)))
    }

    /// The longest token that a text begins with.
    fn longest(&self, vocabulary: &Vocabulary, text: &[u8]) -> Option<u32> {
        let mut key = text;
        // What begins a text comes before it in order. If the nearest one before it does not begin it, then only what is part of
        // both can.
        loop {
            let after = self
                .ids
                .partition_point(|id| vocabulary.text(id.get()) <= key);
            let nearest = self.ids[..after].last()?.get();
            let nearest_text = vocabulary.text(nearest);
            if key.starts_with(nearest_text) {
                return Some(nearest);
            }
            let same = nearest_text.iter().zip(key).take_while(|(a, b)| a == b);
            key = &key[..same.count()];
        }
    }
}
