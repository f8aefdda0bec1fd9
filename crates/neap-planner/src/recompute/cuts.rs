//! Where the forward pass may be cut into segments, and Chen's segments.

use super::column::{Column, Mode};
use super::{Reads, Tape};
use std::ops::Range;

/// Values that are dropped when only what crosses the ends of about √n equal segments is kept, of a forward pass of n
/// steps. The last segment is kept whole: its values are wanted at once.
pub fn segments(tape: &Tape) -> Vec<usize> {
    if !tape.is_well_formed() {
        return Vec::new();
    }
    let reads = tape.reads();
    let mut makers: Vec<usize> = tape.values.iter().map(|v| v.made_by).collect();
    makers.sort_unstable();
    makers.dedup();
    let count = (makers.len() as f64).sqrt().round() as usize;
    let frontier = frontiers(tape, &reads);
    let mut ends = vec![0];
    for index in 1..count {
        // Anywhere near, where the least has to be kept.
        let middle = makers.len() * index / count;
        let reach = makers.len() / (3 * count);
        let near = middle.saturating_sub(reach).max(1)..=(middle + reach).min(makers.len() - 1);
        let best = near.min_by_key(|&i| (frontier[makers[i]], i.abs_diff(middle)));
        ends.extend(
            best.map(|i| makers[i])
                .filter(|&at| Some(&at) > ends.last()),
        );
    }
    let mut dropped = Vec::new();
    for pair in ends.windows(2) {
        dropped.extend(Column::of(tape, &reads, pair[0]..pair[1], Mode::AGAIN).dropped);
    }
    dropped
}

/// By node: bytes of what is made before it and read by it or behind it in the forward pass.
pub fn frontiers(tape: &Tape, reads: &[Reads]) -> Vec<u64> {
    let mut bytes = vec![0; tape.forward + 1];
    for (value, reads) in tape.values.iter().zip(reads) {
        for crossed in &mut bytes[value.made_by + 1..=reads.forward.max(value.made_by)] {
            *crossed += value.bytes;
        }
    }
    bytes
}

/// At most so many ranges that cover the forward pass: of about as many bytes kept for the backward pass each, and cut
/// where little crosses.
pub fn pieces(tape: &Tape, reads: &[Reads], most: usize) -> Vec<Range<usize>> {
    let frontier = frontiers(tape, reads);
    let mut kept = vec![0u64; tape.forward + 1];
    for (value, reads) in tape.values.iter().zip(reads) {
        if reads.backward.is_some() {
            kept[value.made_by + 1] += value.bytes;
        }
    }
    for at in 1..kept.len() {
        kept[at] += kept[at - 1];
    }
    let mut starts: Vec<usize> = tape.values.iter().map(|v| v.made_by).collect();
    starts.extend(tape.values.iter().map(|v| v.made_by + 1));
    starts.sort_unstable();
    starts.dedup();
    starts.retain(|&at| at > 0 && at < tape.forward);
    let mut ends = vec![0];
    if starts.len() < most {
        ends.extend(starts);
    } else {
        let total = kept.last().copied().unwrap_or(0);
        for index in 1..most as u64 {
            let share = |offset: f64| (total as f64 * (index as f64 + offset) / most as f64) as u64;
            let (from, to) = (share(-0.5), share(0.5));
            let inside = starts
                .iter()
                .filter(|&&at| kept[at] > from && kept[at] <= to);
            let best = inside.min_by_key(|&&at| (frontier[at], kept[at].abs_diff(share(0.0))));
            ends.extend(best.filter(|at| Some(at) > ends.last().as_ref()));
        }
    }
    ends.push(tape.forward);
    ends.windows(2).map(|pair| pair[0]..pair[1]).collect()
}
