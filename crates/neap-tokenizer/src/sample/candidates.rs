//! The best of what was offered so far.

use std::cmp::Ordering;

#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub logit: f32,
    /// Before penalties.
    pub raw: f32,
    pub id: u32,
}

impl Candidate {
    /// The best one first: by logit, and of equals by id.
    fn order(&self, other: &Self) -> Ordering {
        other
            .logit
            .total_cmp(&self.logit)
            .then(self.id.cmp(&other.id))
    }
}

/// At most `most` candidates. Ids are offered in ascending order.
#[derive(Debug, Clone, Default)]
pub(super) struct Best {
    most: usize,
    /// Sorted down to `most` now and then: when there are twice as many.
    kept: Vec<Candidate>,
    /// What is not above it is not among the best.
    least: f32,
}

impl Best {
    pub fn begin(&mut self, most: usize) {
        self.most = most;
        self.kept.clear();
        self.least = f32::NEG_INFINITY;
    }

    /// Whether such a logit may be among the best. What is no number is not.
    pub fn takes(&self, logit: f32) -> bool {
        logit > self.least && self.most > 0
    }

    pub fn offer(&mut self, id: u32, logit: f32, raw: f32) {
        if !self.takes(logit) {
            return;
        }
        self.kept.push(Candidate { logit, raw, id });
        if self.kept.len() >= self.most.saturating_mul(2) {
            self.drop_worst();
        }
    }

    fn drop_worst(&mut self) {
        if self.kept.len() > self.most {
            self.kept
                .select_nth_unstable_by(self.most - 1, Candidate::order);
            self.kept.truncate(self.most);
            // Of equal ones the earlier stay, so only what is above the last one comes in.
            self.least = self.kept[self.most - 1].logit;
        }
    }

    pub fn sorted(&mut self) -> &[Candidate] {
        self.drop_worst();
        self.kept.sort_unstable_by(Candidate::order);
        &self.kept
    }
}
