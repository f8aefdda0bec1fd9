//! SentencePiece's unigram model: the tokens whose scores add up to the most.

use crate::index::{Hash, Index};
use crate::vocabulary::{Kind, Vocabulary};

pub(crate) use normalizer::Normalizer;

mod normalizer;

/// How much worse a character without a token is than the worst token.
const UNKNOWN_PENALTY: f64 = 10.0;

#[derive(Debug)]
pub(crate) struct Unigram {
    index: Index,
    /// By id.
    scores: Box<[f32]>,
    unknown: Option<u32>,
    unknown_score: f64,
    longest: usize,
    normalizer: Normalizer,
}

/// The best way to get to a place of the text.
#[derive(Clone, Copy)]
struct Step {
    score: f64,
    /// Where its last token begins; `None` for a character without one.
    begin: u32,
    id: Option<u32>,
}

impl Unigram {
    pub fn new(
        vocabulary: &Vocabulary,
        index: Index,
        scores: Box<[f32]>,
        kinds: &[Kind],
        unknown: Option<u32>,
        normalizer: Normalizer,
    ) -> Self {
        let normal = scores.iter().zip(kinds);
        let normal = normal.filter(|(_, kind)| **kind == Kind::Normal);
        let worst = normal.fold(f32::MAX, |worst, (score, _)| worst.min(*score));
        let lengths = vocabulary.ids().map(|id| vocabulary.text(id).len());
        Unigram {
            index,
            scores,
            unknown,
            unknown_score: f64::from(worst) - UNKNOWN_PENALTY,
            longest: lengths.max().unwrap_or(0),
            normalizer,
        }
    }

    pub fn encode(&self, vocabulary: &Vocabulary, text: &str, ids: &mut Vec<u32>) {
        let text = self.normalizer.normalize(text);
        let first = ids.len();
        let steps = self.steps(vocabulary, &text);
        let mut end = text.len();
        let mut was_unknown = false;
        while end > 0 {
            let step = steps[end];
            // One token for all unknown characters in a row.
            if step.id.is_some() || !was_unknown {
                ids.extend(step.id.or(self.unknown));
            }
            was_unknown = step.id.is_none();
            end = step.begin as usize;
        }
        ids[first..].reverse();
    }

    /// The best step to each place where a character begins.
    fn steps(&self, vocabulary: &Vocabulary, text: &str) -> Vec<Step> {
        let nowhere = Step {
            score: f64::NEG_INFINITY,
            begin: 0,
            id: None,
        };
        let mut steps = vec![nowhere; text.len() + 1];
        steps[0].score = 0.0;
        for (begin, c) in text.char_indices() {
            let so_far = steps[begin].score;
            let mut offer = |end: usize, score: f64, id| {
                if so_far + score > steps[end].score {
                    steps[end] = Step {
                        score: so_far + score,
                        begin: begin as u32,
                        id,
                    };
                }
            };
            let mut hash = Hash::EMPTY;
            let mut has_own = false;
            let bytes = text.as_bytes()[begin..].iter().take(self.longest);
            for (end, byte) in (begin + 1..).zip(bytes) {
                hash = hash.then(*byte);
                if !text.is_char_boundary(end) {
                    continue;
                }
                if let Some(id) =
                    self.index
                        .find_hashed(vocabulary, &text.as_bytes()[begin..end], hash)
                {
                    offer(end, f64::from(self.scores[id as usize]), Some(id));
                    has_own |= end == begin + c.len_utf8();
                }
            }
            if !has_own {
                offer(begin + c.len_utf8(), self.unknown_score, None);
            }
        }
        steps
    }

    pub fn memory_bytes(&self) -> usize {
        self.index.memory_bytes() + size_of_val(&*self.scores) + self.normalizer.memory_bytes()
    }
}
