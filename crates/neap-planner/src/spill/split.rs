//! Which buffers leave memory, and when: of all that are idle in the fullest step, the one whose absence
//! relieves the steps that are too full by most per byte moved.
//!
//! ```text
//!   bytes
//!     ▲        ▓▓▓▓                     ▓ too much      a  is idle in all of the steps that are too full
//!     │ ┄┄┄┄┄┄▓▓▓▓▓▓┄┄┄┄ target         b  in half of them: as many bytes moved, half the relief
//!     │   ░░░░░░░░░░░░░░                c  has been stored before and not written since: half the bytes
//!     └──────────────────► steps
//! ```
//! On a schedule that is known this is Belady's rule, furthest next use first, with sizes taken into account.
//!
//! A state is idle before its first use and after its last one, too. If it leaves at all it streams: it is in its home from
//! the last use in one run to the first in the next, and may be so between other uses.

use neap_plan::{BLOCK_BYTES, BufferId, BufferSpec, StepRange, Workload, whole_blocks};

use crate::base_layout::{Tables, prefers_rows, smallest_weights_bytes};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What a transfer costs beside its bytes, in bytes: a drive answers no request at once, and small ones wait behind large ones. So
/// what is small stays in memory as long as something large can leave.
const REQUEST_BYTES: u64 = 128 << 10;

/// A buffer that is in the arena no longer after `last_use`, until `next_use`. Without a last use it is a state that the
/// run has not loaded yet; without a next use it is wanted only after the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    pub buffer: u32,
    pub last_use: Option<u32>,
    pub next_use: Option<u32>,
}

/// A stretch of steps in which a buffer is in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    pub buffer: u32,
    /// The absence before it, if any.
    pub after: Option<Absence>,
    /// The absence behind it, if any.
    pub before: Option<Absence>,
    /// Index of the buffer of the split workload that stands for it.
    pub part: u32,
    /// From the first use to the last: its place may be kept for longer.
    pub used: StepRange,
}

/// A workload in which every stay is a buffer.
#[derive(Clone, Debug)]
pub struct Split {
    pub workload: Workload,
    /// By buffer, then by step.
    pub absences: Vec<Absence>,
    /// Stays of the buffers that are ever away, by buffer, then by step.
    pub stays: Vec<Stay>,
}

/// What there is to choose from.
pub struct Traffic<'a> {
    w: &'a Workload,
    /// By buffer: steps that use it and whether they write it.
    pub uses: Vec<Vec<(u32, bool)>>,
    gaps: Vec<Absence>,
    /// By step: bytes of all live buffers, the workspace and the smallest weights.
    demand: Vec<u64>,
}

impl<'a> Traffic<'a> {
    pub fn new(w: &'a Workload, stream_states: bool) -> Self {
        let uses = uses(w);
        let mut gaps = Vec::new();
        for (b, (spec, uses)) in w.buffers.iter().zip(&uses).enumerate() {
            let is_state = is_state(w, b);
            let (Some(&(first_use, _)), Some(&(last_use, _))) = (uses.first(), uses.last()) else {
                continue;
            };
            if spec.bytes == 0 || is_state && !stream_states {
                continue;
            }
            let mut gap = |last_use, next_use| {
                gaps.push(Absence {
                    buffer: b as u32,
                    last_use,
                    next_use,
                });
            };
            if is_state {
                gap(None, Some(first_use));
            }
            for pair in uses.windows(2) {
                if pair[1].0 > pair[0].0 + 1 {
                    gap(Some(pair[0].0), Some(pair[1].0));
                }
            }
            if is_state || spec.kept && last_use + 1 < spec.live.end {
                gap(Some(last_use), None);
            }
        }
        let mut demand: Vec<u64> = w
            .steps
            .iter()
            .map(|s| {
                let rows = prefers_rows(s);
                let weights = smallest_weights_bytes(s, rows, Tables::Rows);
                s.workspace_rect_bytes(rows).saturating_add(weights)
            })
            .collect();
        for b in &w.buffers {
            for bytes in &mut demand[b.live.begin as usize..b.live.end.max(b.live.begin) as usize] {
                *bytes = bytes.saturating_add(b.bytes);
            }
        }
        Self {
            w,
            uses,
            gaps,
            demand,
        }
    }

