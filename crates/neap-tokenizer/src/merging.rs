//! Merges neighbours of a text until no pair may be merged: the best pair of the whole text first, of equals the first one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What has no token.
pub(crate) const NO_TOKEN: u32 = u32::MAX;

/// A part of the text that is one token so far.
#[derive(Clone, Copy)]
pub(crate) struct Symbol {
    pub id: u32,
    /// Bytes of the text. A symbol that another has taken in is empty.
    pub begin: u32,
    pub end: u32,
    previous: u32,
    next: u32,
}

/// Two neighbours that may become one. The smallest is merged first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: u32,
    left: u32,
    /// Where the right one ends: if it is elsewhere now, one of both has changed.
    end: u32,
    merged: u32,
}

const NOWHERE: u32 = u32::MAX;

/// Memory that words share.
#[derive(Default)]
pub(crate) struct Merging {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

impl Merging {
    /// Begins with another text.
    pub fn clear(&mut self) {
        self.symbols.clear();
    }

    /// Adds a symbol after those that are there.
    pub fn push(&mut self, id: u32, begin: usize, end: usize) {
        let at = self.symbols.len() as u32;
        if let Some(last) = self.symbols.last_mut() {
            last.next = at;
        }
        self.symbols.push(Symbol {
            id,
            begin: begin as u32,
            end: end as u32,
            previous: at.wrapping_sub(1),
            next: NOWHERE,
        });
    }

    /// `pair` tells the priority of two neighbours, lowest first, and the token that they become.
    pub fn run(&mut self, pair: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        for right in 1..self.symbols.len() as u32 {
            self.offer(right - 1, right, &pair);
        }
        while let Some(Reverse(best)) = self.queue.pop() {
            let left = self.symbols[best.left as usize];
            if left.begin == left.end || left.next == NOWHERE {
                continue;
            }
            let right = self.symbols[left.next as usize];
            if right.end != best.end {
                continue;
            }
            self.symbols[left.next as usize].end = right.begin;
            let merged = &mut self.symbols[best.left as usize];
            merged.id = best.merged;
            merged.end = right.end;
            merged.next = right.next;
            if right.next != NOWHERE {
                self.symbols[right.next as usize].previous = best.left;
                self.offer(best.left, right.next, &pair);
            }
            if left.previous != NOWHERE {
                self.offer(left.previous, best.left, &pair);
            }
        }
    }

    fn offer(
        &mut self,
        left: u32,
        right: u32,
        pair: &impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>,
    ) {
        let (a, b) = (&self.symbols[left as usize], &self.symbols[right as usize]);
        if let Some((priority, merged)) = pair(a, b) {
            self.queue.push(Reverse(Candidate {
                priority,
                left,
                end: b.end,
                merged,
            }));
        }
    }

    /// What is left, in order.
    pub fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols
            .iter()
            .filter(|symbol| symbol.begin < symbol.end)
    }
}
