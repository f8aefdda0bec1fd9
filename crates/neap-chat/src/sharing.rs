//! Texts that begin alike share their beginning: what is computed already, and what an earlier one is about to compute.
//!
//! ```text
//!   first   │ common beginning │ its own …      computes
//!   second  │ common beginning │ its own …      waits until the first has it, then goes on from there
//! ```
//! The first text never waits, and each waits only for earlier ones, so there is always one that goes on.

use crate::kept::{Kept, common};
use crate::runner::{BLOCK, Runner};
use crate::running::Running;
use crate::{Error, Result};
use neap_llm::Sequence;

/// A beginning must be longer by so many tokens to be waited for. Shorter ones are rows of a pass that reads the weights anyway.
const LEAST: usize = BLOCK;

impl Runner {
    /// A sequence that begins as the text with which most tokens are in common, running or finished.
    pub(crate) fn forked(&mut self, tokens: &[u32]) -> Result<Sequence> {
        let found = computed(&self.running, &self.kept, tokens);
        let Some((sequence, len)) = found.filter(|(_, len)| *len > 0) else {
            return Ok(self.engine.begin());
        };
        let forked = match self.engine.fork(sequence, len) {
            // A block that is shared in part needs another.
            Err(neap_llm::Error::CacheFull { .. }) => {
                self.engine.fork(sequence, len / BLOCK * BLOCK)
            }
            forked => forked,
        };
        forked.map_err(Error::from)
    }

    /// Texts whose beginnings others have computed by now go on from there. Gives which ones wait for a beginning.
    pub(crate) fn share(&mut self) -> Result<Vec<bool>> {
        let mut waits = Vec::with_capacity(self.running.len());
        for at in 0..self.running.len() {
            let one = &self.running[at];
            let (wanted, has) = (one.to_share(), one.sequence.len());
            let there = computed(&self.running, &self.kept, wanted).map_or(0, |(_, len)| len);
            let coming = promised(&self.running[..at], wanted);
            let is_waiting = coming > there && coming >= has + LEAST;
            if !is_waiting && there >= has + LEAST {
                let wanted = wanted.to_vec();
                let forked = self.forked(&wanted)?;
                let one = &mut self.running[at];
                one.usage.cached_tokens = forked.len();
                let before = std::mem::replace(&mut one.sequence, forked);
                self.engine.end(before);
            }
            waits.push(is_waiting);
        }
        // Who was to share the beginning of a text that ended early takes what that text leaves.
        while self.engine.free_positions() / BLOCK < self.owed_blocks()
            && self.kept.drop_oldest(&mut self.engine)
        {}
        Ok(waits)
    }

    /// Blocks that those that run may come to need beside those that they have.
    pub(crate) fn owed_blocks(&self) -> usize {
        let owed = |(at, one): (usize, &Running)| {
            let has = one.sequence.len();
            one.most_positions().div_ceil(BLOCK)
                - Runner::blocks_of(&self.running[..at], one.to_share(), has)
        };
        self.running.iter().enumerate().map(owed).sum()
    }

    /// Blocks that a text with that beginning need not take itself, where those of `earlier` go on.
    pub(crate) fn blocks_of(earlier: &[Running], wanted: &[u32], has: usize) -> usize {
        let coming = promised(earlier, wanted);
        let shared = if coming >= has + LEAST { coming } else { 0 };
        has.div_ceil(BLOCK).max(shared / BLOCK)
    }
}

/// The text that was computed with most of these tokens at its beginning, and how many.
fn computed<'a>(
    running: &'a [Running],
    kept: &'a Kept,
    tokens: &[u32],
) -> Option<(&'a Sequence, usize)> {
    let running = running.iter().map(|one| {
        let computed = &one.text[..one.sequence.len()];
        (&one.sequence, common(computed, tokens))
    });
    let all = running.chain(kept.best(tokens));
    all.max_by_key(|(_, len)| *len)
}

/// How many of these tokens some text will have computed.
fn promised(earlier: &[Running], wanted: &[u32]) -> usize {
    let all = earlier.iter().map(|one| common(one.prompt(), wanted));
    all.max().unwrap_or(0)
}