    /// What the fullest step takes when every buffer that could be away is.
    pub fn floor_bytes(&self) -> u64 {
        let mut least = self.demand.clone();
        let mut rounded = vec![false; self.w.buffers.len()];
        for gap in &self.gaps {
            let spec = &self.w.buffers[gap.buffer as usize];
            if !std::mem::replace(&mut rounded[gap.buffer as usize], true) {
                let more = whole_blocks(spec.bytes) - spec.bytes;
                let live = spec.live.begin as usize..spec.live.end as usize;
                least[live].iter_mut().for_each(|d| *d += more);
            }
            let bytes = whole_blocks(spec.bytes);
            least[self.freed(gap)].iter_mut().for_each(|d| *d -= bytes);
        }
        least.into_iter().max().unwrap_or(0)
    }

    /// The steps in which an absence frees memory.
    fn freed(&self, gap: &Absence) -> std::ops::Range<usize> {
        let end = gap.next_use.unwrap_or(self.w.steps.len() as u32);
        gap.last_use.map_or(0, |last| last as usize + 1)..end as usize
    }

    /// The gap, and those that it makes a state be away in too.
    fn with(&self, gap: usize, chosen: &[bool], of_buffer: &[usize]) -> Vec<usize> {
        let is_wrap = |g: &usize| {
            let gap = &self.gaps[*g];
            gap.last_use.is_none() || gap.next_use.is_none()
        };
        let mut all = vec![gap];
        if is_state(self.w, self.gaps[gap].buffer as usize) {
            let others = of_buffer.iter().copied();
            all.extend(others.filter(|&g| g != gap && !chosen[g] && is_wrap(&g)));
        }
        all
    }

    /// Whether the buffer must be written out when it leaves then: it was written since it was last stored, or for a state
    /// since it was loaded from its home.
    fn is_dirty(&self, gap: &Absence, stored: Option<u32>) -> bool {
        let mut written = self.uses[gap.buffer as usize].iter().rev();
        let last = written.find(|(step, writes)| *writes && Some(*step) <= gap.last_use);
        match stored {
            None => !is_state(self.w, gap.buffer as usize) || last.is_some(),
            Some(stored) => last.is_some_and(|&(step, _)| step > stored),
        }
    }

    /// Bytes moved for an absence beside those that were chosen already, with [`REQUEST_BYTES`] for each transfer.
    fn moved_bytes(&self, gap: &Absence, chosen: &[bool], of_buffer: &[usize]) -> u64 {
        let earlier = of_buffer.iter().filter(|&&g| chosen[g]);
        let earlier = earlier
            .filter_map(|&g| self.gaps[g].last_use)
            .filter(|&u| Some(u) < gap.last_use);
        let leaves = gap.last_use.is_some();
        let store = u64::from(leaves && self.is_dirty(gap, earlier.max()));
        let bytes = whole_blocks(self.w.buffers[gap.buffer as usize].bytes);
        (bytes + REQUEST_BYTES) * (store + u64::from(gap.next_use.is_some()))
    }

