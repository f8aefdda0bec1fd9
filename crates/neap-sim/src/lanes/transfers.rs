//! A lane that moves bytes, and a lane that computes: their own clocks and counts.

use std::collections::VecDeque;

use neap_plan::{Lane, LaneId, LaneKind, LinkId, Span};

use crate::CostProfile;

/// Loads on their way, or stores.
pub(super) struct Transfers<'a> {
    pub lane: LaneId,
    pub kind: LaneKind,
    pub link: LinkId,
    pub costs: &'a CostProfile,
    /// The lane's actions, by their index in the plan's list.
    pub actions: Vec<u32>,
    ns_per_byte: f64,
    /// Its rate while the link carries bytes the other way, too, as a share of its full one.
    pub both_ways: f64,
    /// Started and not complete, oldest first; the oldest one moves when its latency is over.
    pub in_flight: VecDeque<Transfer>,
    /// In groups, what has moved waits for the rest of its group.
    pub is_grouped: bool,
    moved: Vec<Transfer>,
    /// Counted over all runs.
    pub started: u64,
    pub complete: u64,
    /// Those that were noticed to be complete, and those whose handling a compute lane has paid for.
    pub noticed: u64,
    pub handled: u64,
    /// When those of the last two runs and of the next one were complete, and noticed.
    complete_ns: Vec<u64>,
    noticed_ns: Vec<u64>,
}

pub(super) struct Transfer {
    /// When all that it waits for held, and when it was started.
    ready_ns: u64,
    start_ns: u64,
    first_byte_ns: u64,
    /// What is left to move, in nanoseconds at the full rate.
    left: f64,
}

impl<'a> Transfers<'a> {
    pub fn new(
        (id, lane): (LaneId, &Lane),
        actions: Vec<u32>,
        costs: &'a CostProfile,
        is_grouped: bool,
    ) -> Transfers<'a> {
        let rates = (costs.storage_bytes_per_second, costs.store_rate());
        let both_ways = costs.both_ways_rate() / (rates.0 + rates.1);
        Transfers {
            lane: id,
            kind: lane.kind,
            link: lane.link,
            costs,
            ns_per_byte: match lane.kind {
                LaneKind::Store => 1e9 / rates.1,
                _ => 1e9 / rates.0,
            },
            both_ways: match both_ways.is_finite() {
                true => both_ways.clamp(1e-6, 1.0),
                false => 1.0,
            },
            in_flight: VecDeque::new(),
            is_grouped: is_grouped && lane.kind == LaneKind::Load,
            moved: Vec::new(),
            started: 0,
            complete: 0,
            noticed: 0,
            handled: 0,
            complete_ns: vec![0; 3 * actions.len()],
            noticed_ns: vec![0; 3 * actions.len()],
            actions,
        }
    }

    pub fn per_run(&self) -> u64 {
        self.actions.len() as u64
    }

    /// The run and the action of that number, counted over all runs; `None` in a lane without actions.
    pub fn action(&self, number: u64) -> Option<(u64, usize)> {
        let run = number.checked_div(self.per_run())?;
        let action = self.actions[(number % self.per_run()) as usize];
        Some((run, action as usize))
    }

    pub fn has_room(&self) -> bool {
        self.in_flight.len() < self.costs.queue_depth.max(1) as usize
    }

    pub fn start(&mut self, now: u64, ready_ns: u64, bytes: u64) {
        self.in_flight.push_back(Transfer {
            ready_ns,
            start_ns: now,
            first_byte_ns: now + self.costs.request_latency_ns,
            left: (bytes as f64 * self.ns_per_byte).round(),
        });
        self.started += 1;
    }

    pub fn is_moving(&self, now: u64) -> bool {
        let first = self.in_flight.front();
        first.is_some_and(|t| t.first_byte_ns <= now)
    }

    /// When something happens next at this rate, if nothing else changes.
    pub fn next_event(&self, now: u64, rate: f64) -> Option<u64> {
        let head = self.in_flight.front()?;
        Some(match head.first_byte_ns {
            later if later > now => later,
            _ => now + (head.left / rate).ceil() as u64,
        })
    }

    /// So much more has moved, of what moved at `before`.
    pub fn pass(&mut self, before: u64, passed: f64) {
        if let Some(t) = self.in_flight.front_mut()
            && t.first_byte_ns <= before
        {
            t.left -= passed;
        }
    }

    /// The oldest one, if all of it has moved; true if there was one.
    pub fn take_moved(&mut self, now: u64) -> bool {
        let is_over = |t: &Transfer| t.first_byte_ns <= now && t.left <= 1e-6;
        let is_over = self.in_flight.front().is_some_and(is_over);
        if is_over {
            self.moved.extend(self.in_flight.pop_front());
        }
        is_over
    }

    /// What has moved is complete.
    pub fn arrive(&mut self, now: u64, span: &mut dyn FnMut(Span)) {
        let (lane, count) = (self.lane, self.per_run());
        for t in self.moved.drain(..) {
            let number = self.complete;
            span(Span {
                lane,
                run: (number / count) as u32,
                action: self.actions[(number % count) as usize],
                ready_ns: t.ready_ns,
                start_ns: t.start_ns,
                end_ns: now,
            });
            let at = number % self.complete_ns.len() as u64;
            self.complete_ns[at as usize] = now;
            self.complete += 1;
        }
    }

    /// The thread that computes looks what is complete.
    pub fn look(&mut self, now: u64) {
        while self.noticed < self.complete {
            let at = self.noticed as usize % self.noticed_ns.len();
            self.noticed_ns[at] = now;
            self.noticed += 1;
        }
    }

    /// How many are complete as far as others go by: stores count when they were noticed.
    pub fn known(&self) -> u64 {
        match self.kind {
            LaneKind::Store => self.noticed,
            _ => self.complete,
        }
    }

    /// When the first `count` of a run were complete; they are.
    pub fn known_at(&self, run: u64, count: u64) -> u64 {
        let times = match self.kind {
            LaneKind::Store => &self.noticed_ns,
            _ => &self.complete_ns,
        };
        match (run * self.per_run() + count).checked_sub(1) {
            Some(number) if count > 0 => times[number as usize % times.len()],
            _ => 0,
        }
    }
}

