//! A segment of the forward pass in one mode: what it drops, how long that takes, and what is in memory when.

use super::{Reads, Tape};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What becomes of a segment's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    pub drops: Drops,
    /// Whether what is kept for the backward pass is in the spill file meanwhile.
    pub swaps: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drops {
    Nothing,
    Cheap,
    All,
}

impl Mode {
    pub const AGAIN: Mode = Mode {
        drops: Drops::All,
        swaps: false,
    };
}

/// A segment in a mode.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// Of what is computed again.
    pub ns: u64,
    /// Stored once and loaded once.
    pub swapped_bytes: u64,
    pub dropped: Vec<usize>,
    /// Bytes that come (and, negative, go) at each node.
    changes: BTreeMap<usize, i64>,
}

impl Column {
    pub fn of(tape: &Tape, reads: &[Reads], segment: Range<usize>, mode: Mode) -> Column {
        let is_dropped: Vec<bool> = (tape.values.iter().zip(reads))
            .map(|(value, reads)| {
                let is_own = segment.contains(&value.made_by);
                let ends_inside = reads.forward < segment.end;
                let is_wanted = match mode.drops {
                    Drops::Nothing => false,
                    Drops::Cheap => value.is_cheap,
                    Drops::All => true,
                };
                is_own && ends_inside && is_wanted
            })
            .collect();
        let again = Again::of(tape, &is_dropped);
        let mut column = Column {
            ns: again.ns,
            dropped: (0..tape.values.len()).filter(|&v| is_dropped[v]).collect(),
            ..Column::default()
        };
        for (v, (value, reads)) in tape.values.iter().zip(reads).enumerate() {
            let used = again.used.get(&v).copied();
            let last_use = used.map(|(_, last)| last);
            if !segment.contains(&value.made_by) {
                // What an earlier segment keeps has to be there still.
                if let Some(last) = last_use.filter(|&last| last > reads.last()) {
                    column.live(value.bytes, reads.last() + 1, last);
                }
                continue;
            }
            let first_back = match is_dropped[v] {
                true => again.made.get(&v).copied(),
                false => (reads.backward.map(|(first, _)| first).into_iter())
                    .chain(used.map(|(first, _)| first))
                    .min(),
            };
            let last = last_use.unwrap_or(0).max(reads.last());
            match first_back {
                // Nothing wants it any more.
                None => column.live(value.bytes, value.made_by, reads.forward),
                Some(_) if !is_dropped[v] && !mode.swaps => {
                    column.live(value.bytes, value.made_by, last);
                }
                Some(back) => {
                    column.live(value.bytes, value.made_by, reads.forward);
                    column.live(value.bytes, back, last);
                    if !is_dropped[v] {
                        column.swapped_bytes += value.bytes;
                    }
                }
            }
        }
        column
    }

    fn live(&mut self, bytes: u64, first: usize, last: usize) {
        *self.changes.entry(first).or_default() += bytes as i64;
        *self.changes.entry(last + 1).or_default() -= bytes as i64;
    }

    /// The most bytes in each of the ranges of nodes, which follow each other from the first node on.
    pub fn most_bytes(&self, slots: &[Range<usize>]) -> Vec<i64> {
        let mut changes = self.changes.iter().peekable();
        let mut now = 0;
        slots
            .iter()
            .map(|slot| {
                let mut most = i64::MIN;
                while let Some((&at, change)) = changes.next_if(|(at, _)| **at < slot.end) {
                    if at > slot.start {
                        most = most.max(now);
                    }
                    now += change;
                }
                most.max(now)
            })
            .collect()
    }
}

/// What is computed again, and when.
#[derive(Default)]
struct Again {
    ns: u64,
    /// By value that is dropped: the backward node before which it is made again.
    made: BTreeMap<usize, usize>,
    /// By value: the first and last backward nodes before which something is made of it again.
    used: BTreeMap<usize, (usize, usize)>,
}

impl Again {
    fn of(tape: &Tape, is_dropped: &[bool]) -> Again {
        let mut again = Again::default();
        let mut computed = BTreeSet::new();
        for at in tape.forward..tape.nodes.len() {
            let wanted = tape.nodes[at].reads.iter().copied();
            let mut left: Vec<usize> = wanted.filter(|&v| is_dropped[v]).collect();
            while let Some(value) = left.pop() {
                if again.made.contains_key(&value) {
                    continue;
                }
                again.made.insert(value, at);
                let maker = tape.values[value].made_by;
                if !computed.insert(maker) {
                    continue;
                }
                again.ns += tape.nodes[maker].ns;
                for &operand in &tape.nodes[maker].reads {
                    let used = again.used.entry(operand).or_insert((at, at));
                    used.1 = at;
                    if is_dropped[operand] {
                        left.push(operand);
                    }
                }
            }
        }
        again
    }
}
