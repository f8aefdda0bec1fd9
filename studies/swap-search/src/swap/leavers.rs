//! Tensors in the order in which they had best leave: the cheapest byte first, whatever lies around it.

use std::collections::BinaryHeap;

use super::scan::{Scan, State};

/// Next use, how long ago the last one was (more is longer), tensor. Old where the tensor has been used or sent
/// away since.
type Entry = (u32, u32, u32);

#[derive(Default)]
pub struct Leavers {
    /// Those that are dropped.
    clean: BinaryHeap<Entry>,
    /// Those that are stored first.
    changed: BinaryHeap<Entry>,
    /// Taken out since [`Leavers::put_back`], and whether they had changed.
    taken: Vec<(bool, Entry)>,
}

fn entry(state: &State, tensor: u32) -> Entry {
    // Never used is longest ago.
    let age = !state.last_use.wrapping_add(1);
    (state.key, age, tensor)
}

impl Leavers {
    pub fn clear(&mut self) {
        self.clean.clear();
        self.changed.clear();
        self.taken.clear();
    }

    pub fn push(&mut self, state: &State, tensor: u32) {
        let heap = match state.stores() {
            true => &mut self.changed,
            false => &mut self.clean,
        };
        heap.push(entry(state, tensor));
    }

    /// The next one, which is not one of the operator's at `position`, and what a byte of it costs.
    pub fn next(
        &mut self,
        scan: &Scan,
        position: u32,
        byte_cost: impl Fn(u32, bool) -> f64,
    ) -> Option<(f64, u32)> {
        let is_old = |&(key, age, tensor): &Entry| {
            let state = &scan.states[tensor as usize];
            !state.resident || entry(state, tensor) != (key, age, tensor)
        };
        loop {
            for heap in [&mut self.clean, &mut self.changed] {
                while heap.peek().is_some_and(is_old) {
                    heap.pop();
                }
            }
            let clean = self.clean.peek().map(|e| byte_cost(e.0, false));
            let changed = self.changed.peek().map(|e| byte_cost(e.0, true));
            let (has_changed, cost) = match (clean, changed) {
                (Some(clean), Some(changed)) if changed < clean => (true, changed),
                (Some(clean), _) => (false, clean),
                (None, Some(changed)) => (true, changed),
                (None, None) => return None,
            };
            let heap = match has_changed {
                true => &mut self.changed,
                false => &mut self.clean,
            };
            let entry = heap.pop()?;
            self.taken.push((has_changed, entry));
            if !scan.states[entry.2 as usize].is_pinned(position) {
                return Some((cost, entry.2));
            }
        }
    }

    /// Those taken may be taken again.
    pub fn put_back(&mut self) {
        for (has_changed, entry) in self.taken.drain(..) {
            match has_changed {
                true => self.changed.push(entry),
                false => self.clean.push(entry),
            }
        }
    }
}
