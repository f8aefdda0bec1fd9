//! Where each buffer lies when, and that it is there, with what was written to it, whenever a step uses it.
//!
//! ```text
//!   uses of b     ▓ ▓   ▓                       ▓   ▓
//!   stays         ├ first stay ─────┤      ├─ second stay ─┤      each one a rectangle in the arena
//!                       │ used_until│ end  │ begin: the load may be in flight
//!   store               └──── b ────┘      │
//!   load                                   └─ b ─┘
//! ```
//! A state that streams has no first stay: each run loads it from its home, where the run before left it.
//!
//! Between `used_until` and `end` the store may still read the memory. A load that waits for that store
//! itself may come as soon as `used_until`; for everything else it is over when some compute has waited.

use super::computes::StepTimes;
use super::lanes::ranks;
use super::spaces::inside;
use crate::{
    AfterCompute, Area, BLOCK_BYTES, BufferId, ExecutionPlan as Plan, LaneId, Place, Return,
    SpaceKind, Store, Turn, Violation, Workload, whole_blocks,
};

/// A stretch of time in which a buffer lies at one place. Times count from the start of its run.
#[derive(Clone, Copy)]
pub(super) struct Stay {
    pub buffer: usize,
    pub at: Place,
    pub bytes: u64,
    pub align: u64,
    pub begin: u64,
    pub used_until: u64,
    pub end: u64,
    /// The load that brings it, unless it is the first stay.
    pub opened_by: Option<u32>,
    /// The last store that reads it.
    pub held_by: Option<u32>,
}

/// All stays of a run, in order of buffers.
pub(super) fn stays(
    w: &Workload,
    plan: &Plan,
    times: &StepTimes,
    compute_lane: LaneId,
) -> Result<Vec<Stay>, Violation> {
    let in_order = |a: &Return, b: &Return| (a.buffer, a.step) < (b.buffer, b.step);
    if let Some(pair) = plan.returns.windows(2).find(|p| !in_order(&p[0], &p[1])) {
        return Err(not_so(&pair[1], "returns are not in order"));
    }
    let mut stores_of = vec![Vec::new(); w.buffers.len()];
    for (store, s) in plan.stores.iter().enumerate() {
        let Some(list) = stores_of.get_mut(s.buffer.index()) else {
            return Err(bad_store(store, "there is no such buffer"));
        };
        check_blocks(plan, store, s)?;
        list.push(store);
    }
    if let Some(back) = plan.returns.last()
        && back.buffer.index() >= w.buffers.len()
    {
        return Err(not_so(back, "there is no such buffer"));
    }
    let store_ranks = ranks(plan, plan.stores.iter().map(|s| s.turn));
    let mut check = Check {
        plan,
        times,
        compute_lane,
        uses: uses(w),
        complete_at: complete_at(plan, &store_ranks),
        store_ranks,
        load_ranks: ranks(plan, plan.loads.iter().map(|l| l.turn)),
        load_used: vec![false; plan.loads.len()],
        read_until: vec![0; plan.stores.len()],
    };
    let mut out = Vec::with_capacity(w.buffers.len() + plan.returns.len());
    for (buffer, stores) in stores_of.iter().enumerate() {
        check.buffer(w, buffer, stores, &mut out)?;
    }
    let from_spill = |load: &usize| is_spill(plan, plan.loads[*load].from);
    let unused = |load: &usize| from_spill(load) && !check.load_used[*load];
    if let Some(load) = (0..plan.loads.len()).find(unused) {
        return Err(Violation::UnusedLoad { load });
    }
    if let Some(store) = check.read_until.iter().position(|&end| end == 0) {
        return Err(bad_store(store, "nothing reads what it writes"));
    }
    check_spill_file(plan, compute_lane, &check.read_until)?;
    Ok(out)
}

struct Check<'a> {
    plan: &'a Plan,
    times: &'a StepTimes,
    compute_lane: LaneId,
    /// By store and load: how many of its lane come before it.
    store_ranks: Vec<u32>,
    load_ranks: Vec<u32>,
    /// By buffer: the steps that use it, in order, and whether they write it.
    uses: Vec<Vec<(u32, bool)>>,
    /// By store: the compute before which it is complete, whatever the lanes do.
    complete_at: Vec<u64>,
    /// By load: it brings a buffer back.
    load_used: Vec<bool>,
    /// By store: what it wrote is wanted in the spill file until then; 0 when nothing reads it.
    read_until: Vec<u64>,
}

