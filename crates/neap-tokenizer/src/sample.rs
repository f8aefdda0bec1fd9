//! The next token from logits, which come in slices of the vocabulary: only as many are kept as may be chosen.
//!
//! ```text
//!   logits ─► penalties ─► the best k ─► top-p, min-p ─► temperature ─► a draw
//! ```
//! This is the order that users of GGUF files know. The same seed and logits give the same tokens, however logits are cut into slices.

mod candidates;
mod penalties;
mod random;

use candidates::Best;
use penalties::{Penalties, Recent};
use random::Random;

/// How tokens are chosen. The default is the most likely token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it. 0 takes the most likely token, and of equals the one with the lowest id.
    pub temperature: f32,
    /// Only so many of the most likely tokens may be chosen. 0 allows all, at twelve bytes for each token of the vocabulary.
    pub top_k: usize,
    /// Of those the most likely ones that have this probability together. 1 allows all.
    pub top_p: f32,
    /// Of those the ones that have this share of the best one's probability. 0 allows all.
    pub min_p: f32,
    pub penalties: PenaltyOptions,
    pub seed: u64,
    /// Tells log-probabilities of the chosen token and of so many of the most likely ones, before penalties and temperature.
    pub logprobs: Option<usize>,
}

/// What makes a token less likely that was there before.
#[derive(Debug, Clone, PartialEq)]
pub struct PenaltyOptions {
    /// Divides positive logits and multiplies negative ones. 1 does nothing.
    pub repeat: f32,
    /// Subtracted for each time that the token was there.
    pub frequency: f32,
    /// Subtracted once.
    pub presence: f32,
    /// So many of the last tokens count.
    pub last: usize,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 40,
            top_p: 1.0,
            min_p: 0.0,
            penalties: PenaltyOptions::default(),
            seed: 0,
            logprobs: None,
        }
    }
}

impl Default for PenaltyOptions {
    fn default() -> Self {
        PenaltyOptions {
            repeat: 1.0,
            frequency: 0.0,
            presence: 0.0,
            last: 64,
        }
    }
}

/// Chooses the tokens of one answer.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    random: Random,
    recent: Recent,
}

/// The logits of one place of the text, as far as they are needed. It is used again for other places.
#[derive(Debug, Clone, Default)]
pub struct Row {
    best: Best,
    penalties: Penalties,
    /// The most likely tokens before penalties, and the sum over all: for log-probabilities.
    likely: Best,
    total: Option<LogSum>,
}

/// What was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    pub id: u32,
    /// If they were asked for.
    pub logprobs: Option<Logprobs>,
}

/// Natural logarithms of probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    pub chosen: f64,
    /// The most likely tokens, the best first.
    pub likely: Vec<(u32, f64)>,
}

impl Sampler {
    #[must_use]
    pub fn new(sampling: Sampling) -> Self {
        Sampler {
            random: Random::new(sampling.seed),
            recent: Recent::new(sampling.penalties.last),
            sampling,
        }
    }

    /// Begins a row for the token after the text so far and after `drafted`, tokens that are not accepted yet.
    pub fn begin(&self, row: &mut Row, drafted: &[u32]) {
        let is_greedy = self.sampling.temperature <= 0.0;
        row.best.begin(match self.sampling.top_k {
            _ if is_greedy => 1,
            0 => usize::MAX,
            k => k,
        });
        row.penalties
            .begin(&self.sampling.penalties, &self.recent, drafted);
        row.likely.begin(self.sampling.logprobs.unwrap_or(0));
        row.total = self.sampling.logprobs.map(|_| LogSum::default());
    }

    /// The token after a row whose logits were all offered; `None` if no token is allowed.
    pub fn choose(&mut self, row: &mut Row) -> Option<Choice> {
        let kept = row.best.sorted();
        let first = kept.first()?;
        let chosen = match self.sampling.temperature {
            cold if cold <= 0.0 => first,
            temperature => {
                let allowed = &kept[..self.allowed(kept)];
                let weight =
                    |logit: f32| (f64::from(logit - first.logit) / f64::from(temperature)).exp();
                let total: f64 = allowed
                    .iter()
                    .map(|candidate| weight(candidate.logit))
                    .sum();
                let mut left = self.random.unit() * total;
                let drawn = allowed.iter().find(|candidate| {
                    left -= weight(candidate.logit);
                    left < 0.0
                });
                // Rounding may leave a little.
                drawn.or(allowed.last())?
            }
        };
        let (id, raw) = (chosen.id, chosen.raw);
        let logprobs = row.total.as_ref().map(|total| Logprobs {
            chosen: f64::from(raw) - total.value(),
            likely: row
                .likely
                .sorted()
                .iter()
                .map(|one| (one.id, f64::from(one.raw) - total.value()))
                .collect(),
        });
        Some(Choice { id, logprobs })
    }

    /// How many of the sorted candidates top-p and min-p allow: one at least.
    fn allowed(&self, kept: &[candidates::Candidate]) -> usize {
        let weight = |logit: f32| f64::from(logit - kept[0].logit).exp();
        let mut allowed = kept.len();
        if self.sampling.top_p < 1.0 {
            let total: f64 = kept.iter().map(|candidate| weight(candidate.logit)).sum();
            let mut mass = 0.0;
            let enough = kept.iter().position(|candidate| {
                mass += weight(candidate.logit);
                mass >= f64::from(self.sampling.top_p) * total
            });
            allowed = enough.map_or(allowed, |last| last + 1);
        }
        let likely = kept[..allowed]
            .partition_point(|candidate| weight(candidate.logit) >= f64::from(self.sampling.min_p));
        likely.max(1)
    }

    /// Takes a token into the text so far: a chosen one, or one of the prompt.
    pub fn accept(&mut self, id: u32) {
        self.recent.push(id);
    }
}

impl Row {
    /// The logits of tokens from `first` on. Slices come in the order of ids.
    pub fn offer(&mut self, first: u32, logits: &[f32]) {
        self.offer_allowed(first, logits, |_| true);
    }

    /// As [`Row::offer`], of those tokens that are allowed.
    pub fn offer_allowed(&mut self, first: u32, logits: &[f32], is_allowed: impl Fn(u32) -> bool) {
        for (id, raw) in (first..).zip(logits.iter().copied()) {
            if let Some(total) = &mut self.total {
                total.add(raw);
                self.likely.offer(id, raw, raw);
            }
            let logit = self.penalties.apply(id, raw);
            if self.best.takes(logit) && is_allowed(id) {
                self.best.offer(id, logit, raw);
            }
        }
    }
}

/// The logarithm of a sum of exponentials, one after another.
#[derive(Debug, Clone)]
struct LogSum {
    most: f64,
    /// In units of the largest one.
    sum: f64,
}

impl Default for LogSum {
    fn default() -> Self {
        LogSum {
            most: f64::NEG_INFINITY,
            sum: 0.0,
        }
    }
}

impl LogSum {
    fn add(&mut self, logit: f32) {
        let logit = f64::from(logit);
        if logit > self.most {
            self.sum = self.sum * (self.most - logit).exp() + 1.0;
            self.most = logit;
        } else if logit > f64::NEG_INFINITY {
            self.sum += (logit - self.most).exp();
        }
    }

    fn value(&self) -> f64 {
        self.most + self.sum.ln()
    }
}