/// A lane of computes.
pub(super) struct Computes<'a> {
    pub lane: LaneId,
    pub costs: &'a CostProfile,
    /// Its actions, by their index in the plan's list, and their times.
    pub actions: Vec<u32>,
    pub ns: Vec<u64>,
    /// Computes done, over all runs, and when those of the last two runs were.
    pub done: u64,
    ends: Vec<u64>,
    /// What computes now: when it ends.
    pub computing: Option<u64>,
    /// When the lane turned to the next compute, and when it has handled what came before it.
    pub ready_ns: u64,
    pub free_ns: u64,
    /// The next compute's handling is part of `free_ns`.
    pub is_paid: bool,
}

impl<'a> Computes<'a> {
    pub fn new(
        lane: LaneId,
        actions: Vec<u32>,
        ns: Vec<u64>,
        costs: &'a CostProfile,
    ) -> Computes<'a> {
        Computes {
            lane,
            costs,
            done: 0,
            ends: vec![0; 2 * actions.len()],
            computing: None,
            ready_ns: 0,
            free_ns: 0,
            is_paid: false,
            actions,
            ns,
        }
    }

    pub fn n(&self) -> u64 {
        self.actions.len() as u64
    }

    /// When the first `computes` of a run were done, at least one of which there is.
    pub fn done_at(&self, run: u64, computes: u64) -> u64 {
        self.ends[((run * self.n() + computes - 1) as usize) % self.ends.len()]
    }

    /// The place in the lane of the next compute of a run, if there is one and none goes on.
    pub fn next(&self, run: u64) -> Option<usize> {
        let at = (self.done - run * self.n()) as usize;
        (at < self.actions.len() && self.computing.is_none()).then_some(at)
    }

    /// The one that goes on is done.
    pub fn end(&mut self, now: u64) {
        self.computing = None;
        let at = self.done as usize % self.ends.len();
        self.ends[at] = now;
        self.done += 1;
        self.ready_ns = now;
        self.free_ns = now;
        self.is_paid = false;
    }
}
