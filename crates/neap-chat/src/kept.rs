//! Texts that are over, kept as beginnings of later ones.

use neap_llm::{Engine, Sequence};
use std::collections::VecDeque;

/// The last finished sequences and their tokens, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    texts: VecDeque<(Sequence, Vec<u32>)>,
}

impl Kept {
    /// Keeps a sequence of these tokens. More than `most` are not kept, nor any that another begins with.
    pub fn put(&mut self, engine: &mut Engine, sequence: Sequence, tokens: Vec<u32>, most: usize) {
        debug_assert_eq!(sequence.len(), tokens.len());
        if self.texts.iter().any(|(_, kept)| kept.starts_with(&tokens)) {
            return engine.end(sequence);
        }
        let (begin_it, others) = (self.texts.drain(..))
            .partition::<VecDeque<_>, _>(|(_, kept)| tokens.starts_with(kept));
        self.texts = others;
        begin_it.into_iter().for_each(|(old, _)| engine.end(old));
        self.texts.push_back((sequence, tokens));
        while self.texts.len() > most {
            self.drop_oldest(engine);
        }
    }

    /// The one that has most of these tokens in common, and how many.
    pub fn best(&self, tokens: &[u32]) -> Option<(&Sequence, usize)> {
        let of =
            |(sequence, kept): &'_ (Sequence, Vec<u32>)| (common(kept, tokens), sequence.len());
        let best = self.texts.iter().max_by_key(|text| of(text).0)?;
        Some((&best.0, of(best).0))
    }

    /// The one that was kept last.
    pub fn newest(&self) -> Option<&(Sequence, Vec<u32>)> {
        self.texts.back()
    }

    /// Gives the memory of the one that was kept first to others; `false` where there is none.
    pub fn drop_oldest(&mut self, engine: &mut Engine) -> bool {
        let oldest = self.texts.pop_front();
        let dropped = oldest.is_some();
        oldest
            .into_iter()
            .for_each(|(sequence, _)| engine.end(sequence));
        dropped
    }
}

/// How many tokens two texts begin with alike.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
