//! Short convolutions over positions: `y = c · Σ taps · (b · x)`, element by element, of the last few positions.
//!
//! ```text
//!   state      │ b·x of the positions before │      [tap][width], the oldest first
//!   a row      b, c, x ─► b·x ─► with the state: its result; the oldest goes, b·x becomes the newest
//! ```

use crate::pass::Pass;
use crate::scratch::Scratch;
use neap_kernels::parallel::Parallel;

impl Pass<'_> {
    /// What a convolution takes is complete: its results become the next product's input.
    pub(crate) fn convolve(&mut self, layer: usize, par: &dyn Parallel) {
        let model = self.model;
        let width = model.config.width;
        let taps = &model.layers[layer].taps;
        let before = taps.len() / width - 1;
        let Scratch { qkv, input, .. } = &mut *self.scratch;
        let mut at = 0;
        for rows in self.rows.chunk_by(|a, b| a.sequence == b.sequence) {
            let (begin, sequence) = (rows[0].position, self.sequences[rows[0].sequence]);
            let mut state = vec![0.0; before * width];
            if let Some(known) = self.cache.state(sequence, begin, layer) {
                from_bytes(known, &mut state);
            }
            for position in begin..=begin + rows.len() {
                for (_, coming) in sequence.coming.iter().filter(|(at, _)| *at == position) {
                    to_bytes(&state, self.cache.state_mut(*coming, layer));
                }
                if position < begin + rows.len() {
                    let to = &mut input[at * width..][..width];
                    convolve_row(&qkv[at * 3 * width..][..3 * width], taps, &mut state, to);
                    at += 1;
                }
            }
        }
        self.fix(self.rows.len(), width, par);
    }
}

/// One position; the state goes on to the next.
fn convolve_row(bcx: &[f32], taps: &[f32], state: &mut [f32], to: &mut [f32]) {
    let width = to.len();
    let before = state.len() / width;
    let (b, cx) = bcx.split_at(width);
    let (c, x) = cx.split_at(width);
    for (e, to) in to.iter_mut().enumerate() {
        let taps = &taps[e * (before + 1)..][..=before];
        let now = b[e] * x[e];
        let old = (0..before).map(|tap| taps[tap] * state[tap * width + e]);
        *to = c[e] * (old.sum::<f32>() + taps[before] * now);
        // So that only the newest is left to be written.
        for tap in 1..before {
            state[(tap - 1) * width + e] = state[tap * width + e];
        }
        state[(before - 1) * width + e] = now;
    }
}

fn from_bytes(bytes: &[u8], to: &mut [f32]) {
    for (bytes, to) in bytes.as_chunks().0.iter().zip(to) {
        *to = f32::from_le_bytes(*bytes);
    }
}

fn to_bytes(from: &[f32], bytes: &mut [u8]) {
    for (from, bytes) in from.iter().zip(bytes.as_chunks_mut().0) {
        *bytes = from.to_le_bytes();
    }
}
