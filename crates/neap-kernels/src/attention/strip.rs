//! Attention whose keys and values come in strips, one call for each.
//!
//! A walk over the keys knows no more of a row than its maximum, its sum, and its output before the division by the sum. So it may
//! stop after a block and go on later: the bits are those of one walk.

use super::{Attention, BLOCK_KEYS, WHOLE_KEYS, scratch_bytes, walk};
use crate::error::{KernelError, check_len, checked_product};
use crate::parallel::Parallel;
use crate::simd::Isa;

/// Which of an attention's keys a call walks over: `kv_len` of its shape are here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyStrip {
    /// Keys before these.
    pub start: usize,
    /// Keys of the whole attention.
    pub total: usize,
}

impl KeyStrip {
    /// Whether so many keys here are the last.
    pub(super) fn is_last(self, keys: usize) -> bool {
        self.start + keys == self.total
    }

    /// Whether a walk may begin and stop where so many keys here do.
    #[must_use]
    pub fn fits(self, keys: usize) -> bool {
        let end = self.start.checked_add(keys);
        let stops = |at: usize| match key_block(self.total) {
            Some(block) => at.is_multiple_of(block) || at == self.total,
            None => at == 0 || at == self.total,
        };
        keys > 0 && end.is_some_and(|end| end <= self.total && stops(self.start) && stops(end))
    }
}

/// Keys of a block of an attention over so many; `None` where all are one block.
#[must_use]
pub fn key_block(total: usize) -> Option<usize> {
    (total > WHOLE_KEYS).then_some(BLOCK_KEYS)
}

/// Bytes of scratch that [`attention_strip`] needs for that many workers.
#[must_use]
pub fn attention_strip_scratch_bytes(
    shape: &Attention<'_>,
    strip: KeyStrip,
    workers: usize,
) -> usize {
    scratch_bytes(shape, strip.total, workers)
}

/// Goes on with an attention over the keys of a strip; its values and mask are of these keys alone.
///
/// `state` is `[batch][heads_q][2][q_len]`: each row's maximum and sum. It and `out` are as the strip before left them, and need
/// not be set before the first. After the last strip `out` is what [`super::attention`] gives for all keys.
///
/// # Errors
/// As [`super::attention`]; a strip that does not begin and end with blocks; causal attention, and rows in which zeros are to
/// take the place of NaN.
pub fn attention_strip(
    isa: Isa,
    par: &dyn Parallel,
    shape: &Attention<'_>,
    strip: KeyStrip,
    operands: [&[f32]; 3],
    out: &mut [f32],
    state: &mut [f32],
    scratch: &mut [f32],
) -> Result<(), KernelError> {
    if shape.causal.is_some() || shape.nan_is_zero {
        return Err(KernelError::Invalid("strips of keys of such an attention"));
    }
    if !strip.fits(shape.kv_len) {
        return Err(KernelError::Invalid("a strip of keys cuts a block"));
    }
    let rows = checked_product(&[shape.batch, shape.heads_q, 2, shape.q_len]);
    check_len("attention state", state.len(), rows)?;
    walk(isa, par, shape, strip, operands, out, Some(state), scratch)
}
