//! Makes tokens less likely that were there before.

use super::PenaltyOptions;
use std::collections::VecDeque;

/// The last tokens of a text.
#[derive(Debug, Clone)]
pub(super) struct Recent {
    ids: VecDeque<u32>,
    last: usize,
}

impl Recent {
    pub fn new(last: usize) -> Self {
        Recent {
            ids: VecDeque::new(),
            last,
        }
    }

    pub fn push(&mut self, id: u32) {
        self.ids.push_back(id);
        if self.ids.len() > self.last {
            self.ids.pop_front();
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Penalties {
    /// Tokens and how often they were there, the highest id first: those that are still to come.
    counts: Vec<(u32, u32)>,
    repeat: f32,
    frequency: f32,
    presence: f32,
}

impl Penalties {
    pub fn begin(&mut self, options: &PenaltyOptions, recent: &Recent, drafted: &[u32]) {
        (self.repeat, self.frequency, self.presence) =
            (options.repeat, options.frequency, options.presence);
        self.counts.clear();
        if (self.repeat, self.frequency, self.presence) == (1.0, 0.0, 0.0) {
            return;
        }
        let ids = drafted.iter().rev().chain(recent.ids.iter().rev());
        self.counts
            .extend(ids.take(options.last).map(|id| (*id, 1)));
        self.counts.sort_unstable_by(|a, b| b.cmp(a));
        self.counts.dedup_by(|next, first| {
            let is_same = next.0 == first.0;
            first.1 += u32::from(is_same);
            is_same
        });
    }

    /// Ids come in ascending order.
    pub fn apply(&mut self, id: u32, logit: f32) -> f32 {
        while let Some((next, count)) = self.counts.last().copied() {
            if next > id {
                break;
            }
            self.counts.pop();
            if next == id {
                let scaled = if logit > 0.0 {
                    logit / self.repeat
                } else {
                    logit * self.repeat
                };
                return scaled - count as f32 * self.frequency - self.presence;
            }
        }
        logit
    }
}