    /// Chooses absences until every step needs at most `target_bytes`, or nothing is left that would help.
    pub fn split(&self, target_bytes: u64) -> Split {
        let mut chosen = vec![false; self.gaps.len()];
        let mut of_buffer = vec![Vec::new(); self.w.buffers.len()];
        for (g, gap) in self.gaps.iter().enumerate() {
            of_buffer[gap.buffer as usize].push(g);
        }
        let mut demand = self.demand.clone();
        // By gap: what it was worth when that was last asked. The less is too much, the less others relieve, so few need be
        // asked again for the best to be known.
        let mut at_most = vec![u128::MAX; self.gaps.len()];
        // Steps that stay too full whatever leaves.
        let mut given_up = vec![false; demand.len()];
        // What may still leave, with the steps that it frees: looked through once for each choice.
        let mut open: Vec<(std::ops::Range<usize>, usize)> = (0..self.gaps.len())
            .map(|g| (self.freed(&self.gaps[g]), g))
            .collect();
        loop {
            let over = (0..demand.len()).filter(|&s| demand[s] > target_bytes && !given_up[s]);
            let Some(fullest) = over.max_by_key(|&s| demand[s]) else {
                break;
            };
            let relief = |g: usize| -> u128 {
                let bytes = self.w.buffers[self.gaps[g].buffer as usize].bytes;
                let steps = self.freed(&self.gaps[g]);
                let over = demand[steps].iter().map(|d| d.saturating_sub(target_bytes));
                over.map(|over| u128::from(over.min(bytes))).sum()
            };
            let of = |g: usize| &of_buffer[self.gaps[g].buffer as usize];
            let worth = |g: usize| {
                let all = self.with(g, &chosen, of(g));
                let moved = |&g: &usize| self.moved_bytes(&self.gaps[g], &chosen, of(g));
                let moved: u64 = all.iter().map(moved).sum();
                let relief: u128 = all.iter().map(|&g| relief(g)).sum();
                // Relief per byte moved, in fractions that keep the order the same on every machine.
                (relief << 20) / u128::from(moved.max(1))
            };
            let candidates = open.iter().filter(|(freed, _)| freed.contains(&fullest));
            let mut candidates: BinaryHeap<(u128, Reverse<usize>, bool)> = candidates
                .map(|&(_, g)| (at_most[g], Reverse(g), false))
                .collect();
            let best = loop {
                match candidates.pop() {
                    Some((_, Reverse(g), true)) => break Some(g),
                    Some((_, Reverse(g), false)) => {
                        at_most[g] = worth(g);
                        candidates.push((at_most[g], Reverse(g), true));
                    }
                    None => break None,
                }
            };
            let Some(best) = best else {
                given_up[fullest] = true;
                continue;
            };
            let buffer = self.gaps[best].buffer as usize;
            // What else of this buffer leaves moves fewer bytes now.
            of_buffer[buffer]
                .iter()
                .for_each(|&g| at_most[g] = u128::MAX);
            let spec = &self.w.buffers[buffer];
            if !of_buffer[buffer].iter().any(|&g| chosen[g]) {
                // From now on it takes whole blocks.
                let more = whole_blocks(spec.bytes) - spec.bytes;
                demand[spec.live.begin as usize..spec.live.end as usize]
                    .iter_mut()
                    .for_each(|d| *d += more);
            }
            let bytes = whole_blocks(spec.bytes);
            for gap in self.with(best, &chosen, &of_buffer[buffer]) {
                chosen[gap] = true;
                let freed = self.freed(&self.gaps[gap]);
                demand[freed].iter_mut().for_each(|d| *d -= bytes);
            }
            open.retain(|&(_, g)| !chosen[g]);
        }
        self.leave_for_free(&mut chosen, &of_buffer);
        let absences = self.gaps.iter().zip(&chosen);
        let absences = absences
            .filter(|(_, chosen)| **chosen)
            .map(|(gap, _)| *gap)
            .collect();
        self.apart(absences)
    }

    /// A kept buffer that lies in the spill file as it will be read leaves after its last use.
    fn leave_for_free(&self, chosen: &mut [bool], of_buffer: &[Vec<usize>]) {
        for (g, gap) in self.gaps.iter().enumerate() {
            let of_buffer = &of_buffer[gap.buffer as usize];
            let is_stored = of_buffer.iter().any(|&g| chosen[g]);
            if gap.next_use.is_none() && is_stored && self.moved_bytes(gap, chosen, of_buffer) == 0
            {
                chosen[g] = true;
            }
        }
    }