impl Check<'_> {
    /// Whether an action with that turn waits for the store.
    fn waits_for_store(&self, turn: Turn, store: usize) -> bool {
        self.store_ranks[store] < turn.count(self.plan.stores[store].turn.lane)
    }

    fn waits_for_load(&self, turn: Turn, load: usize) -> bool {
        self.load_ranks[load] < turn.count(self.plan.loads[load].turn.lane)
    }

    /// So many computes are done when the store may start.
    fn stored_after(&self, store: usize) -> u64 {
        let turn = self.plan.stores[store].turn;
        turn.count(self.compute_lane).into()
    }

    fn buffer(
        &mut self,
        w: &Workload,
        buffer: usize,
        stores: &[usize],
        out: &mut Vec<Stay>,
    ) -> Result<(), Violation> {
        let spec = &w.buffers[buffer];
        let returns = self.plan.returns_of(BufferId(buffer as u32));
        let moves = !stores.is_empty() || !returns.is_empty();
        if spec.bytes == 0 || spec.live.is_empty() {
            return match (stores.first(), returns.first()) {
                (Some(&store), _) => Err(bad_store(store, "its buffer holds nothing")),
                (_, Some(back)) => Err(not_so(back, "the buffer holds nothing")),
                _ => Ok(()),
            };
        }
        let (bytes, align) = if moves {
            (whole_blocks(spec.bytes), BLOCK_BYTES)
        } else {
            (spec.bytes, spec.align)
        };
        let first = |step: u32| self.times.first[step as usize];
        let from = out.len();
        let home = self.plan.streaming_home(BufferId(buffer as u32));
        let mut begins = Vec::with_capacity(1 + returns.len());
        let whole = Stay {
            buffer,
            at: self.plan.buffers[buffer],
            bytes,
            align,
            begin: first(spec.live.begin),
            used_until: 0,
            end: 0,
            opened_by: None,
            held_by: None,
        };
        match (home, returns.first()) {
            (None, _) => {
                begins.push(spec.live.begin);
                out.push(whole);
            }
            (Some(_), Some(back)) => {
                let mut uses = self.uses[buffer].iter();
                if uses.any(|&(step, _)| step < back.step.0) {
                    return Err(not_so(back, "the state is used before it is loaded"));
                }
            }
            (Some(_), None) => {
                return Err(Violation::State {
                    buffer: buffer as u32,
                    why: "it is never loaded",
                });
            }
        }
        for back in returns {
            let step = back.step.0;
            let begins_before = spec.live.begin < step || home.is_some();
            if !begins_before || step >= spec.live.end {
                return Err(not_so(back, "the buffer does not live then"));
            }
            let load = back.load as usize;
            let Some(l) = self.plan.loads.get(load) else {
                return Err(not_so(back, "there is no such load"));
            };
            if !is_spill(self.plan, l.from) || l.bytes != bytes || self.load_used[load] {
                return Err(not_so(back, "its load brings something else"));
            }
            let turn = self.plan.computes[first(step) as usize].turn;
            if !self.waits_for_load(turn, load) {
                return Err(not_so(back, "the step does not wait for its load"));
            }
            self.load_used[load] = true;
            begins.push(step);
            out.push(Stay {
                at: l.to,
                begin: AfterCompute::of(l.turn, self.compute_lane).computes.into(),
                opened_by: Some(back.load),
                ..whole
            });
        }
        // Each stay is used up to the last use before the next one.
        for (i, stay) in out[from..].iter_mut().enumerate() {
            let next = begins.get(i + 1).copied().unwrap_or(u32::MAX);
            let mine = |&&(step, _): &&(u32, bool)| begins[i] <= step && step < next;
            let last_use = self.uses[buffer].iter().rev().find(mine);
            stay.used_until = last_use.map_or(first(begins[i]), |&(step, _)| first(step + 1));
        }
        let written_after = |after: u64, before: u32| {
            let uses = self.uses[buffer].iter();
            uses.filter(|(step, writes)| *writes && *step < before)
                .any(|&(step, _)| first(step + 1) > after)
        };
        for back in returns {
            let l = &self.plan.loads[back.load as usize];
            let complete = |s: &&usize| self.waits_for_store(l.turn, **s);
            let complete = stores.iter().rev().filter(complete);
            if home == Some(l.from) && !written_after(0, back.step.0) {
                // What the run before left.
                continue;
            }
            let mut same_place = complete.filter(|&&s| self.plan.stores[s].to == l.from);
            let Some(&store) = same_place.next() else {
                return Err(not_so(back, "no store that is complete by then wrote it"));
            };
            if written_after(self.stored_after(store), back.step.0) {
                return Err(not_so(back, "it is written after it was stored"));
            }
            let until = &mut self.read_until[store];
            *until = (*until).max(first(back.step.0) + 1);
        }
        if let Some(last) = out.last_mut() {
            let kept_by = stores
                .iter()
                .rev()
                .find(|&&s| !written_after(self.stored_after(s), u32::MAX))
                .filter(|_| spec.kept || home.is_some());
            match kept_by {
                Some(&store) => self.read_until[store] = u64::MAX,
                None if home.is_none() => last.used_until = first(spec.live.end),
                None if written_after(0, u32::MAX) => {
                    return Err(Violation::State {
                        buffer: buffer as u32,
                        why: "what is written last is not stored",
                    });
                }
                None => {}
            }
        }
        for &store in stores {
            let s = &self.plan.stores[store];
            let stay = begins.partition_point(|&step| first(step) < self.stored_after(store));
            let Some(stay) = stay.checked_sub(1).map(|i| &mut out[from + i]) else {
                return Err(bad_store(store, "its buffer is not in memory yet"));
            };
            if s.from != stay.at || s.bytes != bytes {
                return Err(bad_store(store, "its buffer lies elsewhere"));
            }
            stay.held_by = Some(store as u32);
            stay.end = stay.end.max(self.complete_at[store]);
        }
        for stay in &mut out[from..] {
            stay.end = stay.end.max(stay.used_until);
        }
        Ok(())
    }
}