    /// The workload with these buffers cut into stays.
    fn apart(&self, absences: Vec<Absence>) -> Split {
        let mut workload = self.w.clone();
        let mut stays = Vec::new();
        let mut rest = &absences[..];
        while let Some(first) = rest.first() {
            let count = rest.iter().take_while(|a| a.buffer == first.buffer).count();
            let (mut mine, later) = rest.split_at(count);
            rest = later;
            let spec = self.w.buffers[first.buffer as usize].clone();
            let mut begin = spec.live.begin;
            let mut after = None;
            if let (None, Some(first_use)) = (first.last_use, first.next_use) {
                (after, begin, mine) = (Some(*first), first_use, &mine[1..]);
            }
            for i in 0..=mine.len() {
                let before = mine.get(i).copied();
                let last_use = before.and_then(|absence| absence.last_use);
                let end = last_use.map_or(spec.live.end, |last_use| last_use + 1);
                let used = StepRange::new(begin, end);
                let stay = BufferSpec {
                    name: spec.name.clone(),
                    bytes: whole_blocks(spec.bytes),
                    align: BLOCK_BYTES,
                    live: used,
                    kept: false,
                };
                let part = if i == 0 {
                    workload.buffers[first.buffer as usize] = stay;
                    first.buffer
                } else {
                    workload.buffers.push(stay);
                    workload.buffers.len() as u32 - 1
                };
                stays.push(Stay {
                    buffer: first.buffer,
                    after,
                    before,
                    part,
                    used,
                });
                after = before;
                match before.and_then(|absence| absence.next_use) {
                    Some(next) => begin = next,
                    None => break,
                }
            }
        }
        // Whose buffer is whose is the business of the workload that was split.
        for step in &mut workload.steps {
            step.reads.clear();
            step.writes.clear();
        }
        for buffer in &mut workload.buffers {
            buffer.kept = false;
        }
        let streams = |b: &BufferId| stays.iter().any(|s| s.buffer == b.0);
        workload.states.retain(|b| !streams(b));
        Split {
            workload,
            absences,
            stays,
        }
    }
}

fn is_state(w: &Workload, buffer: usize) -> bool {
    w.states.binary_search(&BufferId(buffer as u32)).is_ok()
}

/// By buffer, the steps at which it must be in the arena, in order, and whether they write it: those that
/// the workload lists, and both ends of its life. One that no step lists is in use throughout.
pub fn uses(w: &Workload) -> Vec<Vec<(u32, bool)>> {
    let mut uses: Vec<Vec<(u32, bool)>> = vec![Vec::new(); w.buffers.len()];
    for (step, spec) in w.steps.iter().enumerate() {
        for (buffers, writes) in [(&spec.reads, false), (&spec.writes, true)] {
            for buffer in buffers {
                let of = &mut uses[buffer.index()];
                match of.last_mut() {
                    Some(last) if last.0 == step as u32 => last.1 |= writes,
                    _ => of.push((step as u32, writes)),
                }
            }
        }
    }
    for (b, (of, spec)) in uses.iter_mut().zip(&w.buffers).enumerate() {
        let live = spec.live;
        if live.is_empty() {
            of.clear();
            continue;
        }
        if of.is_empty() {
            of.extend((live.begin..live.end).map(|step| (step, true)));
        }
        if is_state(w, b) {
            // Its life has no ends.
            continue;
        }
        if of.first().is_none_or(|first| first.0 > live.begin) {
            of.insert(0, (live.begin, true));
        }
        if !spec.kept && of.last().is_none_or(|last| last.0 + 1 < live.end) {
            of.push((live.end - 1, false));
        }
    }
    uses
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_plan::StepSpec;

    /// A large buffer and a hundred small ones are idle in the middle step.
    #[test]
    fn few_transfers_are_better_than_many_small_ones() {
        const SMALL: u32 = 100;
        let all: Vec<BufferId> = (0..=SMALL).map(BufferId).collect();
        let step = |reads: &[BufferId], writes: &[BufferId]| StepSpec {
            reads: reads.to_vec(),
            writes: writes.to_vec(),
            ..StepSpec::default()
        };
        let steps = vec![step(&[], &all), step(&[], &[]), step(&all, &[])];
        let buffer = |bytes| BufferSpec {
            name: "b".into(),
            bytes,
            align: 64,
            live: StepRange::new(0, 3),
            kept: false,
        };
        let mut buffers = vec![buffer(4096); SMALL as usize];
        buffers.push(buffer(1 << 20));
        let w = Workload {
            steps,
            buffers,
            ..Workload::default()
        };
        let traffic = Traffic::new(&w, false);
        let whole = (1 << 20) + 4096 * u64::from(SMALL);
        let away = |target| -> Vec<u32> {
            let absences = traffic.split(target).absences;
            absences.iter().map(|a| a.buffer).collect()
        };
        // 64 small ones would move a quarter of the bytes, in 64 times as many transfers.
        assert_eq!(away(whole - 64 * 4096), [SMALL]);
        // Where it must be, they leave, too.
        assert_eq!(away(0).len(), SMALL as usize + 1);
    }
}