fn not_so(back: &Return, why: &'static str) -> Violation {
    Violation::Return {
        buffer: back.buffer.0,
        step: back.step.0,
        why,
    }
}

fn bad_store(store: usize, why: &str) -> Violation {
    Violation::Store {
        store,
        why: why.into(),
    }
}

fn is_spill(plan: &Plan, at: Place) -> bool {
    plan.kind(at.space) == Some(SpaceKind::Spill)
}

fn check_blocks(plan: &Plan, store: usize, s: &Store) -> Result<(), Violation> {
    for (name, value) in [("bytes", s.bytes), ("place in the spill file", s.to.offset)] {
        if !value.is_multiple_of(BLOCK_BYTES) || value >= 1 << 44 {
            return Err(bad_store(
                store,
                &format!("{value}, its {name}, is not in whole blocks"),
            ));
        }
    }
    inside(
        plan,
        || format!("store {store}"),
        s.to,
        s.bytes,
        SpaceKind::Spill,
    )
}

/// A buffer that nobody lists may be used, and written, by every step of its live range.
fn uses(w: &Workload) -> Vec<Vec<(u32, bool)>> {
    let mut uses = vec![Vec::new(); w.buffers.len()];
    for (step, spec) in w.steps.iter().enumerate() {
        let step = step as u32;
        for (list, writes) in [(&spec.reads, false), (&spec.writes, true)] {
            for buffer in list {
                let of: &mut Vec<(u32, bool)> = &mut uses[buffer.index()];
                match of.last_mut() {
                    Some(last) if last.0 == step => last.1 |= writes,
                    _ => of.push((step, writes)),
                }
            }
        }
    }
    for (of, buffer) in uses.iter_mut().zip(&w.buffers) {
        if of.is_empty() {
            of.extend((buffer.live.begin..buffer.live.end).map(|step| (step, true)));
        }
    }
    uses
}

/// By store: the first compute that waits for it, or the end of the run.
fn complete_at(plan: &Plan, ranks: &[u32]) -> Vec<u64> {
    let n = plan.computes.len() as u64;
    let mut at = vec![n; plan.stores.len()];
    // By lane: its stores, in order, and how many of them some compute has waited for.
    let mut of_lane = vec![Vec::new(); plan.lanes.len()];
    for (store, s) in plan.stores.iter().enumerate() {
        debug_assert_eq!(ranks[store] as usize, of_lane[s.turn.lane.index()].len());
        of_lane[s.turn.lane.index()].push(store);
    }
    let mut complete = vec![0usize; plan.lanes.len()];
    for (compute, c) in (0..).zip(&plan.computes) {
        for wait in c.turn.waits() {
            let lane = wait.lane.index();
            while let Some(&store) = of_lane[lane].get(complete[lane])
                && complete[lane] < wait.count as usize
            {
                at[store] = compute;
                complete[lane] += 1;
            }
        }
    }
    at
}

/// Nothing is written in the spill file over what is still to be read there.
fn check_spill_file(
    plan: &Plan,
    compute_lane: LaneId,
    read_until: &[u64],
) -> Result<(), Violation> {
    let after = |store: usize| plan.stores[store].turn.count(compute_lane);
    let mut order: Vec<usize> = (0..plan.stores.len()).collect();
    order.sort_by_key(|&s| after(s));
    let mut live: Vec<(Area, usize)> = Vec::new();
    for store in order {
        let s = &plan.stores[store];
        live.retain(|&(_, other)| read_until[other] > u64::from(after(store)));
        if let Some(&(_, a)) = live.iter().find(|(r, _)| r.overlaps(s.to.area(s.bytes))) {
            return Err(Violation::Overlap {
                a: format!("what store {a} wrote"),
                b: format!("what store {store} writes"),
                time: after(store).into(),
            });
        }
        live.push((s.to.area(s.bytes), store));
    }
    Ok(())
}
